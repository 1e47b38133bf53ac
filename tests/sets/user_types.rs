//! Members and keys that misbehave: they panic at a chosen call, or call the set when they are dropped.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::channel,
    },
    time::Duration,
};

use fleeting::{Cause, Event, ExpiringSet, ExpiringSets, LosslessEvents, SortedSet};
use futures::FutureExt;
use tokio::{
    task::unconstrained,
    time::{Instant, advance, sleep},
};
use tokio_test::task::spawn;

use crate::patience::patience;

const SECOND: Duration = Duration::from_secs(1);
const ALL_CAUSES: [Cause; 3] = [Cause::Expired, Cause::Removed, Cause::Replaced];

/// Returns the events received so far, without waiting.
fn drain_events<K, V>(events: &mut LosslessEvents<K, V>) -> Vec<Arc<Event<K, V>>> {
    std::iter::from_fn(|| unconstrained(events.recv()).now_or_never().flatten()).collect()
}

/// Number of calls until one panics, for each trait; 0 disables the panic.
#[derive(Default)]
struct Fuses {
    hash: AtomicU64,
    eq: AtomicU64,
    clone: AtomicU64,
    drop: AtomicU64,
}

/// Panics when one of its fuses has burnt down.
struct Panicking {
    id: u64,
    fuses: Arc<Fuses>,
}

fn count_down(fuse: &AtomicU64) {
    if std::thread::panicking() || fuse.load(Relaxed) == 0 {
        return;
    }
    assert!(fuse.fetch_sub(1, Relaxed) > 1, "the panic of this test");
}

impl Clone for Panicking {
    fn clone(&self) -> Self {
        count_down(&self.fuses.clone);
        Self { id: self.id, fuses: self.fuses.clone() }
    }
}

impl PartialEq for Panicking {
    fn eq(&self, other: &Self) -> bool {
        count_down(&self.fuses.eq);
        self.id == other.id
    }
}

impl Eq for Panicking {}

impl std::hash::Hash for Panicking {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        count_down(&self.fuses.hash);
        self.id.hash(state);
    }
}

impl Drop for Panicking {
    fn drop(&mut self) {
        count_down(&self.fuses.drop);
    }
}

/// Every call, with a panic at each of its comparisons, hashes and clones, with and without a subscriber: no
/// member is lost without an event, and the sets remain usable.
#[tokio::test(start_paused = true)]
async fn panic_in_user_code_keeps_the_sets_consistent() {
    type Fuse = fn(&Fuses) -> &AtomicU64;
    let fuses: [Fuse; 3] = [|f| &f.hash, |f| &f.eq, |f| &f.clone];
    let mut panics = 0;
    for call in 0..10 {
        for fuse in fuses {
            for calls in 1..12 {
                for has_subscriber in [false, true] {
                    panics += u32::from(try_call(call, fuse, calls, has_subscriber).await);
                }
            }
        }
    }
    assert!(panics > 80, "only {panics} calls panicked");
}

async fn try_call(
    call: u32,
    fuse: fn(&Fuses) -> &AtomicU64,
    calls: u64,
    has_subscriber: bool,
) -> bool {
    let fuses = Arc::new(Fuses::default());
    let new = |id| Panicking { id, fuses: fuses.clone() };
    let sets = ExpiringSets::builder(60 * SECOND).shards(1).publish(ALL_CAUSES).build();
    let mut events = has_subscriber.then(|| sets.events_lossless(1_000));
    let noon = Instant::now();
    for id in 0..20 {
        sets.push_at(new(id % 2), new(id), noon + (id as u32 / 4) * SECOND).await;
    }
    if call == 9 {
        advance(62 * SECOND).await;
    }
    fuse(&fuses).store(calls, Relaxed);
    let future = async {
        match call {
            0 => sets.push(new(0), new(7)).await,
            1 => sets.push_at(new(0), new(4), noon + 9 * SECOND).await,
            2 => sets.push_unique_at(new(0), new(4), noon + SECOND).await,
            3 => drop(sets.pop(&new(0)).await),
            4 => drop(sets.remove(&new(0), &new(4)).await),
            5 => drop(sets.remove_range(&new(0), ..noon + 2 * SECOND).await),
            6 => drop(sets.elements(&new(1)).await),
            7 => drop(sets.keys().await),
            8 => sets.extend(new(0), [new(100), new(4), new(101)]).await,
            _ => drop(sets.len(&new(0)).await),
        }
    };
    let panicked = std::panic::AssertUnwindSafe(future).catch_unwind().await.is_err();
    fuse(&fuses).store(0, Relaxed);

    // Each member is in a set or in an event.
    let mut found: HashSet<u64> = HashSet::new();
    for key in 0..2 {
        found.extend(sets.elements(&new(key)).await.iter().map(|member| member.id));
    }
    if let Some(events) = &mut events {
        found.extend(drain_events(events).iter().map(|event| event.value.id));
        let missing = (0..20).filter(|id| !found.contains(id)).collect::<Vec<_>>();
        assert!(missing.is_empty(), "{missing:?} are lost: call {call}, panic at {calls}");
    }
    for id in 0..40 {
        sets.push(new(id % 3), new(id)).await;
    }
    assert_eq!(sets.sets().await, 3);
    sleep(70 * SECOND).await;
    assert_eq!(sets.sets().await, 0, "the sets are no longer usable");
    panicked
}

/// The sweeper clones keys for its events. If that panics, the next sweep removes the members.
#[tokio::test(start_paused = true)]
async fn sweeper_continues_after_a_panic_in_clone() {
    let fuses = Arc::new(Fuses::default());
    let new = |id| Panicking { id, fuses: fuses.clone() };
    let sets = ExpiringSets::builder(SECOND).shards(4).build();
    let mut events = sets.events_lossless(1_000);
    for id in 0..100 {
        sets.push(new(id % 10), new(id)).await;
    }
    fuses.clone.store(3, Relaxed);
    sleep(10 * SECOND).await;
    assert_eq!(fuses.clone.load(Relaxed), 0, "no clone panicked");
    let ids: HashSet<u64> = drain_events(&mut events).iter().map(|event| event.value.id).collect();
    assert_eq!(ids.len(), 100);
    assert_eq!(sets.sets().await, 0);
}

/// The call has removed an expired member before it clones another one.
#[tokio::test(start_paused = true)]
async fn panic_of_clone_does_not_delay_the_event_of_an_expired_member() {
    let fuses = Arc::new(Fuses::default());
    let new = |id| Panicking { id, fuses: fuses.clone() };
    let set = ExpiringSet::builder(60 * SECOND).sweep_every(3_600 * SECOND).build();
    let mut events = set.events_lossless(9);
    set.push(new(1)).await;
    advance(SECOND).await;
    set.push(new(2)).await;
    let mut next = spawn(events.recv());
    assert!(next.poll().is_pending());
    advance(59 * SECOND).await;
    assert!(!next.is_woken(), "it was swept");
    fuses.clone.store(1, Relaxed);
    assert!(std::panic::AssertUnwindSafe(set.peek()).catch_unwind().await.is_err());
    assert!(next.is_woken());
    drop(next);
    assert_eq!(drain_events(&mut events)[0].key.id, 1);
}

/// A panicking call may have added some members; they expire in time, too, without a further call.
#[tokio::test(start_paused = true)]
async fn member_added_before_a_panic_expires_in_time() {
    let fuses = Arc::new(Fuses::default());
    let new = |id| Panicking { id, fuses: fuses.clone() };
    let (set, sets) = (ExpiringSet::new(SECOND), ExpiringSets::new(SECOND));
    let (mut set_events, mut sets_events) = (set.events_lossless(9), sets.events_lossless(9));
    // The sweepers sleep without a deadline by now.
    sleep(SECOND).await;
    fuses.eq.store(1, Relaxed);
    let future = set.extend([new(7), new(7)]);
    assert!(std::panic::AssertUnwindSafe(future).catch_unwind().await.is_err());
    fuses.eq.store(1, Relaxed);
    let future = sets.extend(new(0), [new(7), new(7)]);
    assert!(std::panic::AssertUnwindSafe(future).catch_unwind().await.is_err());
    sleep(2 * SECOND).await;
    assert_eq!((drain_events(&mut set_events).len(), drain_events(&mut sets_events).len()), (1, 1));
}

/// One of twenty members panics when it is dropped: the others are dropped, too, and the sweeper continues.
#[tokio::test(start_paused = true)]
async fn panicking_drop_does_not_prevent_other_drops() {
    for way in 0..4 {
        for has_subscriber in [false, true] {
            let (bad, good) = (Arc::new(Fuses::default()), Arc::new(Fuses::default()));
            let set = ExpiringSet::builder(SECOND).publish(ALL_CAUSES).build();
            let mut events = has_subscriber.then(|| set.events_lossless(100));
            for id in 0..20 {
                let fuses = if id == 7 { &bad } else { &good };
                set.push(Panicking { id, fuses: fuses.clone() }).await;
            }
            bad.drop.store(1, Relaxed);
            let future = async {
                match way {
                    0 => sleep(3 * SECOND).await,
                    1 => {
                        advance(2 * SECOND).await;
                        set.len().await;
                    }
                    2 => set.clear().await,
                    _ => drop(set.remove_range(..).await),
                }
            };
            let _ = std::panic::AssertUnwindSafe(future).catch_unwind().await;
            let count = events.as_mut().map(|events| {
                let events =
                    std::iter::from_fn(|| unconstrained(events.recv()).now_or_never().flatten());
                let drop_one = |event| {
                    let drop = std::panic::AssertUnwindSafe(|| drop(event));
                    let _ = std::panic::catch_unwind(drop);
                };
                events.map(drop_one).count()
            });
            assert!(count.is_none_or(|count| count == 20));
            drop(events);
            assert_eq!(Arc::strong_count(&good), 1, "way {way}: some members are not dropped");
            bad.drop.store(0, Relaxed);
            set.push(Panicking { id: 1, fuses: good.clone() }).await;
            sleep(3 * SECOND).await;
            assert_eq!(Arc::strong_count(&good), 1, "the sweeper has stopped");
        }
    }
}

/// A member that calls its set when it is dropped.
#[derive(Clone)]
struct ReentrantDrop(u32, SharedSet);

type SharedSet = Arc<Mutex<Option<ExpiringSet<ReentrantDrop>>>>;

impl Drop for ReentrantDrop {
    fn drop(&mut self) {
        let shared_set = self.1.lock().map(|shared_set| shared_set.clone());
        if let Ok(Some(set)) = shared_set {
            set.overflow();
            set.contains(&ReentrantDrop(9_999, SharedSet::default())).now_or_never();
        }
    }
}

impl PartialEq for ReentrantDrop {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for ReentrantDrop {}

impl std::hash::Hash for ReentrantDrop {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

#[test]
fn drop_of_members_may_call_the_set() {
    for has_subscriber in [false, true] {
        // Taking the lock twice would block forever; this thread is the watchdog.
        let (done, watch) = channel();
        std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_time().start_paused(true).build().unwrap().block_on(async {
                let shared_set = SharedSet::default();
                let set = ExpiringSet::builder(60 * SECOND).publish(ALL_CAUSES).build();
                let events = has_subscriber.then(|| set.events());
                *shared_set.lock().unwrap() = Some(set.clone());
                let new = |n: u32| ReentrantDrop(n, shared_set.clone());
                for _ in 0..2 {
                    set.extend((0..300).map(new)).await;
                    set.push(new(7)).await;
                    set.push_at(new(8), Instant::now() - 60 * SECOND).await;
                    set.push_at(new(8), Instant::now() - 60 * SECOND).await;
                    set.push_unique_at(new(300), Instant::now()).await;
                    set.extend((0..300).map(new)).await;
                    set.remove(&new(5)).await;
                    set.pop().await;
                    set.remove_range(..Instant::now()).await;
                    sleep(70 * SECOND).await;
                    set.extend((0..300).map(new)).await;
                    advance(70 * SECOND).await;
                    set.push(new(1)).await;
                    set.clear().await;
                }
                shared_set.lock().unwrap().take();
                drop(events);
            });
            done.send(()).unwrap();
        });
        watch.recv_timeout(patience()).expect("the set is deadlocked");
    }
}

/// The future of `extend` is `Send` even if the iterator is not.
#[tokio::test]
async fn extend_accepts_an_iterator_that_is_not_send() {
    fn spawned<F: Future<Output = ()> + Send + 'static>(work: F) -> tokio::task::JoinHandle<()> {
        tokio::spawn(work)
    }
    let minute = std::time::Duration::from_secs(60);
    let (set, sets) = (ExpiringSet::new(minute), ExpiringSets::new(minute));
    let sorted = SortedSet::new();
    spawned(async move {
        let non_send_iterator = || {
            let one = std::rc::Rc::new(1);
            (0..3).map(move |i| i + *one)
        };
        set.extend(non_send_iterator()).await;
        sets.extend("ada", non_send_iterator()).await;
        sorted.extend(non_send_iterator().map(|i| (i, i))).await;
        assert_eq!(set.elements().await, [1, 2, 3]);
        assert_eq!(sets.elements("ada").await, [1, 2, 3]);
        assert_eq!(sorted.len().await, 3);
    })
    .await
    .unwrap();
}

/// Key and member whose hash is that of all others.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Colliding(u32);

impl std::hash::Hash for Colliding {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}

#[tokio::test(start_paused = true)]
async fn keys_and_members_of_one_hash_are_told_apart() {
    let sets = ExpiringSets::new(SECOND);
    let keys = [1, 2, 3].map(Colliding);
    for key in &keys {
        for member in 1..=key.0 {
            sets.push(key.clone(), Colliding(member)).await;
        }
    }
    for key in &keys {
        assert_eq!(sets.len(key).await, key.0 as usize);
        assert!(sets.contains(key, &Colliding(key.0)).await);
        assert!(!sets.contains(key, &Colliding(key.0 + 1)).await);
        assert_eq!(sets.elements(key).await.last(), Some(&Colliding(key.0)));
    }
    assert!(!sets.remove(&keys[0], &Colliding(2)).await);
    assert!(sets.remove(&keys[2], &Colliding(2)).await);
    assert_eq!(sets.elements(&keys[2]).await, [1, 3].map(Colliding));
    sets.clear(&keys[1]).await;
    assert_eq!(sets.keys().await.len(), 2);
    assert_eq!(sets.pop(&keys[0]).await, Some(Colliding(1)));
    assert_eq!(sets.pop(&keys[0]).await, None);
    assert_eq!(sets.len(&keys[2]).await, 2);
    assert_eq!(sets.len(&Colliding(4)).await, 0);
}
