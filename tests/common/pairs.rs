//! The table of docs/crossings.md: each method of a cache, called while another operation runs or under a setting.
//!
//! A cell is played on a cache of its own, and its outcome is named by the values and TTLs that the cache then returns.
//! The table only has the expected name.

// Each test binary compiles this module again and uses only a part of it.
#![allow(dead_code)]

use std::{future::ready, sync::Arc, time::Duration};

use fleeting::Ttl;
use futures::{FutureExt, StreamExt, future::BoxFuture, stream};
use tokio::{
    spawn,
    sync::{Notify, oneshot},
    task::JoinHandle,
    time::{sleep, timeout},
};

#[allow(unused_imports)]
pub(crate) use self::{
    page::{Cell, Column, assert_that_each_method_is_on_the_page, methods},
    verbs::call_verb,
};
use crate::{clock::ms, patience::patience};

#[path = "pairs/page.rs"]
mod page;
#[path = "pairs/verbs.rs"]
mod verbs;

/// The key, and the tag of its loaded values.
pub(crate) const KEY: &str = "key";
pub(crate) const TAG: &str = "tag";

/// The value before the call, that of the running load, that of the called method, and that of a load after it.
pub(crate) const OLD: u64 = 1;
pub(crate) const LOADED: u64 = 2;
pub(crate) const VERB: u64 = 3;
pub(crate) const LATER: u64 = 4;

/// Their TTLs. No sum of two of them is another one.
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);
pub(crate) const LOADED_TTL: Duration = HOUR;
pub(crate) const OLD_TTL: Duration = Duration::from_secs(5 * 3_600);
pub(crate) const VERB_TTL: Duration = Duration::from_secs(7 * 3_600);

/// Factor with which every hit is due to be refreshed ahead.
pub(crate) const DUE: f64 = 1e30;

/// A cache on which cells are played.
pub(crate) trait Backend: Clone + Send + Sync + 'static {
    /// Index of the cache in a cell with two outcomes.
    const SIDE: usize;
    /// Number of cells that are played at the same time.
    const CONCURRENT_CELLS: usize;

    /// Calls a method, and returns the value that it returns, if any.
    fn call(self, verb: String) -> impl Future<Output = Option<u64>> + Send;

    /// Loads the key by the method that a column is about; returns `None` if the load fails.
    fn load(self, column: Column, load: Load) -> impl Future<Output = Option<u64>> + Send;

    fn state(&self) -> impl Future<Output = State> + Send;

    /// Plays a cell of a column that only this cache has.
    fn observe(&self, column: Column, verb: &str) -> impl Future<Output = Observed> + Send;
}

/// Name of an outcome, or the description of one without a name.
pub(crate) type Observed = Result<&'static str, String>;

/// TTL and tags of a loaded value.
type TtlAndTags = Box<dyn Fn(&u64) -> (Duration, Vec<String>) + Send + Sync>;

/// Arguments of a loader method.
pub(crate) struct Load {
    pub(crate) ttl_and_tags: TtlAndTags,
    pub(crate) loader: BoxFuture<'static, Result<u64, &'static str>>,
}

/// The live value, and its TTL in minutes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct State {
    pub(crate) value: Option<u64>,
    pub(crate) minutes: Option<u64>,
}

impl State {
    pub(crate) fn of(found: Option<(u64, Ttl)>) -> Self {
        let ttl = found.map_or(Ttl::Missing, |(_, ttl)| ttl);
        // Rounded, because some time passes between a write and this question.
        let minutes = u64::try_from(ttl.as_secs()).map(|seconds| (seconds + 30) / 60);
        Self { value: found.map(|(value, _)| value), minutes: minutes.ok() }
    }
}

/// Plays all cells for which there is a cache, and fails with those that have another outcome.
pub(crate) async fn play_all<B: Backend>(cache_for: impl Fn(&Cell) -> Option<B>) {
    let cells = page::cells();
    let played = cells.iter().filter_map(|cell| Some((cell, cache_for(cell)?)));
    let played = stream::iter(played.map(async |(cell, cache)| {
        let Cell { verb, column, outcomes } = cell;
        let observed = timeout(patience(), observe(&cache, *column, verb)).await;
        let observed = observed.unwrap_or_else(|_| Err("it does not end".to_owned()));
        let expected = outcomes[B::SIDE].as_str();
        let is_expected = observed.as_deref() == Ok(expected);
        (!is_expected).then(|| format!("{verb}, {column:?}: {observed:?}, expected {expected}"))
    }));
    let played: Vec<_> = played.buffer_unordered(B::CONCURRENT_CELLS).collect().await;
    let (count, wrong) = (played.len(), played.into_iter().flatten().collect::<Vec<_>>());
    assert!(count > 100, "only {count} cells were played");
    assert!(wrong.is_empty(), "{} of {count} cells:\n{}", wrong.len(), wrong.join("\n"));
}

async fn observe<B: Backend>(cache: &B, column: Column, verb: &str) -> Observed {
    match column {
        Column::FirstLoad
        | Column::BackgroundRefresh
        | Column::RefreshAhead
        | Column::ExplicitRefresh
        | Column::BulkLoad => observe_load(cache, column, verb).await,
        Column::KeptError => {
            let failed = cache.clone().load(column, Load::at_once(Err("no"))).await;
            assert_eq!(failed, None);
            Call::begin(cache, verb).await;
            // Without discarding the error, so that a value written by the method does not hide it.
            cache.clone().call("expire with a TTL of zero".to_owned()).await;
            let loaded = cache.clone().load(column, Load::at_once(Ok(LATER))).await;
            Ok(if loaded.is_none() { "kept" } else { "ended" })
        }
        Column::StaleWindow => {
            load_stale(cache).await;
            let call = Call::begin(cache, verb).await;
            if call.returned() == Some(OLD) {
                return Ok("returned");
            }
            let loaded = cache.clone().load(column, Load::at_once(Err("no"))).await;
            Ok(if loaded == Some(OLD) { "kept" } else { "ended" })
        }
        Column::Tag => {
            load_old(cache, OLD_TTL).await;
            Call::begin(cache, verb).await;
            let before = cache.state().await;
            cache.clone().call("remove_tag".to_owned()).await;
            let is_removed = before.value.is_some() && cache.state().await.value.is_none();
            Ok(if is_removed { "kept" } else { "ended" })
        }
        Column::IdleTime | Column::Bound | Column::Snapshot => cache.observe(column, verb).await,
    }
}

/// Calls a method in the middle of a load.
async fn observe_load<B: Backend>(cache: &B, column: Column, verb: &str) -> Observed {
    match column {
        Column::BackgroundRefresh => load_stale(cache).await,
        Column::RefreshAhead | Column::ExplicitRefresh => load_old(cache, OLD_TTL).await,
        _ => {}
    }
    let gate = Arc::new((Notify::new(), Notify::new()));
    let (load, ended) = Load::behind(gate.clone());
    let leader = spawn(cache.clone().load(column, load));
    gate.0.notified().await;

    let call = Call::begin(cache, verb).await;
    let waits = call.is_pending();
    let before = cache.state().await;
    let mut later = spawn(cache.clone().load(Column::FirstLoad, Load::at_once(Ok(LATER))));
    let ended_early = timeout(ms(100), &mut later).await;
    gate.1.notify_one();
    let leader = leader.await.expect("the leader does not panic");
    ended.await.expect_err("the argument of the load is dropped when it has ended");
    let returned = call.end().await;
    let later = match ended_early {
        Ok(later) => later,
        Err(_) => later.await,
    };
    let later = later.expect("a later load does not panic");
    let after = cache.state().await;

    let context = format!("{before:?} {after:?}, returned {returned:?}, later {later:?}");
    let is_in_background = matches!(column, Column::BackgroundRefresh | Column::RefreshAhead);
    if leader != Some(if is_in_background { OLD } else { LOADED }) {
        return Err(format!("the caller of the load gets {leader:?}: {context}"));
    }
    let loaded_minutes = Some(LOADED_TTL.as_secs() / 60);
    if after.value == Some(LOADED) {
        // A load that is not superseded is shared with callers that find no value.
        if later == Some(LATER) {
            return Err(format!("a second load ran: {context}"));
        }
        if waits {
            let has_waited = matches!(returned, None | Some(LOADED));
            return if has_waited { Ok("waits") } else { Err(context) };
        }
        return match after.minutes {
            minutes if minutes == loaded_minutes => Ok("load"),
            minutes if minutes == before.minutes => Ok("both"),
            _ => Err(context),
        };
    }
    let is_unchanged = after == before || before.value.is_none() && after.value == Some(LATER);
    // The value is older than the call, so no later caller may get it.
    if is_unchanged && later != Some(LOADED) { Ok("verb") } else { Err(context) }
}

/// Loads a value without waiting.
pub(crate) async fn load_old<B: Backend>(cache: &B, ttl: Duration) {
    let load = Load { ttl_and_tags: tagged(ttl), ..Load::at_once(Ok(OLD)) };
    assert_eq!(cache.clone().load(Column::FirstLoad, load).await, Some(OLD));
}

/// Leaves a value in its stale window.
async fn load_stale<B: Backend>(cache: &B) {
    load_old(cache, Duration::from_millis(5)).await;
    sleep(Duration::from_millis(20)).await;
    assert_eq!(cache.state().await.value, None);
}

fn tagged(ttl: Duration) -> TtlAndTags {
    Box::new(move |_| (ttl, vec![TAG.to_owned()]))
}

impl Load {
    pub(crate) fn at_once(result: Result<u64, &'static str>) -> Self {
        Self { ttl_and_tags: tagged(LOADED_TTL), loader: ready(result).boxed() }
    }

    /// Returns a load that notifies the first of the gate when it begins, and waits for the second. The receiver
    /// is closed when the load has ended, also in the background.
    fn behind(gate: Arc<(Notify, Notify)>) -> (Self, oneshot::Receiver<()>) {
        let (sender, ended) = oneshot::channel();
        let ttl_and_tags = tagged(LOADED_TTL);
        let ttl_and_tags = move |value: &u64| {
            let _ends_with_the_argument = &sender;
            ttl_and_tags(value)
        };
        let loader = async move {
            gate.0.notify_one();
            gate.1.notified().await;
            Ok(LOADED)
        };
        (Self { ttl_and_tags: Box::new(ttl_and_tags), loader: loader.boxed() }, ended)
    }
}

/// A call of a method, which may have to wait.
pub(crate) enum Call {
    Pending(JoinHandle<Option<u64>>),
    Ended(Option<u64>),
}

impl Call {
    pub(crate) async fn begin<B: Backend>(cache: &B, verb: &str) -> Self {
        let mut call = spawn(cache.clone().call(verb.to_owned()));
        // Of all methods, only these may wait. The others may take a while on a slow machine.
        let may_wait = ["get_or_", "get_many_or_", "refresh_", "wait_for", "expired"];
        let may_wait = may_wait.iter().any(|prefix| verb.starts_with(prefix));
        match timeout(if may_wait { ms(100) } else { patience() }, &mut call).await {
            Ok(returned) => Self::Ended(returned.expect("the method does not panic")),
            Err(_) => Self::Pending(call),
        }
    }

    fn is_pending(&self) -> bool {
        matches!(self, Self::Pending(_))
    }

    fn returned(&self) -> Option<u64> {
        match self {
            Self::Ended(returned) => *returned,
            Self::Pending(_) => None,
        }
    }

    async fn end(self) -> Option<u64> {
        match self {
            Self::Ended(returned) => returned,
            Self::Pending(call) => call.await.expect("the method does not panic"),
        }
    }
}
