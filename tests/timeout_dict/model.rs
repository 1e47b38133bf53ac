//! Random sequences of all operations of a timeout dictionary, compared with a simple list as a model.
//!
//! `PROPTEST_CASES` sets the number of sequences (1,000 by default), `FLEETING_SEED` the seed.

use std::{collections::VecDeque, mem, time::Duration};

use fleeting::{Claim, TimeoutDict, TimeoutDictBuilder, Ttl};
use proptest::{prelude::*, sample::Index};
use tokio::{
    task::{JoinHandle, yield_now},
    time::{Instant, advance},
};

use crate::sequences::config;

type Key = u8;

const FIRST_BACKOFF: Duration = Duration::from_millis(200);
const MAX_BACKOFF: Duration = Duration::from_millis(300);

fn builder(max_attempts: u32) -> TimeoutDictBuilder<Key, u32> {
    TimeoutDict::builder().backoff(FIRST_BACKOFF, MAX_BACKOFF).max_attempts(max_attempts).seed(7)
}

#[derive(Clone, Debug)]
enum Op {
    Set(Key, u64),
    SetNx(Key, u64),
    SetTimeout(Key, u64),
    RemoveTimeout(Key),
    Get(Key),
    ContainsKey(Key),
    Ttl(Key),
    Remove(Key),
    TakeExpired(usize),
    ClaimExpired(usize, u64),
    Ack(Index),
    /// Calls `ack` and drops its future before it is polled.
    AckUnpolled(Index),
    Extend(Index, u64),
    Drop(Index),
    RetryIn(Index, u64),
    Fail(Index),
    Release(Index),
    Leak(Index),
    TakeDead(usize),
    DeadLetters(usize),
    Revive(Key, u64),
    NextExpired,
    NextClaim(u64),
    CancelWaiter(Index),
    Clear,
    Advance(u64),
    /// Lets the waiters run.
    Settle,
}

/// Few keys and few instants, so that operations collide.
fn op() -> impl Strategy<Value = Op> {
    let key = || 0..6_u8;
    let time = || prop_oneof![4 => Just(0), 9 => 0..8_u64, 1 => Just(u64::MAX)];
    let which = any::<Index>;
    prop_oneof![
        12 => (key(), time()).prop_map(|(k, t)| Op::Set(k, t)),
        3 => (key(), time()).prop_map(|(k, t)| Op::SetNx(k, t)),
        4 => (key(), time()).prop_map(|(k, t)| Op::SetTimeout(k, t)),
        2 => key().prop_map(Op::RemoveTimeout),
        2 => key().prop_map(Op::Get),
        1 => key().prop_map(Op::ContainsKey),
        2 => key().prop_map(Op::Ttl),
        2 => key().prop_map(Op::Remove),
        3 => (0..4_usize).prop_map(Op::TakeExpired),
        6 => (0..4_usize, time()).prop_map(|(n, t)| Op::ClaimExpired(n, t)),
        4 => which().prop_map(Op::Ack),
        1 => which().prop_map(Op::AckUnpolled),
        3 => (which(), time()).prop_map(|(i, t)| Op::Extend(i, t)),
        3 => which().prop_map(Op::Drop),
        2 => (which(), time()).prop_map(|(i, t)| Op::RetryIn(i, t)),
        3 => which().prop_map(Op::Fail),
        3 => which().prop_map(Op::Release),
        2 => (0..3_usize).prop_map(Op::TakeDead),
        3 => (0..4_usize).prop_map(Op::DeadLetters),
        2 => (key(), time()).prop_map(|(k, t)| Op::Revive(k, t)),
        1 => which().prop_map(Op::Leak),
        3 => Just(Op::NextExpired),
        3 => time().prop_map(Op::NextClaim),
        2 => which().prop_map(Op::CancelWaiter),
        1 => Just(Op::Clear),
        10 => (0..5_u64).prop_map(Op::Advance),
        4 => Just(Op::Settle),
    ]
}

fn ticks(n: u64) -> Duration {
    match n {
        u64::MAX => Duration::MAX,
        _ => Duration::from_millis(n * 100),
    }
}

/// `None` stands for never.
fn after(n: u64) -> Option<Instant> {
    (n != u64::MAX).then(|| Instant::now() + ticks(n))
}

#[derive(Clone, Copy)]
struct Entry {
    key: Key,
    value: u32,
    deadline: Option<Instant>,
    /// Number of the call that set the deadline.
    set_order: u64,
    /// Number of the last claim, and the end of its lease.
    claim: Option<(u64, Option<Instant>)>,
    attempts: u32,
    /// Number of the event by which it became dead.
    dead: Option<u64>,
    /// Number in the reason of the last failed attempt that had one.
    reason: Option<u32>,
}

/// The model: the entries, in no order.
struct Model {
    entries: Vec<Entry>,
    last_number: u64,
    max_attempts: u32,
}

impl Entry {
    fn is_available(&self, now: Instant) -> bool {
        let is_on_lease = self.claim.is_some_and(|(_, end)| end.is_none_or(|end| now < end));
        let is_due = self.deadline.is_some_and(|deadline| now >= deadline);
        is_due && !is_on_lease && self.dead.is_none()
    }
}

impl Model {
    fn new(max_attempts: u32) -> Self {
        Self { entries: vec![], last_number: 0, max_attempts }
    }

    fn get(&mut self, key: Key) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.key == key)
    }

    fn set(&mut self, key: Key, value: u32, deadline: Option<Instant>) -> Option<u32> {
        let old = self.remove(key);
        let set_order = self.next_number();
        let (claim, attempts, dead, reason) = (None, 0, None, None);
        self.entries.push(Entry { key, value, deadline, set_order, claim, attempts, dead, reason });
        old
    }

    /// Returns the previous deadline.
    fn set_deadline(&mut self, key: Key, deadline: Option<Instant>) -> Option<Option<Instant>> {
        let (set_order, max_attempts) = (self.next_number(), self.max_attempts);
        let entry = self.get(key).filter(|entry| entry.dead.is_none())?;
        entry.claim = None;
        if entry.attempts >= max_attempts {
            self.move_to_dead(key);
            return None;
        }
        entry.set_order = set_order;
        Some(mem::replace(&mut entry.deadline, deadline))
    }

    fn remove(&mut self, key: Key) -> Option<u32> {
        let at = self.entries.iter().position(|entry| entry.key == key)?;
        Some(self.entries.swap_remove(at).value)
    }

    /// Makes entries dead whose last allowed lease has ended, in the order in which the leases ended.
    fn end_leases(&mut self) {
        let now = Instant::now();
        let last_lease = |entry: &Entry| {
            let (number, end) = entry.claim?;
            let has_ended = end.is_some_and(|end| now >= end);
            let is_last = entry.attempts >= self.max_attempts && entry.dead.is_none();
            (has_ended && is_last).then_some((end, number, entry.key))
        };
        let mut ended: Vec<_> = self.entries.iter().filter_map(last_lease).collect();
        ended.sort();
        for (_, _, key) in ended {
            self.move_to_dead(key);
        }
    }

    fn move_to_dead(&mut self, key: Key) {
        let number = self.next_number();
        self.get(key).expect("the entry exists").dead = Some(number);
    }

    /// Ends a claim. Returns its key, and whether the entry needs a new deadline.
    fn return_entry(&mut self, claim: u64, has_delay: bool) -> Option<(Key, bool)> {
        self.end_leases();
        let now = Instant::now();
        let (set_order, max_attempts) = (self.next_number(), self.max_attempts);
        let entry = self.claimed(claim)?;
        let (_, end) = entry.claim.take().expect("the claim is valid");
        let has_ended = end.is_some_and(|end| now >= end);
        let key = entry.key;
        if entry.dead.is_some() || has_ended && !has_delay {
            return Some((key, false));
        }
        if entry.attempts >= max_attempts {
            self.move_to_dead(key);
            return Some((key, false));
        }
        entry.set_order = set_order;
        Some((key, true))
    }

    /// Ends a claim as if its entry had not been delivered.
    fn release(&mut self, claim: u64) -> bool {
        let Some(entry) = self.claimed(claim) else { return false };
        (entry.claim, entry.dead) = (None, None);
        entry.attempts -= 1;
        true
    }

    fn dead_letters(&self) -> Vec<Entry> {
        let dead = self.entries.iter().filter(|entry| entry.dead.is_some());
        let mut dead: Vec<_> = dead.copied().collect();
        dead.sort_by_key(|entry| entry.dead);
        dead
    }

    fn take_dead(&mut self) -> Option<(Key, u32)> {
        let Entry { key, value, .. } = *self.dead_letters().first()?;
        self.remove(key);
        Some((key, value))
    }

    fn revive(&mut self, key: Key, deadline: Option<Instant>) -> bool {
        let Some(entry) = self.get(key).filter(|entry| entry.dead.is_some()) else { return false };
        let value = entry.value;
        self.set(key, value, deadline);
        true
    }

    /// Returns the first due entry that is not leased.
    fn first(&mut self) -> Option<&mut Entry> {
        self.end_leases();
        let now = Instant::now();
        let available = self.entries.iter_mut().filter(|entry| entry.is_available(now));
        available.min_by_key(|entry| (entry.deadline, entry.set_order))
    }

    fn take(&mut self) -> Option<(Key, u32)> {
        let Entry { key, value, .. } = *self.first()?;
        self.remove(key);
        Some((key, value))
    }

    fn claim(&mut self, lease: u64) -> Option<Claimed> {
        let number = self.next_number();
        let entry = self.first()?;
        entry.claim = Some((number, after(lease)));
        entry.attempts += 1;
        Some((entry.key, entry.value, number, entry.attempts))
    }

    /// Returns the entry of `claim`, if the claim is not void.
    fn claimed(&mut self, claim: u64) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.claim.is_some_and(|(number, _)| number == claim))
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }
}

/// Key, value and number of a claim, and the number of deliveries of its entry.
type Claimed = (Key, u32, u64, u32);

/// A waiting call.
enum Waiter {
    Expired(JoinHandle<(Key, u32)>),
    Claim(JoinHandle<Claim<Key, u32>>, u64),
}

impl Waiter {
    fn is_finished(&self) -> bool {
        match self {
            Waiter::Expired(task) => task.is_finished(),
            Waiter::Claim(task, _) => task.is_finished(),
        }
    }
}

struct Test {
    dict: TimeoutDict<Key, u32>,
    model: Model,
    /// Claims that are held, each with its number in the model.
    claims: Vec<(Claim<Key, u32>, u64)>,
    waiters: VecDeque<Waiter>,
    next_value: u32,
}

impl Test {
    fn new(max_attempts: u32) -> Self {
        let (dict, model) = (builder(max_attempts).build(), Model::new(max_attempts));
        Self { dict, model, claims: vec![], waiters: VecDeque::new(), next_value: 0 }
    }

    async fn run(&mut self, op: Op) {
        self.next_value += 1;
        self.model.end_leases();
        let (dict, model, value) = (&self.dict, &mut self.model, self.next_value);
        match op {
            Op::Set(key, ttl) => {
                let replaced = dict.set(key, value, ticks(ttl)).await;
                assert_eq!(replaced, model.set(key, value, after(ttl)));
            }
            Op::SetNx(key, ttl) => {
                let is_set = model.get(key).is_none();
                assert_eq!(dict.set_nx(key, value, ticks(ttl)).await, is_set);
                if is_set {
                    model.set(key, value, after(ttl));
                }
            }
            Op::SetTimeout(key, ttl) => {
                let old = model.set_deadline(key, after(ttl));
                assert_eq!(dict.set_timeout(&key, ticks(ttl)).await, old.is_some());
            }
            Op::RemoveTimeout(key) => {
                let old = model.set_deadline(key, None);
                assert_eq!(dict.remove_timeout(&key).await, old.flatten().is_some());
            }
            Op::Get(key) => {
                assert_eq!(dict.get(&key).await, model.get(key).map(|entry| entry.value));
            }
            Op::ContainsKey(key) => {
                assert_eq!(dict.contains_key(&key).await, model.get(key).is_some());
            }
            Op::Ttl(key) => {
                model.end_leases();
                let deadline = |entry: &mut Entry| entry.deadline.filter(|_| entry.dead.is_none());
                let ttl = match model.get(key).map(deadline) {
                    None => Ttl::Missing,
                    Some(None) => Ttl::Persistent,
                    Some(Some(deadline)) => {
                        Ttl::Remaining(deadline.saturating_duration_since(Instant::now()))
                    }
                };
                assert_eq!(dict.ttl(&key).await, ttl);
            }
            Op::Remove(key) => assert_eq!(dict.remove(&key).await, model.remove(key)),
            Op::TakeExpired(max) => {
                let taken: Vec<_> = (0..max).map_while(|_| model.take()).collect();
                assert_eq!(dict.take_expired(max).await, taken);
            }
            Op::ClaimExpired(max, lease) => {
                let mut claims = dict.claim_expired(max, ticks(lease)).await.into_iter();
                if lease == 0 {
                    // In the model they are available again immediately; in one call, each is delivered once.
                    let mut expected = Vec::new();
                    for _ in 0..max {
                        let Some(claim) = model.claim(u64::MAX) else { break };
                        expected.push(claim);
                    }
                    for claim in expected {
                        let entry = model.claimed(claim.2).unwrap();
                        entry.claim = Some((claim.2, after(0)));
                        self.claims.push((check(claims.next(), claim), claim.2));
                    }
                } else {
                    for claim in (0..max).map_while(|_| model.claim(lease)) {
                        self.claims.push((check(claims.next(), claim), claim.2));
                    }
                }
                assert!(claims.next().is_none());
            }
            Op::Ack(which) => {
                let Some((claim, number)) = self.pick(which) else { return };
                let key = self.model.claimed(number).map(|entry| entry.key);
                assert_eq!(claim.ack().await, key.is_some());
                key.map(|key| self.model.remove(key));
            }
            Op::AckUnpolled(which) => {
                let Some((claim, number)) = self.pick(which) else { return };
                drop(claim.ack());
                self.record_failure(number).await;
            }
            Op::Extend(which, lease) if !self.claims.is_empty() => {
                let (claim, number) = which.get(&self.claims);
                let entry = model.claimed(*number);
                assert_eq!(claim.extend(ticks(lease)).await, entry.is_some());
                if let Some(entry) = entry {
                    entry.claim = Some((*number, after(lease)));
                    entry.dead = None;
                }
            }
            Op::Extend(..) => {}
            Op::Drop(which) => {
                let Some((claim, number)) = self.pick(which) else { return };
                drop(claim);
                self.record_failure(number).await;
            }
            Op::RetryIn(which, delay) => {
                let Some((claim, number)) = self.pick(which) else { return };
                let failed = self.model.return_entry(number, true);
                assert_eq!(claim.retry_in(ticks(delay)).await, failed.is_some());
                if let Some((key, true)) = failed {
                    self.model.get(key).expect("the entry exists").deadline = after(delay);
                }
            }
            Op::Fail(which) => {
                let Some((claim, number)) = self.pick(which) else { return };
                // The end of a lease ends the attempt.
                let now = Instant::now();
                let entry = self.model.claimed(number).filter(|entry| {
                    let (_, end) = entry.claim.expect("the entry is claimed");
                    end.is_none_or(|end| now < end)
                });
                assert_eq!(claim.fail(value.to_string()).await, entry.is_some());
                if let Some(entry) = entry {
                    entry.reason = Some(value);
                }
                self.record_failure(number).await;
            }
            Op::Release(which) => {
                let Some((claim, number)) = self.pick(which) else { return };
                assert_eq!(claim.release().await, self.model.release(number));
            }
            Op::DeadLetters(max) => {
                let letter = |entry: &Entry| {
                    let reason = entry.reason.map(|number| number.to_string());
                    (entry.key, entry.value, entry.attempts, reason)
                };
                let expected: Vec<_> = model.dead_letters().iter().take(max).map(letter).collect();
                let letters = dict.dead_letters(max).await.into_iter();
                let letters: Vec<_> =
                    letters.map(|l| (l.key, l.value, l.attempts, l.reason)).collect();
                assert_eq!(letters, expected);
            }
            Op::TakeDead(max) => {
                let taken: Vec<_> = (0..max).map_while(|_| model.take_dead()).collect();
                assert_eq!(dict.take_dead(max).await, taken);
            }
            Op::Revive(key, ttl) => {
                assert_eq!(dict.revive(&key, ticks(ttl)).await, model.revive(key, after(ttl)));
            }
            Op::Leak(which) => mem::forget(self.pick(which)),
            Op::NextExpired => {
                let dict = dict.clone();
                let task = tokio::spawn(async move { dict.next_expired().await });
                self.waiters.push_back(Waiter::Expired(task));
            }
            Op::NextClaim(lease) => {
                let dict = dict.clone();
                let task = tokio::spawn(async move { dict.next_claim(ticks(lease)).await });
                self.waiters.push_back(Waiter::Claim(task, lease));
            }
            Op::CancelWaiter(which) if !self.waiters.is_empty() => {
                match self.waiters.remove(which.index(self.waiters.len())) {
                    Some(Waiter::Expired(task)) => task.abort(),
                    Some(Waiter::Claim(task, _)) => task.abort(),
                    None => unreachable!("the index is in bounds"),
                }
            }
            Op::CancelWaiter(_) => {}
            Op::Clear => {
                dict.clear().await;
                model.entries.clear();
            }
            Op::Advance(n) => {
                advance(ticks(n)).await;
                self.settle().await;
            }
            Op::Settle => self.settle().await,
        }
        let (len, expected) = (self.dict.len().await, self.model.entries.len());
        assert_eq!((len, self.dict.is_empty().await), (expected, expected == 0));
        self.model.end_leases();
        let dead = self.model.entries.iter().filter(|entry| entry.dead.is_some()).count();
        assert_eq!(self.dict.dead_len().await, dead);
    }

    /// Records the failure of a dropped claim. The backoff is random within bounds, so its actual value is
    /// read from `ttl`.
    async fn record_failure(&mut self, claim: u64) {
        let Some((key, true)) = self.model.return_entry(claim, false) else { return };
        let entry = self.model.get(key).expect("the entry exists");
        let backoff = FIRST_BACKOFF.saturating_mul(1 << (entry.attempts - 1)).min(MAX_BACKOFF);
        let Ttl::Remaining(delay) = self.dict.ttl(&key).await else {
            panic!("the entry has no deadline")
        };
        assert!(
            (backoff / 2..=backoff * 2).contains(&delay),
            "backoff is {delay:?}, expected about {backoff:?}"
        );
        entry.deadline = Some(Instant::now() + delay);
    }

    fn pick(&mut self, which: Index) -> Option<(Claim<Key, u32>, u64)> {
        let len = self.claims.len();
        (len > 0).then(|| self.claims.swap_remove(which.index(len)))
    }

    /// Checks that waiters are served in the order of their calls, and only if an entry is due.
    async fn settle(&mut self) {
        for _ in 0..20 + 5 * self.waiters.len() {
            yield_now().await;
        }
        while let Some(waiter) = self.waiters.front() {
            if self.model.first().is_none() {
                break;
            }
            assert!(waiter.is_finished(), "an entry is due, but the first waiter does not get it");
            match self.waiters.pop_front() {
                Some(Waiter::Expired(task)) => {
                    assert_eq!(Some(task.await.unwrap()), self.model.take());
                }
                Some(Waiter::Claim(task, lease)) => {
                    let claim = self.model.claim(lease).expect("an entry is due");
                    let held = check(Some(task.await.unwrap()), claim);
                    self.claims.push((held, claim.2));
                }
                None => unreachable!("the front waiter exists"),
            }
        }
        assert!(!self.waiters.iter().any(Waiter::is_finished), "a waiter was served out of order");
    }

    async fn end(mut self) {
        self.settle().await;
        for (claim, number) in mem::take(&mut self.claims) {
            drop(claim);
            self.record_failure(number).await;
        }
        self.settle().await;
        advance(ticks(100)).await;
        self.settle().await;
        let left: Vec<_> = std::iter::from_fn(|| self.model.take()).collect();
        assert_eq!(self.dict.take_expired(usize::MAX).await, left);
        assert_eq!(self.dict.len().await, self.model.entries.len());
    }
}

/// Checks that the claim is the one expected by the model.
fn check(claim: Option<Claim<Key, u32>>, (key, value, _, attempts): Claimed) -> Claim<Key, u32> {
    let claim = claim.expect("an entry is due");
    assert_eq!((*claim.key(), *claim.value(), claim.attempts()), (key, value, attempts));
    claim
}

#[test]
fn timeout_dict_agrees_with_the_model() {
    let config = config(1_000, 2_015);
    proptest!(config, |(max_attempts in 1..4_u32, ops in proptest::collection::vec(op(), 1..80))| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut test = Test::new(max_attempts);
            for op in ops {
                test.run(op).await;
            }
            test.end().await;
        });
    });
}
