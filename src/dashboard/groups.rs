//! Metrics of a cache or a limiter in the form that the page shows.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use crate::engine::metrics::{DeniedKey, Histogram, KeyName, Reading};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    Cache,
    Limiter,
    RedisCache,
    RedisLimiter,
}

/// Current metrics of all objects of one kind and name.
pub(super) struct Group {
    pub(super) kind: Kind,
    pub(super) name: String,
    pub(super) counts: Counts,
    pub(super) levels: Levels,
    pub(super) denied_keys: Vec<Denied>,
}

/// Counters, which only grow. Each kind has some of them.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Counts {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hits: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) misses: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sets: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expired: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) evicted: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) removed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) replaced: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) looked_at: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) missed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) allowed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) denied: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) waited: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) shadowed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) overflowed: Option<u64>,
    #[serde(skip)]
    pub(super) lag: Histogram,
    #[serde(skip)]
    pub(super) sweeps: Histogram,
}

/// Values that may grow and shrink.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Levels {
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    weight: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    staleness_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subscribers: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    overflow: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keys: Option<f64>,
    /// True if the page may search for the TTL of a key.
    searchable: bool,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Denied {
    #[serde(serialize_with = "key_name")]
    key: KeyName,
    plain: bool,
    denials: u64,
}

impl Group {
    /// Converts a reading; returns `None` if it is of another kind.
    pub(super) fn read(reading: &Reading) -> Option<Self> {
        let (kind, prefix) = match reading.kind() {
            "fleeting_cache_hits_total" => (Kind::Cache, "fleeting_cache_"),
            "fleeting_limiter_allowed_total" => (Kind::Limiter, "fleeting_limiter_"),
            "fleeting_redis_cache_hits_total" => (Kind::RedisCache, "fleeting_redis_cache_"),
            "fleeting_redis_limiter_allowed_total" => {
                (Kind::RedisLimiter, "fleeting_redis_limiter_")
            }
            _ => return None,
        };
        let series = |name: &str| format!("{prefix}{name}");
        let count = |name: &str| reading.count(&series(name));
        let left = |cause: &str| reading.count_of(&series("departures_total"), cause);
        let level = |name: &str| reading.level(&series(name));
        let histogram = |name: &str| reading.histogram(&series(name)).cloned().unwrap_or_default();
        let is_redis_cache = kind == Kind::RedisCache;
        let counts = Counts {
            hits: count("hits_total"),
            misses: count("misses_total"),
            sets: count("sets_total"),
            // A server reports only these, and only to subscribers. Zero is therefore not shown: it may be unknown.
            expired: left("expired")
                .or_else(|| count("events_total").filter(|events| is_redis_cache && *events > 0)),
            evicted: left("evicted"),
            removed: left("removed"),
            replaced: left("replaced"),
            looked_at: count("sweep_looked_at_total"),
            missed: count("events_missed_total"),
            allowed: count("allowed_total"),
            denied: count("denied_total"),
            waited: count("waited_total"),
            shadowed: count("shadowed_total"),
            overflowed: count("overflowed_total"),
            lag: histogram("event_lag_seconds"),
            sweeps: histogram("sweep_seconds"),
        };
        let levels = Levels {
            entries: level("resident"),
            weight: level("weight"),
            staleness_ms: level("staleness_seconds").map(|seconds| seconds * 1_000.0),
            subscribers: level("subscribers"),
            overflow: level("events_overflow"),
            keys: level("keys"),
            searchable: reading.sources.iter().any(|source| source.may_be_searched()),
        };
        // One row per key, although several limiters may have this name.
        let mut by_name = BTreeMap::new();
        for DeniedKey { name, denials } in
            reading.sources.iter().flat_map(|source| source.denied_keys())
        {
            *by_name.entry(name).or_default() += denials;
        }
        let denied_keys = by_name.into_iter().map(|(name, denials)| DeniedKey { name, denials });
        let mut denied_keys: Vec<_> = denied_keys.map(Denied::new).collect();
        denied_keys.sort_by_key(|key| u64::MAX - key.denials);
        // As many as one limiter reports, although several may have this name.
        denied_keys.truncate(8);
        Some(Self { kind, name: reading.name.clone(), counts, levels, denied_keys })
    }
}

impl Denied {
    fn new(DeniedKey { name, denials }: DeniedKey) -> Self {
        Self { plain: matches!(name, KeyName::Plain(_)), key: name, denials }
    }
}

/// Serializes a hash as its first twelve digits, enough to distinguish eight keys.
fn key_name<S: Serializer>(name: &KeyName, serializer: S) -> Result<S::Ok, S::Error> {
    match name {
        KeyName::Plain(text) => serializer.serialize_str(text),
        KeyName::Hash(hash) => serializer.collect_str(&format_args!("{:012x}", hash >> 16)),
    }
}
