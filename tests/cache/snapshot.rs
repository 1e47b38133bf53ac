//! A cache in bytes, and back: all of it or nothing, whatever happened to the bytes.

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

async fn written<K, V>(cache: &Cache<K, V>, is_compressed: bool) -> Vec<u8>
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

async fn restored<K, V>(bytes: &[u8]) -> Result<Cache<K, V>, SnapshotError>
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
async fn all_comes_back_with_what_is_left_to_live() {
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
        let bytes = written(&cache, is_compressed).await;
        sizes.push(bytes.len());
        let again: Cache<(u64, String), Session> = restored(&bytes).await.unwrap();
        for n in 0..2_000 {
            let key = (n, format!("key {n}"));
            assert_eq!(again.get(&key).await, cache.get(&key).await, "{n}");
            assert_eq!(again.ttl(&key).await, cache.ttl(&key).await, "{n}");
        }
    }
    assert!(sizes[1] < sizes[0] * 2 / 3, "{} compressed to {}", sizes[0], sizes[1]);
}

#[tokio::test(start_paused = true)]
async fn time_spent_down_counts() {
    let cache = Cache::new();
    for (key, ttl) in [("short", 10), ("just", 40), ("long", 100)] {
        cache.set_ex(key.to_owned(), ttl, ttl as u32 * SECOND).await;
    }
    cache.set("forever".to_owned(), 0).await;
    advance(4 * SECOND).await;
    let bytes = written(&cache, false).await;
    drop(cache);
    advance(36 * SECOND).await;
    let cache: Cache<String, u64> = restored(&bytes).await.unwrap();
    assert_eq!(cache.len(), 2, "the dead are left out");
    assert_eq!(cache.ttl("just").await, Ttl::Missing);
    assert_eq!(cache.ttl("long").await, Ttl::Remaining(60 * SECOND));
    assert_eq!(cache.ttl("forever").await, Ttl::Persistent);
    advance(60 * SECOND).await;
    assert_eq!(cache.get("long").await, None);
}

#[tokio::test(start_paused = true)]
async fn what_is_dead_by_then_is_in_no_snapshot() {
    let cache = Cache::builder().sweep(Sweep::manual()).build();
    cache.set_ex(1, 1, SECOND).await;
    cache.set_ex(2, 2, SECOND + MS).await;
    advance(SECOND).await;
    let mut bytes = Vec::new();
    assert_eq!((cache.len(), cache.snapshot(&mut bytes).await.unwrap()), (2, 1));
    let cache: Cache<i32, i32> = restored(&bytes).await.unwrap();
    assert_eq!(cache.get(&2).await, Some(2));
}

/// Time spent down is time in which nobody has read it; and who reads it afterwards gives it as much as before.
#[tokio::test(start_paused = true)]
async fn what_dies_idle_dies_so_while_it_is_down() {
    let idle = || Cache::<&'static str, i32>::builder().time_to_idle(10 * SECOND);
    let cache = idle().build();
    cache.set_ex("own", 1, 60 * SECOND).await;
    cache.set("for ever", 2).await;
    advance(4 * SECOND).await;
    let mut bytes = Vec::new();
    assert_eq!(cache.snapshot(&mut bytes).await.unwrap(), 2);
    advance(5 * SECOND).await;
    let again: Cache<String, i32> = Cache::builder().time_to_idle(10 * SECOND).build();
    assert_eq!(again.restore(&bytes[..]).await.unwrap(), 2);
    for _ in 0..6 {
        advance(9 * SECOND).await;
        let until_own = again.get("own").await;
        assert_eq!(until_own, (again.ttl("own").await != Ttl::Missing).then_some(1));
        assert_eq!(again.get("for ever").await, Some(2));
    }
    assert_eq!(again.get("own").await, None, "its own deadline is over");
    let late: Cache<String, i32> = Cache::builder().time_to_idle(10 * SECOND).build();
    assert_eq!(late.restore(&bytes[..]).await.unwrap(), 0, "they have been idle for too long");
}

#[tokio::test]
async fn what_was_removed_by_a_tag_is_in_no_snapshot() {
    let cache = Cache::builder().sweep(Sweep::manual()).build();
    cache.set_tagged(1, 1, 100 * SECOND, ["red"]).await;
    cache.set_tagged(2, 2, 100 * SECOND, ["blue"]).await;
    cache.remove_tag("red").await;
    let cache: Cache<i32, i32> = restored(&written(&cache, false).await).await.unwrap();
    assert_eq!((cache.get(&1).await, cache.get(&2).await), (None, Some(2)));
}

/// With the names that they had, also where the cache has used these already.
#[tokio::test]
async fn tags_come_back_and_remove_what_has_them() {
    let cache = Cache::new();
    for n in 0..300_u64 {
        match n % 3 {
            0 => drop(cache.set(n, n).await),
            1 => drop(cache.set_tagged(n, n, 100 * SECOND, ["one"]).await),
            _ => drop(cache.set_tagged(n, n, 100 * SECOND, ["two", &format!("user {n}")]).await),
        }
    }
    for is_compressed in [false, true] {
        let bytes = written(&cache, is_compressed).await;
        let again = Cache::new();
        again.set_tagged(1_000, 0, 100 * SECOND, ["one"]).await;
        again.set_tagged(0, 7, 100 * SECOND, ["one"]).await;
        assert_eq!(again.restore(&bytes[..]).await.unwrap(), 300);
        again.remove_tag("user 2").await;
        assert_eq!((again.get(&2).await, again.get(&5).await), (None, Some(5)));
        again.remove_tag("one").await;
        let mut left: Vec<u64> = again.keys().collect();
        left.sort();
        let others = (0..300).filter(|n| n % 3 != 1 && *n != 2);
        assert_eq!(
            left,
            others.collect::<Vec<_>>(),
            "the untagged 0 has taken the tagged one's key"
        );
        // The cache that was written has its own.
        assert_eq!(cache.get(&1).await, Some(1));
        // What came back goes on, into the next one.
        let third: Cache<u64, u64> = restored(&written(&again, is_compressed).await).await.unwrap();
        third.remove_tag("two").await;
        assert_eq!(third.live_len(), 100);
    }
}

/// Those of a value that was put in the meantime are its own.
#[tokio::test(start_paused = true)]
async fn a_value_that_came_back_has_the_tags_of_its_snapshot_alone() {
    let cache = Cache::new();
    cache.set_tagged(1, 1, 10 * SECOND, ["then"]).await;
    let bytes = written(&cache, false).await;
    let again = Cache::new();
    again.set_tagged(1, 2, 10 * SECOND, ["now"]).await;
    again.remove_tag("then").await;
    again.restore(&bytes[..]).await.unwrap();
    again.remove_tag("now").await;
    assert_eq!(again.get(&1).await, Some(1));
    assert_eq!(again.ttl(&1).await, Ttl::Remaining(10 * SECOND));
    again.remove_tag("then").await;
    assert_eq!(again.get(&1).await, None);
}

#[tokio::test]
async fn nothing_is_a_snapshot_too() {
    for is_compressed in [false, true] {
        let bytes = written(&Cache::<String, u64>::new(), is_compressed).await;
        let cache: Cache<String, u64> = restored(&bytes).await.unwrap();
        assert!(cache.is_empty());
    }
}

/// The proof: ten thousand damaged files, of which none is believed and none changes anything.
#[tokio::test]
async fn truncations_and_flipped_bits_are_refused_whole() {
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
        let whole = written(&cache, is_compressed).await;
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
            let error = target.restore(&bytes[..]).await.expect_err("it is not what was written");
            let is_named = matches!(
                error,
                SnapshotError::Truncated | SnapshotError::Damaged | SnapshotError::NotASnapshot
            );
            assert!(is_named, "round {round}: {error:?}");
            assert_eq!(target.len(), 2, "round {round} put something in");
        }
        assert_eq!(target.get(&7).await, Some(session(70)));
    }
    let stats = target.stats();
    assert_eq!((stats.replaced, stats.removed, stats.expired), (0, 0, 0));
}

/// Whole blocks that are left out, doubled or exchanged have right checksums, each by itself.
#[tokio::test]
async fn blocks_in_another_order_are_refused() {
    let cache = Cache::new();
    for n in 0..20_000_u64 {
        cache.set(n, vec![n; 30]).await;
    }
    let bytes = written(&cache, false).await;
    let other = written(&cache, false).await;
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
            let refused = restored::<u64, Vec<u64>>(&put_together(&others)).await;
            assert!(matches!(refused, Err(SnapshotError::Damaged)), "round {round}: {refused:?}");
        }
    }
    // The end of another snapshot of the same cache.
    let spliced = [&bytes[..bytes.len() - 32], &other[other.len() - 32..]].concat();
    let refused = restored::<u64, Vec<u64>>(&spliced).await;
    assert!(matches!(refused, Err(SnapshotError::Damaged)), "{refused:?}");
    let whole: Cache<u64, Vec<u64>> = restored(&bytes).await.unwrap();
    assert_eq!(whole.len(), 20_000);
}

/// Each with its frame.
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
async fn foreign_bytes_are_refused_with_a_sentence() {
    let refused = async |bytes: &[u8]| restored::<String, u64>(bytes).await.unwrap_err();
    for bytes in [&b"{\"sessions\": {}}"[..], &[0; 100], b"\x1f\x8b\x08", b"fleetinG", b"x"] {
        let error = refused(bytes).await;
        assert!(matches!(error, SnapshotError::NotASnapshot), "{bytes:?}: {error:?}");
        assert_eq!(error.to_string(), "this is no snapshot of a cache");
    }
    for bytes in [&b""[..], b"fleet", b"fleeting"] {
        assert!(matches!(refused(bytes).await, SnapshotError::Truncated), "{bytes:?}");
    }
}

#[tokio::test]
async fn entries_of_other_types_are_refused() {
    let cache = Cache::new();
    for n in 0..100_u64 {
        cache.set(n, if n == 61 { -1 } else { n as i64 }).await;
    }
    let bytes = written(&cache, false).await;
    let unsigned: Cache<u64, u64> = Cache::new();
    let error = unsigned.restore(&bytes[..]).await.unwrap_err();
    assert!(matches!(error, SnapshotError::Decode(_)) && error.source().is_some(), "{error:?}");
    assert!(unsigned.is_empty(), "some of them are in");
    // Wider ones are not other ones.
    let wide: Cache<u128, i128> = restored(&bytes).await.unwrap();
    assert_eq!(wide.get(&61).await, Some(-1));
}

/// Fields have names: a later program may have more of them, and in another order.
#[tokio::test]
async fn a_type_may_get_more_fields() {
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
    let cache: Cache<u32, After> = restored(&written(&cache, false).await).await.unwrap();
    let ada = After { email: None, age: 36, name: "Ada".into() };
    assert_eq!(cache.get(&1).await, Some(ada));
}

#[tokio::test(start_paused = true)]
async fn what_was_there_is_replaced_and_what_is_not_in_it_stays() {
    let cache = Cache::new();
    cache.set_ex("both".to_owned(), 1, 10 * SECOND).await;
    cache.set("in the snapshot".to_owned(), 2).await;
    let bytes = written(&cache, false).await;
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
    assert!(events.recv().now_or_never().is_none(), "nothing else has left");
}

#[tokio::test]
async fn a_bound_holds() {
    let cache = Cache::new();
    for n in 0..1_000_u64 {
        cache.set(n, n).await;
    }
    let bytes = written(&cache, false).await;
    let bounded: Cache<u64, u64> = Cache::builder().max_entries(100).build();
    assert_eq!(bounded.restore(&bytes[..]).await.unwrap(), 1_000);
    assert_eq!((bounded.len(), bounded.stats().evicted), (100, 900));
}

#[tokio::test]
async fn several_may_be_in_one_file_and_something_behind_them() {
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

/// While threads write to other keys, so that shards grow, and to the same ones: each that is there all the time is in
/// it, with a value that it had.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn others_read_and_write_meanwhile() {
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
        let again: Cache<u64, u64> = Cache::new();
        assert_eq!(again.restore(&bytes[..]).await.unwrap(), count);
        grew |= again.len() as u64 != count;
        for key in 0..STEADY {
            let value = again.get(&key).await.unwrap_or_else(|| panic!("{key} was missed"));
            assert!((first.saturating_sub(1)..=last).contains(&value), "{key}: {value}");
        }
    }
    println!("a shard has grown under a snapshot: {grew}");
    stop.store(true, Relaxed);
    writer.await.unwrap();
}

/// Gives a few bytes at a time, and nothing at each other poll.
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

/// Whoever gives up while it reads has changed nothing, and afterwards has all of it.
#[tokio::test]
async fn a_restore_that_is_dropped_at_any_await_is_all_or_nothing() {
    let cache = Cache::new();
    for n in 0..30_000_u64 {
        cache.set(n, n).await;
    }
    let bytes = written(&cache, false).await;
    let (mut none, mut all) = (0, 0);
    let mut polls = 0;
    loop {
        let again: Cache<u64, u64> = Cache::new();
        let done = tokio::task::unconstrained(async {
            let mut restore = pin!(again.restore(Slow { bytes: &bytes, is_awake: false }));
            let mut cx = Context::from_waker(Waker::noop());
            (0..polls).any(|_| restore.as_mut().poll(&mut cx).is_ready())
        })
        .await;
        match again.len() {
            0 => none += 1,
            30_000 => all += 1,
            some => panic!("{some} entries are in after {polls} polls"),
        }
        if done {
            break;
        }
        polls += 1 + polls / 8;
    }
    assert!(none > 5 && all > 0, "{none} {all}");
}

/// Also among those that come in when whoever awaits it has gone.
#[tokio::test]
async fn an_entry_whose_weigher_panics_keeps_none_of_the_others_out() {
    let cache = Cache::new();
    for n in 0..1_000_u64 {
        cache.set(n, n).await;
    }
    let bytes = written(&cache, false).await;
    let weigher = |_: &u64, value: &u64| if *value % 100 == 7 { panic!("of a test") } else { 1 };
    let again: Cache<u64, u64> = Cache::builder().max_weight(100_000, weigher).build();
    let panicked = AssertUnwindSafe(again.restore(&bytes[..])).catch_unwind().await;
    assert!(panicked.is_err());
    assert_eq!(again.len(), 990);
}

/// A value whose code fails.
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
async fn values_whose_code_fails() {
    let cache = Cache::new();
    cache.set(1, Bad(1)).await;
    let mut bytes = Vec::new();
    let error = cache.snapshot(&mut bytes).await.unwrap_err();
    assert!(matches!(error, SnapshotError::Encode(_)), "{error:?}");
    assert!(error.source().unwrap().to_string().contains("must not be written"));
    let refused = restored::<i32, Bad>(&bytes).await.map(drop).unwrap_err();
    assert!(matches!(refused, SnapshotError::Truncated), "{refused:?}");

    cache.set(1, Bad(0)).await;
    cache.set(2, Bad(2)).await;
    let bytes = written(&cache, false).await;
    let again: Cache<i32, Bad> = Cache::new();
    assert!(AssertUnwindSafe(again.restore(&bytes[..])).catch_unwind().await.is_err());
    assert!(again.is_empty());
}

#[tokio::test]
async fn who_reads_or_writes_may_fail() {
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
    let bytes = written(&cache, false).await;
    let error = cache.restore((&bytes[..50]).chain(Broken)).await.unwrap_err();
    assert!(matches!(error, SnapshotError::Read(_)), "{error:?}");
    assert_eq!(error.source().unwrap().to_string(), "the disk is gone");
}

#[test]
fn it_needs_no_runtime_but_that_of_the_cache() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cache = runtime.block_on(async { Cache::<u64, String>::new() });
    let bytes = polled(async {
        cache.set(1, "one".into()).await;
        written(&cache, true).await
    });
    drop(runtime);
    let count = polled(cache.restore(&bytes[..]));
    assert_eq!(count.unwrap(), 1);
}

/// In no runtime.
fn polled<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
    }
}

#[test]
fn its_futures_go_to_other_threads() {
    fn is_send<T: Send>(_: T) {}
    let _ = |cache: Cache<String, Session>| {
        is_send(cache.snapshot(Vec::new()));
        is_send(cache.restore(&b""[..]));
    };
}
