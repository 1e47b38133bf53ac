//! The server: the scripts, and the writes of any client.

use super::{Bug, Leader, Lease, Phase, Protocol, Record, State, Write};

impl Protocol {
    pub(super) fn execute(&self, state: &mut State, at: usize) -> Option<()> {
        let leader = state.processes[at].leader?;
        let phase = match leader.phase {
            Phase::Asked => self.look_up(state, leader.token, leader.caller.is_none()),
            Phase::Publishes { version } => {
                Phase::Published { version, is_written: self.publish(state, leader, version) }
            }
            _ => return None,
        };
        state.processes[at].leader = Some(Leader { phase, ..leader });
        Some(())
    }

    /// `lookup_lease.lua`.
    pub(super) fn look_up(&self, state: &mut State, token: u8, is_refresh: bool) -> Phase {
        if let Some(record) = state.record.filter(|_| !is_refresh) {
            return Phase::Found(record);
        }
        let cleared = state.cleared;
        if !self.has(Bug::IgnoresClear) {
            state.lease = state.lease.filter(|lease| lease.cleared == cleared);
        }
        let held = state.lease.filter(|lease| lease.token != token);
        if held.is_some() && !self.has(Bug::GrantsHeldLease) {
            return Phase::HeldElsewhere;
        }
        state.loaded_twice |= held.is_some() && state.holder().is_some();
        // The same request again, or a further one of the same leader.
        let own = state.lease.filter(|lease| lease.token == token);
        if own.is_none() {
            state.grants += 1;
        }
        let grant = own.map_or(state.grants, |lease| lease.grant);
        let seen = match own {
            Some(lease) if !self.has(Bug::RepeatedRequestSeesAgain) => lease.seen,
            _ => state.record,
        };
        state.lease = Some(Lease { token, grant, cleared, seen });
        Phase::Granted { grant }
    }

    /// `publish.lua`.
    fn publish(&self, state: &mut State, leader: Leader, version: u8) -> bool {
        let lease = state.lease.filter(|lease| lease.token == leader.token);
        if lease.is_none() && !self.has(Bug::PublishesWithoutToken) {
            return false;
        }
        let is_cleared = lease.is_some_and(|lease| lease.cleared != state.cleared);
        if is_cleared && !self.has(Bug::IgnoresClear) {
            return false;
        }
        let is_granted_late = lease.is_some_and(|lease| lease.grant != leader.grant);
        let seen = lease.and_then(|lease| lease.seen);
        let is_free = state.record.is_none()
            || seen.is_some() && (state.record == seen || self.has(Bug::IgnoresFingerprint));
        state.lease = None;
        if !is_free || is_granted_late && !self.has(Bug::GrantsRevokedLease) {
            return false;
        }
        state.lost_write |= version < state.written;
        state.record = Some(Record { version, identity: (true, leader.token), is_short: true });
        true
    }

    pub(super) fn write(&self, state: &mut State, write: Write) -> Option<()> {
        state.writes = state.writes.checked_sub(1)?;
        state.written += 1;
        let (version, before) = (state.written, state.record);
        let is_short = match write {
            Write::Short => true,
            Write::KeepTtl => before.is_some_and(|record| record.is_short),
            _ => false,
        };
        let written = Record { version, identity: (false, version), is_short };
        let leaves_lease = match write {
            // The value is there when the load ends.
            Write::Long => true,
            Write::KeepTtl => self.has(Bug::KeepTtlLeavesLease),
            Write::Remove => self.has(Bug::RemoveLeavesLease),
            Write::Short => false,
            Write::Clear => true,
        };
        state.record = match write {
            Write::Remove => None,
            // Until `clear` has returned, its second step may still find the old value.
            Write::Clear => before.map(|record| Record { version, ..record }),
            _ => Some(written),
        };
        if write == Write::Clear {
            (state.cleared, state.is_clearing) = (state.cleared + 1, true);
        }
        if !leaves_lease {
            state.lease = None;
        }
        Some(())
    }
}

impl State {
    /// Returns the process that runs, or is about to run, a load under the lease that the server has granted.
    pub(super) fn holder(&self) -> Option<usize> {
        let lease = self.lease?;
        self.processes.iter().position(|process| {
            process.leader.is_some_and(|leader| {
                let phase_holds = !matches!(leader.phase, Phase::Asks | Phase::HeldElsewhere);
                leader.token == lease.token && phase_holds
            })
        })
    }
}
