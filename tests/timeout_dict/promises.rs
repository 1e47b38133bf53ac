//! What the docs of the timeout dictionary promise.

use std::{
    future::pending,
    hash::{Hash, RandomState},
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use fleeting::{Claim, TimeoutDict, Ttl};
use futures::{FutureExt, future::join_all};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::{
    task::yield_now,
    time::{Instant, advance, sleep, timeout},
};
use tokio_test::{assert_pending, task::spawn};

const SECOND: Duration = Duration::from_secs(1);
const NANO: Duration = Duration::from_nanos(1);

async fn due<const N: usize>(keys: [&'static str; N]) -> TimeoutDict<&'static str, usize> {
    let dict = TimeoutDict::new();
    for (value, key) in keys.into_iter().enumerate() {
        dict.set(key, value, Duration::ZERO).await;
    }
    dict
}

fn keys<K: Clone, V>(claims: &[Claim<K, V>]) -> Vec<K> {
    claims.iter().map(|claim| claim.key().clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn what_is_due_stays_readable_until_it_is_taken() {
    let dict = TimeoutDict::new();
    dict.set("a", 1, SECOND).await;
    advance(SECOND - NANO).await;
    assert_eq!(dict.take_expired(9).await, []);
    assert_eq!(dict.ttl("a").await, Ttl::Remaining(NANO));
    advance(NANO).await;
    assert_eq!(dict.ttl("a").await, Ttl::Remaining(Duration::ZERO));
    advance(1_000 * SECOND).await;
    assert_eq!((dict.get("a").await, dict.contains_key("a").await), (Some(1), true));
    assert_eq!(dict.ttl("a").await, Ttl::Remaining(Duration::ZERO));
    assert_eq!(dict.take_expired(9).await, [("a", 1)]);
    assert_eq!((dict.get("a").await, dict.ttl("a").await), (None, Ttl::Missing));
    assert_eq!(dict.take_expired(9).await, []);
}

#[tokio::test(start_paused = true)]
async fn the_oldest_deadline_comes_first_and_equal_ones_as_they_were_set() {
    let dict = TimeoutDict::new();
    for key in ["c", "a", "b", "d"] {
        dict.set(key, (), SECOND).await;
    }
    dict.set("late", (), 2 * SECOND).await;
    dict.set("soon", (), Duration::ZERO).await;
    // Set anew, it comes behind its equals.
    assert!(dict.set_timeout("a", SECOND).await);
    dict.set("c", (), SECOND).await;
    advance(2 * SECOND).await;
    let mut taken: Vec<_> = dict.take_expired(4).await;
    taken.extend(dict.take_expired(usize::MAX).await);
    let taken: Vec<_> = taken.into_iter().map(|(key, ())| key).collect();
    assert_eq!(taken, ["soon", "b", "d", "a", "c", "late"]);
    assert_eq!(dict.take_expired(0).await, []);
}

#[tokio::test(start_paused = true)]
async fn many_entries_come_in_order() {
    let mut random = SmallRng::seed_from_u64(1);
    let dict = TimeoutDict::with_hasher(RandomState::new());
    let mut known = vec![None; 20_000];
    for round in 0..3 {
        for (key, known) in known.iter_mut().enumerate() {
            let ttl = random.random_range(0..1_000_000);
            match random.random_range(0..4) {
                0 if round > 0 => {
                    assert_eq!(dict.remove(&key).await.is_some(), known.take().is_some());
                }
                1 if round > 0 => {
                    let is_there = dict.set_timeout(&key, Duration::from_nanos(ttl)).await;
                    assert_eq!(is_there, known.replace(ttl).is_some());
                    if !is_there {
                        *known = None;
                    }
                }
                _ => {
                    let replaced = dict.set(key, key, Duration::from_nanos(ttl)).await;
                    assert_eq!(replaced.is_some(), known.replace(ttl).is_some());
                }
            }
        }
    }
    advance(SECOND).await;
    let mut left: Vec<_> =
        known.iter().enumerate().filter_map(|(k, ttl)| Some((*ttl.as_ref()?, k))).collect();
    left.sort_by_key(|(ttl, _)| *ttl);
    assert_eq!(dict.len().await, left.len());
    for some in left.chunks(1_000) {
        let taken = dict.take_expired(1_000).await;
        let order: Vec<_> = taken.into_iter().map(|(key, _)| known[key].unwrap()).collect();
        assert_eq!(order, some.iter().map(|(ttl, _)| *ttl).collect::<Vec<_>>());
    }
    assert!(dict.is_empty().await);
}

#[tokio::test(start_paused = true)]
async fn without_a_deadline_nothing_is_due() {
    let dict = TimeoutDict::new();
    dict.set("never", 1, Duration::MAX).await;
    dict.set("a", 2, SECOND).await;
    assert!(dict.remove_timeout("a").await);
    assert!(!dict.remove_timeout("a").await, "it has none");
    assert!(!dict.remove_timeout("missing").await);
    assert!(!dict.set_timeout("missing", SECOND).await);
    advance(1_000_000 * SECOND).await;
    assert_eq!(dict.take_expired(9).await, []);
    assert_eq!((dict.ttl("never").await, dict.ttl("a").await), (Ttl::Persistent, Ttl::Persistent));
    assert!(dict.set_timeout("a", Duration::ZERO).await);
    assert_eq!(dict.take_expired(9).await, [("a", 2)]);
    assert_eq!(dict.len().await, 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_due_may_get_a_new_deadline() {
    let dict = due(["a", "b"]).await;
    assert!(dict.set_timeout("a", SECOND).await);
    assert_eq!(dict.set("b", 7, SECOND).await, Some(1));
    assert_eq!(dict.take_expired(9).await, []);
    advance(SECOND).await;
    assert_eq!(dict.take_expired(9).await, [("a", 0), ("b", 7)]);
}

#[tokio::test(start_paused = true)]
async fn look_ups_take_borrowed_keys_and_clones_are_one() {
    let dict: TimeoutDict<String, String> = TimeoutDict::default();
    let clone = dict.clone();
    clone.set("key".into(), "value".into(), SECOND).await;
    assert_eq!(dict.get("key").await.as_deref(), Some("value"));
    assert_eq!(format!("{dict:?}"), "TimeoutDict { len: 1, .. }");
    assert_eq!(dict.remove("key").await.as_deref(), Some("value"));
    assert_eq!((clone.remove("key").await, clone.is_empty().await), (None, true));
    clone.set("key".into(), "value".into(), SECOND).await;
    dict.clear().await;
    assert_eq!((clone.len().await, clone.get("key").await), (0, None));
}

/// The real clock is the subject.
#[test]
fn needs_no_runtime_but_to_wait() {
    fn now<T>(future: impl Future<Output = T>) -> T {
        future.now_or_never().expect("it does not wait")
    }
    let dict = TimeoutDict::new();
    now(dict.set("a", 1, Duration::from_millis(5)));
    now(dict.set("b", 2, Duration::from_secs(1_000)));
    assert_eq!(now(dict.take_expired(9)), []);
    std::thread::sleep(Duration::from_millis(6));
    let claims = now(dict.claim_expired(9, SECOND));
    assert_eq!(keys(&claims), ["a"]);
    drop(claims);
    assert_eq!(now(dict.next_expired()), ("a", 1));
    let waits = AssertUnwindSafe(dict.next_expired()).catch_unwind();
    assert!(now(waits).is_err(), "the docs say that it panics");
    assert_eq!(now(dict.get("b")), Some(2));
}

#[tokio::test(start_paused = true)]
async fn what_is_claimed_goes_to_nobody_else_until_the_lease_is_over() {
    let dict = due(["a", "b", "c"]).await;
    let claims = dict.claim_expired(2, SECOND).await;
    assert_eq!(keys(&claims), ["a", "b"]);
    assert_eq!((claims[1].value(), dict.get("a").await), (&1, Some(0)));
    assert_eq!(format!("{:?}", claims[1]), "Claim { key: \"b\", value: 1, .. }");
    assert_eq!(dict.ttl("a").await, Ttl::Remaining(Duration::ZERO));
    assert_eq!(dict.take_expired(9).await, [("c", 2)]);
    advance(SECOND - NANO).await;
    assert_eq!(keys(&dict.claim_expired(9, SECOND).await), [""; 0]);
    advance(NANO).await;
    assert_eq!(dict.take_expired(9).await, [("a", 0), ("b", 1)]);
    for claim in claims {
        assert!(!claim.ack().await, "somebody else has taken it");
    }
}

#[tokio::test(start_paused = true)]
async fn an_ack_takes_out() {
    let dict = due(["a", "b"]).await;
    let mut claims = dict.claim_expired(9, SECOND).await;
    assert!(claims.pop().unwrap().ack().await);
    assert_eq!((dict.get("a").await, dict.get("b").await), (Some(0), None));
    // After the lease, as long as nobody else got it.
    advance(9 * SECOND).await;
    dict.set("c", 2, Duration::ZERO).await;
    assert_eq!(dict.take_expired(0).await, []);
    assert!(claims.pop().unwrap().ack().await);
    assert_eq!(dict.take_expired(9).await, [("c", 2)]);
}

#[tokio::test(start_paused = true)]
async fn of_two_claims_on_an_entry_the_later_is_acked() {
    let dict = due(["a"]).await;
    let first = dict.next_claim(SECOND).await;
    advance(SECOND).await;
    let second = dict.next_claim(SECOND).await;
    assert!(!first.extend(SECOND).await);
    drop(first);
    assert!(dict.claim_expired(9, SECOND).await.is_empty(), "the first has nothing to give back");
    assert!(second.ack().await);
    assert!(dict.is_empty().await);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_dropped_gives_back_at_once() {
    let dict = due(["a", "b"]).await;
    drop(dict.claim_expired(1, SECOND).await);
    let claims = dict.claim_expired(9, SECOND).await;
    assert_eq!(keys(&claims), ["a", "b"], "with the deadline it had, it is the oldest again");
    let mut claims = claims.into_iter();
    // A future that is dropped before it is polled.
    drop(claims.next().unwrap().ack());
    assert_eq!(dict.take_expired(9).await, [("a", 0)]);
    // A panic, and a task that is killed.
    let claim = claims.next().unwrap();
    let task = tokio::spawn(async move {
        let _claim = claim;
        panic!("in mid-work");
    });
    assert!(task.await.is_err());
    let claim = dict.next_claim(SECOND).await;
    let task = tokio::spawn(async move {
        let _claim = claim;
        pending::<()>().await;
    });
    yield_now().await;
    assert!(dict.claim_expired(9, SECOND).await.is_empty());
    task.abort();
    assert!(task.await.is_err());
    assert_eq!(dict.take_expired(9).await, [("b", 1)]);
}

#[tokio::test(start_paused = true)]
async fn what_is_leaked_comes_again_when_the_lease_is_over() {
    let dict = due(["a", "b"]).await;
    dict.claim_expired(1, SECOND).await.into_iter().for_each(std::mem::forget);
    dict.claim_expired(1, Duration::MAX).await.into_iter().for_each(std::mem::forget);
    let start = Instant::now();
    assert_eq!(dict.next_expired().await, ("a", 0));
    assert_eq!(start.elapsed(), SECOND);
    advance(1_000_000 * SECOND).await;
    assert_eq!(dict.take_expired(9).await, [], "a lease that overflows is never over");
    assert_eq!(dict.remove("b").await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn extend_moves_the_end_of_the_lease() {
    let dict = due(["a"]).await;
    let claim = dict.next_claim(SECOND).await;
    advance(SECOND / 2).await;
    assert!(claim.extend(2 * SECOND).await);
    advance(2 * SECOND - NANO).await;
    assert!(dict.claim_expired(9, SECOND).await.is_empty());
    advance(NANO).await;
    // It is over, but nobody has taken it.
    dict.set("b", 1, Duration::ZERO).await;
    assert_eq!(dict.take_expired(0).await, []);
    assert!(claim.extend(SECOND).await);
    assert_eq!(dict.take_expired(9).await, [("b", 1)]);
    // Sooner than it was, too.
    assert!(claim.extend(Duration::MAX).await);
    assert!(claim.extend(Duration::ZERO).await);
    assert_eq!(dict.take_expired(9).await, [("a", 0)]);
    assert!(!claim.extend(SECOND).await);
}

#[tokio::test(start_paused = true)]
async fn a_lease_of_zero_is_over_at_once() {
    let dict = due(["a", "b"]).await;
    let first = dict.claim_expired(9, Duration::ZERO).await;
    assert_eq!(keys(&first), ["a", "b"], "each once in one call");
    let second = dict.claim_expired(9, Duration::ZERO).await;
    assert_eq!(keys(&second), ["a", "b"]);
    assert!(!join_all(first.into_iter().map(Claim::ack)).await.contains(&true));
    assert!(!join_all(second.into_iter().map(Claim::ack)).await.contains(&false));
}

#[tokio::test(start_paused = true)]
async fn whatever_changes_the_entry_makes_its_claim_void() {
    type Dict = TimeoutDict<&'static str, usize>;
    let changes: [fn(&Dict) -> bool; 5] = [
        |dict| dict.set("a", 7, SECOND).now_or_never().unwrap().is_some(),
        |dict| dict.set_timeout("a", SECOND).now_or_never().unwrap(),
        |dict| dict.remove_timeout("a").now_or_never().unwrap(),
        |dict| dict.remove("a").now_or_never().unwrap().is_some(),
        |dict| dict.clear().now_or_never().is_some(),
    ];
    for (which, change) in changes.into_iter().enumerate() {
        for is_over in [false, true] {
            let dict = due(["a"]).await;
            let mut claims = vec![];
            claims.extend(dict.claim_expired(9, SECOND).await);
            if is_over {
                advance(SECOND).await;
                assert_eq!(dict.take_expired(0).await, []);
            }
            assert!(change(&dict));
            let before = (dict.get("a").await, dict.ttl("a").await);
            let claim = claims.pop().unwrap();
            assert!(!claim.extend(1_000 * SECOND).await);
            match is_over {
                true => drop(claim),
                false => assert!(!claim.ack().await),
            }
            assert_eq!((dict.get("a").await, dict.ttl("a").await), before, "change {which}");
            // A new entry in its place is not that of the claim.
            dict.set("a", 9, Duration::ZERO).await;
            assert_eq!(dict.take_expired(9).await, [("a", 9)]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_does_not_touch_an_entry_that_came_to_the_same_place() {
    let dict = due(["a"]).await;
    let claim = dict.next_claim(SECOND).await;
    dict.remove("a").await;
    dict.set("b", 1, Duration::ZERO).await;
    let other = dict.next_claim(SECOND).await;
    assert!(!claim.ack().await);
    assert!(other.ack().await);
}

#[tokio::test(start_paused = true)]
async fn next_waits_for_the_first_deadline() {
    let dict = TimeoutDict::new();
    dict.set("b", 2, 2 * SECOND).await;
    dict.set("a", 1, SECOND).await;
    dict.set("never", 0, Duration::MAX).await;
    let start = Instant::now();
    assert_eq!(dict.next_expired().await, ("a", 1));
    assert_eq!(start.elapsed(), SECOND);
    let claim = dict.next_claim(SECOND).await;
    assert_eq!((start.elapsed(), *claim.key()), (2 * SECOND, "b"));
    assert!(claim.ack().await);
    assert!(timeout(1_000 * SECOND, dict.next_expired()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn next_is_woken_by_what_comes_sooner() {
    let start = Instant::now();
    let dict: TimeoutDict<&str, u32> = TimeoutDict::new();
    let wait = |dict: &TimeoutDict<&'static str, u32>| {
        let dict = dict.clone();
        tokio::spawn(async move { (dict.next_expired().await, Instant::now()) })
    };
    // An entry where there was none, and one that is sooner.
    let waits = wait(&dict);
    sleep(SECOND).await;
    dict.set("late", 1, 100 * SECOND).await;
    yield_now().await;
    dict.set("soon", 2, SECOND).await;
    assert_eq!(waits.await.unwrap(), (("soon", 2), start + 2 * SECOND));

    // A new deadline.
    let waits = wait(&dict);
    sleep(SECOND).await;
    dict.set_timeout("late", Duration::ZERO).await;
    assert_eq!(waits.await.unwrap(), (("late", 1), start + 3 * SECOND));

    // A claim that is given back, and one whose lease is over.
    for gives_back in [true, false] {
        dict.set("a", 3, Duration::ZERO).await;
        let mut claim = Some(dict.next_claim(5 * SECOND).await);
        let begin = Instant::now();
        let waits = wait(&dict);
        sleep(SECOND).await;
        if gives_back {
            claim = None;
        }
        let end = if gives_back { begin + SECOND } else { begin + 5 * SECOND };
        assert_eq!(waits.await.unwrap(), (("a", 3), end));
        drop(claim);
    }

    // A lease that is extended to be over sooner, and later.
    for (lease, end) in [(SECOND, 2 * SECOND), (9 * SECOND, 10 * SECOND)] {
        dict.set("a", 4, Duration::ZERO).await;
        let claim = dict.next_claim(5 * SECOND).await;
        let begin = Instant::now();
        let waits = wait(&dict);
        sleep(SECOND).await;
        assert!(claim.extend(lease).await);
        assert_eq!(waits.await.unwrap(), (("a", 4), begin + end));
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_served_in_the_order_of_asking() {
    let dict: TimeoutDict<usize, ()> = TimeoutDict::new();
    let served = Arc::new(Mutex::new(Vec::new()));
    let tasks: Vec<_> = (0..10)
        .map(|id| {
            let (dict, served) = (dict.clone(), served.clone());
            tokio::spawn(async move {
                let key = match id % 2 {
                    0 => dict.next_expired().await.0,
                    _ => {
                        let claim = dict.next_claim(SECOND).await;
                        let key = *claim.key();
                        claim.ack().await;
                        key
                    }
                };
                served.lock().unwrap().push((id, key));
            })
        })
        .collect();
    yield_now().await;
    // Some give up, the first of them too.
    for id in [0, 3, 4] {
        tasks[id].abort();
    }
    for key in 0..7 {
        dict.set(key, (), key as u32 * SECOND).await;
    }
    sleep(10 * SECOND).await;
    assert!(tasks.iter().all(|task| task.is_finished()));
    let order = [1, 2, 5, 6, 7, 8, 9];
    assert_eq!(*served.lock().unwrap(), order.into_iter().zip(0..7).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn who_gives_up_took_nothing() {
    let dict: TimeoutDict<&str, u32> = TimeoutDict::new();
    dict.set("a", 1, SECOND).await;
    let mut next = spawn(dict.next_expired());
    assert_pending!(next.poll());
    let mut behind = spawn(dict.next_claim(SECOND));
    assert_pending!(behind.poll());
    // Woken, and dropped before it is polled.
    dict.set("b", 2, Duration::ZERO).await;
    assert!(next.is_woken());
    drop(next);
    let claim = timeout(NANO, behind).await.expect("it is its turn");
    assert_eq!(*claim.key(), "b");
    drop(claim);
    assert_eq!(dict.len().await, 2);
    // Again and again, at the very moment.
    let mut taken = Vec::new();
    while taken.len() < 2 {
        tokio::select! {
            biased;
            () = sleep(SECOND / 7) => {}
            (key, _) = dict.next_expired() => taken.push(key),
        }
    }
    assert_eq!((taken, dict.is_empty().await), (vec!["b", "a"], true));
}

#[tokio::test]
async fn a_task_that_only_calls_lets_others_run() {
    let dict = due(["a"]).await;
    let other = tokio::spawn(async {});
    for calls in 0.. {
        assert!(calls < 1_000_000, "the other task starves");
        if other.is_finished() {
            break;
        }
        dict.get("a").await;
    }
    let other = tokio::spawn(async {});
    for calls in 0.. {
        assert!(calls < 1_000_000, "the other task starves");
        if other.is_finished() {
            break;
        }
        drop(dict.next_claim(SECOND).await);
    }
}

// Types that misbehave.

/// How many calls until one panics; 0 for never.
#[derive(Clone, Default)]
struct Fuse(Arc<AtomicU32>);

impl Fuse {
    fn light(&self, calls: u32) {
        self.0.store(calls, Relaxed);
    }

    fn burn(&self) {
        if self.0.load(Relaxed) > 0 && self.0.fetch_sub(1, Relaxed) == 1 {
            panic!("the fuse has burnt down");
        }
    }
}

struct Moody {
    id: u32,
    fuse: Fuse,
    /// Called when it is dropped.
    last_will: Option<TimeoutDict<Moody, Moody>>,
}

impl Clone for Moody {
    fn clone(&self) -> Self {
        self.fuse.burn();
        Moody { id: self.id, fuse: self.fuse.clone(), last_will: self.last_will.clone() }
    }
}

impl PartialEq for Moody {
    fn eq(&self, other: &Self) -> bool {
        self.fuse.burn();
        self.id == other.id
    }
}

impl Eq for Moody {}

impl Hash for Moody {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.fuse.burn();
        // So that they are compared.
        (self.id % 2).hash(state);
    }
}

impl Drop for Moody {
    fn drop(&mut self) {
        if let Some(dict) = self.last_will.take() {
            assert!(dict.len().now_or_never().is_some());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_any_call_loses_nothing() {
    type Dict = TimeoutDict<Moody, Moody>;
    const CALLS: usize = 12;
    async fn call(which: usize, dict: &Dict, moody: &impl Fn(u32) -> Moody) {
        match which {
            0 => drop(dict.set(moody(3), moody(103), SECOND).await),
            1 => drop(dict.set(moody(50), moody(150), SECOND).await),
            2 => drop(dict.set_timeout(&moody(3), SECOND).await),
            3 => drop(dict.remove_timeout(&moody(3)).await),
            4 => drop(dict.get(&moody(3)).await),
            5 => drop(dict.contains_key(&moody(3)).await),
            6 => drop(dict.ttl(&moody(3)).await),
            7 => drop(dict.remove(&moody(50)).await),
            8 => drop(dict.claim_expired(4, SECOND).await),
            9 => drop(dict.next_claim(SECOND).await),
            10 => {
                let claim = dict.next_claim(SECOND).await;
                claim.extend(SECOND).await;
            }
            _ => drop(dict.claim_expired(9, Duration::ZERO).await),
        }
    }
    let mut panics = 0;
    for which in 0..CALLS {
        for calls in 1..20 {
            let fuse = Fuse::default();
            let dict: Dict = TimeoutDict::new();
            let moody = |id| Moody { id, fuse: fuse.clone(), last_will: None };
            for id in 0..8 {
                dict.set(moody(id), moody(id), Duration::ZERO).await;
            }
            dict.set(moody(8), moody(8), Duration::ZERO).await;
            let claim = dict.next_claim(SECOND).await;
            fuse.light(calls);
            let call = AssertUnwindSafe(call(which, &dict, &moody)).catch_unwind().await;
            panics += u32::from(call.is_err());
            fuse.light(0);
            // All are there, each can be found, claimed once, and taken.
            drop(claim);
            dict.remove(&moody(50)).await;
            assert_eq!(dict.len().await, 9, "call {which}, fuse {calls}");
            for id in 0..9 {
                assert!(dict.set_timeout(&moody(id), Duration::ZERO).await);
            }
            let claimed: Vec<u32> =
                dict.claim_expired(99, SECOND).await.iter().map(|claim| claim.key().id).collect();
            assert_eq!(claimed, (0..9).collect::<Vec<_>>(), "call {which}, fuse {calls}");
            assert_eq!(dict.take_expired(99).await.len(), 9);
        }
    }
    assert!(panics > 50, "only {panics} calls panicked");
}

/// Dropped under the lock, it would wait for itself for ever.
#[tokio::test(start_paused = true)]
async fn what_leaves_may_call_the_dictionary() {
    let dict: TimeoutDict<Moody, Moody> = TimeoutDict::new();
    let fuse = Fuse::default();
    let moody = |id| Moody { id, fuse: fuse.clone(), last_will: Some(dict.clone()) };
    let set = |id, ttl| dict.set(moody(id), moody(id), ttl);
    set(1, SECOND).await;
    set(1, SECOND).await;
    dict.remove(&moody(1)).await;
    set(2, Duration::ZERO).await;
    set(3, Duration::ZERO).await;
    dict.take_expired(1).await;
    assert!(dict.next_claim(SECOND).await.ack().await);
    set(4, Duration::ZERO).await;
    drop(dict.next_claim(SECOND).await);
    fuse.light(3);
    // Its new key and value are dropped where an `Eq` of the call panics.
    let panics = AssertUnwindSafe(set(6, SECOND)).catch_unwind().await;
    fuse.light(0);
    assert!(panics.is_err() || dict.contains_key(&moody(6)).await);
    dict.clear().await;
    assert!(dict.is_empty().await);
}

#[test]
fn handles_claims_and_calls_go_from_thread_to_thread() {
    fn goes<T: Send>(_: &T) {}
    fn is_shared<T: Send + Sync + 'static>() {}
    is_shared::<TimeoutDict<String, Vec<u8>>>();
    is_shared::<Claim<String, Vec<u8>>>();
    let dict: TimeoutDict<String, Vec<u8>> = TimeoutDict::new();
    goes(&dict.set(String::new(), vec![], SECOND));
    goes(&dict.get("a"));
    goes(&dict.set_timeout("a", SECOND));
    goes(&dict.take_expired(1));
    goes(&dict.claim_expired(1, SECOND));
    goes(&dict.next_expired());
    goes(&dict.next_claim(SECOND));
    goes(&dict.clear());
}
