//! No stream keeps what nobody will read: a value goes with its last reader, and not with the next event.

use std::sync::{Arc, Weak};

use fleeting::{Cache, Cause, Events, LosslessEvents, Sweep};
use futures::{FutureExt, StreamExt};
use tokio::task::unconstrained;

const ALL: [Cause; 4] = [Cause::Expired, Cause::Evicted, Cause::Removed, Cause::Replaced];

type Values = Cache<u32, Arc<u32>>;

fn cache(ring: usize) -> Values {
    Cache::builder().sweep(Sweep::manual()).publish(ALL).event_capacity(ring).build()
}

/// So many values leave as removed.
async fn leave(cache: &Values, count: u32) -> Vec<Weak<u32>> {
    let mut values = Vec::new();
    for key in 0..count {
        let value = Arc::new(key);
        values.push(Arc::downgrade(&value));
        cache.set(key, value).await;
        cache.remove(&key).await;
    }
    values
}

fn kept(values: &[Weak<u32>]) -> usize {
    values.iter().filter(|value| value.strong_count() > 0).count()
}

/// Reads so many, at most.
fn read(events: &mut Events<u32, Arc<u32>>, count: usize) -> usize {
    let next = || unconstrained(events.next()).now_or_never().flatten();
    std::iter::from_fn(next).take(count).inspect(|event| assert!(event.is_ok())).count()
}

fn read_lossless(events: &mut LosslessEvents<u32, Arc<u32>>, count: usize) -> usize {
    let next = || unconstrained(events.next()).now_or_never().flatten();
    std::iter::from_fn(next).take(count).count()
}

#[tokio::test(start_paused = true)]
async fn a_value_goes_with_its_last_reader() {
    let cache = cache(2_000);
    let (mut first, mut second) = (cache.events(), cache.events());
    let values = leave(&cache, 1_000).await;
    assert_eq!((read(&mut first, 1_000), kept(&values)), (1_000, 1_000));
    assert_eq!((read(&mut second, 400), kept(&values)), (400, 600));
    assert_eq!((read(&mut second, 1_000), kept(&values)), (600, 0));

    let mut lossless = [cache.events_lossless(1), cache.events_lossless(1_000)];
    let values = leave(&cache, 1_000).await;
    assert_eq!((read(&mut first, 1_000), read(&mut second, 1_000)), (1_000, 1_000));
    assert_eq!(read_lossless(&mut lossless[0], 700), 700);
    assert_eq!(kept(&values), 1_000);
    assert_eq!((read_lossless(&mut lossless[1], 500), kept(&values)), (500, 500));
    drop(lossless);
    assert_eq!(kept(&values), 0, "nobody will read the others");
}

/// Who stands at what it does not hear keeps nothing from going that others have read.
#[tokio::test(start_paused = true)]
async fn who_reads_nothing_keeps_its_own_alone() {
    let cache = cache(10);
    let _stuck = cache.events_lossless(1).only([Cause::Replaced]);
    let mut removed = cache.events_lossless(1).only([Cause::Removed]);
    let (old, new) = (Arc::new(1), Arc::new(2));
    cache.set(5_000, old.clone()).await;
    cache.set(5_000, new).await;
    let values = leave(&cache, 1_000).await;
    assert_eq!(kept(&values), 1_000);
    assert_eq!((read_lossless(&mut removed, 1_000), kept(&values)), (1_000, 0));
    assert_eq!(Arc::strong_count(&old), 2, "it is unread");
}

/// A ring keeps as many as it was made for, whoever reads or does not.
#[tokio::test(start_paused = true)]
async fn a_ring_keeps_no_more_than_it_holds() {
    for ring in [1, 5, 64, 100] {
        let cache = cache(ring);
        let idle = cache.events();
        let mut others = [cache.events(), cache.events()];
        let values = leave(&cache, 1_000).await;
        assert_eq!(kept(&values), ring);
        for other in &mut others {
            assert!(
                matches!(other.recv().await, Some(Err(missed)) if missed.0 == 1_000 - ring as u64)
            );
            assert_eq!(read(other, 1_000), ring);
        }
        assert_eq!(kept(&values), ring);
        drop(idle);
        assert_eq!(kept(&values), 0);
    }
}

/// What is narrowed away is let go at once.
#[tokio::test(start_paused = true)]
async fn what_is_not_heard_any_more_is_let_go() {
    let cache = cache(2_000);
    let (ring, lossless) = (cache.events(), cache.events_lossless(1));
    let values = leave(&cache, 1_000).await;
    let ring = ring.only([Cause::Expired]);
    assert_eq!(kept(&values), 1_000);
    let lossless = lossless.only([Cause::Replaced]);
    assert_eq!(kept(&values), 0);
    drop((ring, lossless));
}

/// From many threads at once, too: when all is read, all is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_a_crowd_tells_is_let_go() {
    let cache = cache(100_000);
    let mut streams = [cache.events(), cache.events()];
    let writers: Vec<_> = (0..4)
        .map(|_| {
            let cache = cache.clone();
            tokio::spawn(async move { leave(&cache, 10_000).await })
        })
        .collect();
    let mut values = Vec::new();
    for writer in writers {
        values.extend(writer.await.unwrap());
    }
    // Two of them may have met at a key: the one who came second has replaced the first.
    let told = read(&mut streams[0], 100_000);
    assert_eq!(told, 40_000, "each leaves once");
    assert_eq!(read(&mut streams[1], 100_000), 40_000);
    assert_eq!(kept(&values), 0);
}
