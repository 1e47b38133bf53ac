//! Snapshots: a round trip restores all entries, and damaged or foreign data changes nothing.

use std::{
    collections::BTreeMap,
    error::Error as _,
    hash::Hash,
    io,
    panic::AssertUnwindSafe,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use fleeting::{Cache, Cause, SnapshotError, Sweep, Ttl};
use futures::FutureExt;
use rand::{RngExt, SeedableRng, rngs::SmallRng, seq::SliceRandom};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned};
use tokio::{
    io::{AsyncRead, AsyncReadExt, ReadBuf},
    time::advance,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Session {
    user: String,
    rights: Vec<String>,
    seen: Option<u64>,
    raw: Vec<u8>,
    limits: BTreeMap<u32, f64>,
    state: State,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum State {
    New,
    Known(i64, bool),
    Blocked { since: u128, why: () },
}

fn session(n: u64) -> Session {
    Session {
        user: format!("user {n} \u{1f980}"),
        rights: (0..n % 5).map(|right| "r".repeat(right as usize)).collect(),
        seen: n.is_multiple_of(3).then_some(n),
        raw: (0..n % 300).map(|byte| byte as u8).collect(),
        limits: (0..n % 3).map(|limit| (limit as u32, limit as f64 / 3.0)).collect(),
        state: match n % 3 {
            0 => State::New,
            1 => State::Known(-(n as i64), n.is_multiple_of(2)),
            _ => State::Blocked { since: u128::MAX - u128::from(n), why: () },
        },
    }
}

async fn snapshot_of<K, V>(cache: &Cache<K, V>, is_compressed: bool) -> Vec<u8>
where
    K: Hash + Eq + Clone + Send + Sync + Serialize + 'static,
    V: Clone + Send + Sync + Serialize + 'static,
{
    let mut bytes = Vec::new();
    let count = match is_compressed {
        false => cache.snapshot(&mut bytes).await,
        true => cache.snapshot_compressed(&mut bytes).await,
    };
    assert_eq!(count.unwrap(), cache.live_len() as u64);
    bytes
}

async fn restore_new<K, V>(bytes: &[u8]) -> Result<Cache<K, V>, SnapshotError>
where
    K: Hash + Eq + Clone + Send + Sync + DeserializeOwned + 'static,
    V: Clone + Send + Sync + DeserializeOwned + 'static,
{
    let cache = Cache::new();
    let count = cache.restore(bytes).await?;
    assert_eq!(count, cache.live_len() as u64);
    Ok(cache)
}

#[tokio::test(start_paused = true)]
async fn restore_of_snapshot_and_snapshot_compressed_returns_all_entries_with_their_remaining_ttls()
{
    let cache = Cache::new();
    for n in 0..2_000 {
        let key = (n, format!("key {n}"));
        match n % 4 {
            0 => drop(cache.set(key, session(n)).await),
            _ => drop(cache.set_ex(key, session(n), Duration::from_secs(n)).await),
        }
    }
    advance(300 * SECOND + 7 * MS).await;
    let mut sizes = Vec::new();
    for is_compressed in [false, true] {
        let bytes = snapshot_of(&cache, is_compressed).await;
        sizes.push(bytes.len());
        let restored: Cache<(u64, String), Session> = restore_new(&bytes).await.unwrap();
        for n in 0..2_000 {
            let key = (n, format!("key {n}"));
            assert_eq!(restored.get(&key).await, cache.get(&key).await, "{n}");
            assert_eq!(restored.ttl(&key).await, cache.ttl(&key).await, "{n}");
        }
    }
    assert!(sizes[1] < sizes[0] * 2 / 3, "{} compressed to {}", sizes[0], sizes[1]);
}

#[tokio::test(start_paused = true)]
async fn restore_subtracts_the_time_since_the_snapshot() {
    let cache = Cache::new();
    for (key, ttl) in [("short", 10), ("just", 40), ("long", 100)] {
        cache.set_ex(key.to_owned(), ttl, ttl as u32 * SECOND).await;
    }
    cache.set("forever".to_owned(), 0).await;
    advance(4 * SECOND).await;
    let bytes = snapshot_of(&cache, false).await;
    drop(cache);
    advance(36 * SECOND).await;
    let cache: Cache<String, u64> = restore_new(&bytes).await.unwrap();
    assert_eq!(cache.len(), 2, "expired entries are skipped");
    assert_eq!(cache.ttl("just").await, Ttl::Missing);
    assert_eq!(cache.ttl("long").await, Ttl::Remaining(60 * SECOND));
    assert_eq!(cache.ttl("forever").await, Ttl::Persistent);
    advance(60 * SECOND).await;
    assert_eq!(cache.get("long").await, None);
}

#[tokio::test(start_paused = true)]
async fn snapshot_skips_expired_entries() {
    let cache = Cache::builder().sweep(Sweep::manual()).build();
    cache.set_ex(1, 1, SECOND).await;
    cache.set_ex(2, 2, SECOND + MS).await;
    advance(SECOND).await;
    let mut bytes = Vec::new();
    assert_eq!((cache.len(), cache.snapshot(&mut bytes).await.unwrap()), (2, 1));
    let cache: Cache<i32, i32> = restore_new(&bytes).await.unwrap();
    assert_eq!(cache.get(&2).await, Some(2));
}

/// Time between snapshot and restore counts as idle time. A read after the restore extends the idle deadline as before.
#[tokio::test(start_paused = true)]
async fn restore_counts_the_time_since_the_snapshot_as_idle() {
    let idle = || Cache::<&'static str, i32>::builder().time_to_idle(10 * SECOND);
    let cache = idle().build();
    cache.set_ex("own", 1, 60 * SECOND).await;
    cache.set("forever", 2).await;
    advance(4 * SECOND).await;
    let mut bytes = Vec::new();
    assert_eq!(cache.snapshot(&mut bytes).await.unwrap(), 2);
    advance(5 * SECOND).await;
    let restored: Cache<String, i32> = Cache::builder().time_to_idle(10 * SECOND).build();
    assert_eq!(restored.restore(&bytes[..]).await.unwrap(), 2);
    for _ in 0..6 {
        advance(9 * SECOND).await;
        let until_own = restored.get("own").await;
        assert_eq!(until_own, (restored.ttl("own").await != Ttl::Missing).then_some(1));
        assert_eq!(restored.get("forever").await, Some(2));
    }
    assert_eq!(restored.get("own").await, None, "the hard deadline has passed");
    let late: Cache<String, i32> = Cache::builder().time_to_idle(10 * SECOND).build();
    assert_eq!(late.restore(&bytes[..]).await.unwrap(), 0, "the idle time has elapsed");
}

#[tokio::test]
async fn snapshot_skips_entries_removed_by_tag() {
    let cache = Cache::builder().sweep(Sweep::manual()).build();
    cache.set_tagged(1, 1, 100 * SECOND, ["red"]).await;
    cache.set_tagged(2, 2, 100 * SECOND, ["blue"]).await;
    cache.remove_tag("red").await;
    let cache: Cache<i32, i32> = restore_new(&snapshot_of(&cache, false).await).await.unwrap();
    assert_eq!((cache.get(&1).await, cache.get(&2).await), (None, Some(2)));
}

/// Tags keep their names, even if the cache already uses the same names.
#[tokio::test]
async fn restore_keeps_tags() {
    let cache = Cache::new();
    for n in 0..300_u64 {
        match n % 3 {
            0 => drop(cache.set(n, n).await),
            1 => drop(cache.set_tagged(n, n, 100 * SECOND, ["one"]).await),
            _ => drop(cache.set_tagged(n, n, 100 * SECOND, ["two", &format!("user {n}")]).await),
        }
    }
    for is_compressed in [false, true] {
        let bytes = snapshot_of(&cache, is_compressed).await;
        let restored = Cache::new();
        restored.set_tagged(1_000, 0, 100 * SECOND, ["one"]).await;
        restored.set_tagged(0, 7, 100 * SECOND, ["one"]).await;
        assert_eq!(restored.restore(&bytes[..]).await.unwrap(), 300);
        restored.remove_tag("user 2").await;
        assert_eq!((restored.get(&2).await, restored.get(&5).await), (None, Some(5)));
        restored.remove_tag("one").await;
        let mut remaining_keys: Vec<u64> = restored.keys().collect();
        remaining_keys.sort();
        let others = (0..300).filter(|n| n % 3 != 1 && *n != 2);
        assert_eq!(
            remaining_keys,
            others.collect::<Vec<_>>(),
            "the untagged 0 has replaced the tagged one"
        );
        // The original cache has its own tags.
        assert_eq!(cache.get(&1).await, Some(1));
        // A restored cache writes its tags to its next snapshot.
        let third: Cache<u64, u64> =
            restore_new(&snapshot_of(&restored, is_compressed).await).await.unwrap();
        third.remove_tag("two").await;
        assert_eq!(third.live_len(), 100);
    }
}

/// A value written after the restore has only its own tags.
#[tokio::test(start_paused = true)]
async fn restored_value_has_only_the_tags_that_set_tagged_gave_it() {
    let cache = Cache::new();
    cache.set_tagged(1, 1, 10 * SECOND, ["then"]).await;
    let bytes = snapshot_of(&cache, false).await;
    let restored = Cache::new();
    restored.set_tagged(1, 2, 10 * SECOND, ["now"]).await;
    restored.remove_tag("then").await;
    restored.restore(&bytes[..]).await.unwrap();
    restored.remove_tag("now").await;
    assert_eq!(restored.get(&1).await, Some(1));
    assert_eq!(restored.ttl(&1).await, Ttl::Remaining(10 * SECOND));
    restored.remove_tag("then").await;
    assert_eq!(restored.get(&1).await, None);
}

#[tokio::test]
async fn empty_cache_has_a_valid_snapshot() {
    for is_compressed in [false, true] {
        let bytes = snapshot_of(&Cache::<String, u64>::new(), is_compressed).await;
        let cache: Cache<String, u64> = restore_new(&bytes).await.unwrap();
        assert!(cache.is_empty());
    }
}

/// Of ten thousand damaged snapshots, none is accepted and none changes the cache.
#[tokio::test]
async fn restore_rejects_truncated_and_corrupted_snapshots() {
    let mut random = SmallRng::seed_from_u64(19);
    let cache = Cache::new();
    for n in 0..40 {
        let ttl = Duration::from_secs(1_000 + n);
        match n % 4 {
            0 => cache.set_tagged(n, session(n), ttl, ["all", &n.to_string()]).await,
            _ => cache.set_ex(n, session(n), ttl).await,
        };
    }
    let target = Cache::new();
    target.set(7, session(70)).await;
    target.set(1_000, session(1_000)).await;
    for is_compressed in [false, true] {
        let whole = snapshot_of(&cache, is_compressed).await;
        for round in 0..5_000 {
            let mut bytes = whole.clone();
            if round % 3 == 0 {
                bytes.truncate(random.random_range(0..whole.len()));
            }
            if round % 3 != 0 {
                for _ in 0..random.random_range(1..=1 << (round % 8)) {
                    let bit = random.random_range(0..8 * whole.len());
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
            }
            if bytes == whole {
                continue;
            }
            let error = target.restore(&bytes[..]).await.expect_err("the data is corrupted");
            let is_named = matches!(
                error,
                SnapshotError::Truncated | SnapshotError::Damaged | SnapshotError::NotASnapshot
            );
            assert!(is_named, "round {round}: {error:?}");
            assert_eq!(target.len(), 2, "round {round} inserted entries");
        }
        assert_eq!(target.get(&7).await, Some(session(70)));
    }
    let stats = target.stats();
    assert_eq!((stats.replaced, stats.removed, stats.expired), (0, 0, 0));
}

/// Blocks that are left out, duplicated or exchanged have valid checksums of their own.
#[tokio::test]
async fn restore_rejects_reordered_blocks() {
    let cache = Cache::new();
    for n in 0..20_000_u64 {
        cache.set(n, vec![n; 30]).await;
    }
    let bytes = snapshot_of(&cache, false).await;
    let other = snapshot_of(&cache, false).await;
    let blocks = blocks(&bytes);
    assert!(blocks.len() > 5, "{} blocks", blocks.len());
    let (head, end) = (&bytes[..32], &bytes[bytes.len() - 32..]);
    let put_together = |blocks: &[&[u8]]| [head, &blocks.concat(), end].concat();
    assert_eq!(put_together(&blocks), bytes);
    let mut random = SmallRng::seed_from_u64(3);
    for round in 0..20 {
        let mut others = blocks.clone();
        match round % 3 {
            0 => drop(others.remove(random.random_range(0..blocks.len()))),
            1 => others.insert(random.random_range(0..blocks.len()), blocks[1]),
            _ => others.shuffle(&mut random),
        }
        if others != blocks {
            let refused = restore_new::<u64, Vec<u64>>(&put_together(&others)).await;
            assert!(matches!(refused, Err(SnapshotError::Damaged)), "round {round}: {refused:?}");
        }
    }
    // The end frame of another snapshot of the same cache.
    let spliced = [&bytes[..bytes.len() - 32], &other[other.len() - 32..]].concat();
    let refused = restore_new::<u64, Vec<u64>>(&spliced).await;
    assert!(matches!(refused, Err(SnapshotError::Damaged)), "{refused:?}");
    let whole: Cache<u64, Vec<u64>> = restore_new(&bytes).await.unwrap();
    assert_eq!(whole.len(), 20_000);
}

/// Splits a snapshot into its blocks, each with its frame.
fn blocks(bytes: &[u8]) -> Vec<&[u8]> {
    let mut rest = &bytes[32..];
    let mut blocks = Vec::new();
    loop {
        let stored = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
        if stored == 0 {
            return blocks;
        }
        let (block, others) = rest.split_at(32 + stored);
        blocks.push(block);
        rest = others;
    }
}

#[tokio::test]
async fn restore_rejects_foreign_data() {
    let refused = async |bytes: &[u8]| restore_new::<String, u64>(bytes).await.unwrap_err();
    for bytes in [&b"{\"sessions\": {}}"[..], &[0; 100], b"\x1f\x8b\x08", b"fleetinG", b"x"] {
        let error = refused(bytes).await;
        assert!(matches!(error, SnapshotError::NotASnapshot), "{bytes:?}: {error:?}");
        assert_eq!(error.to_string(), "the data is not a snapshot of a cache");
    }
    for bytes in [&b""[..], b"fleet", b"fleeting"] {
        assert!(matches!(refused(bytes).await, SnapshotError::Truncated), "{bytes:?}");
    }
}

#[tokio::test]
async fn restore_rejects_entries_of_other_types() {
    let cache = Cache::new();
    for n in 0..100_u64 {
        cache.set(n, if n == 61 { -1 } else { n as i64 }).await;
    }
    let bytes = snapshot_of(&cache, false).await;
    let unsigned: Cache<u64, u64> = Cache::new();
    let error = unsigned.restore(&bytes[..]).await.unwrap_err();
    assert!(matches!(error, SnapshotError::Decode(_)) && error.source().is_some(), "{error:?}");
    assert!(unsigned.is_empty(), "no entry was inserted");
    // Wider integer types can be decoded.
    let wide: Cache<u128, i128> = restore_new(&bytes).await.unwrap();
    assert_eq!(wide.get(&61).await, Some(-1));
}

/// Fields are encoded with their names, so a later type may have more of them, in another order.
#[tokio::test]
async fn restore_accepts_types_with_additional_fields() {
    #[derive(Clone, Serialize)]
    struct Before {
        name: String,
        age: u32,
    }
    #[derive(Clone, Debug, PartialEq, Deserialize)]
    struct After {
        #[serde(default)]
        email: Option<String>,
        age: u32,
        name: String,
    }
    let cache = Cache::new();
    cache.set(1, Before { name: "Ada".into(), age: 36 }).await;
    let cache: Cache<u32, After> = restore_new(&snapshot_of(&cache, false).await).await.unwrap();
    let ada = After { email: None, age: 36, name: "Ada".into() };
    assert_eq!(cache.get(&1).await, Some(ada));
}

#[tokio::test(start_paused = true)]
async fn restore_replaces_existing_keys_and_keeps_others() {
    let cache = Cache::new();
    cache.set_ex("both".to_owned(), 1, 10 * SECOND).await;
    cache.set("in the snapshot".to_owned(), 2).await;
    let bytes = snapshot_of(&cache, false).await;
    let cache = Cache::builder().publish([Cause::Replaced, Cause::Removed, Cause::Expired]).build();
    let mut events = cache.events();
    cache.set("both".to_owned(), 3).await;
    cache.set("here".to_owned(), 4).await;
    assert_eq!(cache.restore(&bytes[..]).await.unwrap(), 2);
    assert_eq!(cache.get("both").await, Some(1));
    assert_eq!(cache.ttl("both").await, Ttl::Remaining(10 * SECOND));
    assert_eq!(cache.get("here").await, Some(4));
    let replaced = events.recv().await.unwrap().unwrap();
    assert_eq!((replaced.value, replaced.cause), (3, Cause::Replaced));
    assert!(events.recv().now_or_never().is_none(), "no other entry was removed");
}

#[tokio::test]
async fn restore_keeps_the_bound() {
    let cache = Cache::new();
    for n in 0..1_000_u64 {
        cache.set(n, n).await;
    }
    let bytes = snapshot_of(&cache, false).await;
    let bounded: Cache<u64, u64> = Cache::builder().max_entries(100).build();
    assert_eq!(bounded.restore(&bytes[..]).await.unwrap(), 1_000);
    assert_eq!((bounded.len(), bounded.stats().evicted), (100, 900));
}

#[tokio::test]
async fn restore_reads_nothing_beyond_the_end_of_a_snapshot() {
    let mut file = Vec::new();
    for n in 0..3_u64 {
        let cache = Cache::new();
        cache.set(n, n).await;
        let mut writer = &mut file;
        cache.snapshot(&mut writer).await.unwrap();
    }
    file.extend(b"the rest");
    let mut reader = &file[..];
    for n in 0..3_u64 {
        let cache: Cache<u64, u64> = Cache::new();
        assert_eq!(cache.restore(&mut reader).await.unwrap(), 1);
        assert_eq!(cache.get(&n).await, Some(n));
    }
    assert_eq!(reader, b"the rest");
}

/// Threads write to other keys, so that shards grow, and to the same keys. Each entry that is present all the time is
/// in the snapshot, with a value that it had.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn snapshot_of_a_cache_in_use_is_weakly_consistent() {
    const STEADY: u64 = 5_000;
    let cache: Cache<u64, u64> = Cache::builder().shards(4).build();
    for key in 0..STEADY {
        cache.set(key, 0).await;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let round = Arc::new(AtomicU64::new(0));
    let writer = tokio::spawn({
        let (cache, stop, round) = (cache.clone(), stop.clone(), round.clone());
        async move {
            let mut next = STEADY;
            while !stop.load(Relaxed) {
                let now = 1 + round.fetch_add(1, Relaxed);
                for key in 0..STEADY {
                    cache.set(key, now).await;
                    cache.set(next, now).await;
                    next += 1;
                }
                if next > 60_000 {
                    for key in STEADY..next {
                        cache.remove(&key).await;
                    }
                    next = STEADY;
                }
            }
        }
    });
    let mut grew = false;
    for _ in 0..12 {
        let first = round.load(Relaxed);
        let mut bytes = Vec::new();
        let count = cache.snapshot(&mut bytes).await.unwrap();
        let last = round.load(Relaxed);
        let restored: Cache<u64, u64> = Cache::new();
        assert_eq!(restored.restore(&bytes[..]).await.unwrap(), count);
        grew |= restored.len() as u64 != count;
        for key in 0..STEADY {
            let value = restored.get(&key).await.unwrap_or_else(|| panic!("{key} is missing"));
            assert!((first.saturating_sub(1)..=last).contains(&value), "{key}: {value}");
        }
    }
    println!("a shard grew during a snapshot: {grew}");
    stop.store(true, Relaxed);
    writer.await.unwrap();
}

/// Reader that returns a few bytes at a time, and is pending at every other poll.
struct Slow<'a> {
    bytes: &'a [u8],
    is_awake: bool,
}

impl AsyncRead for Slow<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.is_awake = !self.is_awake;
        if !self.is_awake {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let (now, rest) = self.bytes.split_at(self.bytes.len().min(501).min(buf.remaining()));
        buf.put_slice(now);
        self.bytes = rest;
        Poll::Ready(Ok(()))
    }
}

/// A call cancelled while it reads has changed nothing; one cancelled later has inserted all entries.
#[tokio::test]
async fn cancelled_restore_is_all_or_nothing() {
    let cache = Cache::new();
    for n in 0..30_000_u64 {
        cache.set(n, n).await;
    }
    let bytes = snapshot_of(&cache, false).await;
    let (mut none, mut all) = (0, 0);
    let mut polls = 0;
    loop {
        let restored: Cache<u64, u64> = Cache::new();
        let done = tokio::task::unconstrained(async {
            let mut restore = pin!(restored.restore(Slow { bytes: &bytes, is_awake: false }));
            let mut cx = Context::from_waker(Waker::noop());
            (0..polls).any(|_| restore.as_mut().poll(&mut cx).is_ready())
        })
        .await;
        match restored.len() {
            0 => none += 1,
            30_000 => all += 1,
            some => panic!("{some} entries are inserted after {polls} polls"),
        }
        if done {
            break;
        }
        polls += 1 + polls / 8;
    }
    assert!(none > 5 && all > 0, "{none} {all}");
}

/// The panic may also occur during the drop of a cancelled call, which inserts the remaining entries.
#[tokio::test]
async fn restore_inserts_the_other_entries_if_a_weigher_panics() {
    let cache = Cache::new();
    for n in 0..1_000_u64 {
        cache.set(n, n).await;
    }
    let bytes = snapshot_of(&cache, false).await;
    let weigher = |_: &u64, value: &u64| if *value % 100 == 7 { panic!("of a test") } else { 1 };
    let restored: Cache<u64, u64> = Cache::builder().max_weight(100_000, weigher).build();
    let panicked = AssertUnwindSafe(restored.restore(&bytes[..])).catch_unwind().await;
    assert!(panicked.is_err());
    assert_eq!(restored.len(), 990);
}

/// Value whose serialization fails.
#[derive(Clone)]
struct Bad(u64);

impl Serialize for Bad {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            1 => Err(serde::ser::Error::custom("it must not be written")),
            n => serializer.serialize_u64(n),
        }
    }
}

impl<'de> Deserialize<'de> for Bad {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u64::deserialize(deserializer)? {
            2 => panic!("of a test"),
            n => Ok(Self(n)),
        }
    }
}

#[tokio::test]
async fn failing_serialization_is_an_encode_or_decode_error() {
    let cache = Cache::new();
    cache.set(1, Bad(1)).await;
    let mut bytes = Vec::new();
    let error = cache.snapshot(&mut bytes).await.unwrap_err();
    assert!(matches!(error, SnapshotError::Encode(_)), "{error:?}");
    assert!(error.source().unwrap().to_string().contains("must not be written"));
    let refused = restore_new::<i32, Bad>(&bytes).await.map(drop).unwrap_err();
    assert!(matches!(refused, SnapshotError::Truncated), "{refused:?}");

    cache.set(1, Bad(0)).await;
    cache.set(2, Bad(2)).await;
    let bytes = snapshot_of(&cache, false).await;
    let restored: Cache<i32, Bad> = Cache::new();
    assert!(AssertUnwindSafe(restored.restore(&bytes[..])).catch_unwind().await.is_err());
    assert!(restored.is_empty());
}

#[tokio::test]
async fn failing_readers_and_writers_are_read_and_write_errors() {
    let cache = Cache::new();
    cache.set(1, 1).await;
    let (writer, reader) = tokio::io::duplex(40);
    drop(reader);
    let error = cache.snapshot(writer).await.unwrap_err();
    assert!(matches!(error, SnapshotError::Write(_)) && error.source().is_some(), "{error:?}");

    struct Broken;
    impl AsyncRead for Broken {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Poll::Ready(Err(io::Error::other("the disk is gone")))
        }
    }
    let bytes = snapshot_of(&cache, false).await;
    let error = cache.restore((&bytes[..50]).chain(Broken)).await.unwrap_err();
    assert!(matches!(error, SnapshotError::Read(_)), "{error:?}");
    assert_eq!(error.source().unwrap().to_string(), "the disk is gone");
}

#[test]
fn snapshot_and_restore_work_outside_of_a_runtime() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cache = runtime.block_on(async { Cache::<u64, String>::new() });
    let bytes = poll_once(async {
        cache.set(1, "one".into()).await;
        snapshot_of(&cache, true).await
    });
    drop(runtime);
    let count = poll_once(cache.restore(&bytes[..]));
    assert_eq!(count.unwrap(), 1);
}

/// Polls a future once, outside of a runtime.
fn poll_once<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
    }
}

#[test]
fn snapshot_and_restore_futures_are_send() {
    fn is_send<T: Send>(_: T) {}
    let _ = |cache: Cache<String, Session>| {
        is_send(cache.snapshot(Vec::new()));
        is_send(cache.restore(&b""[..]));
    };
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Chain {
    End,
    List(Vec<Chain>),
    Variant(Box<Chain>),
}

fn chain(depth: usize, link: impl Fn(Chain) -> Chain) -> Chain {
    (0..depth).fold(Chain::End, |chain, _| link(chain))
}

#[tokio::test]
async fn snapshot_refuses_values_that_restore_could_not_read() {
    // A list in a variant has two levels.
    for (value, is_valid) in [
        (chain(63, |next| Chain::List(vec![next])), true),
        (chain(64, |next| Chain::List(vec![next])), false),
        (chain(127, |next| Chain::Variant(Box::new(next))), true),
        (chain(128, |next| Chain::Variant(Box::new(next))), false),
        (chain(2_000, |next| Chain::Variant(Box::new(next))), false),
    ] {
        let values = Cache::new();
        values.set(1_u8, value.clone()).await;
        let mut file = Vec::new();
        let written = values.snapshot(&mut file).await;
        assert_eq!(written.is_ok(), is_valid, "{written:?}");
        if let Err(error) = written {
            assert!(matches!(error, SnapshotError::Encode(_)), "{error:?}");
            continue;
        }
        let restored: Cache<u8, Chain> = Cache::new();
        assert_eq!(restored.restore(&file[..]).await.expect("the snapshot is valid"), 1);
        assert_eq!(restored.get(&1).await, Some(value));
    }
}
