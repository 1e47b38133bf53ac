//! Valid but unusual types: streams as values, keys with equal hashes, zero-sized and large types.

use std::{
    collections::HashSet,
    hash::{Hash, Hasher},
    marker::PhantomPinned,
    sync::{Arc, Mutex},
};

use super::{ALL, SECOND, drain, run_with_watchdog};
use fleeting::{Cache, Cause, Events, Op};
use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};

use crate::patience::patience;

/// Value that owns a stream of its own cache.
#[derive(Clone)]
struct Listener(#[allow(dead_code)] Arc<Mutex<Events<u32, Listener>>>);

#[test]
fn value_may_own_a_stream_of_its_own_cache() {
    run_with_watchdog(async || {
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
        assert_eq!(cache.len(), 0, "the sweeper continues");
        let held = cache.stats().subscribers;
        assert!(held <= 4, "{held} streams: more than the unread events own");
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
fn colliding_keys_are_slow_but_correct() {
    run_with_watchdog(async || {
        const KEYS: u32 = 2_000;
        let cache: Cache<Collides, u32> = Cache::builder().publish(ALL).build();
        let mut events = cache.events_lossless(10_000);
        for key in 0..KEYS {
            let ttl = if key % 2 == 0 { SECOND } else { 60 * SECOND };
            cache.set_ex(Collides(key), key, ttl).await;
        }
        assert_eq!(cache.len(), KEYS as usize);
        for key in (0..KEYS).step_by(10) {
            assert_eq!(cache.get(&Collides(key)).await, Some(key), "the value belongs to the key");
        }
        sleep(3 * SECOND).await;
        let expired: HashSet<u32> = drain(&mut events).iter().map(|event| event.key.0).collect();
        assert_eq!(expired, (0..KEYS).step_by(2).collect(), "the entries with a TTL expired");
        for key in (1..KEYS).step_by(10) {
            assert_eq!(
                cache.remove(&Collides(key)).await,
                Some(key),
                "the value belongs to the key"
            );
        }
        sleep(60 * SECOND).await;
        assert_eq!(cache.len(), 0, "the sweeper continues");
    });
}

/// Calls for one key run one at a time, and calls for another key with the same hash do not wait for them.
#[test]
fn compute_with_on_colliding_keys_waits_only_for_the_same_key() {
    run_with_watchdog(async || {
        let cache: Cache<Collides, u32> = Cache::new();
        let (sender, receiver) = oneshot::channel();
        let waits = cache.compute_with(&Collides(1), async |_| {
            receiver.await.unwrap();
            Op::Set(1)
        });
        let notifies = cache.compute_with(&Collides(2), async |_| {
            sender.send(()).unwrap();
            Op::Set(2)
        });
        let both = async { tokio::join!(waits, notifies) };
        assert_eq!(timeout(patience(), both).await, Ok((Some(1), Some(2))));
    });
}

#[test]
fn zero_sized_and_large_types_work() {
    run_with_watchdog(async || {
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

/// Uses values of a type with each kind of write, read and removal.
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
    assert_eq!(cache.len(), 0, "the entry expired");
    let received = drain(&mut events);
    let causes: Vec<Cause> = received.iter().map(|event| event.cause).collect();
    assert_eq!(causes, [Cause::Replaced, Cause::Removed, Cause::Expired]);
    assert!(received.iter().all(|event| event.key == key && event.value == value));
}
