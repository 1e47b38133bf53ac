//! The near cache of one process: `src/redis/cache/near.rs`, `in_flight_reads.rs`, `src/redis/client/invalidations.rs`,
//! `shared_connection.rs` and `cluster.rs`.
//!
//! **Protocol.** A read takes the version of its key, obtains the connection that is tracked, and sends its request. Its
//! reply is cached if the version is still current. A push of the server, the end of a verb and a reply that is not
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
//! or executed after they were given up; pushes that the server sends after all replies of the same iteration (`BCAST`);
//! several connections, each with its own order; connections that are replaced while they still deliver, or that the
//! server closes; a failover by which a replica takes over the server, with or without the last write; a slot that
//! moves with or without a report, and slot maps that are outdated when they arrive.
//!
//! **Not covered.** Tags and TTLs. A value that a call gets by joining a read may be older than the call by the time
//! that the request was in flight. Values that a failover has lost may be returned, as documented.

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
    /// A call reads a key: from its cached answer, or by a request.
    Get(u8),
    /// A read obtains the connection and sends its request.
    SendRead(u8),
    /// A read gives up a connection that was retired.
    Resend(u8),
    /// The task of a read caches the reply and answers its callers.
    Finish(u8),
    /// A call of this process that writes a key begins.
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
    /// Another process writes a key.
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

impl Protocol {
    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Returns the destination of a key, for a request that was not redirected.
    fn destination(&self, state: &State, key: u8) -> u8 {
        if self.is_cluster { state.map[key as usize] } else { 0 }
    }

    /// Returns whether an outdated answer may be in use: its invalidation is on the way, or its slot has moved.
    fn may_be_outdated(&self, state: &State, key: usize, answer: &Answer) -> bool {
        let connection = &state.connections[answer.connection as usize];
        let is_push =
            |reply: &Reply| matches!(reply, Reply::Changed { key: k, .. } if *k as usize == key);
        let is_reported = !connection.is_open
            || connection.replies.iter().any(is_push)
            || state.servers[connection.server as usize].unreported[key];
        let is_in_use = state.in_use[connection.destination as usize] == Some(answer.connection);
        let has_moved = match self.is_cluster {
            true => state.map[key] != state.serving[key],
            false => is_in_use && connection.server != state.serving[key],
        };
        state.retiring.is_some() || has_moved || is_in_use && is_reported
    }
}

impl State {
    fn invalidate(&mut self, key: u8) {
        self.cached[key as usize] = None;
        let of_key = self.reads.iter_mut().filter(|read| read.key == key);
        of_key.for_each(|read| read.is_current = false);
    }

    fn invalidate_all(&mut self) {
        (0..KEYS as u8).for_each(|key| self.invalidate(key));
    }

    /// A call that began when `floor` was known returns a value.
    fn return_value(&mut self, key: u8, value: u8, floor: u8) {
        self.went_back |= value < floor;
        self.learn(key, value);
    }

    fn learn(&mut self, key: u8, value: u8) {
        if value != self.lost[key as usize] {
            self.known[key as usize] = self.known[key as usize].max(value);
        }
    }

    /// Drops what has no effect any more, so that equal situations are equal states.
    fn tidy(&mut self) {
        for read in self.reads.iter_mut().filter(|read| read.phase == Phase::Done) {
            (read.key, read.is_current, read.was_resent) = (u8::MAX, false, false);
            (read.floor, read.started) = (0, 0);
        }
        for number in 0..self.connections.len() as u8 {
            let (reads, verb) = (&self.reads, self.verb);
            let is_waiting = |request: Request| match request {
                Request::Read(read) => reads[read as usize].phase == Phase::Waiting(number),
                Request::Write { verb: number_of_verb, .. } => verb.is_some_and(|verb| {
                    verb.number == number_of_verb && verb.phase == Phase::Waiting(number)
                }),
            };
            let has_waiters = reads.iter().any(|read| read.phase == Phase::Waiting(number))
                || verb.is_some_and(|verb| verb.phase == Phase::Waiting(number));
            let connection = &mut self.connections[number as usize];
            let is_used = self.in_use.contains(&Some(number)) || has_waiters;
            let is_write = |request: &Request| matches!(request, Request::Write { .. });
            connection.requests.retain(|request| is_write(request) || is_waiting(*request));
            connection.replies.retain(|reply| match *reply {
                _ if !is_used => false,
                Reply::Changed { .. } => true,
                Reply::Refused(request) => is_waiting(request),
                Reply::Read { read, .. } => is_waiting(Request::Read(read)),
                Reply::Written { verb, .. } => is_waiting(Request::Write { verb, key: 0 }),
            });
            // Without callers it is closed, but requests that were sent may still be executed.
            connection.is_open &= is_used || !connection.requests.is_empty();
        }
    }

    fn change(&mut self, key: u8) -> u8 {
        let server = &mut self.servers[self.serving[key as usize] as usize];
        self.last[key as usize] += 1;
        server.values[key as usize] = self.last[key as usize];
        server.unreported[key as usize] = true;
        self.last[key as usize]
    }
}

impl Protocol {
    fn get(&self, state: &mut State, key: u8) -> Option<()> {
        let floor = state.known[key as usize];
        if let Some(answer) = &state.cached[key as usize]
            && state.now < answer.since + MAX_AGE
        {
            state.used_too_old |= state.now >= answer.executed + MAX_AGE;
            let value = answer.value;
            state.return_value(key, value, floor);
            return Some(());
        }
        let joins_outdated = self.has(Bug::JoinsOutdatedRead);
        let (count, mut reads) = (state.reads.len() as u8, state.reads.iter_mut().rev());
        // A newer read has replaced an outdated one in the map of reads.
        let newest = reads.find(|read| read.key == key).filter(|read| read.phase != Phase::Done);
        match newest.filter(|read| read.is_current || joins_outdated) {
            Some(read) => read.floor = read.floor.max(floor),
            None if count == self.reads => return None,
            None => {
                let (phase, started) = (Phase::Ready(None), state.now);
                state.reads.push(Read {
                    key,
                    is_current: true,
                    started,
                    floor,
                    was_resent: false,
                    phase,
                });
            }
        }
        Some(())
    }

    fn finish(&self, state: &mut State, number: u8) {
        let read = state.reads[number as usize].clone();
        let Phase::Answered { value, connection, executed } = read.phase else { return };
        let keeps_outdated = self.has(Bug::CachesOutdatedReply);
        if read.is_current || keeps_outdated {
            let since = if self.has(Bug::CountsAgeFromReply) { state.now } else { read.started };
            let answer = Answer { value, connection, executed, since };
            state.cached[read.key as usize] = Some(answer);
        } else if !self.has(Bug::UncachedReplyLeavesAnswer) {
            state.invalidate(read.key);
        }
        state.reads[number as usize].phase = Phase::Done;
        state.return_value(read.key, value, read.floor);
    }

    /// Obtains the connection to a destination, and sends a request.
    fn send(&self, state: &mut State, key: u8, to: Option<u8>, request: Request) -> Phase {
        let destination = to.unwrap_or_else(|| self.destination(state, key));
        if state.in_use[destination as usize].is_none() {
            self.connect(state, destination);
        }
        let connection = state.in_use[destination as usize].expect("it was connected");
        state.connections[connection as usize].requests.push(request);
        Phase::Waiting(connection)
    }

    fn connect(&self, state: &mut State, destination: u8) {
        let server = if self.is_cluster { destination } else { state.serving[0] };
        state.in_use[destination as usize] = Some(state.connections.len() as u8);
        let (requests, replies) = (Vec::new(), Vec::new());
        state.connections.push(Connection {
            server,
            destination,
            is_open: true,
            requests,
            replies,
        });
    }

    fn execute(&self, state: &mut State, number: u8) -> Option<()> {
        let connection = state.connections.get_mut(number as usize).filter(|it| it.is_open)?;
        let server = connection.server;
        let request = (!connection.requests.is_empty()).then(|| connection.requests.remove(0))?;
        let key = match request {
            Request::Read(read) => state.reads[read as usize].key,
            Request::Write { key, .. } => key,
        };
        let is_serving = state.serving[key as usize] == server;
        let reply = match request {
            Request::Read(read) if is_serving || !self.is_cluster => {
                let value = state.servers[server as usize].values[key as usize];
                Reply::Read { read, value, executed: state.now }
            }
            Request::Write { verb, .. } if is_serving => {
                Reply::Written { verb, value: state.change(key) }
            }
            _ => Reply::Refused(request),
        };
        state.connections[number as usize].replies.push(reply);
        Some(())
    }

    fn report(state: &mut State, server: u8) -> Option<()> {
        let Server { values, unreported } = &mut state.servers[server as usize];
        let keys = (0..KEYS as u8).filter(|&key| std::mem::take(&mut unreported[key as usize]));
        let pushes = keys.map(|key| Reply::Changed { key, value: values[key as usize] });
        let pushes: Vec<_> = pushes.collect();
        let tracked = state.connections.iter_mut().filter(|it| it.server == server && it.is_open);
        tracked.for_each(|connection| connection.replies.extend(&pushes));
        (!pushes.is_empty()).then_some(())
    }

    fn deliver(&self, state: &mut State, number: u8) -> Option<()> {
        let connection = &mut state.connections[number as usize];
        let server = connection.server;
        let reply = (!connection.replies.is_empty()).then(|| connection.replies.remove(0))?;
        let waiting = Phase::Waiting(number);
        match reply {
            Reply::Changed { key, value } if !self.has(Bug::IgnoresPushes) => {
                state.invalidate(key);
                state.learn(key, value);
            }
            Reply::Changed { .. } => {}
            Reply::Read { read, value, executed } => {
                let read = &mut state.reads[read as usize];
                if read.phase == waiting {
                    read.phase = Phase::Answered { value, connection: number, executed };
                }
            }
            Reply::Written { verb: number, value } => {
                let answered =
                    state.verb.take_if(|verb| verb.number == number && verb.phase == waiting);
                if let Some(verb) = answered {
                    if !self.has(Bug::VerbLeavesAnswer) {
                        state.invalidate(verb.key);
                    }
                    state.learn(verb.key, value);
                }
            }
            Reply::Refused(request) => {
                let other = self.is_cluster.then_some(1 - server);
                state.needs_map |= self.is_cluster;
                let phase = match request {
                    Request::Read(read) => Some(&mut state.reads[read as usize].phase),
                    Request::Write { verb: number, .. } => {
                        let verb = state.verb.as_mut().filter(|verb| verb.number == number);
                        verb.map(|verb| &mut verb.phase)
                    }
                };
                if let Some(phase) = phase.filter(|phase| **phase == waiting) {
                    *phase = Phase::Ready(other);
                }
            }
        }
        Some(())
    }

    fn fetch_map(&self, state: &mut State, is_outdated: bool) {
        let map = if is_outdated { [0; KEYS] } else { state.serving };
        let is_changed = std::mem::replace(&mut state.map, map) != map;
        state.needs_map = false;
        let mut is_dropped = false;
        for destination in 0..2 {
            if !map.contains(&destination) {
                is_dropped |= state.in_use[destination as usize].take().is_some();
            }
        }
        if (is_changed || is_dropped) && !self.has(Bug::NewMapLeavesAnswers) {
            state.retiring = Some(SEVERAL);
        }
    }

    fn fail_over(state: &mut State, lost: Option<u8>) {
        state.servers[1].values = state.servers[0].values;
        state.serving = [1; KEYS];
        let Some(key) = lost else { return };
        let last = state.last[key as usize];
        state.lost[key as usize] = last;
        state.servers[1].values[key as usize] = last - 1;
        let known = &mut state.known[key as usize];
        *known = (*known).min(last - 1);
        let of_key = state.reads.iter_mut().filter(|read| read.key == key);
        of_key.for_each(|read| read.floor = read.floor.min(last - 1));
    }

    /// Takes the steps of the network and of others; returns `None` if the step is impossible now.
    fn fault(&self, state: &mut State, action: Action) -> Option<()> {
        let is_idle = state.retiring.is_none();
        match action {
            Action::Close(number) => {
                state.in_use.contains(&Some(number)).then_some(())?;
                let connection = &mut state.connections[number as usize];
                connection.requests.clear();
                std::mem::replace(&mut connection.is_open, false).then_some(())?;
            }
            Action::Retire(number) => {
                let connection = &state.connections[number as usize];
                let in_use = &mut state.in_use[connection.destination as usize];
                let has_ended = !connection.is_open && connection.replies.is_empty();
                (is_idle && *in_use == Some(number)).then_some(())?;
                match self.has(Bug::InvalidatesBeforeRetirement) {
                    true => state.invalidate_all(),
                    false => *in_use = None,
                }
                state.retiring = Some(number);
                if has_ended {
                    return Some(());
                }
            }
            Action::Renew => {
                let old = state.in_use[0].filter(|_| is_idle)?;
                let is_replica = state.connections[old as usize].server != state.serving[0];
                self.connect(state, 0);
                state.retiring = Some(SEVERAL);
                if is_replica && !self.is_cluster {
                    return Some(());
                }
            }
            Action::FailOver(lost) => {
                let is_lost = lost.is_none_or(|key| state.last[key as usize] > 0);
                (!self.is_cluster && state.serving[0] == 0 && is_lost).then_some(())?;
                Self::fail_over(state, lost);
            }
            Action::Move(key, is_reported) => {
                (self.is_cluster && state.serving[key as usize] == 0).then_some(())?;
                state.serving[key as usize] = 1;
                state.servers[1].values[key as usize] = state.servers[0].values[key as usize];
                state.servers[0].unreported[key as usize] |= is_reported;
            }
            _ => return None,
        }
        state.faults = state.faults.checked_sub(1)?;
        Some(())
    }

    /// Changes `state` by `action`; returns `None` if it is impossible now.
    fn step(&self, state: &mut State, action: Action) -> Option<()> {
        match action {
            Action::Get(key) => self.get(state, key)?,
            Action::SendRead(number) => {
                let Read { key, phase: Phase::Ready(to), .. } = state.reads[number as usize] else {
                    return None;
                };
                let phase = self.send(state, key, to, Request::Read(number));
                state.reads[number as usize].phase = phase;
            }
            Action::Resend(number) => {
                let Read { key, phase: Phase::Waiting(on), was_resent, .. } =
                    state.reads[number as usize]
                else {
                    return None;
                };
                if state.in_use.contains(&Some(on)) {
                    return None;
                }
                let phase = if was_resent { Phase::Done } else { Phase::Ready(None) };
                let read = &mut state.reads[number as usize];
                (read.phase, read.was_resent) = (phase, true);
                if was_resent {
                    state.invalidate(key);
                }
            }
            Action::Finish(number) => {
                let is_answered =
                    matches!(state.reads[number as usize].phase, Phase::Answered { .. });
                is_answered.then(|| self.finish(state, number))?;
            }
            Action::Verb(key) => {
                let verb = state.verbs;
                state.verbs = state.verbs.checked_sub(1).filter(|_| state.verb.is_none())?;
                let phase = self.send(state, key, None, Request::Write { verb, key });
                state.verb = Some(Verb { number: verb, key, phase });
            }
            Action::SendVerb => {
                let Some(Verb { number: verb, key, phase: Phase::Ready(to) }) = state.verb else {
                    return None;
                };
                let phase = self.send(state, key, to, Request::Write { verb, key });
                state.verb = Some(Verb { number: verb, key, phase });
            }
            Action::DropVerb => {
                let verb = state.verb.take()?;
                state.invalidate(verb.key);
            }
            Action::Execute(number) => self.execute(state, number)?,
            Action::Report(server) => Self::report(state, server)?,
            Action::Deliver(number) => self.deliver(state, number)?,
            Action::Write(key) => {
                state.writes = state.writes.checked_sub(1)?;
                state.change(key);
            }
            Action::InvalidateAll => {
                let retired = state.retiring.take()?;
                match self.has(Bug::InvalidatesBeforeRetirement) && retired != SEVERAL {
                    true => state
                        .in_use
                        .iter_mut()
                        .for_each(|used| *used = used.filter(|&it| it != retired)),
                    false => state.invalidate_all(),
                }
            }
            Action::Replicate => {
                (!self.is_cluster && state.serving[0] == 1).then_some(())?;
                for key in 0..KEYS {
                    let value = state.servers[1].values[key];
                    let before = std::mem::replace(&mut state.servers[0].values[key], value);
                    state.servers[0].unreported[key] |= before != value;
                }
            }
            Action::FetchMap(is_outdated) => {
                // Otherwise outdated maps could drop and restore the connection to the other master for ever.
                let may_come = !is_outdated || state.connections.len() < 3;
                let is_needed = state.needs_map && state.retiring.is_none() && may_come;
                is_needed.then(|| self.fetch_map(state, is_outdated))?;
            }
            Action::Tick => {
                state.now += 1;
                (state.now <= self.ticks).then_some(())?;
            }
            fault => self.fault(state, fault)?,
        }
        Some(())
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            servers: [Server::default(), Server::default()],
            serving: [0; KEYS],
            last: [0; KEYS],
            lost: [u8::MAX; KEYS],
            connections: Vec::new(),
            in_use: [None; 2],
            retiring: None,
            map: [0; KEYS],
            needs_map: false,
            cached: [None, None],
            reads: Vec::new(),
            verb: None,
            known: [0; KEYS],
            went_back: false,
            used_too_old: false,
            now: 0,
            writes: self.writes,
            verbs: self.verbs,
            faults: self.faults,
        }]
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
