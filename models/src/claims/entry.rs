//! The scripts of one entry, and the specification that their answers are compared with.

use super::{BOUNDED, Bug, COUNTED, NEWEST, ONCE};

/// The score of an entry without a deadline. A multiple of four minus two, so it is no lease.
pub(super) const NEVER: u16 = u16::MAX - 1;
/// Microseconds per step of the clock. Each lease takes four, so that the ends of all leases differ.
pub(super) const TICK: u16 = 32;
pub(super) const CLAIM: u16 = 1;
pub(super) const TAKE: u16 = 3;

/// The keys of the entry as named in `sharded.lua`, and the specification of what they should be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(super) tick: u8,
    pub(super) leases: u8,
    pub(super) has_stepped_back: bool,
    /// Number of the value, 0 without a record.
    pub(super) record: u8,
    pub(super) index: Option<u16>,
    pub(super) dead: Option<u16>,
    pub(super) failed: u8,
    pub(super) clients: Vec<Client>,
    /// The newest claim that nothing has ended, and the number of failed attempts before it.
    pub(super) current: Option<u8>,
    pub(super) failures: u8,
    pub(super) values: u8,
    /// The deadline was removed by a caller.
    pub(super) is_persistent: bool,
    /// Number of times that each value was removed.
    pub(super) removed: [u8; 4],
    pub(super) violation: Option<&'static str>,
}

/// A delivered entry: the number of the lease, the kind, the end, and the former score.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Client {
    pub(super) lease: u8,
    pub(super) kind: u16,
    pub(super) end: u16,
    pub(super) former: u16,
    pub(super) value: u8,
}

fn is_claimed(score: u16) -> bool {
    score % 4 == CLAIM
}

/// An expired lease becomes a deadline.
fn unleased(score: u16) -> u16 {
    score + score % 2
}

impl State {
    fn lease_end_in(&mut self, now: u16, kind: u16) -> u16 {
        self.leases += 1;
        now + TICK + (4 + kind - now % 4) % 4
    }

    /// Returns whether a lease is of a last attempt or a dead letter; `None` if it is void.
    pub(super) fn set_of_lease(&self, end: u16) -> Option<bool> {
        match self.index? {
            score if score == end => Some(false),
            _ => (self.dead == Some(end)).then_some(true),
        }
    }

    pub(super) fn clear(&mut self) {
        (self.record, self.index, self.dead, self.failed) = (0, None, None, 0);
        (self.current, self.failures, self.is_persistent) = (None, 0, false);
    }

    fn expect(&mut self, holds: bool, property: &'static str) {
        self.violation = self.violation.or((!holds).then_some(property));
    }

    /// Compares the server's answer about a claim with the specification.
    fn expect_newest(&mut self, accepted: bool, client: &Client) {
        self.expect(accepted == (self.current == Some(client.lease)), NEWEST);
    }

    fn fail_current(&mut self) {
        self.failures += u8::from(self.current.take().is_some());
    }

    /// Removes the entry for the client that has `value`.
    pub(super) fn deliver(&mut self, value: u8) {
        self.removed[usize::from(value)] += 1;
        self.expect(self.removed[usize::from(value)] == 1, ONCE);
        self.clear();
    }

    /// `lease.lua`, which delivers the entry unless it has just become a dead letter.
    pub(super) fn lease(
        &mut self,
        bug: Option<Bug>,
        now: u16,
        kind: u16,
        of_dead: bool,
        max: u8,
    ) -> Option<()> {
        let former = if of_dead { self.dead } else { self.index }.filter(|due| *due <= now)?;
        let lease = self.leases;
        let mut end = self.lease_end_in(now, kind) + 4;
        let mut attempts = self.failed + 1;
        if is_claimed(former) && !of_dead && bug != Some(Bug::ExpiryIsNotCounted) {
            self.failed += 1;
            attempts += 1;
        }
        let is_last = kind == CLAIM && max > 0 && attempts >= max;
        self.fail_current();
        if is_last && attempts > max && bug != Some(Bug::BoundOfOthersApplies) {
            // Claimed before by a client with a higher bound, or without one.
            self.failed -= 1;
            end = now;
        } else {
            self.expect(attempts == self.failures + u8::from(!of_dead), COUNTED);
            self.expect(kind == TAKE || max == 0 || attempts <= max, BOUNDED);
            self.current = (kind == CLAIM).then_some(lease);
            self.clients.push(Client { lease, kind, end, former, value: self.record });
        }
        if is_last || of_dead {
            self.dead = Some(end);
        }
        if is_last && bug != Some(Bug::LastAttemptIsDue) {
            self.index = Some(NEVER);
        } else if !of_dead {
            self.index = Some(end);
        }
        Some(())
    }

    pub(super) fn ack(&mut self, bug: Option<Bug>, client: &Client) {
        let accepts_all = bug == Some(Bug::AckOfVoidClaim) && self.record != 0;
        let accepted = self.set_of_lease(client.end).is_some() || accepts_all;
        self.expect_newest(accepted, client);
        if accepted {
            self.deliver(client.value);
        }
    }

    /// `confirm.lua`, which refuses an expired lease.
    pub(super) fn confirm(&mut self, bug: Option<Bug>, now: u16, client: &Client) {
        let is_valid = now < client.end && self.set_of_lease(client.end).is_some();
        if is_valid || bug == Some(Bug::VoidTakeIsConfirmed) {
            self.deliver(client.value);
        }
    }

    pub(super) fn fail(&mut self, now: u16, client: &Client, retry_in: bool) {
        let set = self.set_of_lease(client.end);
        self.expect_newest(set.is_some(), client);
        match set {
            None => return,
            Some(true) if now < client.end => self.dead = Some(now),
            Some(true) => {}
            Some(false) => {
                self.failed += 1;
                let is_late = now >= client.end && !retry_in;
                self.index = Some(if is_late { unleased(client.end) } else { now + TICK });
            }
        }
        self.fail_current();
    }

    /// `give_back.lua`: a release, or a take that was cancelled.
    pub(super) fn give_back(&mut self, bug: Option<Bug>, client: &Client) {
        let set = self.set_of_lease(client.end);
        let former = client.former;
        let score = if bug == Some(Bug::LeaseIsRestored) { former } else { unleased(former) };
        match set {
            Some(true) if client.kind == CLAIM => (self.dead, self.index) = (None, Some(score)),
            Some(true) => self.dead = Some(score),
            Some(false) => self.index = Some(score),
            None => {}
        }
        if client.kind == CLAIM {
            self.expect_newest(set.is_some(), client);
            self.current = self.current.filter(|_| set.is_none());
        }
    }

    pub(super) fn extend(&mut self, now: u16, mut client: Client) {
        let set = self.set_of_lease(client.end);
        self.expect_newest(set.is_some(), &client);
        if let Some(is_last) = set {
            client.end = self.lease_end_in(now, CLAIM);
            *if is_last { &mut self.dead } else { &mut self.index } = Some(client.end);
            self.clients.push(client);
        }
    }

    pub(super) fn set_timeout(&mut self, now: u16, at: u16) {
        match self.dead {
            Some(dead) if dead > now => self.dead = Some(now),
            Some(_) => return,
            None => {
                self.failed += u8::from(self.index.is_some_and(is_claimed));
                (self.index, self.is_persistent) = (Some(at), at == NEVER);
            }
        }
        self.fail_current();
    }

    pub(super) fn revive(&mut self, now: u16) -> Option<()> {
        let dead = self.dead?;
        (dead <= now || !is_claimed(dead)).then_some(())?;
        (self.dead, self.index, self.failed) = (None, Some(now), 0);
        (self.current, self.failures, self.is_persistent) = (None, 0, false);
        Some(())
    }

    pub(super) fn now(&self) -> u16 {
        u16::from(self.tick) * TICK + 4 * u16::from(self.leases)
    }

    /// Returns whether the entry is either due at some time or a dead letter, or nothing is left of it.
    pub(super) fn is_kept(&self) -> bool {
        match (self.record, self.index, self.dead) {
            (0, index, dead) => index.is_none() && dead.is_none() && self.failed == 0,
            (_, Some(NEVER), dead) => dead.is_some() || self.is_persistent,
            (_, index, dead) => index.is_some() && dead.is_none(),
        }
    }

    /// Returns whether the server counts as many failed and current attempts as there were.
    pub(super) fn is_counted(&self) -> bool {
        let last = self.dead.is_some() || self.index.is_some_and(is_claimed);
        self.failed + u8::from(last) == self.failures + u8::from(self.current.is_some())
    }
}
