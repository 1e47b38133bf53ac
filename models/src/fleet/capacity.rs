//! Capacity: the largest load of a fleet, and the number of servers for a load.

use std::iter;

use super::{
    costs::Costs,
    engine::MS,
    random::mix,
    requests::{self, Outcome, Settings},
    reservations::Reserve,
};

/// Share of its time in which the busiest server of a plan may be busy. Above it, waits grow fast, and a failover or
/// the save of a snapshot exceeds the rest.
pub const BUSY: f64 = 0.7;

/// Number of shards of a cache (`src/redis/keyspace.rs`).
const SHARDS: usize = 16;

/// Largest number of servers of a plan.
pub const MOST_SERVERS: usize = 64;

/// Distribution of the keys over the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// Keys of limiters: each has its own slot.
    Spread,
    /// Keys of this number of caches, of 16 slots each.
    Caches(usize),
}

impl Keys {
    /// Returns the server of each group of keys.
    pub fn placement(self, servers: usize) -> Vec<usize> {
        match self {
            Self::Spread => {
                let slots = servers * 256;
                let mut slots: Vec<usize> = (0..slots).map(|slot| slot % servers).collect();
                slots.sort_by_key(|slot| mix(*slot as u64));
                slots
            }
            Self::Caches(caches) => {
                let tags = (0..caches).flat_map(|cache| {
                    (0..SHARDS).map(move |shard| format!("cache{cache}:{shard}"))
                });
                tags.map(|tag| slot(tag.as_bytes()) * servers / 16_384).collect()
            }
        }
    }
}

/// Returns the slot of a hash tag in a cluster: its CRC16 (XMODEM).
fn slot(tag: &[u8]) -> usize {
    let mut crc = 0_u16;
    for byte in tag {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
        }
    }
    usize::from(crc) % 16_384
}

/// Load of a fleet.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Number of processes.
    pub processes: usize,
    /// Calls by their share of the requests.
    pub mix: Vec<(f64, &'static str)>,
    /// Number of keys.
    pub keys: usize,
    /// Exponent of their Zipf distribution.
    pub exponent: f64,
    /// Distribution of the keys.
    pub spread: Keys,
    /// Reservations of the processes, if the calls are checks of limits.
    pub reserve: Option<Reserve>,
    /// Factor by which a real server may be busier than a simulated one.
    pub margin: f64,
}

impl Plan {
    /// Runs the load on this number of servers for about `requests`. Returns the busiest server's share with the
    /// margin, too.
    pub fn run(&self, rate: f64, servers: usize, requests: f64, costs: &Costs) -> (f64, Outcome) {
        let time = ((requests / rate * 1e9) as u64).max(MS);
        let settings = Settings {
            processes: self.processes,
            rate,
            keys: self.keys,
            exponent: self.exponent,
            placement: self.spread.placement(servers),
            mix: self.mix.clone(),
            reserve: self.reserve,
            down: None,
            tick: 0,
            round_trip: MS / 2,
            time,
            seed: super::SEED,
        };
        let outcome = requests::run(settings, costs);
        (self.margin * outcome.busiest(time), outcome)
    }

    /// Returns the largest number of requests per second with which one server is not busier than [`BUSY`], and the
    /// 99th percentile of their times in milliseconds.
    pub fn most(&self, requests: f64, costs: &Costs) -> (f64, f64) {
        let (mut low, mut high) = (1_000.0_f64, 4_000_000.0_f64);
        for _ in 0..12 {
            let rate = (low * high).sqrt();
            match self.run(rate, 1, requests, costs).0 <= BUSY {
                true => low = rate,
                false => high = rate,
            }
        }
        // With the margin, so that the simulated server is as busy as the real one.
        let (_, mut outcome) = self.run(self.margin * low, 1, requests, costs);
        (low, outcome.times.quantile_ms(0.99))
    }

    /// Returns the number of servers, a power of two, with which none is busier than [`BUSY`] at a rate; `None` if
    /// [`MOST_SERVERS`] do not suffice.
    pub fn servers(&self, rate: f64, requests: f64, costs: &Costs) -> Option<usize> {
        // Fewer are overloaded by a large rate, for as long as reservations need to become steady.
        let least = if self.reserve.is_some() && rate > 100_000.0 { 4 } else { 1 };
        let counts = iter::successors(Some(least), |count| Some(2 * count));
        let mut counts = counts.take_while(|count| *count <= MOST_SERVERS);
        counts.find(|servers| self.run(rate, *servers, requests, costs).0 <= BUSY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // The check value of CRC16 (XMODEM) in the cluster specification, modulo the number of slots.
        assert_eq!(slot(b"123456789"), 0x31c3);
    }

    #[test]
    fn one_cache_uses_at_most_sixteen_servers() {
        let used = |keys: Keys| {
            let mut servers = keys.placement(64);
            servers.sort_unstable();
            servers.dedup();
            servers.len()
        };
        assert!((8..=16).contains(&used(Keys::Caches(1))));
        assert_eq!(used(Keys::Spread), 64);
    }
}
