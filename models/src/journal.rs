//! The journal of removals and the log of events: `src/engine/event/{journal,publisher,log,channel}.rs`.
//!
//! **Protocol.** A writer records a removal in a part of the journal while it has the lock of its shard, raises flags,
//! and then publishes the journal if it is due: it takes all removals under the lock of the log and appends them to the
//! channels. If another thread has the log, the journal batches. A subscriber that finds no event marks its cause as
//! awaited, takes the journal again, and parks. The sweeper asks for room before it removes, and waits until half of
//! the capacity of each lossless subscriber is free.
//!
//! **Invariants.** Removals of a shard are published in order, each once. A subscriber receives each published event
//! from its subscription on, or its number in `Lagged`. If no thread is at work, no parked subscriber has an unread
//! event, in its channel or in the journal, and the sweeper waits only for a subscriber without room. Events stay only
//! while a subscriber has them before it.
//!
//! **Covered.** Two shards and parts; two writers, or a writer and the sweeper; a lossless and a lagging subscriber
//! with a capacity of one, which subscribe, read, park and leave at any time; contention and batches.
//!
//! **Not covered.** Several causes and `only`, waiters by key, the end of the cache, and orderings weaker than
//! sequential consistency: those are explored by the interleavings in `src/engine`.

mod channel;
mod steps;
mod subscriber;
mod writer;

use stateright::{Model, Property};

pub use self::steps::{Action, State};
use self::steps::{Reader, ReaderStep, Writer, WriterStep};

const ORDERED: &str = "removals are published in order and once";
const RECEIVED: &str = "each event is received or counted as missed";
const RECORDED: &str = "no removal is unrecorded while there is a subscriber";
const WOKEN: &str = "no parked subscriber has an unread event";
const RESUMED: &str = "the sweeper waits only for room";
const RELEASED: &str = "no event stays without a reader";

/// The writers, the sweeper and the subscribers of one cache.
#[derive(Clone, Debug)]
pub struct Protocol {
    /// Mutation of the protocol that its properties must find.
    pub bug: Option<Bug>,
    /// Shards from which each writer removes an entry, in turn.
    pub writers: Vec<Vec<u8>>,
    /// True if the last writer is the sweeper.
    pub has_sweeper: bool,
    /// Number of subscriptions.
    pub subscriptions: u8,
}

/// Mutations of the protocol.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bug {
    /// A subscriber parks without taking the journal again.
    ParksAtOnce,
    /// A removal that a subscriber waits for is left to the next batch.
    AwaitedIsNotUrgent,
    /// The end of batching takes one part only.
    OnePartIsTaken,
    /// A subscriber that leaves is still counted at its event.
    LeaverIsCounted,
    /// A subscriber that leaves does not resume the sweeper.
    SweeperIsForgotten,
    /// A reader whose event was pushed out of a full ring continues without `Lagged`.
    MissedIsNotCounted,
    /// A subscriber that leaves ends the recording of removals, although another one stays.
    LeaverEndsRecording,
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let writers = self.writers.iter().map(|_| Writer::default()).collect();
        vec![State::new(writers)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for writer in 0..state.writers.len() {
            actions.push(Action::Write(writer));
        }
        for (reader, Reader { step, .. }) in state.readers.iter().enumerate() {
            match step {
                ReaderStep::Absent if state.subscriptions < self.subscriptions => {
                    actions.push(Action::Subscribe(reader));
                }
                ReaderStep::Absent => {}
                ReaderStep::Ready => actions.extend([Action::Poll(reader), Action::Leave(reader)]),
                ReaderStep::Parked => actions.push(Action::Leave(reader)),
                _ => actions.push(Action::Continue(reader)),
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        match action {
            Action::Write(writer) => next.write(self, writer)?,
            Action::Subscribe(reader) => {
                next.subscriptions += 1;
                next.lock_log(reader, action)?;
            }
            Action::Poll(reader) | Action::Leave(reader) => next.lock_log(reader, action)?,
            Action::Continue(reader) => next.read(self, reader)?,
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ORDERED, |_, state: &State| state.violation != Some(ORDERED)),
            Property::always(RECEIVED, |_, state: &State| state.violation != Some(RECEIVED)),
            Property::always(RECORDED, |_, state: &State| state.violation != Some(RECORDED)),
            Property::always(WOKEN, |_, state: &State| !state.is_quiet() || state.all_are_woken()),
            Property::always(RESUMED, |protocol, state: &State| {
                let waits = protocol.has_sweeper
                    && state
                        .writers
                        .last()
                        .is_some_and(|writer| writer.step == WriterStep::Waiting);
                !waits || !state.is_quiet() || state.has_permit || !state.is_half_free()
            }),
            Property::always(RELEASED, |_, state: &State| {
                state.log_owner.is_some() || state.channels_are_consistent()
            }),
            Property::sometimes("batching", |_, state: &State| state.is_batching),
            Property::sometimes("all is published", |protocol, state: &State| {
                state.published.len() == protocol.writers.iter().map(Vec::len).sum::<usize>()
            }),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{assert_finds, assert_holds, is_large};

    fn writers(bug: Option<Bug>) -> Protocol {
        let writers = match is_large() {
            true => vec![vec![0, 1, 0], vec![1]],
            false => vec![vec![0, 1], vec![1]],
        };
        Protocol { bug, writers, has_sweeper: false, subscriptions: 2 }
    }

    fn sweeper(bug: Option<Bug>) -> Protocol {
        let writers =
            if is_large() { vec![vec![0, 1], vec![1]] } else { vec![vec![0], vec![1, 0]] };
        Protocol { writers, has_sweeper: true, ..self::writers(bug) }
    }

    /// Enough removals that a shard has some in both parts: batching begins after one, and ends after another.
    fn batches(bug: Option<Bug>) -> Protocol {
        Protocol { writers: vec![vec![0, 0, 1], vec![1]], subscriptions: 1, ..writers(bug) }
    }

    #[test]
    fn journal_and_log_hold() {
        assert_holds("journal, batches", batches(None), 187_000);
        assert_holds("journal, writers", writers(None), 778_000);
        assert_holds("journal, sweeper", sweeper(None), 744_000);
    }

    #[test]
    fn bugs_are_found() {
        for (bug, property) in [
            (Bug::ParksAtOnce, WOKEN),
            (Bug::AwaitedIsNotUrgent, WOKEN),
            (Bug::LeaverIsCounted, RELEASED),
            (Bug::MissedIsNotCounted, RECEIVED),
            (Bug::LeaverEndsRecording, RECORDED),
        ] {
            assert_finds(bug, writers(Some(bug)), property);
        }
        let bug = Bug::SweeperIsForgotten;
        assert_finds(bug, sweeper(Some(bug)), RESUMED);
        let bug = Bug::OnePartIsTaken;
        assert_finds(bug, batches(Some(bug)), ORDERED);
    }
}
