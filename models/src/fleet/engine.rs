//! Engine of the simulation: the agenda, the network, and the event loop of each server.
//!
//! A server takes turns as Redis does. A turn executes all commands that have arrived, connection by connection. At its
//! end, the server sends the notifications of changed keys to all connections that track them, and then the replies. So
//! a busy server reads several commands at once from a connection, and sends one notification for several changes.
//!
//! Messages between a process and a server stay in order, as on one connection. A link that is cut delays them until it
//! is repaired. A server that is down refuses commands, and loses those that it has not executed.

use std::{cmp::Ordering, collections::BinaryHeap, rc::Rc};

use super::costs::{Call, TurnCosts};

/// Nanoseconds of a microsecond.
pub const US: u64 = 1_000;
/// Nanoseconds of a millisecond.
pub const MS: u64 = 1_000_000;
/// Nanoseconds of a second.
pub const SECOND: u64 = 1_000_000_000;

/// A protocol and its load.
pub trait Scenario: Sized {
    /// A command with its reply.
    type Command;
    /// An event inside a process, such as the next request.
    type Timer;

    /// Executes a command on a server.
    fn execute(&mut self, server: usize, command: &mut Self::Command, now: u64) -> Execution;

    /// Handles the reply to a command.
    fn reply(&mut self, sim: &mut Sim<Self>, process: usize, command: Self::Command);

    /// Handles a command that the server has not executed.
    fn fail(&mut self, sim: &mut Sim<Self>, process: usize, command: Self::Command);

    /// Handles an event inside a process.
    fn timer(&mut self, sim: &mut Sim<Self>, timer: Self::Timer);

    /// Handles a notification of changed keys.
    fn push(&mut self, _process: usize, _keys: &[u32]) {}

    /// Handles the promotion of a replica of a server.
    fn promote(&mut self, _sim: &mut Sim<Self>, _server: usize) {}
}

/// Execution of a command.
#[derive(Clone, Copy, Debug, Default)]
pub struct Execution {
    /// Its costs.
    pub call: Call,
    /// The key that it changed, if it did.
    pub changed: Option<u32>,
}

/// A time in which a link is cut, or a server down.
pub type Span = (u64, u64);

/// Network between one process and all servers.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Time in one direction.
    pub latency: u64,
    /// Time in which it is cut.
    pub cut: Option<Span>,
}

/// Counters of one server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    /// Time in which it was busy, in nanoseconds.
    pub busy: u64,
    /// Commands executed.
    pub commands: u64,
    /// Turns of its event loop.
    pub turns: u64,
    /// Notifications sent to processes.
    pub pushes: u64,
    /// Largest number of commands that waited.
    pub backlog: usize,
}

struct Server<C> {
    waiting: Vec<(usize, C)>,
    running: Vec<(usize, C)>,
    changed: Vec<u32>,
    is_busy: bool,
    /// Time up to which the present turn is counted.
    counted_to: u64,
    idle_since: u64,
    down: Option<Span>,
    connected: Vec<bool>,
    load: Load,
}

enum Event<S: Scenario> {
    Arrive(usize, usize, S::Command),
    EndTurn(usize),
    Reply(usize, S::Command),
    Refused(usize, S::Command),
    Push(usize, Rc<[u32]>),
    Crash(usize),
    Promote(usize),
    Timer(S::Timer),
}

/// A simulated fleet.
pub struct Sim<S: Scenario> {
    /// Present time, in nanoseconds since the start.
    pub now: u64,
    /// Links of the processes.
    pub links: Vec<Link>,
    /// Processes that are notified of changes.
    pub trackers: Vec<usize>,
    costs: TurnCosts,
    connection_us: f64,
    servers: Vec<Server<S::Command>>,
    agenda: BinaryHeap<Due<S>>,
    scheduled: u64,
}

impl<S: Scenario> Sim<S> {
    /// Creates a fleet of `processes` with this round trip, in nanoseconds.
    pub fn new(processes: usize, servers: usize, round_trip: u64, costs: TurnCosts) -> Self {
        let server = || Server {
            waiting: Vec::new(),
            running: Vec::new(),
            changed: Vec::new(),
            is_busy: false,
            counted_to: 0,
            idle_since: 0,
            down: None,
            connected: vec![true; processes],
            load: Load::default(),
        };
        Self {
            now: 0,
            links: vec![Link { latency: round_trip / 2, cut: None }; processes],
            trackers: Vec::new(),
            costs,
            connection_us: costs.of_connection(processes),
            servers: (0..servers).map(|_| server()).collect(),
            agenda: BinaryHeap::new(),
            scheduled: 0,
        }
    }

    /// Schedules an event inside a process.
    pub fn after(&mut self, delay: u64, timer: S::Timer) {
        self.schedule(self.now + delay, Event::Timer(timer));
    }

    /// Sends a command.
    pub fn send(&mut self, process: usize, server: usize, command: S::Command) {
        let at = self.delivery(process);
        self.schedule(at, Event::Arrive(process, server, command));
    }

    /// Lets a server crash at the begin of `span`. A replica is promoted at its end.
    pub fn crash(&mut self, server: usize, span: Span) {
        self.servers[server].down = Some(span);
        self.schedule(span.0, Event::Crash(server));
        self.schedule(span.1, Event::Promote(server));
    }

    /// Returns the counters of all servers.
    pub fn loads(&self) -> Vec<Load> {
        let load = |server: &Server<S::Command>| {
            let uncounted = if server.is_busy { self.now - server.counted_to } else { 0 };
            Load { busy: server.load.busy + uncounted, ..server.load }
        };
        self.servers.iter().map(load).collect()
    }

    /// Sets the counters of all servers to 0, for example after a warm-up.
    pub fn reset_loads(&mut self) {
        for server in &mut self.servers {
            // The turn of an overloaded server may last for longer than the measurement.
            (server.load, server.counted_to) = (Load::default(), self.now);
        }
    }

    /// Runs until the given time. Events scheduled for later remain.
    pub fn run(&mut self, scenario: &mut S, until: u64) {
        while self.agenda.peek().is_some_and(|due| due.at < until) {
            let due = self.agenda.pop().expect("there is an event");
            self.now = due.at;
            self.handle(scenario, due.event);
        }
        self.now = until;
    }

    fn handle(&mut self, scenario: &mut S, event: Event<S>) {
        match event {
            Event::Arrive(process, server, command) => {
                if self.is_down(server) {
                    let at = self.delivery(process);
                    return self.schedule(at, Event::Refused(process, command));
                }
                let to = &mut self.servers[server];
                to.waiting.push((process, command));
                to.load.backlog = to.load.backlog.max(to.waiting.len());
                if !to.is_busy {
                    self.begin_turn(scenario, server);
                }
            }
            Event::EndTurn(server) => self.end_turn(scenario, server),
            Event::Reply(process, command) => scenario.reply(self, process, command),
            Event::Refused(process, command) => scenario.fail(self, process, command),
            Event::Push(process, keys) => scenario.push(process, &keys),
            Event::Crash(server) => {
                // The turn in progress completes: its replies are sent, but nothing that waits is executed.
                let lost = std::mem::take(&mut self.servers[server].waiting);
                self.servers[server].connected.fill(false);
                for (process, command) in lost {
                    let at = self.delivery(process);
                    self.schedule(at, Event::Refused(process, command));
                }
            }
            Event::Promote(server) => scenario.promote(self, server),
            Event::Timer(timer) => scenario.timer(self, timer),
        }
    }

    fn begin_turn(&mut self, scenario: &mut S, at: usize) {
        let server = &mut self.servers[at];
        server.is_busy = true;
        server.counted_to = self.now;
        server.running = std::mem::take(&mut server.waiting);
        // Connection by connection, each in order.
        server.running.sort_by_key(|(process, _)| *process);
        let idle = self.costs.after_pause((self.now - server.idle_since) as f64 / US as f64);
        let (mut us, mut cold_us) = (self.costs.turn_us, 0.0_f64);
        let mut last = None;
        for (process, command) in &mut server.running {
            if last.replace(*process) != Some(*process) {
                us += self.connection_us;
            }
            if !std::mem::replace(&mut server.connected[*process], true) {
                us += self.costs.connect_us;
            }
            let done = scenario.execute(at, command, self.now + (us * 1e3) as u64);
            us += done.call.us;
            // The first of several commands fills the caches for the others.
            cold_us = cold_us.max(done.call.cold_us);
            server.changed.extend(done.changed);
        }
        us += idle * cold_us;
        if !server.changed.is_empty() {
            // Each key once, however often it changed.
            server.changed.sort_unstable();
            server.changed.dedup();
            let keys = server.changed.len() as f64;
            us +=
                (self.costs.push_us + keys * self.costs.pushed_key_us) * self.trackers.len() as f64;
            server.load.pushes += self.trackers.len() as u64;
        }
        let busy = (us * 1e3) as u64;
        server.load.turns += 1;
        server.load.commands += server.running.len() as u64;
        self.schedule(self.now + busy, Event::EndTurn(at));
    }

    fn end_turn(&mut self, scenario: &mut S, at: usize) {
        let server = &mut self.servers[at];
        server.is_busy = false;
        server.load.busy += self.now - server.counted_to;
        server.idle_since = self.now;
        let (done, changed) =
            (std::mem::take(&mut server.running), std::mem::take(&mut server.changed));
        if !changed.is_empty() {
            let keys: Rc<[u32]> = changed.into();
            for tracker in 0..self.trackers.len() {
                let process = self.trackers[tracker];
                let at = self.delivery(process);
                self.schedule(at, Event::Push(process, keys.clone()));
            }
        }
        for (process, command) in done {
            let at = self.delivery(process);
            self.schedule(at, Event::Reply(process, command));
        }
        if !self.servers[at].waiting.is_empty() {
            self.begin_turn(scenario, at);
        }
    }

    fn is_down(&self, server: usize) -> bool {
        self.servers[server].down.is_some_and(|(from, to)| (from..to).contains(&self.now))
    }

    /// Returns when a message that is sent now, in either direction, arrives.
    fn delivery(&self, process: usize) -> u64 {
        let link = &self.links[process];
        let at = self.now + link.latency;
        match link.cut {
            Some((from, to)) if (from..to).contains(&at) => to,
            _ => at,
        }
    }

    fn schedule(&mut self, at: u64, event: Event<S>) {
        self.scheduled += 1;
        self.agenda.push(Due { at, number: self.scheduled, event });
    }
}

/// Event of the agenda. Events of the same time are handled in the order in which they were scheduled.
struct Due<S: Scenario> {
    at: u64,
    number: u64,
    event: Event<S>,
}

impl<S: Scenario> Ord for Due<S> {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap returns its maximum.
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl<S: Scenario> PartialOrd for Due<S> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<S: Scenario> PartialEq for Due<S> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<S: Scenario> Eq for Due<S> {}
