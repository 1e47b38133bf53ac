//! The steps of workers and purges: one file system call each.

use super::{Bug, COUNTED, Choice, HELD, MAX_ATTEMPTS, MAX_LOCK, Protocol, TOLERANCE};

/// Step that a worker executes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    FindUnlocked,
    Touch,
    Link,
    Read,
    ReadRecord,
    WriteRecord {
        previous: Record,
    },
    Work {
        own: Record,
        previous: Record,
    },
    /// Steps of an ack, after the record was compared.
    FindLock,
    RemoveElement,
    RemoveLockOfElement,
    RemoveRecord,
    /// Steps of an end without ack.
    Outcome(Record),
    Unlock,
    Renew {
        own: Record,
        previous: Record,
    },
    FindRenewed {
        own: Record,
        previous: Record,
    },
}

/// Number of deliveries, and whether the element is a dead letter; `(0, false)` without a record.
pub(super) type Record = (u8, bool);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Worker {
    pub(super) step: Step,
    /// Since when it has the lock, or tries to lock.
    pub(super) since: Option<i8>,
    /// True if the lock on the disk is its own.
    pub(super) owns: bool,
}

pub(super) const IDLE: Worker = Worker { step: Step::FindUnlocked, since: None, owns: false };

/// Step that a purge executes next: to find a stale lock, take the advisory lock, examine the lock again, remove it,
/// and release the advisory lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd)]
pub(super) enum Purge {
    Find,
    Begin,
    FindLock,
    Examine,
    Remove,
    End,
}

/// The disk and the processes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(super) now: i8,
    pub(super) has_element: bool,
    pub(super) has_lock: bool,
    /// Modification time of the element, which is that of the lock.
    pub(super) modified: i8,
    pub(super) record: Record,
    /// The purge that has the advisory lock.
    pub(super) purging: Option<usize>,
    pub(super) workers: [Worker; 2],
    pub(super) purges: [Purge; 2],
    /// Modification time before which a lock is stale: a purge calculates it once, by the clock of its machine.
    pub(super) cutoffs: [i8; 2],
    pub(super) crashes: u8,
    pub(super) acks: u8,
    /// Number of failed or unfinished deliveries.
    pub(super) deliveries: u8,
    pub(super) violation: Option<&'static str>,
}

/// Clocks of the workers' and of the purges' machines.
const WORKER_CLOCKS: [i8; 2] = [-1, 1];
const PURGE_CLOCKS: [i8; 2] = [-1, 1];
/// Time for which a worker may keep its lock: the clock of a purge is at most two ahead of its own.
pub(super) const MAX_WORK: i8 = MAX_LOCK - 2;

impl State {
    fn expect(&mut self, holds: bool, property: &'static str) {
        self.violation = self.violation.or((!holds).then_some(property));
    }

    /// Removes the lock on the disk; `by` is the worker that does.
    fn unlock(&mut self, protocol: &Protocol, by: Option<usize>, clock: i8) {
        let is_in_use = |at: usize, worker: &Worker| worker.owns && Some(at) != by;
        let in_use = self.workers.iter().enumerate().any(|(at, worker)| is_in_use(at, worker));
        self.expect(!in_use || !self.has_element || protocol.is_slow, HELD);
        self.has_lock = false;
        self.workers.iter_mut().for_each(|worker| worker.owns = false);
        if protocol.is_normal {
            self.modified = self.now + clock;
        }
    }

    /// Ends the work on the element.
    pub(super) fn stop(&mut self, worker: usize) -> Option<()> {
        self.workers[worker] = IDLE;
        Some(())
    }

    fn lock(&mut self, worker: usize) {
        (self.has_lock, self.workers[worker].owns) = (true, true);
    }

    pub(super) fn work(
        &mut self,
        protocol: &Protocol,
        worker: usize,
        choice: Choice,
    ) -> Option<()> {
        let clock = WORKER_CLOCKS[worker];
        let next = match self.workers[worker].step {
            Step::FindUnlocked if protocol.is_normal => {
                (self.has_element && !self.has_lock).then_some(())?;
                self.workers[worker].since = Some(self.now);
                self.lock(worker);
                self.modified = self.now + clock;
                Step::Read
            }
            Step::FindUnlocked => {
                (self.has_element && !self.has_lock).then_some(())?;
                if protocol.bug == Some(Bug::LockIsOld) { Step::Link } else { Step::Touch }
            }
            Step::Touch if !self.has_element => return self.stop(worker),
            Step::Touch => {
                (self.modified, self.workers[worker].since) = (self.now + clock, Some(self.now));
                Step::Link
            }
            Step::Link if !self.has_element || self.has_lock => return self.stop(worker),
            Step::Link => {
                self.workers[worker].since.get_or_insert(self.now);
                self.lock(worker);
                Step::Read
            }
            // A normal element is looked up by its name, a simple one by that of its lock.
            Step::Read if !if protocol.is_normal { self.has_element } else { self.has_lock } => {
                return self.stop(worker);
            }
            Step::Read => Step::ReadRecord,
            Step::ReadRecord => match self.record {
                (_, true) => Step::Unlock,
                (attempts, _) if attempts >= MAX_ATTEMPTS => Step::Outcome((attempts, true)),
                previous => Step::WriteRecord { previous },
            },
            Step::WriteRecord { previous } => {
                self.expect(previous.0 == self.deliveries || protocol.is_slow, COUNTED);
                self.deliveries += 1;
                self.record = (previous.0 + 1, false);
                Step::Work { own: self.record, previous }
            }
            Step::Work { own, previous } => {
                return self.begin(protocol, worker, choice, own, previous);
            }
            Step::FindLock if self.has_lock && self.has_element => Step::RemoveElement,
            Step::FindLock => return self.stop(worker),
            Step::RemoveElement if self.has_element => {
                (self.has_element, self.acks) = (false, self.acks + 1);
                // A rename moves the lock with the element.
                self.has_lock &= !protocol.is_normal;
                Step::RemoveLockOfElement
            }
            Step::RemoveElement => {
                self.acks += u8::from(protocol.bug == Some(Bug::MissingElementIsAcked));
                return self.stop(worker);
            }
            Step::RemoveLockOfElement => {
                self.has_lock = false;
                self.workers.iter_mut().for_each(|worker| worker.owns = false);
                Step::RemoveRecord
            }
            Step::RemoveRecord => {
                self.record = (0, false);
                match self.has_element {
                    // Not yet, with `Bug::RecordIsRemovedFirst`.
                    true => Step::FindLock,
                    false => return self.stop(worker),
                }
            }
            Step::Outcome(record) => {
                if record.0 < self.deliveries {
                    // Released: the delivery does not count.
                    self.deliveries -= 1;
                }
                self.record = record;
                Step::Unlock
            }
            Step::Unlock => {
                if self.has_lock {
                    self.unlock(protocol, Some(worker), clock);
                }
                return self.stop(worker);
            }
            Step::Renew { own, previous } => {
                if !self.has_element {
                    return self.stop(worker);
                }
                (self.modified, self.workers[worker].since) = (self.now + clock, Some(self.now));
                Step::FindRenewed { own, previous }
            }
            Step::FindRenewed { .. } if !self.has_lock => return self.stop(worker),
            Step::FindRenewed { own, previous } => Step::Work { own, previous },
        };
        self.workers[worker].step = next;
        Some(())
    }

    /// Begins an operation of a worker: each compares the record first.
    fn begin(
        &mut self,
        protocol: &Protocol,
        worker: usize,
        choice: Choice,
        own: Record,
        previous: Record,
    ) -> Option<()> {
        if self.record != own {
            return self.stop(worker);
        }
        self.workers[worker].step = match choice {
            Choice::Ack if protocol.bug == Some(Bug::RecordIsRemovedFirst) => Step::RemoveRecord,
            Choice::Ack => Step::FindLock,
            Choice::Renew => Step::Renew { own, previous },
            Choice::Release => Step::Outcome(previous),
            _ => Step::Outcome((own.0, own.0 >= MAX_ATTEMPTS)),
        };
        Some(())
    }

    pub(super) fn purge(&mut self, protocol: &Protocol, purge: usize) -> Option<()> {
        let clock = PURGE_CLOCKS[purge];
        let cutoff = self.now + clock - MAX_LOCK;
        if self.purges[purge] == Purge::Find || protocol.bug == Some(Bug::CutoffMoves) {
            self.cutoffs[purge] = cutoff;
        }
        let is_stale = self.modified < self.cutoffs[purge];
        self.purges[purge] = match self.purges[purge] {
            Purge::Find if !self.has_lock => return None,
            Purge::Find if self.modified > self.now + clock + TOLERANCE => {
                self.modified = self.now + clock;
                Purge::Find
            }
            Purge::Find => is_stale.then_some(Purge::Begin)?,
            Purge::Begin if protocol.bug == Some(Bug::PurgesRace) => Purge::FindLock,
            Purge::Begin if self.purging.is_some() => Purge::Find,
            Purge::Begin => {
                self.purging = Some(purge);
                Purge::FindLock
            }
            Purge::FindLock if !protocol.is_normal && self.has_lock && is_stale => Purge::Remove,
            Purge::FindLock if !protocol.is_normal => Purge::End,
            Purge::FindLock => {
                if self.has_lock {
                    Purge::Examine
                } else {
                    Purge::End
                }
            }
            Purge::Examine => {
                if is_stale {
                    Purge::Remove
                } else {
                    Purge::End
                }
            }
            Purge::Remove => {
                if self.has_lock {
                    self.unlock(protocol, None, clock);
                }
                Purge::End
            }
            Purge::End => {
                self.purging = self.purging.filter(|owner| *owner != purge);
                Purge::Find
            }
        };
        if self.purges[purge] == Purge::Find {
            self.cutoffs[purge] = 0;
        }
        Some(())
    }
}
