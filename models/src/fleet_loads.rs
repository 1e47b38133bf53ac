//! Loads of one key by several processes: `src/redis/cache/loaders.rs`, `load.rs`, `lease.rs`, `flights.rs`,
//! `refresh_ahead.rs`, and the scripts `lookup_lease.lua`, `update_lease.lua`, `publish.lua`, `change.lua`.
//!
//! **Protocol.** In each process, the callers that miss a key join one flight, whose leader asks the server for the
//! lease, again and again if it is held elsewhere. The holder runs its loader, and publishes the value if the lease
//! still has its token and grant, `clear` was not called, and no other value is there (for a refresh: no other than the
//! one that it has seen). A write removes the lease, unless its value stays longer than any load. The leader's value
//! counts for followers that joined before its last request; others try again. A dropped leader releases its lease.
//!
//! **Invariants.** A loader starts only if no other process runs one under a lease that was neither released, nor
//! revoked by a write, nor expired. A value is not published if a write was executed since its load began. No call
//! returns a value older than a write that was executed before the call began. From each state, all callers get an
//! answer without further calls, writes or faults.
//!
//! **Covered.** Two processes with two callers each; all kinds of writes, `clear` in its two steps, expiry of values;
//! refreshes ahead of live values; failed and dropped loads; a crash of the leader; leases that expire while the holder
//! is cut off; requests that are sent again, of which the first is executed late.
//!
//! **Not covered.** Stale windows, tags, kept errors, and a server whose memory is full. Values with a TTL above a
//! minute do not expire during a load, which is the documented exception.

mod server;
mod steps;

use stateright::{Model, Property};

const PROCESSES: usize = 2;
const CALLERS: usize = 2;

/// Loads of a key with the sizes of the model.
#[derive(Clone, Debug)]
pub struct Protocol {
    /// Mutation of the protocol that its properties must find.
    pub bug: Option<Bug>,
    /// Number of writes.
    pub writes: u8,
    /// Number of calls that may be made, by all callers.
    pub calls: u8,
    /// Number of crashes, dropped calls, failed loads, and leases lost by a holder that is cut off.
    pub faults: u8,
    /// Number of requests for a lease that are sent twice, of which the first is executed late.
    pub late: u8,
    /// True to refresh values before they expire.
    pub refreshes: bool,
}

/// Mutations of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A loaded value is written without a check of the token.
    PublishesWithoutToken,
    /// A refresh replaces any value.
    IgnoresFingerprint,
    /// `remove` leaves the lease.
    RemoveLeavesLease,
    /// A write that keeps a short TTL leaves the lease.
    KeepTtlLeavesLease,
    /// A load is not invalidated by `clear`.
    IgnoresClear,
    /// A request that is executed late grants a lease that a write has revoked.
    GrantsRevokedLease,
    /// A request for a refresh that is executed late notes the value that is there by then as the one to replace.
    RepeatedRequestSeesAgain,
    /// A lease is granted although another process holds it.
    GrantsHeldLease,
    /// All followers get the leader's reply.
    AnswersLateFollowers,
    /// The lease of a crashed process does not expire.
    LeaseNeverExpires,
}

/// The server and the processes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    record: Option<Record>,
    lease: Option<Lease>,
    /// Number of calls of `clear`: the random value that they write.
    cleared: u8,
    /// True between the two steps of `clear`.
    is_clearing: bool,
    /// Number of writes that were executed.
    written: u8,
    grants: u8,
    tokens: u8,
    processes: [Process; PROCESSES],
    lost_write: bool,
    returned_old: bool,
    loaded_twice: bool,
    writes: u8,
    calls: u8,
    faults: u8,
    late: u8,
}

/// A value on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Record {
    /// Number of writes that it reflects.
    version: u8,
    /// Distinguishes values: a write, or the token of a load.
    identity: (bool, u8),
    is_short: bool,
}

/// The hash `load` of the scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lease {
    token: u8,
    grant: u8,
    cleared: u8,
    seen: Option<Record>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Process {
    has_crashed: bool,
    callers: [Caller; CALLERS],
    leader: Option<Leader>,
    /// Requests for a lease that were sent again, but may still be executed: the token, and whether for a refresh.
    late: Option<(u8, bool)>,
    /// Tokens of leases that are to be released.
    releases: Vec<u8>,
}

/// A caller of a loader method; one that has missed joins the flight next. `floor` is the number of writes that were
/// executed when its call began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Caller {
    Idle,
    /// It has found no value, and joins the flight next.
    Missed {
        floor: u8,
    },
    /// `is_early` if it joined before the last request of the leader.
    Following {
        floor: u8,
        is_early: bool,
    },
    Leading {
        floor: u8,
    },
}

/// The leader of a flight: a caller, or a refresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Leader {
    caller: Option<usize>,
    token: u8,
    /// The grant of the lease that the reply has named.
    grant: u8,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Asks,
    Asked,
    Found(Record),
    Granted {
        grant: u8,
    },
    HeldElsewhere,
    /// The version is the number of writes before the load.
    Loads {
        version: u8,
    },
    Publishes {
        version: u8,
    },
    Published {
        version: u8,
        is_written: bool,
    },
}

/// Steps of the processes and of the server; the first argument is the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A caller reads the key.
    Call(usize, usize),
    /// A caller that has found no value joins the flight.
    Join(usize, usize),
    /// A caller that has found a live value starts a refresh.
    Refresh(usize),
    /// The leader asks for the lease; if true, the request is sent twice.
    Ask(usize, bool),
    /// The server executes the request of the leader.
    Execute(usize),
    /// The server executes a request whose reply no caller awaits.
    ExecuteLate(usize),
    /// The leader receives the reply.
    Receive(usize),
    /// The loader returns a value, and the leader sends it.
    Publish(usize),
    /// The loader fails.
    Fail(usize),
    /// The call that leads is dropped.
    Drop(usize),
    /// The server executes the release of a lease.
    Release(usize),
    /// The process crashes.
    Crash(usize),
    /// A lease expires that no process renews.
    ExpireLease,
    /// A lease expires because its holder is cut off.
    CutOff,
    /// A value with a short TTL expires.
    ExpireValue,
    /// Any client writes.
    Write(Write),
    /// `clear` removes the values that it finds.
    FinishClear,
}

/// Kinds of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// A plain `SET` of a value that stays longer than any load.
    Long,
    /// A script that writes a value with a short TTL.
    Short,
    /// A write that keeps the TTL of the live value, if there is one.
    KeepTtl,
    /// A script that removes the value.
    Remove,
    /// The first step of `clear`.
    Clear,
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for at in (0..PROCESSES).filter(|&at| !state.processes[at].has_crashed) {
            for caller in 0..CALLERS {
                actions.extend([Action::Call(at, caller), Action::Join(at, caller)]);
            }
            let of_leader = [Action::Execute, Action::Receive, Action::Publish, Action::Fail];
            actions.extend(of_leader.map(|action| action(at)));
            actions.extend([Action::Ask(at, false), Action::Ask(at, true), Action::Refresh(at)]);
            actions.extend([Action::Drop(at), Action::Release(at), Action::Crash(at)]);
        }
        actions.extend((0..PROCESSES).map(Action::ExecuteLate));
        let writes = [Write::Long, Write::Short, Write::KeepTtl, Write::Remove, Write::Clear];
        actions.extend(writes.map(Action::Write));
        actions.extend([Action::ExpireLease, Action::CutOff, Action::ExpireValue]);
        actions.push(Action::FinishClear);
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        self.step(&mut state, action)?;
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no write is lost", |_, state: &State| !state.lost_write),
            Property::always("no call returns an old value", |_, state: &State| {
                !state.returned_old
            }),
            Property::always("one load per lease", |_, state: &State| !state.loaded_twice),
            Property::sometimes("a loaded value is written", |_, state: &State| {
                state.record.is_some_and(|record| record.identity.0)
            }),
            Property::sometimes("a load is superseded", |_, state: &State| {
                state.processes.iter().filter_map(|process| process.leader).any(|leader| {
                    matches!(leader.phase, Phase::Published { is_written: false, .. })
                })
            }),
        ]
    }
}

#[cfg(test)]
mod tests;
