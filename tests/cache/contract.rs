//! Compile-time checks of the public API, item by item: what compiles here must compile forever.

use std::{
    collections::hash_map::RandomState, future::Future, hash::Hash, sync::Arc, time::Duration,
};

use fleeting::{
    Builder, Cache, Cause, Event, Events, Lagged, LosslessEvents, Stats, Sweep, SweepReport, Ttl,
    When,
};
use futures::{Stream, StreamExt};
use tokio::{task::JoinHandle, time::Instant};

const TTL: Duration = Duration::from_secs(10);

fn is_send<T: Send>(value: T) -> T {
    value
}

fn is_shared<T: Send + Sync + Clone + 'static>(_: &T) {}

/// The bounds are those of the public API: no method may require more of a user's types.
async fn call_every_method<K, V>(k: K, v: V)
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    let cache: Cache<K, V> = Cache::new();
    is_shared(&cache);
    let _: Option<V> = is_send(cache.set(k.clone(), v.clone())).await;
    let _: Option<V> = is_send(cache.get(&k)).await;
    let _: Option<V> = is_send(cache.get_ex(&k, TTL)).await;
    let _: Option<V> = is_send(cache.set_ex(k.clone(), v.clone(), TTL)).await;
    let _: bool = is_send(cache.set_nx(k.clone(), v.clone(), Some(TTL))).await;
    let _: bool = is_send(cache.set_nx(k.clone(), v.clone(), None)).await;
    let _: Option<V> = is_send(cache.set_keep_ttl(k.clone(), v)).await;
    let _: bool = is_send(cache.contains_key(&k)).await;
    let _: Ttl = is_send(cache.ttl(&k)).await;
    let _: bool = is_send(cache.expire(&k, TTL)).await;
    let _: bool = is_send(cache.expire_if(&k, TTL, When::NoTtl)).await;
    let _: bool = is_send(cache.expire_at(&k, Instant::now() + TTL)).await;
    let _: bool = is_send(cache.extend(&k, TTL)).await;
    let _: bool = is_send(cache.persist(&k)).await;
    let _: Option<u8> = is_send(cache.update(&k, |_: &mut V| 1)).await;
    let _: Option<V> = is_send(cache.expire_now(&k)).await;
    let _: Option<V> = is_send(cache.remove(&k)).await;
    let _: usize = cache.len();
    let _: bool = cache.is_empty();
    let _: usize = cache.live_len();
    let _: Vec<(K, V)> = cache.iter().collect();
    let _: Vec<K> = cache.keys().collect();
    let _: Vec<V> = cache.values().collect();
    is_send(cache.clear()).await;
    let _: Events<K, V> = cache.events();
    let _: LosslessEvents<K, V> = cache.events_lossless(8);
    let _: SweepReport = is_send(cache.sweep()).await;
    cache.pause_sweeper();
    cache.resume_sweeper();
    let _: Stats = cache.stats();
    is_send(cache.shutdown()).await;
}

#[tokio::test]
async fn every_method_works_on_a_current_thread_runtime() {
    call_every_method("key".to_owned(), vec![1_u8]).await;
    call_every_method((1_u32, [0_u8; 3]), Arc::new("value")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_method_works_on_a_multi_thread_runtime() {
    call_every_method("key".to_owned(), vec![1_u8]).await;
    tokio::spawn(call_every_method(7_u64, ())).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn builder_has_the_documented_setters() {
    let builder: Builder<String, u32> = Cache::builder();
    let cache: Cache<String, u32, RandomState> = builder
        .time_to_live(TTL)
        .sweep(Sweep::manual())
        .shards(8)
        .initial_capacity(100)
        .hasher(RandomState::new())
        .event_capacity(16)
        .publish([Cause::Expired, Cause::Evicted, Cause::Removed, Cause::Replaced])
        .name("sessions")
        .build();
    cache.set("a".to_owned(), 1).await;
    assert_eq!(cache.ttl("a").await, Ttl::Remaining(TTL));
    let _: Builder<u8, u8> = Cache::builder().publish(vec![Cause::Removed]).name(String::new());
}

#[tokio::test]
async fn lookups_accept_borrowed_forms_of_keys() {
    let cache: Cache<String, u32> = Cache::new();
    cache.set("a".into(), 1).await;
    let owned = "a".to_owned();
    assert_eq!(cache.get("a").await, Some(1));
    assert_eq!(cache.get(&owned).await, Some(1));
    assert_eq!(cache.get(owned.as_str()).await, Some(1));
    let bytes: Cache<Vec<u8>, u32> = Cache::new();
    bytes.set(vec![1, 2], 2).await;
    assert!(bytes.contains_key([1_u8, 2].as_slice()).await);
    let arcs: Cache<Arc<str>, u32> = Cache::new();
    arcs.set("a".into(), 3).await;
    assert_eq!(arcs.remove("a").await, Some(3));
}

#[test]
fn ttl_and_when_have_the_documented_variants() {
    assert_eq!(Ttl::Missing.as_secs(), -2);
    assert_eq!(Ttl::Persistent.as_secs(), -1);
    assert_eq!(Ttl::Remaining(Duration::from_nanos(1)).as_secs(), 1);
    assert_eq!(Ttl::Remaining(TTL).as_secs(), 10);
    let _ = [When::NoTtl, When::HasTtl, When::Later, When::Sooner];
    for ttl in [Ttl::Missing, Ttl::Persistent, Ttl::Remaining(TTL)] {
        // Exhaustive match, because the API promises no other variant.
        match ttl {
            Ttl::Missing | Ttl::Persistent => {}
            Ttl::Remaining(left) => assert_eq!(left, TTL),
        }
    }
}

#[test]
fn sweep_has_the_documented_setters() {
    let _: Sweep = Sweep::default()
        .every(Duration::from_millis(250))
        .sample(0.25)
        .repeat_at(0.25)
        .budget(0.1)
        .seed(7);
    let _: Sweep = Sweep::manual();
}

#[tokio::test(start_paused = true)]
async fn streams_yield_events_with_the_documented_fields() {
    let cache: Cache<&str, u32> = Cache::new();
    let mut events = cache.events();
    let mut lossless = cache.events_lossless(4);
    let task: JoinHandle<()> = cache.on_expired(async |event: Arc<Event<&str, u32>>| {
        let _ = event.key;
    });
    let set = Instant::now();
    cache.set_ex("a", 1, TTL).await;
    let received: Option<Result<Arc<Event<&str, u32>>, Lagged>> = is_send(events.recv()).await;
    let event = received.unwrap().unwrap();
    let Event { key, value, cause, deadline, at } = (*event).clone();
    assert_eq!((key, value, cause, deadline), ("a", 1, Cause::Expired, Some(set + TTL)));
    let lag: Option<Duration> = event.lag();
    assert_eq!(lag, Some(at - (set + TTL)));
    let received: Option<Arc<Event<&str, u32>>> = is_send(lossless.recv()).await;
    assert_eq!(received.unwrap(), event);
    let Lagged(missed) = Lagged(3);
    assert_eq!(missed, 3);
    let _ = [Cause::Expired, Cause::Evicted, Cause::Removed, Cause::Replaced];

    fn is_stream<S: Stream<Item = T> + Unpin + Send, T>(stream: &mut S) -> &mut S {
        stream
    }
    cache.expire_now("a").await;
    cache.set("a", 2).await;
    cache.expire_now("a").await;
    let next: Option<Result<Arc<Event<_, _>>, Lagged>> = is_stream(&mut events).next().await;
    assert_eq!(next.unwrap().unwrap().value, 2);
    let next: Option<Arc<Event<_, _>>> = is_stream(&mut lossless).next().await;
    assert_eq!(next.unwrap().value, 2);
    drop(cache);
    task.await.unwrap();
}

/// A callback is an async closure that owns its captures, or a closure that returns a future.
#[tokio::test(start_paused = true)]
async fn on_expired_accepts_both_forms_of_callbacks() {
    fn takes<F, Fut>(cache: &Cache<u8, u8>, callback: F) -> JoinHandle<()>
    where
        F: FnOnce(Arc<Event<u8, u8>>) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        cache.on_expired(callback)
    }
    let cache = Cache::new();
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let other = sender.clone();
    let _one = cache.on_expired(async move |event| {
        tokio::task::yield_now().await;
        sender.send(event.key).unwrap();
    });
    let _two = takes(&cache, move |event| {
        let other = other.clone();
        async move { other.send(event.key).unwrap() }
    });
    cache.set_ex(1, 1, TTL).await;
    assert_eq!(receiver.recv().await, Some(1));
    assert_eq!(receiver.recv().await, Some(1));
}
