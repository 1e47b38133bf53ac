//! Next deadlines of each shard, as a waiter has read them, so that it need not ask all shards for each entry.
//!
//! 1. A read of a shard is one plain command that returns its first deadlines. An entry with an earlier deadline than
//!    those can only be there later if a lease was ended early; all other changes set deadlines after the read.
//! 2. A shard is read again when its known deadlines are used up, when this handle changed it, when a lease of this
//!    handle ends, and when the read is older than `ask_every`, because other processes may have changed it.
//! 3. The server decides whether an entry is due. The waiter only estimates the server's clock.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// Number of deadlines per read.
pub(super) const READ_AHEAD: usize = 8;

/// Time for which an estimate of the server's clock is used: the bound on the delay if that clock jumps ahead.
const CLOCK_TTL: Duration = Duration::from_secs(10);

pub(super) struct ReadAhead {
    shards: Vec<ShardAhead>,
    /// Clock of each shard's node; only the first is used if all shards are on one server.
    clocks: Vec<Option<ServerClock>>,
    is_cluster: bool,
}

#[derive(Clone, Default)]
struct ShardAhead {
    /// First deadlines in microseconds, oldest first.
    deadlines: VecDeque<i64>,
    /// True if the shard may have more deadlines.
    has_more: bool,
    /// End of the first lease that this handle has taken since the last read.
    first_lease_end: Option<i64>,
    read_at: Option<Instant>,
}

#[derive(Clone, Copy)]
struct ServerClock {
    micros: i64,
    at: Instant,
}

impl ReadAhead {
    pub(super) fn new(shards: usize, is_cluster: bool) -> Self {
        Self { shards: vec![ShardAhead::default(); shards], clocks: vec![None; shards], is_cluster }
    }

    /// Forgets what was read of the shards of the set bits, so that they are read again.
    pub(super) fn forget(&mut self, shards: u32) {
        for (index, shard) in self.shards.iter_mut().enumerate() {
            if shards & 1 << index != 0 {
                *shard = ShardAhead::default();
            }
        }
    }

    /// Returns the shard with the oldest deadline, and the time until the server is to be asked for it.
    pub(super) fn first(&self) -> Option<(usize, Duration)> {
        let firsts = self.shards.iter().enumerate();
        let firsts = firsts.filter_map(|(at, shard)| Some((*shard.deadlines.front()?, at)));
        let (deadline, shard) = firsts.min()?;
        Some((shard, self.wait(shard, deadline)))
    }

    /// Returns the time until a shard is to be read again.
    pub(super) fn next_read(&self, ask_every: Duration) -> Duration {
        let now = Instant::now();
        let waits = self.shards.iter().enumerate().map(|(at, shard)| {
            let age = shard.read_at.map_or(ask_every, |read_at| now - read_at);
            let lease = shard.first_lease_end.map_or(ask_every, |end| self.wait(at, end));
            ask_every.saturating_sub(age).min(lease)
        });
        waits.min().unwrap_or(ask_every)
    }

    /// Records that an entry with this deadline was leased until `lease_end`.
    pub(super) fn took(&mut self, shard: usize, deadline: i64, lease_end: i64) {
        let shard = &mut self.shards[shard];
        // Other callers took those before it. It may have been added after the read, and others may have its deadline.
        while shard.deadlines.front().is_some_and(|first| *first < deadline) {
            shard.deadlines.pop_front();
        }
        if shard.deadlines.front() == Some(&deadline) {
            shard.deadlines.pop_front();
        }
        let first = shard.first_lease_end.unwrap_or(i64::MAX);
        shard.first_lease_end = Some(first.min(lease_end));
    }

    /// Records that a shard had no due entry at a time of the server.
    pub(super) fn found_nothing(&mut self, shard: usize, server_micros: i64) {
        self.set_clock(shard, server_micros);
        // Another caller took it.
        if self.shards[shard].deadlines.front().is_some_and(|first| *first <= server_micros) {
            self.shards[shard] = ShardAhead::default();
        }
    }

    /// Records the first deadlines of a shard, which were just read, and whether it may have more.
    pub(super) fn was_read(&mut self, shard: usize, deadlines: VecDeque<i64>, has_more: bool) {
        let read_at = Some(Instant::now());
        self.shards[shard] = ShardAhead { deadlines, has_more, first_lease_end: None, read_at };
    }

    pub(super) fn set_clock(&mut self, shard: usize, micros: i64) {
        let clock = if self.is_cluster { shard } else { 0 };
        self.clocks[clock] = Some(ServerClock { micros, at: Instant::now() });
    }

    /// Returns the shards to read. While entries are due, only one of those whose last read is old: a backlog is to be
    /// worked off, not to be read again and again.
    pub(super) fn to_read(&self, ask_every: Duration) -> Vec<usize> {
        let now = Instant::now();
        let is_used_up = |at: usize| {
            let shard = &self.shards[at];
            let has_lease_ended =
                shard.first_lease_end.is_some_and(|end| self.wait(at, end).is_zero());
            shard.read_at.is_none()
                || shard.deadlines.is_empty() && shard.has_more
                || has_lease_ended
        };
        let age = |at: usize| self.shards[at].read_at.map_or(ask_every, |read_at| now - read_at);
        let (mut to_read, mut others): (Vec<_>, Vec<_>) =
            (0..self.shards.len()).partition(|at| is_used_up(*at));
        others.retain(|at| age(*at) >= ask_every);
        if self.first().is_some_and(|(_, wait)| wait.is_zero()) {
            others.sort_by_key(|at| std::cmp::Reverse(age(*at)));
            others.truncate(1);
        }
        to_read.extend(others);
        to_read
    }

    /// Returns the time until a deadline, zero if it is unknown.
    fn wait(&self, shard: usize, deadline: i64) -> Duration {
        let clock = if self.is_cluster { shard } else { 0 };
        let clock = self.clocks[clock].filter(|clock| clock.at.elapsed() < CLOCK_TTL);
        let Some(ServerClock { micros, at }) = clock else { return Duration::ZERO };
        let left = u64::try_from(deadline.saturating_sub(micros)).unwrap_or(0);
        Duration::from_micros(left).saturating_sub(at.elapsed())
    }
}

#[cfg(test)]
mod tests;
