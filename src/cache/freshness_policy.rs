//! How long values live: what was asked for when the cache was built, and chance where it has a say.

#[cfg(feature = "metrics")]
use std::sync::{Mutex, MutexGuard};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use super::failures::Failures;
use crate::engine::hasher::DefaultHasher;
#[cfg(feature = "metrics")]
use crate::engine::metrics::{Histogram, Slot};

/// One for each handle: the sweeper at work holds the state of a cache too, and is no handle.
pub(super) struct FreshnessPolicy<K, S = DefaultHasher> {
    pub(super) settings: Settings,
    rng: Rng,
    pub(super) failures: Option<Failures<K, S>>,
    pub(super) loads: Arc<LoadCounters>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Settings {
    pub(super) time_to_live: Option<Duration>,
    pub(super) time_to_idle: Option<Duration>,
    pub(super) jitter: f64,
    pub(super) negative_ttl: Option<Duration>,
    pub(super) stale_while_revalidate: Duration,
    pub(super) stale_if_error: Duration,
    pub(super) refresh_ahead: f64,
}

/// Numbers that nobody can foresee; by the same seed the same.
struct Rng(AtomicU64);

#[derive(Default)]
pub(super) struct LoadCounters {
    loads: AtomicU64,
    failed: AtomicU64,
    nanoseconds: AtomicU64,
    /// How long a load takes, of late: a mean that forgets.
    recent: AtomicU64,
    #[cfg(feature = "metrics")]
    times: Mutex<Histogram>,
    #[cfg(feature = "metrics")]
    pub(super) registration: Slot,
}

/// What loaders have done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Loads {
    pub(super) loads: u64,
    pub(super) failed: u64,
    pub(super) time: Duration,
}

impl<K, S> FreshnessPolicy<K, S> {
    pub(super) fn new(settings: Settings, seed: u64, failures: Option<Failures<K, S>>) -> Self {
        let rng = Rng(AtomicU64::new(seed));
        Self { settings, rng, failures, loads: Arc::default() }
    }

    /// How long a value lives that was given this TTL.
    #[inline]
    pub(super) fn shortened(&self, ttl: Duration) -> Duration {
        match self.settings.jitter {
            0.0 => ttl,
            jitter => {
                let seconds = ttl.as_secs_f64() * (1.0 - jitter * self.rng.next());
                Duration::try_from_secs_f64(seconds).map_or(ttl, |shorter| shorter.min(ttl))
            }
        }
    }

    /// Whether it is time to load a value anew that has still so long to live (XFetch: Vattani, Chierichetti, Lowenstein,
    /// "Optimal Probabilistic Cache Stampede Prevention", VLDB 2015).
    pub(super) fn is_to_be_refreshed(&self, left: Duration) -> bool {
        let ahead = self.loads.recent().as_secs_f64() * self.settings.refresh_ahead;
        // From 0 on up; above forty by none of the numbers there are.
        let left = left.as_secs_f64();
        left <= 40.0 * ahead && left <= -ahead * (1.0 - self.rng.next()).ln()
    }
}

impl Settings {
    /// How long what is dead may still be wanted.
    pub(super) fn stale_window(&self) -> Duration {
        self.stale_while_revalidate.max(self.stale_if_error)
    }

    /// Whether a look-up by a loader needs the deadline of what it finds.
    #[inline]
    pub(super) fn needs_deadline(&self) -> bool {
        self.refresh_ahead > 0.0
    }
}

impl Rng {
    /// From 0 to below 1 (SplitMix64: Steele, Lea, Flood, OOPSLA 2014).
    fn next(&self) -> f64 {
        const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut bits = self.0.fetch_add(GAMMA, Relaxed).wrapping_add(GAMMA);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

impl LoadCounters {
    pub(super) fn count(&self, took: Duration, failed: bool) {
        #[cfg(feature = "metrics")]
        lock(&self.times).record(took);
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.loads.fetch_add(1, Relaxed);
        self.failed.fetch_add(u64::from(failed), Relaxed);
        self.nanoseconds.fetch_add(took, Relaxed);
        // One that gets lost among others is as good as any of them.
        let recent = match self.recent.load(Relaxed) {
            0 => took,
            recent => recent - recent / 8 + took / 8,
        };
        self.recent.store(recent.max(1), Relaxed);
    }

    pub(super) fn all(&self) -> Loads {
        Loads {
            loads: self.loads.load(Relaxed),
            failed: self.failed.load(Relaxed),
            time: Duration::from_nanos(self.nanoseconds.load(Relaxed)),
        }
    }

    /// How long loads took.
    #[cfg(feature = "metrics")]
    pub(super) fn times(&self) -> Histogram {
        lock(&self.times).clone()
    }

    fn recent(&self) -> Duration {
        Duration::from_nanos(self.recent.load(Relaxed))
    }
}

#[cfg(feature = "metrics")]
fn lock(times: &Mutex<Histogram>) -> MutexGuard<'_, Histogram> {
    times.lock().expect("nothing panics while a time is counted")
}
