//! Metrics of a cache, limiter, dictionary, set, queue or spool in the form that the page shows.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use crate::engine::metrics::{DeniedKey, Histogram, KeyName, Reading};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ObjectKind {
    Cache,
    Limiter,
    Dict,
    Set,
    Queue,
    Spool,
    RedisDict,
    RedisCache,
    RedisLimiter,
    RedisClient,
}

/// The values of a kind that the page shows.
struct PageSchema {
    kind: ObjectKind,
    /// Name of the first series of the kind, the label of all its series or an empty text, and their prefix.
    first: &'static str,
    label: &'static str,
    prefix: &'static str,
    counts: &'static [PageField],
    levels: &'static [PageField],
    /// The counts and levels that are drawn: a count by its rate.
    lines: &'static [&'static str],
}

/// Name on the page, name of the series without its prefix, and label or an empty text for that of the schema.
type PageField = (&'static str, &'static str, &'static str);

/// A timeout dictionary in this process. One on Redis has the same fields.
const DICT: PageSchema = PageSchema {
    kind: ObjectKind::Dict,
    first: "fleeting_dict_entries",
    label: "",
    prefix: "fleeting_dict_",
    counts: &[
        ("taken", "taken_total", ""),
        ("claims", "claims_total", ""),
        ("acked", "acked_total", ""),
        ("failed", "failed_total", ""),
    ],
    levels: &[
        ("entries", "entries", ""),
        ("waiting", "due", ""),
        ("leased", "leased", ""),
        ("resting", "resting", ""),
        ("dead", "dead", ""),
        ("oldest_ms", "oldest_due_seconds", ""),
    ],
    lines: &["waiting", "leased", "acked", "failed"],
};

static SCHEMAS: [PageSchema; 10] = [
    PageSchema {
        kind: ObjectKind::Cache,
        first: "fleeting_cache_hits_total",
        label: "",
        prefix: "fleeting_cache_",
        counts: &[
            ("hits", "hits_total", ""),
            ("misses", "misses_total", ""),
            ("sets", "sets_total", ""),
            ("expired", "departures_total", "expired"),
            ("evicted", "departures_total", "evicted"),
            ("removed", "departures_total", "removed"),
            ("replaced", "departures_total", "replaced"),
            ("looked_at", "sweep_looked_at_total", ""),
            ("missed", "events_missed_total", ""),
        ],
        levels: &[
            ("entries", "resident", ""),
            ("weight", "weight", ""),
            ("limit", "max_weight", ""),
            ("staleness_ms", "staleness_seconds", ""),
            ("delay_bound_ms", "sweep_bound_seconds", ""),
            ("subscribers", "subscribers", ""),
            ("overflow", "events_overflow", ""),
        ],
        lines: &["hits", "misses", "expired", "evicted"],
    },
    PageSchema {
        kind: ObjectKind::Limiter,
        first: "fleeting_limiter_allowed_total",
        label: "",
        prefix: "fleeting_limiter_",
        counts: &[
            ("allowed", "allowed_total", ""),
            ("denied", "denied_total", ""),
            ("waited", "waited_total", ""),
            ("shadowed", "shadowed_total", ""),
            ("overflowed", "overflowed_total", ""),
        ],
        levels: &[("keys", "keys", "")],
        lines: &["allowed", "denied"],
    },
    DICT,
    PageSchema { kind: ObjectKind::RedisDict, label: "redis", ..DICT },
    PageSchema {
        kind: ObjectKind::Set,
        first: "fleeting_set_resident",
        label: "",
        prefix: "fleeting_set_",
        counts: &[("expired", "expired_total", ""), ("missed", "events_missed_total", "")],
        levels: &[
            ("entries", "resident", ""),
            ("delay_bound_ms", "sweep_bound_seconds", ""),
            ("subscribers", "subscribers", ""),
            ("overflow", "events_overflow", ""),
        ],
        lines: &["expired"],
    },
    PageSchema {
        kind: ObjectKind::Queue,
        first: "fleeting_queue_added_total",
        label: "",
        prefix: "fleeting_queue_",
        counts: &[("added", "added_total", ""), ("removed", "removed_total", "")],
        levels: &[
            ("length", "length", ""),
            ("locked", "locked", ""),
            ("resting", "resting", ""),
            ("dead", "dead", ""),
            ("oldest_ms", "oldest_seconds", ""),
        ],
        lines: &["waiting", "locked", "added", "removed"],
    },
    PageSchema {
        kind: ObjectKind::Spool,
        first: "fleeting_spool_written_total",
        label: "",
        prefix: "fleeting_spool_",
        counts: &[
            ("written", "written_total", ""),
            ("unsynced", "unsynced_total", ""),
            ("unwritable", "unwritable_total", ""),
            ("skipped", "skipped_total", ""),
            ("failures", "failures_total", ""),
        ],
        levels: &[("backlog", "in_hand", ""), ("stalled_ms", "stalled_seconds", "")],
        lines: &["backlog", "written"],
    },
    PageSchema {
        kind: ObjectKind::RedisCache,
        first: "fleeting_redis_cache_hits_total",
        label: "",
        prefix: "fleeting_redis_cache_",
        counts: &[
            ("hits", "hits_total", ""),
            ("misses", "misses_total", ""),
            ("expired", "events_total", ""),
            ("missed", "events_missed_total", ""),
        ],
        levels: &[],
        lines: &["hits", "misses", "expired"],
    },
    PageSchema {
        kind: ObjectKind::RedisLimiter,
        first: "fleeting_redis_limiter_allowed_total",
        label: "",
        prefix: "fleeting_redis_limiter_",
        counts: &[
            ("allowed", "allowed_total", ""),
            ("denied", "denied_total", ""),
            ("waited", "waited_total", ""),
            ("shadowed", "shadowed_total", ""),
            ("errors", "errors_total", ""),
            ("by_policy", "by_policy_total", ""),
        ],
        levels: &[
            ("breakers_open", "breaker", "open"),
            ("breakers_half_open", "breaker", "half_open"),
        ],
        lines: &["allowed", "denied"],
    },
    PageSchema {
        kind: ObjectKind::RedisClient,
        first: "fleeting_redis_client_commands_total",
        label: "",
        prefix: "fleeting_redis_client_",
        counts: &[
            ("commands", "commands_total", ""),
            ("failures", "failures_total", ""),
            ("reconnects", "reconnects_total", ""),
        ],
        levels: &[
            ("unreachable", "unreachable", ""),
            ("unreachable_ms", "unreachable_seconds", ""),
        ],
        lines: &["commands", "failures"],
    },
];

/// Current metrics of all objects of one kind and name.
pub(super) struct ObjectGroup {
    pub(super) kind: ObjectKind,
    pub(super) name: String,
    pub(super) counts: Counts,
    pub(super) levels: Levels,
    /// Names of the counts and levels that are drawn.
    pub(super) lines: &'static [&'static str],
    /// True if the page may search for the TTL of a key.
    pub(super) searchable: bool,
    pub(super) denied_keys: Vec<DenialCounts>,
}

/// Counters, which only grow. Each kind has some of them.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Counts {
    #[serde(flatten)]
    pub(super) totals: BTreeMap<&'static str, u64>,
    #[serde(skip)]
    pub(super) lag: Histogram,
    #[serde(skip)]
    pub(super) sweeps: Histogram,
}

/// Values that may grow and shrink, by name. Each kind has some of them. NaN, which JSON writes as null, if unknown.
pub(super) type Levels = BTreeMap<&'static str, f64>;

#[derive(Clone, Debug, Serialize)]
pub(super) struct DenialCounts {
    #[serde(serialize_with = "key_name")]
    key: KeyName,
    plain: bool,
    denials: u64,
}

impl ObjectGroup {
    /// Converts a reading; returns `None` if it is of another kind.
    pub(super) fn read(reading: &Reading) -> Option<Self> {
        let schema =
            SCHEMAS.iter().find(|schema| (schema.first, schema.label) == reading.kind())?;
        let label_of = |label: &'static str| if label.is_empty() { schema.label } else { label };
        let series = |name: &str| format!("{}{name}", schema.prefix);
        let histogram = |name: &str| reading.histogram(&series(name)).cloned().unwrap_or_default();
        let mut totals = BTreeMap::new();
        for (name, in_series, label) in schema.counts {
            totals.extend(
                reading.count(&series(in_series), label_of(label)).map(|count| (*name, count)),
            );
        }
        if schema.kind == ObjectKind::RedisCache && totals.get("expired") == Some(&0) {
            // A server reports them only to subscribers. Zero is therefore not shown: it may be unknown.
            totals.remove("expired");
        }
        let mut levels = Levels::new();
        for (name, in_series, label) in schema.levels {
            let factor = if name.ends_with("_ms") { 1_000.0 } else { 1.0 };
            let level = reading.level(&series(in_series), label_of(label));
            levels.extend(level.map(|level| (*name, level * factor)));
        }
        if schema.kind == ObjectKind::Queue
            && let [Some(length), Some(locked), Some(resting), Some(dead)] =
                ["length", "locked", "resting", "dead"].map(|name| levels.get(name))
        {
            // Not `max`, which would turn an unknown number into zero.
            let waiting = length - locked - resting - dead;
            levels.insert("waiting", if waiting < 0.0 { 0.0 } else { waiting });
        }
        // One row per key, although several limiters may have this name.
        let mut by_name = BTreeMap::new();
        for DeniedKey { name, denials } in
            reading.sources.iter().flat_map(|source| source.denied_keys())
        {
            *by_name.entry(name).or_default() += denials;
        }
        let denied_keys = by_name.into_iter().map(|(name, denials)| DeniedKey { name, denials });
        let mut denied_keys: Vec<_> = denied_keys.map(DenialCounts::new).collect();
        denied_keys.sort_by_key(|key| u64::MAX - key.denials);
        // As many as one limiter reports, although several may have this name.
        denied_keys.truncate(8);
        Some(Self {
            kind: schema.kind,
            name: reading.name.clone(),
            counts: Counts {
                totals,
                lag: histogram("event_lag_seconds"),
                sweeps: histogram("sweep_seconds"),
            },
            levels,
            lines: schema.lines,
            searchable: reading.sources.iter().any(|source| source.may_be_searched()),
            denied_keys,
        })
    }
}

impl DenialCounts {
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
