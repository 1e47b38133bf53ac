//! Steps of the process, and of the server that executes its requests.

use super::{
    Action, Answer, Bug, Connection, KEYS, MAX_AGE, Phase, Protocol, Read, Reply, Request, SEVERAL,
    Server, State, Verb,
};

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

    pub(super) fn connect(&self, state: &mut State, destination: u8) {
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

    /// Changes `state` by `action`; returns `None` if it is impossible now.
    pub(super) fn step(&self, state: &mut State, action: Action) -> Option<()> {
        match action {
            Action::Get(key) => self.get(state, key)?,
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
                // Otherwise outdated maps could drop and restore the connection to the other master forever.
                let may_come = !is_outdated || state.connections.len() < 3;
                let is_needed = state.needs_map && state.retiring.is_none() && may_come;
                is_needed.then(|| self.fetch_map(state, is_outdated))?;
            }
            Action::Tick => {
                state.now += 1;
                (state.now <= self.ticks).then_some(())?;
            }
            Action::Verb(_) | Action::SendVerb | Action::DropVerb => self.verb(state, action)?,
            Action::SendRead(number) | Action::Resend(number) | Action::Finish(number) => {
                self.read(state, action, number)?;
            }
            fault => self.fault(state, fault)?,
        }
        Some(())
    }

    /// Takes a step of the task of a read.
    fn read(&self, state: &mut State, action: Action, number: u8) -> Option<()> {
        match action {
            Action::SendRead(_) => {
                let Read { key, phase: Phase::Ready(to), .. } = state.reads[number as usize] else {
                    return None;
                };
                let phase = self.send(state, key, to, Request::Read(number));
                state.reads[number as usize].phase = phase;
            }
            Action::Resend(_) => {
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
            Action::Finish(_) => {
                let is_answered =
                    matches!(state.reads[number as usize].phase, Phase::Answered { .. });
                is_answered.then(|| self.finish(state, number))?;
            }
            _ => return None,
        }
        Some(())
    }

    /// Takes a step of the verb of this process.
    fn verb(&self, state: &mut State, action: Action) -> Option<()> {
        match action {
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
            _ => return None,
        }
        Some(())
    }
}
