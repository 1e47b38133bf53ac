//! The steps of the processes between their requests.

use super::{Action, Bug, CALLERS, Caller, Leader, Phase, Process, Protocol, Record, State};

impl Protocol {
    pub(super) fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Changes `state` by `action`; returns `None` if it is impossible now.
    pub(super) fn step(&self, state: &mut State, action: Action) -> Option<()> {
        match action {
            Action::Call(at, caller) => state.call(at, caller),
            Action::Join(at, caller) => state.join(at, caller),
            Action::Refresh(at) => {
                let is_due = state.record.is_some_and(|record| record.is_short);
                (is_due && state.processes[at].leader.is_none()).then_some(())?;
                state.calls = state.calls.checked_sub(1)?;
                state.lead(at, None);
                Some(())
            }
            Action::Ask(at, twice) => state.ask(at, twice),
            Action::Execute(at) => self.execute(state, at),
            Action::ExecuteLate(at) => {
                let (token, is_refresh) = state.processes[at].late.take()?;
                self.look_up(state, token, is_refresh);
                Some(())
            }
            Action::Receive(at) => self.receive(state, at),
            Action::Publish(at) => {
                let leader = state.processes[at].leader.as_mut()?;
                let Phase::Loads { version } = leader.phase else { return None };
                leader.phase = Phase::Publishes { version };
                state.begin_read(at);
                Some(())
            }
            Action::ExpireLease => {
                let is_renewed = state.holder().is_some();
                (!is_renewed && !self.has(Bug::LeaseNeverExpires)).then_some(())?;
                state.lease.take().map(drop)
            }
            Action::ExpireValue => {
                let has_expired = state.record.take_if(|record| record.is_short).is_some();
                has_expired.then_some(())
            }
            Action::Release(at) => {
                let token = state.processes[at].releases.pop()?;
                let _ = state.lease.take_if(|lease| lease.token == token);
                Some(())
            }
            Action::Write(write) => self.write(state, write),
            Action::FinishClear => {
                std::mem::take(&mut state.is_clearing).then_some(())?;
                if state.record.take().is_some() {
                    state.lease = None;
                }
                Some(())
            }
            fault => self.fault(state, fault),
        }
    }

    fn fault(&self, state: &mut State, action: Action) -> Option<()> {
        state.faults = state.faults.checked_sub(1)?;
        match action {
            Action::Fail(at) => state.fail(at),
            Action::Drop(at) => {
                let caller = state.processes[at].leader?.caller?;
                state.processes[at].callers[caller] = Caller::Idle;
                state.abandon(at);
                Some(())
            }
            Action::Crash(at) => {
                let process = &mut state.processes[at];
                process.has_crashed = true;
                (process.leader, process.callers) = (None, [Caller::Idle; CALLERS]);
                process.releases.clear();
                Some(())
            }
            Action::CutOff => {
                state.holder()?;
                state.lease.take().map(drop)
            }
            _ => None,
        }
    }

    fn receive(&self, state: &mut State, at: usize) -> Option<()> {
        let leader = state.processes[at].leader?;
        match leader.phase {
            Phase::Found(record) => self.finish(state, at, record.version, true),
            Phase::HeldElsewhere => match leader.caller {
                Some(_) => state.set_phase(at, Phase::Asks),
                None => state.abandon(at),
            },
            Phase::Granted { grant } => {
                let phase = Phase::Loads { version: state.written };
                state.processes[at].leader = Some(Leader { phase, grant, ..leader });
            }
            Phase::Published { version, is_written } => self.finish(state, at, version, is_written),
            _ => return None,
        }
        Some(())
    }

    /// Ends a flight: its leader returns the value, and so do its followers if it `counts` for them.
    fn finish(&self, state: &mut State, at: usize, version: u8, counts: bool) {
        state.processes[at].leader = None;
        for number in 0..CALLERS {
            let caller = &mut state.processes[at].callers[number];
            let (next, returned) = match *caller {
                Caller::Leading { floor } => (Caller::Idle, Some(floor)),
                Caller::Following { floor, is_early }
                    if counts && (is_early || self.has(Bug::AnswersLateFollowers)) =>
                {
                    (Caller::Idle, Some(floor))
                }
                Caller::Following { floor, .. } => (Caller::Missed { floor }, None),
                other => (other, None),
            };
            *caller = next;
            state.returned_old |= returned.is_some_and(|floor| version < floor);
        }
    }
}

impl State {
    pub(super) fn new(model: &Protocol) -> Self {
        let process = Process {
            has_crashed: false,
            callers: [Caller::Idle; CALLERS],
            leader: None,
            late: None,
            releases: Vec::new(),
        };
        let short = Record { version: 0, identity: (false, 0), is_short: true };
        Self {
            record: model.refreshes.then_some(short),
            lease: None,
            cleared: 0,
            is_clearing: false,
            written: 0,
            grants: 0,
            tokens: 0,
            processes: [process.clone(), process],
            lost_write: false,
            returned_old: false,
            loaded_twice: false,
            writes: model.writes,
            calls: model.calls,
            faults: model.faults,
            late: model.late,
        }
    }

    fn call(&mut self, at: usize, caller: usize) -> Option<()> {
        let floor = self.written;
        (self.processes[at].callers[caller] == Caller::Idle).then_some(())?;
        self.calls = self.calls.checked_sub(1)?;
        match self.record {
            Some(record) => self.returned_old |= record.version < floor,
            None => self.processes[at].callers[caller] = Caller::Missed { floor },
        }
        Some(())
    }

    fn join(&mut self, at: usize, number: usize) -> Option<()> {
        let Caller::Missed { floor } = self.processes[at].callers[number] else { return None };
        match self.processes[at].leader {
            Some(_) => {
                let follower = Caller::Following { floor, is_early: false };
                self.processes[at].callers[number] = follower;
            }
            None => {
                self.processes[at].callers[number] = Caller::Leading { floor };
                self.lead(at, Some(number));
            }
        }
        Some(())
    }

    fn lead(&mut self, at: usize, caller: Option<usize>) {
        self.tokens += 1;
        let leader = Leader { caller, token: self.tokens, grant: 0, phase: Phase::Asks };
        self.processes[at].leader = Some(leader);
    }

    fn set_phase(&mut self, at: usize, phase: Phase) {
        self.processes[at].leader.iter_mut().for_each(|leader| leader.phase = phase);
    }

    /// `LoadGuard::begin_read`: followers that join from now on do not get the reply.
    fn begin_read(&mut self, at: usize) {
        for caller in &mut self.processes[at].callers {
            if let Caller::Following { is_early, .. } = caller {
                *is_early = true;
            }
        }
    }

    fn ask(&mut self, at: usize, twice: bool) -> Option<()> {
        let leader = self.processes[at].leader.filter(|leader| leader.phase == Phase::Asks)?;
        if twice {
            self.late = self.late.checked_sub(1)?;
            self.processes[at].late = Some((leader.token, leader.caller.is_none()));
        }
        self.begin_read(at);
        self.set_phase(at, Phase::Asked);
        Some(())
    }

    fn fail(&mut self, at: usize) -> Option<()> {
        let leader = self.processes[at].leader?;
        matches!(leader.phase, Phase::Loads { .. }).then_some(())?;
        self.processes[at].releases.push(leader.token);
        self.processes[at].leader = None;
        for caller in &mut self.processes[at].callers {
            *caller = match *caller {
                Caller::Following { floor, .. } if leader.caller.is_none() => {
                    Caller::Missed { floor }
                }
                Caller::Following { .. } | Caller::Leading { .. } => Caller::Idle,
                other => other,
            };
        }
        Some(())
    }

    /// The leader gives up: its lease is released, and a follower takes its place.
    fn abandon(&mut self, at: usize) {
        let process = &mut self.processes[at];
        let Some(leader) = process.leader.take() else { return };
        match leader.phase {
            Phase::Asks | Phase::HeldElsewhere | Phase::Found(_) => {}
            Phase::Asked => {
                // The server may still execute it.
                process.late = process.late.or(Some((leader.token, leader.caller.is_none())));
                process.releases.push(leader.token);
            }
            _ => process.releases.push(leader.token),
        }
        let is_follower = |caller: &Caller| matches!(caller, Caller::Following { .. });
        let Some(next) = process.callers.iter().position(is_follower) else { return };
        if let Caller::Following { floor, .. } = process.callers[next] {
            process.callers[next] = Caller::Leading { floor };
        }
        self.lead(at, Some(next));
    }
}
