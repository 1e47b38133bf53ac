//! Types that do nothing wrong, but are unusual: streams as values, keys that collide, sizes of none.

use std::{
    collections::HashSet,
    hash::{Hash, Hasher},
    marker::PhantomPinned,
    sync::{Arc, Mutex},
};

use super::{ALL, SECOND, so_far, watched};
use fleeting::{Cache, Cause, Events, Op};
use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};

/// A value that listens to the cache that it is in.
#[derive(Clone)]
struct Listener(#[allow(dead_code)] Arc<Mutex<Events<u32, Listener>>>);

#[test]
fn a_value_may_hold_a_stream_of_its_own_cache() {
    watched(async || {
        let cache: Cache<u32, Listener> =
            Cache::builder().event_capacity(4).publish(ALL).shards(2).build();
        let listener = || Listener(Arc::new(Mutex::new(cache.events())));
        for round in 0..3 {
            for id in 0..10 {
                cache.set_ex(id, listener(), SECOND).await;
            }
            assert!(cache.stats().subscribers >= 10, "round {round}");
        }
        sleep(3 * SECOND).await;
        assert_eq!(cache.len(), 0, "it still sweeps");
        let held = cache.stats().subscribers;
        assert!(held <= 4, "{held} streams: more than the last events in the ring hold");
        cache.set(1, listener()).await;
        cache.clear().await;
    });
}

#[derive(Clone, PartialEq, Eq)]
struct Collides(u32);

impl Hash for Collides {
    fn hash<H: Hasher>(&self, state: &mut H) {
        0_u64.hash(state);
    }
}

#[test]
fn keys_that_all_collide_are_slow_but_right() {
    watched(async || {
        const KEYS: u32 = 2_000;
        let cache: Cache<Collides, u32> = Cache::builder().publish(ALL).build();
        let mut events = cache.events_lossless(10_000);
        for key in 0..KEYS {
            let ttl = if key % 2 == 0 { SECOND } else { 60 * SECOND };
            cache.set_ex(Collides(key), key, ttl).await;
        }
        assert_eq!(cache.len(), KEYS as usize);
        for key in (0..KEYS).step_by(10) {
            assert_eq!(cache.get(&Collides(key)).await, Some(key), "another one's value");
        }
        sleep(3 * SECOND).await;
        let expired: HashSet<u32> = so_far(&mut events).iter().map(|event| event.key.0).collect();
        assert_eq!(expired, (0..KEYS).step_by(2).collect(), "the wrong ones expired");
        for key in (1..KEYS).step_by(10) {
            assert_eq!(cache.remove(&Collides(key)).await, Some(key), "another one's value");
        }
        sleep(60 * SECOND).await;
        assert_eq!(cache.len(), 0, "it still sweeps");
    });
}

/// Those of one key run one at a time; of another key, of whatever hash, nobody waits for them.
#[test]
fn changes_of_keys_that_collide_wait_for_none_of_another_key() {
    watched(async || {
        let cache: Cache<Collides, u32> = Cache::new();
        let (sender, receiver) = oneshot::channel();
        let waits = cache.compute_with(&Collides(1), async |_| {
            receiver.await.unwrap();
            Op::Set(1)
        });
        let tells = cache.compute_with(&Collides(2), async |_| {
            sender.send(()).unwrap();
            Op::Set(2)
        });
        let both = async { tokio::join!(waits, tells) };
        assert_eq!(timeout(60 * SECOND, both).await, Ok((Some(1), Some(2))));
    });
}

#[test]
fn types_of_unusual_size_go_in_and_out() {
    watched(async || {
        check_type((), ()).await;
        check_type(1_u8, [7_u8; 10_000]).await;
        check_type("k".repeat(1_000), "v".repeat(1 << 20)).await;
        check_type([3_u64; 125], vec![1_u8; 1 << 20]).await;
        check_type(Some(()), Arc::new(())).await;
        check_type(1_u128, (5_u8, PhantomPinned)).await;
        check_type(Box::new(9_u32), None::<Box<[u8]>>).await;
        check_type(u64::MAX, (|| 7) as fn() -> u32).await;
        check_type("static", std::marker::PhantomData::<fn(std::rc::Rc<()>)>).await;
    });
}

/// A value of each kind through each of the ways in and out.
async fn check_type<K, V>(key: K, value: V)
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + PartialEq + Send + Sync + 'static,
{
    let cache: Cache<K, V> = Cache::builder().publish(ALL).build();
    let mut events = cache.events_lossless(10);
    let is_value = |read: Option<V>| read.is_some_and(|read| read == value);
    assert!(cache.set(key.clone(), value.clone()).await.is_none());
    assert!(is_value(cache.get(&key).await));
    assert!(is_value(cache.set_ex(key.clone(), value.clone(), SECOND).await));
    assert!(!cache.set_nx(key.clone(), value.clone(), None).await);
    assert_eq!((cache.iter().count(), cache.len()), (1, 1));
    assert!(is_value(cache.remove(&key).await));
    cache.set_ex(key.clone(), value.clone(), SECOND).await;
    sleep(3 * SECOND).await;
    assert_eq!(cache.len(), 0, "it did not expire");
    let told = so_far(&mut events);
    let causes: Vec<Cause> = told.iter().map(|event| event.cause).collect();
    assert_eq!(causes, [Cause::Replaced, Cause::Removed, Cause::Expired]);
    assert!(told.iter().all(|event| event.key == key && event.value == value));
}
