//! Locks of a directory queue: `src/dirq/{simple,normal}/{lock,protocol,purge,remove}.rs`, `delivery.rs`, `records.rs`.
//!
//! **Protocol.** Each step is one file system call of one process. A worker of a simple queue looks for the lock,
//! touches the element, and links the lock to it; one of a normal queue makes the directory `locked`. It reads through
//! the lock, reads the record in `retries/` and writes its own delivery there. An ack, a failure, a release and a
//! renewal first compare the record, which is the fence of a queue that counts deliveries. A purge examines the age of
//! a lock under an advisory lock of its own, and removes it.
//!
//! **Invariants.** If workers keep their locks for less than `max_lock`, less the differences of the clocks, no purge
//! and no other worker removes a lock that a worker holds, the number of an attempt is right and within its bound, and
//! a dead letter is not delivered. Even if workers are slower than that, an element is removed by one ack only.
//!
//! **Covered.** One element; two workers that crash at any step; two purges by machines whose clocks are ahead, behind,
//! or so wrong that a lock is from the future; dead letters.
//!
//! **Not covered.** Other implementations, whose purges take no advisory lock. File systems that execute a call twice.
//! Records that cannot be written. The removal of a normal element after its rename.

mod steps;

use stateright::{Model, Property};

use self::steps::{IDLE, MAX_WORK, Purge, State, Step, Worker};

/// Age from which a lock is stale, tolerance for locks from the future, and the bound of attempts.
const MAX_LOCK: i8 = 4;
const TOLERANCE: i8 = 1;
const MAX_ATTEMPTS: u8 = 2;

const HELD: &str = "a lock in use stays";
const ACKED_ONCE: &str = "an element is acked once";
const COUNTED: &str = "attempts are counted";

/// One element, two workers and two purges.
pub struct Protocol {
    /// Mutation of the protocol that its properties must find.
    pub bug: Option<Bug>,
    /// True for a normal queue, whose lock is a directory.
    pub is_normal: bool,
    /// True if workers may be slower than `max_lock`.
    pub is_slow: bool,
    /// Number of ticks of the clock, and of crashes.
    pub ticks: i8,
    /// Number of crashes of workers.
    pub crashes: u8,
}

/// Mutations of the protocol.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bug {
    /// A purge examines and removes a lock while another one does.
    PurgesRace,
    /// A purge compares the age of a lock with the present time.
    CutoffMoves,
    /// A worker links its lock to an element that it has not touched.
    LockIsOld,
    /// An ack deletes the record before the element.
    RecordIsRemovedFirst,
    /// Workers keep their locks for `max_lock`, regardless of the clocks.
    ClocksAreIgnored,
    /// The second of two workers that remove an element has acked it, too.
    MissingElementIsAcked,
}

/// The operation of a worker on its element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// The next step.
    Next,
    /// An ack.
    Ack,
    /// A failed attempt.
    Fail,
    /// A release, which does not count.
    Release,
    /// A renewal.
    Renew,
    /// The end of the process.
    Crash,
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// The clock advances.
    Tick,
    /// A worker makes a call.
    Work(usize, Choice),
    /// A purge makes a call.
    Purge(usize),
    /// A process that purges ends.
    CrashPurge(usize),
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            now: 0,
            has_element: true,
            has_lock: false,
            // Added long ago.
            modified: -2 * MAX_LOCK,
            record: (0, false),
            purging: None,
            workers: [IDLE; 2],
            purges: [Purge::Find; 2],
            cutoffs: [0; 2],
            crashes: 0,
            acks: 0,
            deliveries: 0,
            violation: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let is_in_time = |worker: &Worker| {
            let most = if self.bug == Some(Bug::ClocksAreIgnored) { MAX_LOCK } else { MAX_WORK };
            self.is_slow || worker.since.is_none_or(|since| state.now < since + most)
        };
        if state.now < self.ticks && state.workers.iter().all(is_in_time) {
            actions.push(Action::Tick);
        }
        for (at, worker) in state.workers.iter().enumerate() {
            let choices = match worker.step {
                Step::Work { .. } => {
                    &[Choice::Ack, Choice::Fail, Choice::Release, Choice::Renew][..]
                }
                _ => &[Choice::Next],
            };
            actions.extend(choices.iter().map(|choice| Action::Work(at, *choice)));
            if *worker != IDLE && state.crashes < self.crashes {
                actions.push(Action::Work(at, Choice::Crash));
            }
        }
        for (at, purge) in state.purges.iter().enumerate() {
            actions.push(Action::Purge(at));
            if *purge != Purge::Find && state.crashes < self.crashes {
                actions.push(Action::CrashPurge(at));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        match action {
            Action::Tick => next.now += 1,
            Action::Work(worker, Choice::Crash) => {
                next.crashes += 1;
                next.stop(worker)?;
            }
            Action::Work(worker, choice) => next.work(self, worker, choice)?,
            Action::Purge(purge) => next.purge(self, purge)?,
            // The system releases the advisory lock.
            Action::CrashPurge(purge) => {
                next.crashes += 1;
                next.cutoffs[purge] = 0;
                (next.purges[purge], next.purging) =
                    (Purge::Find, next.purging.filter(|owner| *owner != purge));
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(HELD, |_, state: &State| state.violation != Some(HELD)),
            Property::always(COUNTED, |_, state: &State| state.violation != Some(COUNTED)),
            Property::always(ACKED_ONCE, |_, state: &State| state.acks <= 1),
            Property::sometimes("a dead letter", |_, state: &State| state.record.1),
            Property::sometimes("acked", |_, state: &State| state.acks == 1 && !state.has_lock),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{assert_finds, assert_holds, is_large};

    fn protocol(is_normal: bool, is_slow: bool, bug: Option<Bug>) -> Protocol {
        let (ticks, crashes) = match (is_large(), is_slow) {
            (false, false) => (8, 2),
            (true, false) => (12, 3),
            (false, true) => (5, 0),
            (true, true) => (6, 1),
        };
        Protocol { bug, is_normal, is_slow, ticks, crashes }
    }

    #[test]
    fn locks_of_both_kinds_hold() {
        for (name, is_normal, min, slow_min) in
            [("simple queue", false, 604_000, 2_278_000), ("normal queue", true, 87_000, 538_000)]
        {
            assert_holds(name, protocol(is_normal, false, None), min);
            let slow = protocol(is_normal, true, None);
            assert_holds(&format!("{name}, slow workers"), slow, slow_min);
        }
    }

    #[test]
    fn bugs_are_found() {
        for (bug, is_slow, property) in [
            (Bug::PurgesRace, false, HELD),
            (Bug::ClocksAreIgnored, false, HELD),
            (Bug::RecordIsRemovedFirst, false, COUNTED),
            (Bug::MissingElementIsAcked, true, ACKED_ONCE),
        ] {
            for is_normal in [false, true] {
                assert_finds(bug, protocol(is_normal, is_slow, Some(bug)), property);
            }
        }
        assert_finds(Bug::CutoffMoves, protocol(true, false, Some(Bug::CutoffMoves)), HELD);
        assert_finds(Bug::LockIsOld, protocol(false, false, Some(Bug::LockIsOld)), HELD);
    }
}
