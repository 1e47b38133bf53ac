//! Members and keys that misbehave: they panic at a chosen moment, or call the set while they are dropped.

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

const SECOND: Duration = Duration::from_secs(1);
const ALL: [Cause; 3] = [Cause::Expired, Cause::Removed, Cause::Replaced];

/// What has come by now, without waiting.
fn heard<K, V>(events: &mut LosslessEvents<K, V>) -> Vec<Arc<Event<K, V>>> {
    std::iter::from_fn(|| unconstrained(events.recv()).now_or_never().flatten()).collect()
}

/// How many calls until one panics, for each trait; 0 for never.
#[derive(Default)]
struct Fuses {
    hash: AtomicU64,
    eq: AtomicU64,
    clone: AtomicU64,
    drop: AtomicU64,
}

/// Panics where a fuse of its says so.
struct Moody {
    id: u64,
    fuses: Arc<Fuses>,
}

fn burn(fuse: &AtomicU64) {
    if std::thread::panicking() || fuse.load(Relaxed) == 0 {
        return;
    }
    assert!(fuse.fetch_sub(1, Relaxed) > 1, "the panic of this test");
}

impl Clone for Moody {
    fn clone(&self) -> Self {
        burn(&self.fuses.clone);
        Self { id: self.id, fuses: self.fuses.clone() }
    }
}

impl PartialEq for Moody {
    fn eq(&self, other: &Self) -> bool {
        burn(&self.fuses.eq);
        self.id == other.id
    }
}

impl Eq for Moody {}

impl std::hash::Hash for Moody {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        burn(&self.fuses.hash);
        self.id.hash(state);
    }
}

impl Drop for Moody {
    fn drop(&mut self) {
        burn(&self.fuses.drop);
    }
}

/// Every call, at each comparison, hash and clone that it makes, heard of and not: nothing is lost without
/// an event, and the sets go on.
#[tokio::test(start_paused = true)]
async fn what_panics_leaves_the_sets_whole() {
    type Fuse = fn(&Fuses) -> &AtomicU64;
    let fuses: [Fuse; 3] = [|f| &f.hash, |f| &f.eq, |f| &f.clone];
    let mut panics = 0;
    for call in 0..10 {
        for fuse in fuses {
            for calls in 1..12 {
                for heard in [false, true] {
                    panics += u32::from(try_call(call, fuse, calls, heard).await);
                }
            }
        }
    }
    assert!(panics > 80, "only {panics} calls panicked");
}

async fn try_call(call: u32, fuse: fn(&Fuses) -> &AtomicU64, calls: u64, is_heard: bool) -> bool {
    let fuses = Arc::new(Fuses::default());
    let new = |id| Moody { id, fuses: fuses.clone() };
    let sets = ExpiringSets::builder(60 * SECOND).shards(1).publish(ALL).build();
    let mut events = is_heard.then(|| sets.events_lossless(1_000));
    let noon = Instant::now();
    for id in 0..20 {
        sets.push_at(new(id % 2), new(id), noon + (id as u32 / 4) * SECOND).await;
    }
    if call == 9 {
        advance(62 * SECOND).await;
    }
    fuse(&fuses).store(calls, Relaxed);
    let act = async {
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
    let panicked = std::panic::AssertUnwindSafe(act).catch_unwind().await.is_err();
    fuse(&fuses).store(0, Relaxed);

    // Heard or there: nothing is gone without a word.
    let mut known: HashSet<u64> = HashSet::new();
    for key in 0..2 {
        known.extend(sets.elements(&new(key)).await.iter().map(|member| member.id));
    }
    if let Some(events) = &mut events {
        known.extend(heard(events).iter().map(|event| event.value.id));
        let expected = (0..20).filter(|id| !known.contains(id)).collect::<Vec<_>>();
        assert!(expected.is_empty(), "{expected:?} are gone: call {call}, at {calls}");
    }
    for id in 0..40 {
        sets.push(new(id % 3), new(id)).await;
    }
    assert_eq!(sets.sets().await, 3);
    sleep(70 * SECOND).await;
    assert_eq!(sets.sets().await, 0, "the sets are not usable any more");
    panicked
}

/// The sweeper clones keys for its events; where that panics, it is there again at its next sweep.
#[tokio::test(start_paused = true)]
async fn a_sweep_that_panics_is_made_up_for() {
    let fuses = Arc::new(Fuses::default());
    let new = |id| Moody { id, fuses: fuses.clone() };
    let sets = ExpiringSets::builder(SECOND).shards(4).build();
    let mut events = sets.events_lossless(1_000);
    for id in 0..100 {
        sets.push(new(id % 10), new(id)).await;
    }
    fuses.clone.store(3, Relaxed);
    sleep(10 * SECOND).await;
    assert_eq!(fuses.clone.load(Relaxed), 0, "nothing panicked");
    let ids: HashSet<u64> = heard(&mut events).iter().map(|event| event.value.id).collect();
    assert_eq!(ids.len(), 100);
    assert_eq!(sets.sets().await, 0);
}

/// Of a call that panics some members may have come: they die in time, too, where nobody calls again.
#[tokio::test(start_paused = true)]
async fn what_came_before_a_panic_expires_in_time() {
    let fuses = Arc::new(Fuses::default());
    let new = |id| Moody { id, fuses: fuses.clone() };
    let (set, sets) = (ExpiringSet::new(SECOND), ExpiringSets::new(SECOND));
    let (mut of_set, mut of_sets) = (set.events_lossless(9), sets.events_lossless(9));
    // The sweepers have found that there is nothing.
    sleep(SECOND).await;
    fuses.eq.store(1, Relaxed);
    let act = set.extend([new(7), new(7)]);
    assert!(std::panic::AssertUnwindSafe(act).catch_unwind().await.is_err());
    fuses.eq.store(1, Relaxed);
    let act = sets.extend(new(0), [new(7), new(7)]);
    assert!(std::panic::AssertUnwindSafe(act).catch_unwind().await.is_err());
    sleep(2 * SECOND).await;
    assert_eq!((heard(&mut of_set).len(), heard(&mut of_sets).len()), (1, 1));
}

/// One of twenty panics as it is dropped: no other is lost with it, and the sweeper lives.
#[tokio::test(start_paused = true)]
async fn a_drop_that_panics_takes_no_other_with_it() {
    for way in 0..4 {
        for is_heard in [false, true] {
            let (bad, good) = (Arc::new(Fuses::default()), Arc::new(Fuses::default()));
            let set = ExpiringSet::builder(SECOND).publish(ALL).build();
            let mut events = is_heard.then(|| set.events_lossless(100));
            for id in 0..20 {
                let fuses = if id == 7 { &bad } else { &good };
                set.push(Moody { id, fuses: fuses.clone() }).await;
            }
            bad.drop.store(1, Relaxed);
            let act = async {
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
            let _ = std::panic::AssertUnwindSafe(act).catch_unwind().await;
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
            assert_eq!(Arc::strong_count(&good), 1, "way {way}: some are not dropped");
            bad.drop.store(0, Relaxed);
            set.push(Moody { id: 1, fuses: good.clone() }).await;
            sleep(3 * SECOND).await;
            assert_eq!(Arc::strong_count(&good), 1, "the sweeper is dead");
        }
    }
}

/// A member that calls its set as it is dropped.
#[derive(Clone)]
struct Caller(u32, Home);

type Home = Arc<Mutex<Option<ExpiringSet<Caller>>>>;

impl Drop for Caller {
    fn drop(&mut self) {
        let home = self.1.lock().map(|home| home.clone());
        if let Ok(Some(set)) = home {
            set.overflow();
            set.contains(&Caller(9_999, Home::default())).now_or_never();
        }
    }
}

impl PartialEq for Caller {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Caller {}

impl std::hash::Hash for Caller {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

#[test]
fn what_is_dropped_may_call_the_set() {
    for is_heard in [false, true] {
        // A lock that is taken twice waits for ever: the watchdog is this thread.
        let (done, watch) = channel();
        std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_time().start_paused(true).build().unwrap().block_on(async {
                let home = Home::default();
                let set = ExpiringSet::builder(60 * SECOND).publish(ALL).build();
                let events = is_heard.then(|| set.events());
                *home.lock().unwrap() = Some(set.clone());
                let new = |n: u32| Caller(n, home.clone());
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
                home.lock().unwrap().take();
                drop(events);
            });
            done.send(()).unwrap();
        });
        watch.recv_timeout(300 * SECOND).expect("the set waits for itself");
    }
}

/// An iterator that is of one thread alone does not keep who extends a set from being spawned.
#[tokio::test]
async fn what_extends_a_set_need_not_go_to_another_thread() {
    fn spawned<F: Future<Output = ()> + Send + 'static>(work: F) -> tokio::task::JoinHandle<()> {
        tokio::spawn(work)
    }
    let minute = std::time::Duration::from_secs(60);
    let (set, sets) = (ExpiringSet::new(minute), ExpiringSets::new(minute));
    let sorted = SortedSet::new();
    spawned(async move {
        let own = || {
            let own = std::rc::Rc::new(1);
            (0..3).map(move |i| i + *own)
        };
        set.extend(own()).await;
        sets.extend("ada", own()).await;
        sorted.extend(own().map(|i| (i, i))).await;
        assert_eq!(set.elements().await, [1, 2, 3]);
        assert_eq!(sets.elements("ada").await, [1, 2, 3]);
        assert_eq!(sorted.len().await, 3);
    })
    .await
    .unwrap();
}
