//! The table of docs/crossings.md, in memory.

use std::time::Duration;

use fleeting::{Builder, Cache, Op, Sweep, Tagged, Ttl, When};
use tokio::time::{Instant, advance};

use crate::pairs_table::{
    Backend, Call, Cell, Column, DUE, HOUR, KEY, Load, OLD, OLD_TTL, Observed, State, TAG, VERB,
    VERB_TTL, assert_that_each_method_is_on_the_page, call_verb, load_old, play_all,
};

type Embedded = Cache<String, u64>;

/// Shorter than the TTLs, and than the patience of the table.
const IDLE_TIME: Duration = Duration::from_secs(80);

#[tokio::test(start_paused = true)]
async fn each_method_wins_or_yields_as_the_table_says() {
    play_all(|cell| is_built(cell).then(|| new(cell))).await;
}

#[test]
fn each_method_is_on_the_page() {
    assert_that_each_method_is_on_the_page();
}

fn is_built(cell: &Cell) -> bool {
    let needs_serde = cell.column == Column::Snapshot || cell.method().contains("snapshot");
    cfg!(feature = "serde") || !(needs_serde || cell.method() == "restore")
}

fn new(cell: &Cell) -> Embedded {
    let builder = Cache::builder().shards(1).sweep(Sweep::manual().seed(1));
    let builder: Builder<String, u64> = match cell.column {
        Column::BackgroundRefresh => builder.stale_while_revalidate(HOUR),
        Column::RefreshAhead => builder.refresh_ahead(DUE),
        Column::KeptError => builder.negative_ttl(HOUR),
        Column::StaleWindow => builder.stale_while_revalidate(HOUR).stale_if_error(HOUR),
        Column::IdleTime => builder.time_to_idle(IDLE_TIME),
        _ => builder,
    };
    let bound = if cell.column == Column::Bound { 2 } else { 1_000 };
    match cell.method() {
        "set_max_weight" => builder.max_weight(bound, |_, _| 1).build(),
        _ => builder.max_entries(bound as usize).build(),
    }
}

macro_rules! reply {
    ($call:expr) => {
        $call.await
    };
}

impl Backend for Embedded {
    const SIDE: usize = 0;
    /// The clock is advanced.
    const CONCURRENT_CELLS: usize = 1;

    async fn call(self, verb: String) -> Option<u64> {
        let (cache, verb) = (self, verb.as_str());
        call_verb!(cache, verb, reply, call_embedded(cache, verb).await)
    }

    async fn load(self, column: Column, Load { ttl_and_tags, loader }: Load) -> Option<u64> {
        let ttl = Tagged::by(ttl_and_tags);
        match column {
            Column::ExplicitRefresh => {
                let loader = async || loader.await.expect("this loader does not fail");
                Some(self.refresh_with(KEY, ttl, loader).await)
            }
            Column::BulkLoad => {
                let loader = async |keys: Vec<String>| {
                    let value = loader.await.expect("this loader does not fail");
                    keys.into_iter().map(|key| (key, value)).collect()
                };
                self.get_many_or_set_with([KEY.to_owned()], ttl, loader).await[0]
            }
            _ => self.get_or_try_set_with(KEY, ttl, move || loader).await.ok(),
        }
    }

    async fn state(&self) -> State {
        State::of(self.get_with_ttl(KEY).await)
    }

    async fn observe(&self, column: Column, verb: &str) -> Observed {
        match column {
            Column::IdleTime => observe_idle_time(self, verb).await,
            Column::Bound => observe_bound(self, verb).await,
            #[cfg(feature = "serde")]
            Column::Snapshot => observe_snapshot(self, verb).await,
            _ => unreachable!("the other columns are those of Redis, too"),
        }
    }
}

async fn call_embedded(cache: Embedded, verb: &str) -> Option<u64> {
    let (ttl, key) = (VERB_TTL, || KEY.to_owned());
    if let Some((method, op)) = verb.split_once(" with Op::") {
        let op = match op {
            "Keep" => Op::Keep,
            "Set" => Op::Set(VERB),
            "SetEx" => Op::SetEx(VERB, ttl),
            "SetKeepTtl" => Op::SetKeepTtl(VERB),
            "Remove" => Op::Remove,
            _ => panic!("unknown operation {op}"),
        };
        return match method {
            "compute" => cache.compute(KEY, |_| op).await,
            "compute_with" => cache.compute_with(KEY, async |_| op).await,
            _ => panic!("unknown method {verb}"),
        };
    }
    match verb {
        "get_ex_with" => cache.get_ex_with(KEY, |_| ttl).await,
        "get_or_try_set_with_freshness" => {
            let loader = async || Ok::<_, &str>(VERB);
            let loaded = cache.get_or_try_set_with_freshness(KEY, ttl, loader).await;
            loaded.ok().map(|(value, _)| value)
        }
        "get_or_set" => Some(cache.get_or_set(KEY, ttl, async { VERB }).await),
        "get_or_try_set" => {
            cache.get_or_try_set(KEY, ttl, async { Ok::<_, &str>(VERB) }).await.ok()
        }
        "get_many_or_set_with" => {
            let loader = async |_| vec![(key(), VERB)];
            cache.get_many_or_set_with([key()], ttl, loader).await[0]
        }
        "refresh_with" => Some(cache.refresh_with(KEY, ttl, async || VERB).await),
        "wait_for" => Some(cache.wait_for(KEY).await),
        "remove_if" => (cache.remove_if(|_, _| true).await > 0).then_some(OLD),
        "retain" => (cache.retain(|_, _| false).await > 0).then_some(OLD),
        "iter" => cache.iter().next().map(|(_, value)| value),
        "values" => cache.values().next(),
        "live_len" => (cache.live_len() > 0).then_some(OLD),
        _ => {
            match verb {
                "expired" => drop(cache.expired(KEY).await),
                "keys" => assert!(cache.keys().count() <= 1_000),
                "len" => assert!(cache.len() <= 1_000),
                "is_empty" => _ = cache.is_empty(),
                "weight" => assert!(cache.weight() <= 1_000),
                "set_max_entries" => cache.set_max_entries(1).await,
                "set_max_weight" => cache.set_max_weight(1).await,
                "sweep" => drop(cache.sweep().await),
                #[cfg(feature = "serde")]
                "snapshot" => drop(cache.snapshot(Vec::new()).await),
                #[cfg(feature = "serde")]
                "snapshot_compressed" => drop(cache.snapshot_compressed(Vec::new()).await),
                #[cfg(feature = "serde")]
                "restore" => {
                    let (other, mut snapshot) = (Embedded::new(), Vec::new());
                    other.set_ex(key(), VERB, ttl).await;
                    other.snapshot(&mut snapshot).await.unwrap();
                    cache.restore(&*snapshot).await.unwrap();
                }
                _ => panic!("unknown method {verb}"),
            }
            None
        }
    }
}

async fn observe_idle_time(cache: &Embedded, verb: &str) -> Observed {
    load_old(cache, OLD_TTL).await;
    advance(IDLE_TIME / 4).await;
    let _call = Call::begin(cache, verb).await;
    match cache.ttl(KEY).await.as_secs() {
        -2 => Ok("ended"),
        80 => Ok("restarted"),
        60 => Ok("unchanged"),
        seconds => Err(format!("{seconds} seconds are left")),
    }
}

/// Calls a method for a missing key of a full cache.
async fn observe_bound(cache: &Embedded, verb: &str) -> Observed {
    for other in ["one", "two"] {
        cache.set(other.to_owned(), 0).await;
    }
    let _call = Call::begin(cache, verb).await;
    let (evicted, len) = (cache.stats().evicted, cache.len());
    let is_written = cache.contains_key(KEY).await;
    match evicted {
        0 if len <= 2 && !is_written => Ok("unchanged"),
        1 if len == 2 && is_written => Ok("evicts"),
        1 if len == 1 && verb.starts_with("set_max_") => Ok("evicts"),
        _ => Err(format!("{evicted} evicted, {len} left, written: {is_written}")),
    }
}

/// Calls a method during two snapshots, one of which has copied the entry and one has not.
#[cfg(feature = "serde")]
async fn observe_snapshot(cache: &Embedded, verb: &str) -> Observed {
    load_old(cache, OLD_TTL).await;
    let begin = async |buffer| {
        let (writer, reader) = tokio::io::duplex(buffer);
        let cache = cache.clone();
        let snapshot = tokio::spawn(async move { cache.snapshot(writer).await });
        crate::freshness::run_background_tasks().await;
        assert!(!snapshot.is_finished());
        reader
    };
    // The buffer is full within the head of the snapshot, or after it, within the block with the entry.
    let snapshots = [begin(1).await, begin(HEAD_SIZE + 1).await];
    let before = cache.state().await;
    let _call = Call::begin(cache, verb).await;
    let after = cache.state().await;
    let mut restored = Vec::new();
    for snapshot in snapshots {
        let cache = Embedded::new();
        cache.restore(snapshot).await.unwrap();
        restored.push(cache.state().await);
    }
    match restored[..] == [after, before] {
        true if after == before => Ok("unchanged"),
        true => Ok("either"),
        false => Err(format!("{before:?} {after:?} {restored:?}")),
    }
}

#[cfg(feature = "serde")]
const HEAD_SIZE: usize = 32;
