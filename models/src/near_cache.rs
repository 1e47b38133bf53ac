//! The near cache of one process: `src/redis/cache/near.rs`, `in_flight_reads.rs`, `src/redis/client/invalidations.rs`,
//! `shared_connection.rs` and `cluster.rs`.
//!
//! **Protocol.** A read takes the version of its key, obtains the connection that is tracked, and sends its request.
//! Its reply is cached if the version is still current. A push of the server, the end of a verb and a reply that is not
//! cached invalidate their key. A retired connection and a changed slot map invalidate all keys, after no caller can
//! obtain the connection any more. Callers join a read in flight only while its version is current. In this model a
//! version is a flag, which every invalidation clears: counters only grow, so an outdated version never becomes current
//! again.
//!
//! **Invariants.** No call returns an older value than one that the process had read or written, or whose change had
//! been reported, when the call began. Each cached answer that is outdated and still in use has its invalidation on the
//! way, unless its slot has moved. No cached answer is used when it is as old as the maximum age.
//!
//! **Covered.** Two keys; writes by any number of other processes at any time; verbs of this process, answered, dropped
//! or executed after they were given up; pushes that the server sends after all replies of the same iteration
//! (`BCAST`); several connections, each with its own order; connections that are replaced while they still deliver, or
//! that the server closes; a failover by which a replica takes over the server, with or without the last write; a slot
//! that moves with or without a report, and slot maps that are outdated when they arrive.
//!
//! **One process is enough.** Each invariant is about the calls of one process, and processes share only the servers. A
//! read by another process changes nothing there: with `BCAST`, a server sends each change to every connection, whether
//! or not it has read the key, and each connection has its own queue. So a run of two processes is, for each of them, a
//! run of this model in which a step of the other one is a `Write` or no step. Faults of servers are steps, too.
//!
//! **Not covered.** Tags and TTLs. A value that a call gets by joining a read may be older than the call by the time
//! that the request was in flight. Values that a failover has lost may be returned, as documented.

mod faults;
mod state;
mod steps;

use stateright::{Model, Property};

const KEYS: usize = 2;
/// Ticks for which an answer may be used.
const MAX_AGE: u8 = 1;
/// In place of a connection: all of the servers that left the slot map, or the one that was replaced.
const SEVERAL: u8 = u8::MAX;

/// The near cache with its sizes.
#[derive(Clone, Debug)]
pub struct Protocol {
    /// Mutation of the protocol that its properties must find.
    pub bug: Option<Bug>,
    /// True for a cluster of two masters, false for a server and its replica.
    pub is_cluster: bool,
    /// Number of keys that are accessed, at most two.
    pub keys: u8,
    /// Number of writes by other processes.
    pub writes: u8,
    /// Number of verbs of this process that write.
    pub verbs: u8,
    /// Number of requests by which this process reads.
    pub reads: u8,
    /// Number of connections that are lost or replaced, of failovers, and of moves of a key.
    pub faults: u8,
    /// Number of ticks of the clock.
    pub ticks: u8,
}

/// Mutations of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A reply is cached although its key was invalidated since the request.
    CachesOutdatedReply,
    /// Callers join a read whose key was invalidated since the request.
    JoinsOutdatedRead,
    /// A verb relies on the push for its own change.
    VerbLeavesAnswer,
    /// A reply that is not cached leaves the answer of another read.
    UncachedReplyLeavesAnswer,
    /// All keys are invalidated before the connection is retired, not after.
    InvalidatesBeforeRetirement,
    /// A new slot map leaves all answers.
    NewMapLeavesAnswers,
    /// Pushes that arrive are not applied.
    IgnoresPushes,
    /// The age is counted from the reply, not from the request.
    CountsAgeFromReply,
}

/// The process, its connections and the servers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    servers: [Server; 2],
    /// Server of each key.
    serving: [u8; KEYS],
    /// Number of the last write of each key, and of one that a failover lost.
    last: [u8; KEYS],
    lost: [u8; KEYS],
    connections: Vec<Connection>,
    /// The connection that callers obtain, by destination: a cluster has one for each server.
    in_use: [Option<u8>; 2],
    /// A connection that is being retired; the invalidation of all keys is still to come.
    retiring: Option<u8>,
    /// Destination of each key.
    map: [u8; KEYS],
    needs_map: bool,
    cached: [Option<Answer>; KEYS],
    reads: Vec<Read>,
    verb: Option<Verb>,
    /// For each key: the newest write that this process has seen.
    known: [u8; KEYS],
    went_back: bool,
    used_too_old: bool,
    now: u8,
    writes: u8,
    verbs: u8,
    faults: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Server {
    values: [u8; KEYS],
    /// Changed keys that are reported at the end of this iteration.
    unreported: [bool; KEYS],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Connection {
    server: u8,
    destination: u8,
    is_open: bool,
    requests: Vec<Request>,
    replies: Vec<Reply>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Request {
    Read(u8),
    Write { verb: u8, key: u8 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Reply {
    Read {
        read: u8,
        value: u8,
        executed: u8,
    },
    Written {
        verb: u8,
        value: u8,
    },
    /// `MOVED`, or `READONLY` of a server that became a replica.
    Refused(Request),
    Changed {
        key: u8,
        value: u8,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Answer {
    value: u8,
    connection: u8,
    executed: u8,
    /// Time from which its age is counted.
    since: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Read {
    key: u8,
    is_current: bool,
    started: u8,
    /// The newest write that one of its callers had seen before it joined.
    floor: u8,
    was_resent: bool,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Verb {
    number: u8,
    key: u8,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// To be sent: to this destination after a redirection, otherwise to that of the slot map.
    Ready(Option<u8>),
    Waiting(u8),
    Answered {
        value: u8,
        connection: u8,
        executed: u8,
    },
    Done,
}

/// Steps of the process, of the servers, of the network, and of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A call of `get`, which returns the cached answer or reads.
    Get(u8),
    /// A read obtains the connection and sends its request.
    SendRead(u8),
    /// A read gives up a connection that was retired.
    Resend(u8),
    /// The task of a read caches the reply and answers its callers.
    Finish(u8),
    /// A call of this process begins to write a key.
    Verb(u8),
    /// The verb is sent.
    SendVerb,
    /// The call is dropped, or fails because its reply is lost.
    DropVerb,
    /// A server executes the next request of a connection.
    Execute(u8),
    /// A server reports the changes of this iteration.
    Report(u8),
    /// The process receives the next message of a connection.
    Deliver(u8),
    /// Another process changes a key.
    Write(u8),
    /// A server closes a connection.
    Close(u8),
    /// The connection is found closed or silent.
    Retire(u8),
    /// The connection is replaced, because it leads to a replica or its credentials have changed.
    Renew,
    /// All keys are invalidated.
    InvalidateAll,
    /// The replica takes over, with or without the last write of a key.
    FailOver(Option<u8>),
    /// The former master receives the values of the new one.
    Replicate,
    /// A key moves to the other master, which may go unreported.
    Move(u8, bool),
    /// A slot map arrives; one from before the move if it is outdated.
    FetchMap(bool),
    /// Time passes.
    Tick,
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let connections = 0..state.connections.len() as u8;
        actions.extend(connections.clone().map(Action::Execute));
        actions.extend((0..self.keys).map(Action::Write));
        if let Some(server) = (0..2).find(|&it| state.servers[it].unreported.contains(&true)) {
            // The rest of the iteration takes no time: a step of a client comes before it or after it.
            return actions.push(Action::Report(server as u8));
        }
        for key in 0..self.keys {
            actions.extend([Action::Get(key), Action::Verb(key), Action::FailOver(Some(key))]);
            actions.extend([true, false].map(|is_reported| Action::Move(key, is_reported)));
        }
        for read in 0..state.reads.len() as u8 {
            actions.extend([Action::SendRead(read), Action::Resend(read), Action::Finish(read)]);
        }
        for connection in connections {
            actions
                .extend([Action::Deliver, Action::Retire, Action::Close].map(|it| it(connection)));
        }
        actions.extend([Action::SendVerb, Action::DropVerb, Action::Renew, Action::InvalidateAll]);
        actions.extend([true, false].map(Action::FetchMap));
        actions.extend([Action::FailOver(None), Action::Replicate, Action::Tick]);
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        self.step(&mut state, action)?;
        state.tidy();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("reads never go back", |_, state: &State| !state.went_back),
            Property::always("outdated answers are invalidated", |model: &Self, state: &State| {
                (0..KEYS).all(|key| {
                    let answer = state.cached[key].as_ref();
                    let value = state.servers[state.serving[key] as usize].values[key];
                    let outdated = answer.filter(|answer| answer.value != value);
                    outdated.is_none_or(|answer| model.may_be_outdated(state, key, answer))
                })
            }),
            Property::always("no answer is used beyond the maximum age", |_, state: &State| {
                !state.used_too_old
            }),
            Property::sometimes("all keys are cached", |model: &Self, state: &State| {
                state.cached.iter().flatten().count() == model.keys as usize
            }),
        ]
    }
}

#[cfg(test)]
mod tests;
