//! The orders in which threads may meet over the entries of a timeout dictionary; see
//! `crate::engine::interleavings`.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use shuttle::{future::block_on, rand::Rng, thread};

use super::{claim::Claim, entries::Entries, retries::Retries, state::SharedState};
use crate::engine::clock::{Deadline, Tick};

const KEY: u8 = 1;

/// A dictionary of one key without its handle, on a clock that is handed in.
#[derive(Clone)]
struct Parts {
    shared: Arc<SharedState<u8, u32>>,
    start: Tick,
}

impl Parts {
    fn new() -> Self {
        let at_once = Retries { first: Duration::ZERO, ..Retries::DEFAULT };
        let shared = Arc::new(SharedState::new(at_once, Some(7)));
        Self { start: shared.clock.now(), shared }
    }

    fn at(&self, second: u64) -> Tick {
        let start = self.shared.clock.instant(self.start);
        self.shared.clock.tick_of(start + Duration::from_secs(second))
    }

    /// `u64::MAX` for never.
    fn until(&self, second: u64) -> Deadline {
        if second == u64::MAX { Deadline::PERSISTENT } else { self.at(second).into() }
    }

    /// Returns the value it replaced.
    fn set(&self, value: u32, deadline: u64) -> Option<u32> {
        let mut new = Some((KEY, value));
        let deadline = self.until(deadline);
        self.shared.with(|entries| entries.set(0, &mut new, deadline));
        new.map(|(_, replaced)| replaced)
    }

    fn set_deadline(&self, deadline: u64) -> bool {
        let deadline = self.until(deadline);
        self.shared.with(|entries| entries.set_deadline(0, &KEY, deadline)).is_some()
    }

    fn remove(&self) -> Option<u32> {
        self.shared.with(|entries| entries.remove(0, &KEY)).map(|(_, value)| value)
    }

    fn get(&self) -> Option<u32> {
        self.shared.with(|entries| entries.get(0, &KEY).copied())
    }

    fn take(&self, now: u64) -> Option<u32> {
        let now = self.at(now);
        let take = |entries: &mut Entries<u8, u32>| {
            entries.end_leases(&now);
            entries.take_first(&now)
        };
        self.shared.with(take).map(|(_, value)| value)
    }

    fn claim(&self, now: u64, lease: u64) -> Option<Claim<u8, u32>> {
        let now = self.at(now);
        let claimed = self.shared.with(|entries| {
            entries.end_leases(&now);
            entries.claim_first(now, Duration::from_secs(lease))
        })?;
        Some(Claim::new(self.shared.clone(), claimed))
    }

    fn extend(&self, claim: &Claim<u8, u32>, end: u64) -> bool {
        claim.extend_to(self.until(end), self.start)
    }

    async fn next(&self) -> u32 {
        let take = |entries: &mut Entries<u8, u32>, now| entries.take_first(&now);
        self.shared.next(take).await.1
    }

    fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Parts) -> T + Send + 'static,
    ) -> thread::JoinHandle<T> {
        let parts = self.clone();
        thread::spawn(move || work(&parts))
    }
}

fn explore(test: impl Fn() + Send + Sync + 'static) {
    let iterations = std::env::var("SHUTTLE_ITERATIONS");
    let iterations = iterations.map_or(5_000, |n| n.parse().expect("a number"));
    shuttle::check_random(test, iterations);
}

/// A claim whose lease is over meets one that comes after it: one of them is acked.
#[test]
fn interleavings_of_an_ack_and_the_end_of_its_lease() {
    explore(|| {
        let parts = Parts::new();
        parts.set(7, 10);
        let mut first = parts.claim(10, 5).expect("it is due");
        let acks = parts.spawn(move |_| first.ack_now());
        let claims = parts.spawn(|parts| {
            assert!(parts.claim(14, 5).is_none(), "somebody has a lease on it");
            let second = parts.claim(15, 5);
            second.map(|mut second| (*second.value(), second.ack_now()))
        });
        let (first, second) = (acks.join().unwrap(), claims.join().unwrap());
        assert!(
            matches!((first, second), (true, None) | (false, Some((7, true)))),
            "{first} {second:?}"
        );
        assert_eq!(parts.get(), None);
    });
}

/// What was set anew is not touched by the end of a claim on what was there before.
#[test]
fn interleavings_of_a_set_and_the_end_of_a_claim() {
    explore(|| {
        let parts = Parts::new();
        parts.set(1, 10);
        let mut claim = parts.claim(10, 5).expect("it is due");
        let ends = parts.spawn(move |parts| {
            let mut random = shuttle::rand::thread_rng();
            match random.gen_range(0..3) {
                0 => claim.ack_now(),
                1 => parts.extend(&claim, 60) && claim.ack_now(),
                _ => false,
            }
        });
        let replaced = parts.spawn(|parts| parts.set(2, 20));
        let takes = parts.spawn(|parts| parts.take(19));
        let (acked, replaced) = (ends.join().unwrap(), replaced.join().unwrap());
        match takes.join().unwrap() {
            Some(1) => {
                assert_eq!((acked, replaced), (false, None), "taken when its lease was over")
            }
            taken => assert_eq!((acked, taken), (replaced.is_none(), None)),
        }
        assert_eq!(parts.get(), Some(2));
        assert_eq!((parts.take(19), parts.take(20)), (None, Some(2)), "at its own deadline");
    });
}

/// Three threads do anything to one key. Each value leaves once or stays, and nobody acks or takes what
/// somebody else has a lease on.
#[test]
fn interleavings_of_everything_on_one_entry() {
    explore(|| {
        let parts = Parts::new();
        let threads: Vec<_> = (0..3_u32)
            .map(|thread| {
                parts.spawn(move |parts| {
                    let mut random = shuttle::rand::thread_rng();
                    let (mut set, mut left) = (vec![], vec![]);
                    let mut claims: Vec<Claim<u8, u32>> = vec![];
                    for step in 0..4 {
                        match random.gen_range(0..9) {
                            0 | 1 => {
                                let value = 10 * thread + step + 1;
                                set.push(value);
                                left.extend(parts.set(value, random.gen_range(5..15)));
                            }
                            2 | 3 => claims.extend(parts.claim(10, random.gen_range(0..9))),
                            4 => left.extend(parts.take(random.gen_range(10..20))),
                            5 => left.extend(parts.remove()),
                            6 => drop(parts.set_deadline(random.gen_range(5..15))),
                            7 => {
                                claims
                                    .last()
                                    .map(|claim| parts.extend(claim, random.gen_range(5..25)));
                            }
                            _ => drop(claims.pop()),
                        }
                        if random.gen_bool(0.3)
                            && let Some(mut claim) = claims.pop()
                            && claim.ack_now()
                        {
                            left.push(*claim.value());
                        }
                    }
                    (set, left)
                })
            })
            .collect();
        let (mut set, mut left) = (vec![], vec![]);
        for thread in threads {
            let (s, l) = thread.join().unwrap();
            set.extend(s);
            left.extend(l);
        }
        // All claims are given back by now, so that what there is can be taken.
        left.extend(parts.take(30));
        assert_eq!(parts.get(), None);
        set.sort_unstable();
        left.sort_unstable();
        assert_eq!(left, set, "each value leaves once");
    });
}

/// While a lease lasts, what is on it goes to nobody else.
#[test]
fn interleavings_of_claims_that_want_the_same() {
    explore(|| {
        let parts = Parts::new();
        parts.set(7, 10);
        let claim = |parts: &Parts| parts.claim(10, 5);
        let (a, b) = (parts.spawn(claim), parts.spawn(claim));
        let take = parts.spawn(|parts| parts.take(10));
        let (a, b, taken) = (a.join().unwrap(), b.join().unwrap(), take.join().unwrap());
        let gone = u32::from(a.is_some()) + u32::from(b.is_some()) + u32::from(taken.is_some());
        assert_eq!(gone, 1);
        let was_claimed = a.is_some() || b.is_some();
        let gives_back = parts.spawn(|_| drop((a, b)));
        let again = parts.spawn(|parts| parts.take(10));
        gives_back.join().unwrap();
        let again = again.join().unwrap().or_else(|| parts.take(10));
        assert_eq!(again.is_some(), was_claimed, "a claim that is dropped gives back at once");
    });
}

/// Two wait, one of them gives up; what comes due meanwhile wakes who is left.
#[test]
fn interleavings_of_waiting_and_giving_up() {
    explore(|| {
        let parts = Parts::new();
        let gives_up = parts.spawn(|parts| {
            let mut next = pin!(parts.next());
            let mut cx = Context::from_waker(Waker::noop());
            for _ in 0..3 {
                thread::yield_now();
                if let Poll::Ready(value) = next.as_mut().poll(&mut cx) {
                    return Some(value);
                }
            }
            None
        });
        let waits = parts.spawn(|parts| block_on(parts.next()));
        let sets = parts.spawn(|parts| {
            parts.set(1, u64::MAX);
            parts.set_deadline(0);
            let claim = parts.claim(0, u64::MAX);
            thread::yield_now();
            if let Some(mut claim) = claim {
                // At a time that is over for who waits, whose clock goes on.
                claim.give_back(Some(Duration::ZERO), parts.start);
            }
            parts.set(2, 0)
        });
        let (replaced, given) = (sets.join().unwrap(), gives_up.join().unwrap());
        if replaced.is_some() && given.is_some() {
            // Nothing is left for who waits.
            parts.set(3, 0);
        }
        let taken = [replaced, given, Some(waits.join().unwrap()), parts.take(0)];
        let mut taken: Vec<u32> = taken.into_iter().flatten().collect();
        taken.sort_unstable();
        assert!(taken == [1, 2] || taken == [1, 2, 3], "{taken:?}");
    });
}
