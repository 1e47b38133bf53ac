//! Loader methods. A load ends before the next call, also if it is a refresh in the background.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use fleeting::{Freshness, Tagged, TimeToLive};
use tokio::{runtime::Handle, task::yield_now};

use super::Comparison;
use crate::{
    calls::{Load, LoadTtl, Span},
    oracle::{self, Key, Value},
};

/// Error of a loader.
#[derive(Debug)]
struct Down(Value);

/// Keys and errors that the cache has reported to `on_refresh_error`.
#[derive(Clone, Default)]
pub(super) struct FailedRefreshes(Arc<Mutex<Vec<(Key, String)>>>);

impl FailedRefreshes {
    pub(super) fn hook(&self) -> impl Fn(&Key, &dyn Debug) + Send + Sync + 'static {
        let reported = self.0.clone();
        move |key, error| reported.lock().expect("no panic").push((*key, format!("{error:?}")))
    }
}

impl Comparison {
    pub(super) async fn load(&mut self, key: Key, ttl: LoadTtl, load: Load) {
        let value = self.next_value;
        let (oracle_ttl, tags) = (self.load_ttl(ttl), tags(ttl));
        let duration = || oracle_ttl.expect("it is a duration");
        match ttl {
            LoadTtl::Duration(_) => self.load_with_ttl(key, duration(), load, ttl).await,
            LoadTtl::Option(_) => self.load_with_ttl(key, oracle_ttl, load, ttl).await,
            LoadTtl::Closure(_) => {
                let closure = {
                    let ttl = duration();
                    move |loaded: &Value| {
                        assert_eq!(*loaded, value);
                        ttl
                    }
                };
                self.load_with_ttl(key, closure, load, ttl).await;
            }
            LoadTtl::Tagged(..) => {
                let tagged = Tagged::new(duration(), names(tags));
                self.load_with_ttl(key, tagged, load, ttl).await;
            }
            LoadTtl::TaggedBy(..) => {
                let both = (duration(), names(tags));
                let tagged = Tagged::by(move |loaded: &Value| {
                    assert_eq!(*loaded, value);
                    both.clone()
                });
                self.load_with_ttl(key, tagged, load, ttl).await;
            }
        }
    }

    async fn load_with_ttl(
        &mut self,
        key: Key,
        ttl: impl TimeToLive<Value> + Send + 'static,
        load: Load,
        kind: LoadTtl,
    ) {
        let (cache, value) = (&self.cache, self.next_value);
        let (oracle_ttl, tags) = (self.load_ttl(kind), tags(kind));
        let fails = match load {
            Load::GetOrTrySet { fails }
            | Load::GetOrTrySetWith { fails }
            | Load::GetOrTrySetWithFreshness { fails } => fails,
            Load::GetOrSet | Load::GetOrSetWith | Load::RefreshWith => false,
        };
        let has_run = Arc::new(AtomicBool::new(false));
        let run = has_run.clone();
        let infallible = async move || {
            run.store(true, Relaxed);
            value
        };
        let run = has_run.clone();
        let fallible = async move || {
            run.store(true, Relaxed);
            if fails { Err(Down(value)) } else { Ok(value) }
        };
        let tasks = alive_tasks();
        let unknown = |value| (value, None);
        let got = match load {
            Load::GetOrSet => Ok(unknown(cache.get_or_set(&key, ttl, infallible()).await)),
            Load::GetOrSetWith => Ok(unknown(cache.get_or_set_with(&key, ttl, infallible).await)),
            Load::GetOrTrySet { .. } => {
                cache.get_or_try_set(&key, ttl, fallible()).await.map(unknown)
            }
            Load::GetOrTrySetWith { .. } => {
                cache.get_or_try_set_with(&key, ttl, fallible).await.map(unknown)
            }
            Load::GetOrTrySetWithFreshness { .. } => {
                let got = cache.get_or_try_set_with_freshness(&key, ttl, fallible).await;
                got.map(|(value, freshness)| (value, Some(freshness)))
            }
            Load::RefreshWith => {
                assert_eq!(cache.refresh_with(&key, ttl, infallible).await, value);
                self.oracle.loads.0 += 1;
                let tags = tags.or(self.oracle.kept_tags(key));
                self.oracle.put_loaded(key, value, oracle_ttl, tags);
                return;
            }
        };
        // The background refresh.
        while alive_tasks() > tasks {
            yield_now().await;
        }
        let load = oracle::Load {
            source: if fails { Err(value) } else { Ok(value) },
            ttl: oracle_ttl,
            tags,
            refreshes: !matches!(load, Load::GetOrSet | Load::GetOrTrySet { .. }),
            is_fallible: !matches!(load, Load::GetOrSet | Load::GetOrSetWith),
        };
        let expected = self.oracle.load(key, load, has_run.load(Relaxed));
        match (got, expected) {
            (Ok((value, freshness)), Ok((expected, expected_freshness))) => {
                assert_eq!(value, expected);
                let freshness = freshness.map(|freshness| match freshness {
                    Freshness::Fresh => oracle::Freshness::Fresh,
                    Freshness::Loaded => oracle::Freshness::Loaded,
                    Freshness::Stale => oracle::Freshness::Stale,
                });
                assert_eq!(freshness.unwrap_or(expected_freshness), expected_freshness);
            }
            (Err(error), Err(expected)) => assert_eq!(error.0, expected),
            (got, expected) => panic!("{got:?} instead of {expected:?}"),
        }
    }

    pub(super) async fn load_many(&mut self, keys: Vec<Key>, ttl: LoadTtl) {
        let (value, oracle_ttl, tags) = (self.next_value, self.load_ttl(ttl), tags(ttl));
        self.next_value += 10_000;
        // Odd keys are missing at the source.
        let loaded = |key: Key| key.is_multiple_of(2).then(|| value + Value::from(key));
        let loader = async |missing: Vec<Key>| {
            missing.into_iter().filter_map(|key| Some((key, loaded(key)?))).collect::<Vec<_>>()
        };
        let (cache, keys_of_call) = (&self.cache, keys.iter().copied());
        let got = match ttl {
            LoadTtl::Duration(_) => {
                let ttl = oracle_ttl.expect("it is a duration");
                cache.get_many_or_set_with(keys_of_call, ttl, loader).await
            }
            LoadTtl::Option(_) => {
                cache.get_many_or_set_with(keys_of_call, oracle_ttl, loader).await
            }
            LoadTtl::Closure(_) => {
                let ttl = oracle_ttl.expect("it is a duration");
                let ttl = |loaded: &Value| {
                    assert!(*loaded >= value);
                    ttl
                };
                cache.get_many_or_set_with(keys_of_call, ttl, loader).await
            }
            LoadTtl::Tagged(..) => {
                let ttl = Tagged::new(oracle_ttl, names(tags));
                cache.get_many_or_set_with(keys_of_call, ttl, loader).await
            }
            LoadTtl::TaggedBy(..) => {
                let both = (oracle_ttl.expect("it is a duration"), names(tags));
                let ttl = Tagged::by(|_: &Value| both.clone());
                cache.get_many_or_set_with(keys_of_call, ttl, loader).await
            }
        };
        let hits: BTreeMap<Key, Option<Value>> =
            keys.iter().map(|key| (*key, self.oracle.get(*key))).collect();
        self.oracle.loads.0 += u64::from(hits.values().any(Option::is_none));
        // Of all keys first: a write may evict the value of another key.
        let missing = hits.iter().filter(|(_, hit)| hit.is_none()).map(|(key, _)| *key);
        let missing: Vec<_> =
            missing.map(|key| (key, tags.or(self.oracle.kept_tags(key)))).collect();
        for (key, tags) in missing {
            if let Some(value) = loaded(key) {
                self.oracle.put_loaded(key, value, oracle_ttl, tags);
            }
        }
        let expected: Vec<_> = keys.iter().map(|key| hits[key].or(loaded(*key))).collect();
        assert_eq!(got, expected);
    }

    /// Compares the counters of loads, and the reports of failed background refreshes.
    pub(super) fn compare_loads(&mut self) {
        let stats = self.cache.stats();
        assert_eq!((stats.loads, stats.failed_loads), self.oracle.loads);
        let failed = self.oracle.take_failed_refreshes().into_iter();
        let failed: Vec<_> =
            failed.map(|(key, error)| (key, format!("{:?}", Down(error)))).collect();
        let reported = mem::take(&mut *self.failed_refreshes.0.lock().expect("no panic"));
        assert_eq!(reported, failed);
    }

    fn load_ttl(&self, ttl: LoadTtl) -> Option<Duration> {
        let span: Option<Span> = match ttl {
            LoadTtl::Duration(span)
            | LoadTtl::Closure(span)
            | LoadTtl::Tagged(span, _)
            | LoadTtl::TaggedBy(span, _) => Some(span),
            LoadTtl::Option(span) => span,
        };
        span.map(|span| self.ttl(span))
    }
}

/// Returns the tags of the argument.
fn tags(ttl: LoadTtl) -> Option<[u8; 2]> {
    match ttl {
        LoadTtl::Tagged(_, tag) | LoadTtl::TaggedBy(_, tag) => Some([tag % 3, 3 + tag % 2]),
        LoadTtl::Duration(_) | LoadTtl::Option(_) | LoadTtl::Closure(_) => None,
    }
}

fn names(tags: Option<[u8; 2]>) -> Vec<String> {
    tags.into_iter().flatten().map(|tag| tag.to_string()).collect()
}

/// Returns the number of tasks of the runtime that have not ended.
fn alive_tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}
