//! The state of the model: what an invalidation, a returned value and a change do to it.

use super::{Answer, Bug, KEYS, Phase, Protocol, Reply, Request, Server, State};

impl Protocol {
    pub(super) fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Returns the destination of a key, for a request that was not redirected.
    pub(super) fn destination(&self, state: &State, key: u8) -> u8 {
        if self.is_cluster { state.map[key as usize] } else { 0 }
    }

    /// Returns whether an outdated answer may be in use: its invalidation is on the way, or its slot has moved.
    pub(super) fn may_be_outdated(&self, state: &State, key: usize, answer: &Answer) -> bool {
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
    pub(super) fn new(model: &Protocol) -> Self {
        Self {
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
            writes: model.writes,
            verbs: model.verbs,
            faults: model.faults,
        }
    }

    pub(super) fn invalidate(&mut self, key: u8) {
        self.cached[key as usize] = None;
        let of_key = self.reads.iter_mut().filter(|read| read.key == key);
        of_key.for_each(|read| read.is_current = false);
    }

    pub(super) fn invalidate_all(&mut self) {
        (0..KEYS as u8).for_each(|key| self.invalidate(key));
    }

    /// A call that began when `floor` was known returns a value.
    pub(super) fn return_value(&mut self, key: u8, value: u8, floor: u8) {
        self.went_back |= value < floor;
        self.learn(key, value);
    }

    pub(super) fn learn(&mut self, key: u8, value: u8) {
        if value != self.lost[key as usize] {
            self.known[key as usize] = self.known[key as usize].max(value);
        }
    }

    /// Drops what has no effect any more, so that equal situations are equal states.
    pub(super) fn tidy(&mut self) {
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

    pub(super) fn change(&mut self, key: u8) -> u8 {
        let server = &mut self.servers[self.serving[key as usize] as usize];
        self.last[key as usize] += 1;
        server.values[key as usize] = self.last[key as usize];
        server.unreported[key as usize] = true;
        self.last[key as usize]
    }
}
