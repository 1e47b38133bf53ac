//! Costs of a server, measured on a real one by `fleet measure`, which writes `costs.txt`.

use std::collections::BTreeMap;

/// Costs of the event loop, in microseconds of the server's processor.
#[derive(Clone, Copy, Debug, Default)]
pub struct TurnCosts {
    /// A turn, regardless of the number of its connections.
    pub turn_us: f64,
    /// A turn with one `GET` after two milliseconds or more without commands, in addition: the server's thread is
    /// scheduled again, and its data has left the caches of the processor. See [`Call::cold_us`].
    pub wake_us: f64,
    /// Shares of `wake_us` after shorter pauses, of [`PAUSES`].
    pub pause_share: [f64; 6],
    /// A connection with commands: reading them and writing the replies. By the number of connections in use, of
    /// [`CONNECTIONS`], because the state of many does not fit into the caches of the processor.
    pub connection_us: [f64; 4],
    /// A connection that is notified of changed keys.
    pub push_us: f64,
    /// A changed key in such a notification.
    pub pushed_key_us: f64,
    /// A new connection of this crate's client.
    pub connect_us: f64,
}

/// Numbers of connections for which [`TurnCosts::connection_us`] is measured.
pub const CONNECTIONS: [usize; 4] = [1, 8, 64, 500];

/// Pauses for which [`TurnCosts::pause_share`] is measured, in microseconds.
pub const PAUSES: [usize; 6] = [20, 60, 120, 250, 500, 1_000];

/// Pause after which a turn costs all of [`TurnCosts::wake_us`] more, in microseconds.
pub const LONG_PAUSE: usize = 2_000;

impl TurnCosts {
    /// Returns the cost of a connection if this number of connections is in use.
    pub fn of_connection(&self, connections: usize) -> f64 {
        interpolate(&CONNECTIONS, &self.connection_us, connections as f64)
    }

    /// Returns the share of the costs after a long pause that a pause of this time causes.
    pub fn after_pause(&self, us: f64) -> f64 {
        match us >= PAUSES[PAUSES.len() - 1] as f64 {
            true => {
                let last = [PAUSES[PAUSES.len() - 1], LONG_PAUSE];
                interpolate(&last, &[self.pause_share[PAUSES.len() - 1], 1.0], us)
            }
            false => interpolate(&PAUSES, &self.pause_share, us),
        }
    }
}

/// Returns the value at `at`, interpolated by its logarithm between the points; outside of them, the value of the next.
fn interpolate(points: &[usize], values: &[f64], at: f64) -> f64 {
    let Some(above) = points.iter().position(|&point| at <= point as f64) else {
        return values[points.len() - 1];
    };
    let Some(below) = above.checked_sub(1) else { return values[0] };
    let [from, to] = [below, above].map(|i| (points[i] as f64).ln());
    let share = (at.ln() - from) / (to - from);
    values[below] * (1.0 - share) + values[above] * share
}

/// Costs of one call of a method.
#[derive(Clone, Copy, Debug, Default)]
pub struct Call {
    /// Commands that the process sends.
    pub sent: f64,
    /// Commands that the server executes, including those of scripts.
    pub executed: f64,
    /// Time of the server's processor, without the turn and the connection.
    pub us: f64,
    /// Additional processor time of a call after a pause.
    pub cold_us: f64,
    /// Bytes that the server receives.
    pub bytes_in: f64,
    /// Bytes that the server sends.
    pub bytes_out: f64,
}

/// All measured costs.
#[derive(Clone, Debug, Default)]
pub struct Costs {
    /// Costs of the event loop.
    pub turns: TurnCosts,
    /// Calls by name, in the order of the file.
    pub calls: Vec<(String, Call)>,
    /// Bytes of the server's memory per key, by name.
    pub bytes: Vec<(String, f64)>,
    /// Commands per second of a process without calls, by name.
    pub idle: Vec<(String, f64)>,
    /// Version of the server and the machine.
    pub server: String,
}

impl Costs {
    /// Returns the costs that the simulation uses.
    pub fn measured() -> Self {
        Self::parse(include_str!("../../costs.txt"))
    }

    /// Reads a file in the format of [`write`](Costs::write).
    ///
    /// # Panics
    ///
    /// Panics if a line is malformed or a cost of the event loop is missing.
    pub fn parse(text: &str) -> Self {
        let mut costs = Self::default();
        let mut single = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let fields: Vec<&str> = line.split(" | ").collect();
            let number = |at: usize| fields[at].parse::<f64>().expect("costs are numbers");
            match fields[0] {
                "server" => costs.server = fields[1].to_owned(),
                "call" => {
                    let [sent, executed, us, cold_us, bytes_in, bytes_out] =
                        [2, 3, 4, 5, 6, 7].map(number);
                    let call = Call { sent, executed, us, cold_us, bytes_in, bytes_out };
                    costs.calls.push((fields[1].to_owned(), call));
                }
                "memory" => costs.bytes.push((fields[1].to_owned(), number(2))),
                "idle" => costs.idle.push((fields[1].to_owned(), number(2))),
                name => drop(single.insert(name.to_owned(), number(1))),
            }
        }
        let single = |name: &str| *single.get(name).expect("costs.txt has all costs of a turn");
        costs.turns = TurnCosts {
            turn_us: single("turn_us"),
            wake_us: single("wake_us"),
            pause_share: PAUSES.map(|us| single(&format!("wake_share after {us} us"))),
            connection_us: CONNECTIONS.map(|n| single(&format!("connection_us of {n}"))),
            push_us: single("push_us"),
            pushed_key_us: single("pushed_key_us"),
            connect_us: single("connect_us"),
        };
        costs
    }

    /// Returns the text of a file with these costs.
    pub fn write(&self) -> String {
        let TurnCosts {
            turn_us,
            wake_us,
            pause_share,
            connection_us,
            push_us,
            pushed_key_us,
            connect_us,
        } = self.turns;
        let mut text = String::from(
            "# Written by `taskset -c 0 cargo run --release -p fleeting-models --bin fleet -- measure`.\n",
        );
        text += &format!("server | {}\n", self.server);
        let single = [
            ("turn_us", turn_us),
            ("wake_us", wake_us),
            ("push_us", push_us),
            ("pushed_key_us", pushed_key_us),
            ("connect_us", connect_us),
        ];
        for (name, us) in single {
            text += &format!("{name} | {us:.3}\n");
        }
        for (pause, share) in PAUSES.iter().zip(pause_share) {
            text += &format!("wake_share after {pause} us | {share:.3}\n");
        }
        for (n, us) in CONNECTIONS.iter().zip(connection_us) {
            text += &format!("connection_us of {n} | {us:.3}\n");
        }
        for (name, call) in &self.calls {
            let Call { sent, executed, us, cold_us, bytes_in, bytes_out } = call;
            text += &format!(
                "call | {name} | {sent:.2} | {executed:.2} | {us:.3} | {cold_us:.3} | {bytes_in:.0} | {bytes_out:.0}\n"
            );
        }
        for (kind, all) in [("memory", &self.bytes), ("idle", &self.idle)] {
            for (name, number) in all {
                text += &format!("{kind} | {name} | {number:.2}\n");
            }
        }
        text
    }

    /// Returns the costs of a call.
    ///
    /// # Panics
    ///
    /// Panics if it was not measured.
    pub fn call(&self, name: &str) -> Call {
        let found = self.calls.iter().find(|(known, _)| known == name);
        found.unwrap_or_else(|| panic!("costs.txt lacks the call {name}")).1
    }

    /// Adapts the costs after a pause to a machine on which that of a `GET` is `wake_us`.
    pub fn adapt_cold(&mut self, wake_us: f64) {
        let factor = wake_us / self.turns.wake_us.max(0.1);
        self.turns.wake_us = wake_us;
        self.calls.iter_mut().for_each(|(_, call)| call.cold_us *= factor);
    }

    /// Returns the bytes of the server's memory per key.
    ///
    /// # Panics
    ///
    /// Panics if they were not measured.
    pub fn bytes(&self, name: &str) -> f64 {
        let found = self.bytes.iter().find(|(known, _)| known == name);
        found.unwrap_or_else(|| panic!("costs.txt lacks the memory of {name}")).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_costs_are_read_back() {
        let costs = Costs::measured();
        assert_eq!(Costs::parse(&costs.write()).write(), costs.write());
        assert!(costs.call("get").us > 0.0);
    }

    #[test]
    fn costs_between_measured_points_are_interpolated() {
        let turns = TurnCosts {
            connection_us: [1.0, 4.0, 7.0, 7.5],
            pause_share: [0.0, 0.1, 0.2, 0.3, 0.4, 0.5],
            ..TurnCosts::default()
        };
        assert_eq!(
            [1, 8, 64, 500, 1_000].map(|n| turns.of_connection(n)),
            [1.0, 4.0, 7.0, 7.5, 7.5]
        );
        assert!((1.0..4.0).contains(&turns.of_connection(3)));
        assert_eq!(
            [1.0, 20.0, 60.0, 1_000.0].map(|us| turns.after_pause(us)),
            [0.0, 0.0, 0.1, 0.5]
        );
        assert_eq!([2_000.0, 1e6].map(|us| turns.after_pause(us)), [1.0, 1.0]);
        assert!((0.5..1.0).contains(&turns.after_pause(1_500.0)));
    }
}
