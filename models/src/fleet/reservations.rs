//! Reservations of one process: which checks ask the server, as in `src/redis/rate_limiter/reservations.rs`. Quotas are
//! far above the load, so each draw gets all that it asks for.

use std::{collections::HashMap, mem};

/// Maximum number of keys that a process observes.
const MAX_KEYS: usize = 16 * 640;

/// Number of checks from which a key is busy, if none of them comes later than units would lapse.
const MIN_CHECKS: u32 = 4;

/// Settings of a limiter.
#[derive(Clone, Copy, Debug)]
pub struct Reserve {
    /// Maximum number of units of a draw.
    pub most: u32,
    /// Time in nanoseconds for which units are reserved.
    pub time: u64,
}

/// Reservations of one process, and the keys that may become busy.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    keys: HashMap<u32, Key>,
    cleaned_at: Option<u64>,
}

#[derive(Debug, Default)]
struct Key {
    asked_at: u64,
    checks: u32,
    calls: u32,
    left: u32,
    until: u64,
    draws: bool,
    /// Times at which the checks began that wait for a draw.
    waiters: Vec<u64>,
}

/// Decision about a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// It takes a reserved unit.
    Admit,
    /// It waits for another check that draws.
    Wait,
    /// It asks the server and draws this number of units ahead. If units have lapsed, another call gives them back.
    Ask { ahead: u32, gives_back: bool },
}

const ASK: Decision = Decision::Ask { ahead: 0, gives_back: false };

impl Reservations {
    pub(super) fn check(&mut self, key: u32, now: u64, reserve: Reserve) -> Decision {
        let Some(key) = self.key(key, now, reserve.time) else { return ASK };
        if key.left > 0 && now < key.until {
            key.left -= 1;
            return Decision::Admit;
        }
        if key.draws {
            key.waiters.push(now);
            return Decision::Wait;
        }
        let used_up = key.until > now;
        let gives_back = mem::take(&mut key.left) > 0;
        if gives_back {
            key.calls /= 2;
        }
        if now > key.asked_at + reserve.time {
            key.checks = 0;
        }
        if now > key.asked_at + 2 * reserve.time {
            key.calls = 0;
        }
        key.until = 0;
        (key.asked_at, key.checks) = (now, key.checks + 1);
        if used_up {
            key.calls *= 2;
        }
        if key.calls == 0 && key.checks >= MIN_CHECKS {
            key.calls = 1;
        }
        key.calls = key.calls.min(reserve.most);
        key.draws = key.calls > 0;
        Decision::Ask { ahead: key.calls, gives_back }
    }

    /// Ends the draw of a key, which began at `began` and got `ahead` units. Returns the times at which the checks
    /// began that it admits, and of those that have to ask the server.
    pub(super) fn drawn(
        &mut self,
        key: u32,
        began: u64,
        ahead: u32,
        reserve: Reserve,
    ) -> (Vec<u64>, Vec<u64>) {
        let Some(key) = self.keys.get_mut(&key) else { return Default::default() };
        let mut admitted = mem::take(&mut key.waiters);
        let others = admitted.split_off(admitted.len().min(ahead as usize));
        (key.draws, key.until) = (false, began + reserve.time);
        key.left = ahead - admitted.len() as u32;
        (admitted, others)
    }

    /// Returns the state of a key, or `None` if too many others are busy.
    fn key(&mut self, key: u32, now: u64, time: u64) -> Option<&mut Key> {
        if self.keys.len() >= MAX_KEYS && !self.keys.contains_key(&key) {
            if self.cleaned_at.is_some_and(|at| now < at + time) {
                return None;
            }
            self.cleaned_at = Some(now);
            let is_busy = |key: &Key| {
                key.left > 0 || key.draws || key.calls > 0 && now <= key.asked_at + 2 * time
            };
            self.keys.retain(|_, key| is_busy(key));
            if self.keys.len() >= MAX_KEYS {
                return None;
            }
        }
        Some(self.keys.entry(key).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::engine::{MS, SECOND};

    /// Checks one key at regular intervals, with replies after a millisecond. Returns the checks that ask the server,
    /// of those after the first `skipped`.
    fn asks(interval: u64, checks: u64, skipped: u64) -> u64 {
        let reserve = Reserve { most: 1_000, time: SECOND };
        let (mut reservations, mut asks, mut draw) = (Reservations::default(), 0, None);
        for check in 0..checks {
            let now = 10 * SECOND + check * interval;
            if let Some((began, ahead)) = draw.take_if(|(began, _)| *began + MS <= now) {
                let (admitted, others) = reservations.drawn(7, began, ahead, reserve);
                assert!(admitted.len() <= ahead as usize || others.is_empty());
            }
            match reservations.check(7, now, reserve) {
                Decision::Ask { ahead, .. } => {
                    asks += u64::from(check >= skipped);
                    draw = (ahead > 0).then_some((now, ahead)).or(draw);
                }
                Decision::Admit | Decision::Wait => {}
            }
        }
        asks
    }

    #[test]
    fn rare_checks_ask_each_time_and_frequent_ones_about_once_per_reservation() {
        assert_eq!(asks(2 * SECOND, 100, 0), 100);
        // Ten per second for a minute: one or two draws per second.
        let asked = asks(SECOND / 10, 600, 100);
        assert!((50..=100).contains(&asked), "{asked} of 500");
        // More than the maximum of a draw in a second: each draw is used up.
        let asked = asks(MS / 10, 200_000, 100_000);
        assert!((90..=110).contains(&asked), "{asked} of 100,000");
    }

    #[test]
    fn key_beyond_the_maximum_asks_until_others_are_idle() {
        let reserve = Reserve { most: 10, time: SECOND };
        let mut reservations = Reservations::default();
        for key in 0..MAX_KEYS as u32 {
            for check in 0..MIN_CHECKS {
                reservations.check(key, SECOND + u64::from(check), reserve);
            }
        }
        let beyond = MAX_KEYS as u32;
        for check in 0..2 * MIN_CHECKS {
            assert_eq!(reservations.check(beyond, SECOND + u64::from(check), reserve), ASK);
        }
        for key in 0..MAX_KEYS as u32 {
            reservations.drawn(key, SECOND, 0, reserve);
        }
        assert_ne!(
            (0..MIN_CHECKS).map(|_| reservations.check(beyond, 9 * SECOND, reserve)).last(),
            Some(ASK)
        );
    }
}
