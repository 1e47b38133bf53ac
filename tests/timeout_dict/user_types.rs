//! Keys and values that misbehave: they panic at a chosen moment, or call the dictionary while they are dropped.

use std::{
    hash::Hash,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use fleeting::{Claim, TimeoutDict};
use futures::FutureExt;

const SECOND: Duration = Duration::from_secs(1);
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
            let at_once = Duration::ZERO;
            let dict: Dict = TimeoutDict::builder().backoff(at_once, at_once).build();
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
