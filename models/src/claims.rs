//! Claims and takes of a `TimeoutDict` on Redis: leases, attempts and dead letters of one entry.
//!
//! **Protocol.** The scripts `src/redis/timeout_dict/*.lua`, with their arithmetic, and the clients in `claim.rs`,
//! `confirm.rs` and `delivery.rs`. A claim is a number: the end of its lease, which is the score of its entry.
//!
//! **Invariants.** Each value is removed at most once, by an ack, a take or a removal. Until then it is due at some
//! time, or a dead letter. A claim is accepted if and only if it is the newest delivery and nothing has ended it. The
//! number of an attempt is one more than the number of deliveries before it that were neither acked nor released. It is
//! never above the bound.
//!
//! **Covered.** Clients that crash, or are late by any time: after the end of the lease, after the entry was delivered
//! again, replaced or removed. Lost replies, which are crashes of a client after its call. A server whose clock goes
//! back by two leases. Clients with and without a bound of attempts, at the same time.
//!
//! **Not covered.** Two leases of an entry that end in the same four microseconds; [`Bug::EndsRepeat`] shows the
//! consequence. `compat`, several keys in one script, values that cannot be decoded, reasons, failovers, and a take
//! that repeats its confirmation after a lost reply.

mod entry;

use stateright::{Model, Property};

use self::{
    Action::*,
    entry::{CLAIM, Client, NEVER, State, TAKE, TICK},
};

const ONCE: &str = "a value is removed at most once";
const KEPT: &str = "an entry becomes due or is a dead letter";
const NEWEST: &str = "the newest delivery alone is accepted";
const COUNTED: &str = "attempts are counted";
const BOUNDED: &str = "no delivery exceeds the bound of attempts";

/// One entry, the clock of its server, and up to `clients` clients.
pub struct Protocol {
    /// Mutation of the protocol that its properties must find.
    pub bug: Option<Bug>,
    /// Last tick of the clock, which begins at 2.
    pub ticks: u8,
    /// Number of leases and extensions.
    pub leases: u8,
    /// Number of values that are set.
    pub values: u8,
    /// Number of clients.
    pub clients: usize,
}

/// Mutations of the protocol.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bug {
    /// `ack.lua` does not compare the score.
    AckOfVoidClaim,
    /// `lease.lua` does not count an attempt whose lease expired.
    ExpiryIsNotCounted,
    /// `give_back.lua` restores the end of an expired lease, which makes its claim valid again.
    LeaseIsRestored,
    /// `lease.lua` keeps the last attempt in the index, too.
    LastAttemptIsDue,
    /// Leases of one entry may end at the same time.
    EndsRepeat,
    /// `confirm.lua` accepts a lease that has expired, or whose entry was delivered again.
    VoidTakeIsConfirmed,
    /// `lease.lua` delivers an entry that has had its last attempt by a client with a higher bound.
    BoundOfOthersApplies,
}

/// A call that the server executes, by the number of the client if it ends a delivery.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "the calls have the names of the methods")]
pub enum Action {
    Tick,
    StepBack,
    Set,
    Remove,
    SetTimeout(u16),
    Revive,
    Claim { max_attempts: u8 },
    Take { of_dead: bool },
    Ack(usize),
    Fail { client: usize, retry_in: bool },
    Release(usize),
    Extend(usize),
    Confirm(usize),
    Crash(usize),
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            tick: 2,
            leases: 0,
            has_stepped_back: false,
            record: 0,
            index: None,
            dead: None,
            failed: 0,
            clients: Vec::new(),
            current: None,
            failures: 0,
            values: 0,
            is_persistent: false,
            removed: [0; 4],
            violation: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.tick < self.ticks {
            actions.push(Tick);
        }
        if !state.has_stepped_back && state.tick >= 4 {
            actions.push(StepBack);
        }
        if state.values < self.values {
            actions.push(Set);
        }
        if state.record != 0 {
            actions.extend([Remove, SetTimeout(0), SetTimeout(NEVER), Revive]);
        }
        let may_lease = state.leases < self.leases;
        if may_lease && state.clients.len() < self.clients {
            let claims = [0, 2].map(|max_attempts| Claim { max_attempts });
            actions.extend(claims.into_iter().chain([false, true].map(|of_dead| Take { of_dead })));
        }
        for (client, Client { kind, .. }) in state.clients.iter().enumerate() {
            actions.extend([Release(client), Crash(client)]);
            if *kind == TAKE {
                actions.push(Confirm(client));
                continue;
            }
            actions.extend([Ack(client)].into_iter().chain(may_lease.then_some(Extend(client))));
            actions.extend([false, true].map(|retry_in| Fail { client, retry_in }));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        let of_leases =
            if self.bug == Some(Bug::EndsRepeat) { 0 } else { 4 * u16::from(last.leases) };
        let now = u16::from(last.tick) * TICK + of_leases;
        match action {
            Tick => next.tick += 1,
            StepBack => (next.tick, next.has_stepped_back) = (last.tick - 2, true),
            Set => {
                next.clear();
                next.values += 1;
                (next.record, next.index, next.failures) = (next.values, Some(now), 0);
            }
            Remove => next.deliver(last.record),
            SetTimeout(micros) => next.set_timeout(now, if micros == NEVER { NEVER } else { now }),
            Revive => next.revive(now)?,
            Claim { max_attempts } => next.lease(self.bug, now, CLAIM, false, max_attempts)?,
            Take { of_dead } => next.lease(self.bug, now, TAKE, of_dead, 0)?,
            Ack(client) => {
                let client = next.clients.remove(client);
                next.ack(self.bug, &client);
            }
            Fail { client, retry_in } => {
                let client = next.clients.remove(client);
                next.fail(now, &client, retry_in);
            }
            Release(client) => {
                let client = next.clients.remove(client);
                next.give_back(self.bug, &client);
            }
            Extend(client) => {
                let client = next.clients.remove(client);
                next.extend(now, client);
            }
            Confirm(client) => {
                let client = next.clients.remove(client);
                next.confirm(self.bug, now, &client);
            }
            Crash(client) => drop(next.clients.remove(client)),
        }
        next.clients.sort_unstable();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONCE, |_, state: &State| state.violation != Some(ONCE)),
            Property::always(NEWEST, |_, state: &State| state.violation != Some(NEWEST)),
            Property::always(BOUNDED, |_, state: &State| state.violation != Some(BOUNDED)),
            Property::always(COUNTED, |_, state: &State| {
                state.violation != Some(COUNTED) && state.is_counted()
            }),
            Property::always(KEPT, |_, state: &State| state.is_kept()),
            Property::sometimes("a last attempt fails", |_, state: &State| {
                state.dead.is_some_and(|dead| dead <= state.now()) && state.current.is_none()
            }),
            Property::sometimes("an entry is delivered twice", |_, state: &State| {
                state.clients.len() > 1 && state.clients[0].value == state.clients[1].value
            }),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{assert_finds, assert_holds, is_large};

    fn protocol(bug: Option<Bug>) -> Protocol {
        match is_large() {
            true => Protocol { bug, ticks: 5, leases: 4, values: 2, clients: 2 },
            false => Protocol { bug, ticks: 5, leases: 3, values: 2, clients: 2 },
        }
    }

    #[test]
    fn claims_hold() {
        assert_holds("claims", protocol(None), 540_000);
    }

    #[test]
    fn bugs_are_found() {
        for (bug, property) in [
            (Bug::AckOfVoidClaim, NEWEST),
            (Bug::ExpiryIsNotCounted, COUNTED),
            (Bug::LeaseIsRestored, COUNTED),
            (Bug::LastAttemptIsDue, KEPT),
            (Bug::EndsRepeat, NEWEST),
            (Bug::VoidTakeIsConfirmed, ONCE),
            (Bug::BoundOfOthersApplies, BOUNDED),
        ] {
            assert_finds(bug, protocol(Some(bug)), property);
        }
    }
}
