//! Snapshots of many entries, which helper threads encode together with the caller: they end with the call, and never
//! hold it up.

use std::{
    io,
    panic::AssertUnwindSafe,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use fleeting::{Cache, SnapshotError, WeakCache};
use futures::FutureExt;
use serde::{Serialize, Serializer, de::DeserializeOwned};
use tokio::{
    io::AsyncWrite,
    runtime::{Builder, Runtime},
    time::timeout,
};

use crate::{patience::patience, wait_until::wait_until};

/// Enough for dozens of blocks.
const ENTRIES: u64 = 20_000;

/// Value of about a hundred bytes whose serialization calls a function.
#[derive(Clone)]
struct Value(Arc<dyn Fn() + Send + Sync>);

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.0)();
        serializer.serialize_str(&"x".repeat(100))
    }
}

async fn filled(on_serialize: impl Fn() + Send + Sync + 'static) -> Cache<u64, Value> {
    let value = Value(Arc::new(on_serialize));
    let cache = Cache::new();
    for key in 0..ENTRIES {
        cache.set(key, value.clone()).await;
    }
    cache
}

async fn restored<V>(bytes: &[u8]) -> Cache<u64, V>
where
    V: Clone + Send + Sync + DeserializeOwned + 'static,
{
    let cache = Cache::new();
    cache.restore(bytes).await.expect("the snapshot is complete");
    cache
}

fn current_thread() -> Builder {
    Builder::new_current_thread()
}

fn multi_thread() -> Builder {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2);
    builder
}

#[test]
fn snapshot_of_many_entries_is_complete_on_every_runtime() {
    for mut builder in [current_thread(), multi_thread()] {
        builder.enable_all().build().unwrap().block_on(async {
            let cache = Cache::new();
            for key in 0..ENTRIES {
                cache.set(key, format!("value of {key}")).await;
            }
            let (mut plain, mut compressed) = (Vec::new(), Vec::new());
            assert_eq!(cache.snapshot(&mut plain).await.unwrap(), ENTRIES);
            assert_eq!(cache.snapshot_compressed(&mut compressed).await.unwrap(), ENTRIES);
            for bytes in [plain, compressed] {
                let restored = restored::<String>(&bytes).await;
                assert_eq!(restored.len() as u64, ENTRIES);
                for key in 0..ENTRIES {
                    assert_eq!(restored.get(&key).await, Some(format!("value of {key}")));
                }
            }
        });
    }
}

/// Polls a future until it is ready, without a runtime that would wake it.
fn poll_to_end<F: Future>(future: F) -> F::Output {
    let mut future = pin!(tokio::task::unconstrained(future));
    loop {
        let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(output) = polled {
            return output;
        }
        thread::yield_now();
    }
}

/// Runs `work` on a runtime whose only thread for blocking work is in use until it ends.
fn with_blocked_threads(work: impl Future<Output = ()>) {
    let runtime = current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    let (release, blocked) = mpsc::channel::<()>();
    runtime.spawn_blocking(move || blocked.recv());
    runtime.block_on(async { timeout(patience(), work).await.expect("the snapshot ends") });
    drop(release);
}

#[test]
fn snapshot_ends_while_all_blocking_threads_are_in_use() {
    with_blocked_threads(async {
        let cache = filled(|| ()).await;
        let mut bytes = Vec::new();
        assert_eq!(cache.snapshot(&mut bytes).await.unwrap(), ENTRIES);
    });
}

#[test]
fn snapshot_to_a_file_ends_on_a_runtime_with_one_blocking_thread() {
    let runtime = current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("snapshot");
    runtime.block_on(async {
        let cache = filled(|| ()).await;
        let mut file = tokio::fs::File::create(&path).await.unwrap();
        let written = timeout(patience(), cache.snapshot(&mut file)).await;
        assert_eq!(written.expect("the snapshot ends").unwrap(), ENTRIES);
    });
    let bytes = std::fs::read(&path).unwrap();
    runtime.block_on(async {
        assert_eq!(restored::<String>(&bytes).await.len() as u64, ENTRIES);
    });
}

#[test]
fn snapshot_ends_after_the_runtime_of_the_cache_has_ended() {
    let runtime = multi_thread().enable_all().build().unwrap();
    let cache = runtime.block_on(filled(|| ()));
    drop(runtime);
    let mut bytes = Vec::new();
    let written = poll_to_end(cache.snapshot(&mut bytes));
    assert_eq!(written.unwrap(), ENTRIES);
}

/// Writer that accepts some bytes and is pending from then on.
struct Stuck(usize);

impl AsyncWrite for Stuck {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.0 == 0 {
            return Poll::Pending;
        }
        let accepted = self.0.min(bytes.len());
        self.0 -= accepted;
        Poll::Ready(Ok(accepted))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Returns `counted` when it has not changed for a while.
fn settled(counted: &AtomicU64) -> u64 {
    let (mut last, mut unchanged) = (counted.load(Relaxed), 0);
    while unchanged < 50 {
        thread::sleep(Duration::from_millis(2));
        let now = counted.load(Relaxed);
        unchanged = if now == last { unchanged + 1 } else { 0 };
        last = now;
    }
    last
}

#[test]
fn snapshot_to_a_slow_writer_encodes_only_a_few_blocks_ahead() {
    let runtime = multi_thread().enable_all().build().unwrap();
    let encoded = Arc::new(AtomicU64::new(0));
    let counter = encoded.clone();
    let cache = runtime.block_on(filled(move || {
        counter.fetch_add(1, Relaxed);
    }));
    let snapshot = runtime.spawn(async move { cache.snapshot(Stuck(100_000)).await });
    let ahead = settled(&encoded);
    // The written bytes and a megabyte, for entries of at least 100 bytes.
    assert!((1_000..13_000).contains(&ahead), "{ahead} entries of {ENTRIES} are encoded");
    snapshot.abort();
}

#[test]
fn cancelled_snapshot_stops_encoding_and_releases_the_cache() {
    let runtime = multi_thread().enable_all().build().unwrap();
    let (encoded, held) = (Arc::new(AtomicU64::new(0)), Arc::new(()));
    let (counter, hold) = (encoded.clone(), held.clone());
    let cache = runtime.block_on(filled(move || {
        let _hold = &hold;
        counter.fetch_add(1, Relaxed);
        // The whole snapshot would take a minute or more.
        thread::sleep(Duration::from_millis(5));
    }));
    let snapshot = runtime.spawn(async move { cache.snapshot(tokio::io::sink()).await });
    wait_until("the first entries are encoded", || encoded.load(Relaxed) > 0);
    snapshot.abort();
    wait_until("the cache is dropped", || Arc::strong_count(&held) == 1);
    assert!(encoded.load(Relaxed) < ENTRIES);
}

#[test]
fn snapshot_to_a_failing_writer_returns_its_error_and_stops_encoding() {
    struct Broken(usize);

    impl AsyncWrite for Broken {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let Some(left) = self.0.checked_sub(bytes.len()) else {
                return Poll::Ready(Err(io::Error::other("the disk is full")));
            };
            self.0 = left;
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    let runtime = multi_thread().enable_all().build().unwrap();
    let (encoded, held) = (Arc::new(AtomicU64::new(0)), Arc::new(()));
    let (counter, hold) = (encoded.clone(), held.clone());
    let cache = runtime.block_on(filled(move || {
        let _hold = &hold;
        counter.fetch_add(1, Relaxed);
    }));
    let error = runtime.block_on(cache.snapshot(Broken(300_000))).unwrap_err();
    assert!(matches!(error, SnapshotError::Write(_)), "{error:?}");
    drop(cache);
    wait_until("the cache is dropped", || Arc::strong_count(&held) == 1);
    assert!(encoded.load(Relaxed) < ENTRIES);
}

#[test]
fn panic_of_serialize_reaches_the_caller_of_snapshot() {
    // The caller's task and the helpers take turns to panic.
    for at in (0..ENTRIES).step_by(700) {
        let runtime = multi_thread().enable_all().build().unwrap();
        let encoded = AtomicU64::new(0);
        let cache = runtime.block_on(filled(move || {
            assert!(encoded.fetch_add(1, Relaxed) != at, "of a test");
        }));
        let mut bytes = Vec::new();
        let snapshot = AssertUnwindSafe(cache.snapshot(&mut bytes)).catch_unwind();
        assert!(runtime.block_on(snapshot).is_err(), "the panic at entry {at} was lost");
        // The counter has passed `at`.
        let mut bytes = Vec::new();
        assert_eq!(runtime.block_on(cache.snapshot(&mut bytes)).unwrap(), ENTRIES);
    }
}

/// Value that updates all keys and makes the shards grow when it is first written.
#[derive(Clone)]
struct Changing(u64, Arc<Change>);

struct Change {
    cache: std::sync::OnceLock<WeakCache<u64, Changing>>,
    written: AtomicUsize,
}

impl Serialize for Changing {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.1.written.fetch_add(1, Relaxed) == 0 {
            let cache = self.1.cache.get().and_then(WeakCache::upgrade).expect("the cache exists");
            poll_to_end(async {
                for key in 0..8 * ENTRIES {
                    cache.set(key, Changing(2, self.1.clone())).await;
                }
            });
        }
        serializer.serialize_u64(self.0)
    }
}

/// The shard whose first entry is written was begun before the update, and is copied again after it.
#[test]
fn restore_keeps_the_later_copy_of_an_entry_that_was_written_twice() {
    for _ in 0..5 {
        let runtime: Runtime = multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let change = Change { cache: std::sync::OnceLock::new(), written: AtomicUsize::new(0) };
            let change = Arc::new(change);
            let cache = Cache::builder().shards(4).build();
            assert!(change.cache.set(cache.downgrade()).is_ok());
            for key in 0..ENTRIES {
                cache.set(key, Changing(1, change.clone())).await;
            }
            let mut bytes = Vec::new();
            let written = cache.snapshot(&mut bytes).await.unwrap();
            assert!(written > 8 * ENTRIES, "no entry was written twice");
            let restored = restored::<u64>(&bytes).await;
            for key in 0..ENTRIES {
                assert_eq!(restored.get(&key).await, Some(2), "key {key}");
            }
        });
    }
}
