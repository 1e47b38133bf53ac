//! Interleavings of threads on the entries of a timeout dictionary, explored by shuttle; see
//! `crate::engine::interleavings`.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use shuttle::{future::block_on, rand::Rng, thread};

use super::{claim::Claim, dict_state::DictState, entries::Entries};
use crate::engine::{
    clock::{Deadline, Tick},
    retries::Retries,
};

const KEY: u8 = 1;

/// A dictionary of one key, without its handle and with an explicit clock.
#[derive(Clone)]
struct BareDict {
    shared: Arc<DictState<u8, u32>>,
    start: Tick,
}

impl BareDict {
    fn new() -> Self {
        let at_once = Retries { first: Duration::ZERO, ..Retries::DEFAULT };
        let shared = Arc::new(DictState::new(at_once, Some(7)));
        Self { start: shared.clock.now(), shared }
    }

    fn at(&self, second: u64) -> Tick {
        let start = self.shared.clock.instant(self.start);
        self.shared.clock.tick_of(start + Duration::from_secs(second))
    }

    /// `u64::MAX` stands for no deadline.
    fn until(&self, second: u64) -> Deadline {
        if second == u64::MAX { Deadline::PERSISTENT } else { self.at(second).into() }
    }

    /// Returns the replaced value.
    fn set(&self, value: u32, deadline: u64) -> Option<u32> {
        let mut new = Some((KEY, value));
        let deadline = self.until(deadline);
        self.shared.with(|entries| entries.set(0, &mut new, deadline));
        new.map(|(_, replaced)| replaced)
    }

    fn set_deadline(&self, deadline: u64) -> bool {
        let deadline = self.until(deadline);
        let now = self.start;
        self.shared.with(|entries| entries.set_deadline(0, &KEY, deadline, now)).is_some()
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
            while entries.end_leases(&now) {}
            entries.take_first(&now)
        };
        self.shared.with(take).map(|(_, value)| value)
    }

    fn claim(&self, now: u64, lease: u64) -> Option<Claim<u8, u32>> {
        let now = self.at(now);
        let claimed = self.shared.with(|entries| {
            while entries.end_leases(&now) {}
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
        work: impl FnOnce(&BareDict) -> T + Send + 'static,
    ) -> thread::JoinHandle<T> {
        let dict = self.clone();
        thread::spawn(move || work(&dict))
    }
}

fn check_interleavings(test: impl Fn() + Send + Sync + 'static) {
    let iterations = std::env::var("SHUTTLE_ITERATIONS");
    let iterations = iterations.map_or(5_000, |n| n.parse().expect("a number"));
    shuttle::check_random(test, iterations);
}

/// A claim whose lease has ended and a later claim compete: exactly one of them is acknowledged.
#[test]
fn interleavings_of_an_ack_and_the_end_of_its_lease() {
    check_interleavings(|| {
        let dict = BareDict::new();
        dict.set(7, 10);
        let mut first = dict.claim(10, 5).expect("the entry is due");
        let acks = dict.spawn(move |_| first.ack_now());
        let claims = dict.spawn(|dict| {
            assert!(dict.claim(14, 5).is_none(), "another claim holds the lease");
            let second = dict.claim(15, 5);
            second.map(|mut second| (*second.value(), second.ack_now()))
        });
        let (first, second) = (acks.join().unwrap(), claims.join().unwrap());
        assert!(
            matches!((first, second), (true, None) | (false, Some((7, true)))),
            "{first} {second:?}"
        );
        assert_eq!(dict.get(), None);
    });
}

/// A value that was set is not affected by the end of a claim on its predecessor.
#[test]
fn interleavings_of_a_set_and_the_end_of_a_claim() {
    check_interleavings(|| {
        let dict = BareDict::new();
        dict.set(1, 10);
        let mut claim = dict.claim(10, 5).expect("the entry is due");
        let ends = dict.spawn(move |dict| {
            let mut rng = shuttle::rand::thread_rng();
            match rng.gen_range(0..3) {
                0 => claim.ack_now(),
                1 => dict.extend(&claim, 60) && claim.ack_now(),
                _ => false,
            }
        });
        let replaced = dict.spawn(|dict| dict.set(2, 20));
        let takes = dict.spawn(|dict| dict.take(19));
        let (acked, replaced) = (ends.join().unwrap(), replaced.join().unwrap());
        match takes.join().unwrap() {
            Some(1) => {
                assert_eq!((acked, replaced), (false, None), "taken after its lease ended")
            }
            taken => assert_eq!((acked, taken), (replaced.is_none(), None)),
        }
        assert_eq!(dict.get(), Some(2));
        assert_eq!((dict.take(19), dict.take(20)), (None, Some(2)), "due at its own deadline");
    });
}

/// Three threads run random operations on one key. Each value is removed once or stays, and no thread acknowledges or
/// takes an entry that another has leased.
#[test]
fn interleavings_of_all_operations_on_one_entry() {
    check_interleavings(|| {
        let dict = BareDict::new();
        let threads: Vec<_> = (0..3_u32)
            .map(|thread| {
                dict.spawn(move |dict| {
                    let mut rng = shuttle::rand::thread_rng();
                    let (mut set, mut departed) = (vec![], vec![]);
                    let mut claims: Vec<Claim<u8, u32>> = vec![];
                    for step in 0..4 {
                        match rng.gen_range(0..9) {
                            0 | 1 => {
                                let value = 10 * thread + step + 1;
                                set.push(value);
                                departed.extend(dict.set(value, rng.gen_range(5..15)));
                            }
                            2 | 3 => claims.extend(dict.claim(10, rng.gen_range(0..9))),
                            4 => departed.extend(dict.take(rng.gen_range(10..20))),
                            5 => departed.extend(dict.remove()),
                            6 => drop(dict.set_deadline(rng.gen_range(5..15))),
                            7 => {
                                claims.last().map(|claim| dict.extend(claim, rng.gen_range(5..25)));
                            }
                            _ => drop(claims.pop()),
                        }
                        if rng.gen_bool(0.3)
                            && let Some(mut claim) = claims.pop()
                            && claim.ack_now()
                        {
                            departed.push(*claim.value());
                        }
                    }
                    (set, departed)
                })
            })
            .collect();
        let (mut set, mut departed) = (vec![], vec![]);
        for thread in threads {
            let (s, l) = thread.join().unwrap();
            set.extend(s);
            departed.extend(l);
        }
        // All claims have been given back, so that the entry can be taken.
        departed.extend(dict.take(30));
        assert_eq!(dict.get(), None);
        set.sort_unstable();
        departed.sort_unstable();
        assert_eq!(departed, set, "each value is removed once");
    });
}

/// A leased entry is not delivered to other callers.
#[test]
fn interleavings_of_claims_on_the_same_entry() {
    check_interleavings(|| {
        let dict = BareDict::new();
        dict.set(7, 10);
        let claim = |dict: &BareDict| dict.claim(10, 5);
        let (a, b) = (dict.spawn(claim), dict.spawn(claim));
        let take = dict.spawn(|dict| dict.take(10));
        let (a, b, taken) = (a.join().unwrap(), b.join().unwrap(), take.join().unwrap());
        let granted = u32::from(a.is_some()) + u32::from(b.is_some()) + u32::from(taken.is_some());
        assert_eq!(granted, 1);
        let was_claimed = a.is_some() || b.is_some();
        let gives_back = dict.spawn(|_| drop((a, b)));
        let again = dict.spawn(|dict| dict.take(10));
        gives_back.join().unwrap();
        let again = again.join().unwrap().or_else(|| dict.take(10));
        assert_eq!(
            again.is_some(),
            was_claimed,
            "a dropped claim gives its entry back immediately"
        );
    });
}

/// One of two waiters is cancelled; an entry that becomes due in the meantime wakes the other.
#[test]
fn interleavings_of_waiting_and_cancelling() {
    check_interleavings(|| {
        let dict = BareDict::new();
        let gives_up = dict.spawn(|dict| {
            let mut next = pin!(dict.next());
            let mut cx = Context::from_waker(Waker::noop());
            for _ in 0..3 {
                thread::yield_now();
                if let Poll::Ready(value) = next.as_mut().poll(&mut cx) {
                    return Some(value);
                }
            }
            None
        });
        let waits = dict.spawn(|dict| block_on(dict.next()));
        let sets = dict.spawn(|dict| {
            dict.set(1, u64::MAX);
            dict.set_deadline(0);
            let claim = dict.claim(0, u64::MAX);
            thread::yield_now();
            if let Some(mut claim) = claim {
                // A time that has passed for the waiter, whose clock runs.
                claim.return_entry(Some(Duration::ZERO), dict.start);
            }
            dict.set(2, 0)
        });
        let (replaced, given) = (sets.join().unwrap(), gives_up.join().unwrap());
        if replaced.is_some() && given.is_some() {
            // No entry is left for the waiter.
            dict.set(3, 0);
        }
        let taken = [replaced, given, Some(waits.join().unwrap()), dict.take(0)];
        let mut taken: Vec<u32> = taken.into_iter().flatten().collect();
        taken.sort_unstable();
        assert!(taken == [1, 2] || taken == [1, 2, 3], "{taken:?}");
    });
}
