//! Keys and values that misbehave: they panic at a chosen call, or call the dictionary when they are dropped.

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

/// Number of calls until one panics; 0 disables the panic.
#[derive(Clone, Default)]
struct Fuse(Arc<AtomicU32>);

impl Fuse {
    fn arm(&self, calls: u32) {
        self.0.store(calls, Relaxed);
    }

    fn count_down(&self) {
        if self.0.load(Relaxed) > 0 && self.0.fetch_sub(1, Relaxed) == 1 {
            panic!("the fuse has burnt down");
        }
    }
}

struct Panicking {
    id: u32,
    fuse: Fuse,
    /// The dictionary that is called on drop.
    call_on_drop: Option<TimeoutDict<Panicking, Panicking>>,
}

impl Clone for Panicking {
    fn clone(&self) -> Self {
        self.fuse.count_down();
        Panicking { id: self.id, fuse: self.fuse.clone(), call_on_drop: self.call_on_drop.clone() }
    }
}

impl PartialEq for Panicking {
    fn eq(&self, other: &Self) -> bool {
        self.fuse.count_down();
        self.id == other.id
    }
}

impl Eq for Panicking {}

impl Hash for Panicking {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.fuse.count_down();
        // Only two hashes, so that keys are compared.
        (self.id % 2).hash(state);
    }
}

impl Drop for Panicking {
    fn drop(&mut self) {
        if let Some(dict) = self.call_on_drop.take() {
            assert!(dict.len().now_or_never().is_some());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn panic_in_user_code_loses_no_entry() {
    type Dict = TimeoutDict<Panicking, Panicking>;
    const CALLS: usize = 12;
    async fn call(which: usize, dict: &Dict, new: &impl Fn(u32) -> Panicking) {
        match which {
            0 => drop(dict.set(new(3), new(103), SECOND).await),
            1 => drop(dict.set(new(50), new(150), SECOND).await),
            2 => drop(dict.set_timeout(&new(3), SECOND).await),
            3 => drop(dict.remove_timeout(&new(3)).await),
            4 => drop(dict.get(&new(3)).await),
            5 => drop(dict.contains_key(&new(3)).await),
            6 => drop(dict.ttl(&new(3)).await),
            7 => drop(dict.remove(&new(50)).await),
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
            let zero = Duration::ZERO;
            let dict: Dict = TimeoutDict::builder().backoff(zero, zero).build();
            let new = |id| Panicking { id, fuse: fuse.clone(), call_on_drop: None };
            for id in 0..8 {
                dict.set(new(id), new(id), Duration::ZERO).await;
            }
            dict.set(new(8), new(8), Duration::ZERO).await;
            let claim = dict.next_claim(SECOND).await;
            fuse.arm(calls);
            let call = AssertUnwindSafe(call(which, &dict, &new)).catch_unwind().await;
            panics += u32::from(call.is_err());
            fuse.arm(0);
            // All entries can be found, claimed once, and taken.
            drop(claim);
            dict.remove(&new(50)).await;
            assert_eq!(dict.len().await, 9, "call {which}, fuse {calls}");
            for id in 0..9 {
                assert!(dict.set_timeout(&new(id), Duration::ZERO).await);
            }
            let claimed: Vec<u32> =
                dict.claim_expired(99, SECOND).await.iter().map(|claim| claim.key().id).collect();
            assert_eq!(claimed, (0..9).collect::<Vec<_>>(), "call {which}, fuse {calls}");
            assert_eq!(dict.take_expired(99).await.len(), 9);
        }
    }
    assert!(panics > 50, "only {panics} calls panicked");
}

/// A drop under the lock would deadlock.
#[tokio::test(start_paused = true)]
async fn drop_of_keys_and_values_may_call_the_dictionary() {
    let dict: TimeoutDict<Panicking, Panicking> = TimeoutDict::new();
    let fuse = Fuse::default();
    let new = |id| Panicking { id, fuse: fuse.clone(), call_on_drop: Some(dict.clone()) };
    let set = |id, ttl| dict.set(new(id), new(id), ttl);
    set(1, SECOND).await;
    set(1, SECOND).await;
    dict.remove(&new(1)).await;
    set(2, Duration::ZERO).await;
    set(3, Duration::ZERO).await;
    dict.take_expired(1).await;
    assert!(dict.next_claim(SECOND).await.ack().await);
    set(4, Duration::ZERO).await;
    drop(dict.next_claim(SECOND).await);
    fuse.arm(3);
    // If an `Eq` of the call panics, its new key and value are dropped.
    let panics = AssertUnwindSafe(set(6, SECOND)).catch_unwind().await;
    fuse.arm(0);
    assert!(panics.is_err() || dict.contains_key(&new(6)).await);
    dict.clear().await;
    assert!(dict.is_empty().await);
}

#[test]
fn handles_claims_and_futures_are_send() {
    fn is_send<T: Send>(_: &T) {}
    fn is_shared<T: Send + Sync + 'static>() {}
    is_shared::<TimeoutDict<String, Vec<u8>>>();
    is_shared::<Claim<String, Vec<u8>>>();
    let dict: TimeoutDict<String, Vec<u8>> = TimeoutDict::new();
    is_send(&dict.set(String::new(), vec![], SECOND));
    is_send(&dict.get("a"));
    is_send(&dict.set_timeout("a", SECOND));
    is_send(&dict.take_expired(1));
    is_send(&dict.claim_expired(1, SECOND));
    is_send(&dict.next_expired());
    is_send(&dict.next_claim(SECOND));
    is_send(&dict.clear());
}
