//! Reservations of a rate limiter on Redis: units of one key that two processes draw ahead.
//!
//! **Protocol.** Verbs `v` and `b` of `src/redis/rate_limiter/sliding_log.lua` and `gcra.lua`, and the clients in
//! `reservations.rs` and `reserved_checks.rs`.
//!
//! **Invariants.** The admitted calls never exceed the limit: with a log, the quota in each trailing window; with GCRA,
//! one bucket that leaks evenly.
//!
//! **Covered.** Two or three units per draw, admitted at any time until they lapse, or given back in any parts. Slow
//! and lost replies, processes that crash, ordinary checks in between, a server whose clock goes back once, and resets,
//! during which draws of the same process are in flight.
//!
//! **Not covered.** Buckets, which count a call at least as long as a log. Several limits, refunds of admitted calls.
//! Units that another process has reserved before a reset: they may be admitted in addition, as documented.

mod server;

use stateright::{Model, Property};

use self::{
    Action::*,
    server::{Server, Sizes},
};

const WITHIN: &str = "admitted calls are within the limit";

/// One key of a server, two processes, and the calls that were admitted.
pub struct Protocol {
    /// Mutation of the protocol that its property must find.
    pub bug: Option<Bug>,
    /// The limit, and the time of reservations.
    pub sizes: Sizes,
    /// True if the server's clock goes back, and the key is reset, once each.
    pub has_faults: bool,
    /// Last tick of the clock.
    pub ticks: i8,
    /// Number of draws.
    pub draws: u8,
}

/// Mutations of the protocol.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bug {
    /// Units are charged at the time of the draw, so they leave the window before their calls do.
    ChargedAtDraw,
    /// The time of a reservation begins with the reply.
    BeginsWithReply,
    /// A reply to a draw that was executed before a reset is kept.
    ResetKeepsDraws,
    /// Units of a state that was reset are given back to the next one.
    ReturnedToNextState,
    /// GCRA: a part that is given back leaves the level of the bucket, so the next part counts as the last charge.
    PartLeavesLevel,
}

/// Requests and calls, by the number of the process.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "the steps are named by what happens")]
pub enum Action {
    Tick,
    StepBack,
    Check,
    Send(usize),
    Execute(usize, i8),
    Receive(usize),
    Admit(usize),
    Return(usize, i8),
    Reset(usize),
}

/// Server, processes and specification. Times are ticks of an ideal clock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    now: i8,
    server: Server,
    processes: [Process; 2],
    draws: u8,
    /// The admitted calls in the window, or for GCRA the time at which the ideal bucket is empty.
    admitted: Vec<i8>,
    has_reset: bool,
    is_exceeded: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Process {
    draw: Option<Draw>,
    drawn: Option<Drawn>,
    has_reset: bool,
}

/// A draw in flight.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Draw {
    sent_at: i8,
    had_reset: bool,
    executed: Option<Drawn>,
}

/// Drawn units, and the state and the position of their charge.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Drawn {
    left: i8,
    until: i8,
    created: u8,
    position: i8,
}

impl State {
    /// Drops all that makes no difference any more, so that fewer states differ.
    fn forget_past(&mut self, sizes: &Sizes) {
        let now = self.now;
        self.admitted.retain(|at| if sizes.is_gcra { *at > now } else { at + sizes.per > now });
        for process in &mut self.processes {
            process.drawn.take_if(|drawn| drawn.left == 0);
        }
        if self.processes[0] > self.processes[1] {
            self.processes.swap(0, 1);
        }
    }

    /// Records an admitted call.
    fn admit(&mut self, sizes: &Sizes) {
        if sizes.is_gcra {
            // One unit leaks per tick.
            let empty_at = self.admitted.pop().unwrap_or(self.now).max(self.now) + 1;
            self.admitted.push(empty_at);
            self.is_exceeded |= empty_at > self.now + sizes.quota;
        } else {
            self.admitted.push(self.now);
            self.is_exceeded |= self.admitted.len() > sizes.quota as usize;
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            now: 0,
            server: Server::default(),
            processes: Default::default(),
            draws: 0,
            admitted: Vec::new(),
            has_reset: false,
            is_exceeded: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.is_exceeded {
            return;
        }
        if state.now < self.ticks {
            actions.push(Tick);
        }
        if self.has_faults && !state.server.has_stepped_back && state.now > 2 {
            actions.push(StepBack);
        }
        actions.push(Check);
        for (number, process) in state.processes.iter().enumerate() {
            match &process.draw {
                None => {}
                Some(Draw { executed: None, .. }) => {
                    actions.extend((2..=3).map(|units| Execute(number, units)));
                }
                Some(_) => actions.push(Receive(number)),
            }
            if let Some(drawn) = &process.drawn {
                actions.push(Admit(number));
                actions.extend((1..=drawn.left).map(|units| Return(number, units)));
            }
            // Any reply that has not come by then is lost, and any units that are left are those of a crashed process.
            let is_waiting = process.draw.as_ref().is_some_and(|draw| draw.executed.is_none());
            if !is_waiting && state.draws < self.draws {
                actions.push(Send(number));
            }
            let other = &state.processes[1 - number];
            let executed = other.draw.as_ref().is_some_and(|draw| draw.executed.is_some());
            if self.has_faults && !state.has_reset && other.drawn.is_none() && !executed {
                actions.push(Reset(number));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        let (now, bug, sizes) = (last.now, self.bug, &self.sizes);
        match action {
            Tick => next.now += 1,
            StepBack => next.server.step_back(),
            Check => {
                next.server.charge(sizes, now, 1, 0)?;
                next.admit(sizes);
            }
            Send(number) => {
                next.draws += 1;
                let process = &mut next.processes[number];
                let had_reset = process.has_reset;
                process.draw = Some(Draw { sent_at: now, had_reset, executed: None });
                process.drawn = None;
            }
            Execute(number, units) => {
                let lead = if bug == Some(Bug::ChargedAtDraw) { 0 } else { sizes.lead };
                let (created, position) = next.server.charge(sizes, now, units, lead)?;
                // The call that draws is admitted by the server.
                next.admit(sizes);
                let draw = next.processes[number].draw.as_mut()?;
                let until = draw.sent_at + sizes.lead;
                draw.executed = Some(Drawn { left: units - 1, until, created, position });
            }
            Receive(number) => {
                let process = &mut next.processes[number];
                let draw = process.draw.take()?;
                let mut drawn = draw.executed?;
                if bug == Some(Bug::BeginsWithReply) {
                    drawn.until = now + sizes.lead;
                }
                if draw.had_reset == process.has_reset || bug == Some(Bug::ResetKeepsDraws) {
                    process.drawn = Some(drawn);
                } else {
                    let at = (drawn.created, drawn.position);
                    next.server.give_back(sizes, bug, now, drawn.left, &at);
                }
            }
            Admit(number) => {
                let drawn = next.processes[number].drawn.as_mut()?;
                if now >= drawn.until {
                    return None;
                }
                drawn.left -= 1;
                next.admit(sizes);
            }
            Return(number, units) => {
                let drawn = next.processes[number].drawn.as_mut()?;
                drawn.left -= units;
                let at = (drawn.created, drawn.position);
                next.server.give_back(sizes, bug, now, units, &at);
            }
            Reset(number) => {
                next.has_reset = true;
                next.admitted.clear();
                next.server.reset();
                let process = &mut next.processes[number];
                (process.has_reset, process.drawn) = (true, None);
            }
        }
        next.forget_past(sizes);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(WITHIN, |_, state: &State| !state.is_exceeded),
            Property::sometimes("two processes have units", |_, state: &State| {
                state.processes.iter().all(|process| process.drawn.is_some())
            }),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{assert_finds, assert_holds, is_large};

    fn protocol(bug: Option<Bug>, is_gcra: bool) -> Protocol {
        let sizes = match is_gcra {
            false => Sizes { is_gcra, quota: 3, per: 3, lead: 2 },
            true => Sizes { is_gcra, quota: 6, per: 6, lead: 3 },
        };
        let ticks = if is_large() { 7 } else { 6 };
        // Fewer states of GCRA, whose charges differ more.
        Protocol { bug, sizes, has_faults: !is_gcra, ticks, draws: 2 }
    }

    #[test]
    fn reservations_hold() {
        assert_holds("reservations of a log", protocol(None, false), 1_350_000);
        assert_holds("reservations of GCRA", protocol(None, true), 570_000);
        let with_faults = Protocol { has_faults: true, ticks: 4, ..protocol(None, true) };
        assert_holds("reservations of GCRA, with faults", with_faults, 1_700_000);
    }

    #[test]
    fn bugs_are_found() {
        for (bug, is_gcra) in [
            (Bug::ChargedAtDraw, false),
            (Bug::ChargedAtDraw, true),
            (Bug::BeginsWithReply, false),
            (Bug::ResetKeepsDraws, false),
            (Bug::ReturnedToNextState, false),
            (Bug::PartLeavesLevel, true),
        ] {
            assert_finds(bug, protocol(Some(bug), is_gcra), WITHIN);
        }
    }
}
