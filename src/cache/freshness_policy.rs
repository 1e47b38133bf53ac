//! Settings that determine how long values are live and when they are refreshed, with their random numbers and load
//! counters.

#[cfg(feature = "metrics")]
use std::sync::{Mutex, MutexGuard};
use std::{
    fmt::Debug,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

#[cfg(feature = "metrics")]
use crate::engine::metrics::{Histogram, RegistrationCell};
use crate::engine::split_mix::{GAMMA, unit_fraction};

/// Freshness settings of a cache. Handles own it and the sweeper does not, so its strong count is the number of
/// handles: see [`Cache`](super::Cache).
pub(crate) struct FreshnessPolicy<K> {
    pub(crate) settings: FreshnessSettings,
    rng: Rng,
    pub(crate) loads: Arc<LoadCounters>,
    pub(crate) refresh_error_hook: Option<RefreshErrorHook<K>>,
}

/// Closure that is called with the key and the error of a failed background refresh.
pub(crate) type RefreshErrorHook<K> = Box<dyn Fn(&K, &dyn Debug) + Send + Sync>;

/// Durations and factors set in the builder.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FreshnessSettings {
    pub(crate) time_to_live: Option<Duration>,
    pub(crate) time_to_idle: Option<Duration>,
    pub(crate) jitter: f64,
    pub(crate) negative_ttl: Option<Duration>,
    pub(crate) stale_while_revalidate: Duration,
    pub(crate) stale_if_error: Duration,
    pub(crate) refresh_ahead: f64,
}

/// Lock-free random number generator for jitter and refresh-ahead, seeded by `Sweep::seed`. It is not suitable for
/// cryptography.
struct Rng(AtomicU64);

/// Counters of loader runs, including those of background refreshes.
#[derive(Default)]
pub(crate) struct LoadCounters {
    loads: AtomicU64,
    failed: AtomicU64,
    nanoseconds: AtomicU64,
    /// Moving average of the duration of recent loads, in nanoseconds; 0 before the first load.
    recent_mean: AtomicU64,
    #[cfg(feature = "metrics")]
    durations: Mutex<Histogram>,
    #[cfg(feature = "metrics")]
    pub(super) registration: RegistrationCell,
}

/// Totals of all loader runs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LoadTotals {
    pub(super) loads: u64,
    pub(super) failed: u64,
    pub(super) time: Duration,
}

// The setters of both builders. Each panics as they document.
impl FreshnessSettings {
    pub(crate) fn set_jitter(&mut self, share: f64) {
        assert!((0.0..1.0).contains(&share), "jitter must be at least 0 and below 1, got {share}");
        self.jitter = share;
    }

    pub(crate) fn set_negative_ttl(&mut self, ttl: Duration) {
        assert!(ttl > Duration::ZERO, "negative_ttl must be above zero, got {ttl:?}");
        self.negative_ttl = Some(ttl);
    }

    pub(crate) fn set_refresh_ahead(&mut self, beta: f64) {
        assert!(
            beta >= 0.0 && beta.is_finite(),
            "refresh_ahead must be a number and at least 0, got {beta}"
        );
        self.refresh_ahead = beta;
    }
}

impl<K> FreshnessPolicy<K> {
    pub(crate) fn new(
        settings: FreshnessSettings,
        seed: u64,
        refresh_error_hook: Option<RefreshErrorHook<K>>,
    ) -> Self {
        let rng = Rng(AtomicU64::new(seed));
        Self { settings, rng, loads: Arc::default(), refresh_error_hook }
    }

    /// Returns `ttl`, shortened at random by the configured jitter.
    #[inline]
    pub(crate) fn with_jitter(&self, ttl: Duration) -> Duration {
        match self.settings.jitter {
            0.0 => ttl,
            jitter => {
                let seconds = ttl.as_secs_f64() * (1.0 - jitter * self.rng.next());
                // Rounding must not lengthen a TTL; one near `Duration::MAX` may be out of range as a float.
                Duration::try_from_secs_f64(seconds).map_or(ttl, |shorter| shorter.min(ttl))
            }
        }
    }

    /// Returns whether a value with this remaining TTL should be refreshed now (XFetch: Vattani, Chierichetti,
    /// Lowenstein, "Optimal Probabilistic Cache Stampede Prevention", VLDB 2015).
    pub(crate) fn should_refresh(&self, remaining: Duration) -> bool {
        let ahead = self.loads.recent_mean().as_secs_f64() * self.settings.refresh_ahead;
        // `-ln(1 - u)` is below 40 for every `u` of the generator, whose largest value is 1 - 2^-53. So the first test
        // saves a random number and a logarithm for values that are far from their deadline.
        let remaining = remaining.as_secs_f64();
        remaining <= 40.0 * ahead && remaining <= -ahead * (1.0 - self.rng.next()).ln()
    }

    /// Logs a failed background refresh and calls the hook. Its flight has ended by now, so that no waiter waits for
    /// the hook.
    pub(crate) fn report_failed_refresh(&self, cache: &str, key: &K, error: &dyn Debug) {
        // Formatted here: a panic of `Debug` inside of a subscriber could leave the subscriber unusable.
        let text = catch_unwind(AssertUnwindSafe(|| format!("{error:?}")));
        let text = text.as_deref().unwrap_or("the Debug of the error panicked");
        tracing::warn!(cache, error = text, "background refresh failed");
        if let Some(hook) = &self.refresh_error_hook
            && catch_unwind(AssertUnwindSafe(|| hook(key, error))).is_err()
        {
            tracing::error!(cache, "on_refresh_error hook panicked");
        }
    }
}

impl FreshnessSettings {
    /// Returns whether failed loads are kept: their errors for `negative_ttl`, and the backoff of background refreshes.
    /// `stale_if_error` alone has neither.
    pub(crate) fn keeps_failed_loads(&self) -> bool {
        self.negative_ttl.is_some()
            || self.refresh_ahead > 0.0
            || self.stale_while_revalidate > Duration::ZERO
    }

    /// Returns for how long an expired entry is kept for the loader methods.
    pub(super) fn stale_window(&self) -> Duration {
        self.stale_while_revalidate.max(self.stale_if_error)
    }

    /// Returns whether a lookup by a loader method needs the deadline of the value it finds.
    #[inline]
    pub(crate) fn needs_deadline(&self) -> bool {
        self.refresh_ahead > 0.0
    }
}

impl Rng {
    /// Returns a number from 0 to below 1.
    fn next(&self) -> f64 {
        unit_fraction(self.0.fetch_add(GAMMA, Relaxed).wrapping_add(GAMMA))
    }
}

impl LoadCounters {
    /// Counts a finished loader run that took `took`.
    pub(crate) fn record(&self, took: Duration, failed: bool) {
        #[cfg(feature = "metrics")]
        lock(&self.durations).record(took);
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.loads.fetch_add(1, Relaxed);
        self.failed.fetch_add(u64::from(failed), Relaxed);
        self.nanoseconds.fetch_add(took, Relaxed);
        // A concurrent update may be lost. The average needs no exact set of samples.
        let recent_mean = match self.recent_mean.load(Relaxed) {
            0 => took,
            recent_mean => recent_mean - recent_mean / 8 + took / 8,
        };
        // At least 1: 0 would count as no load so far.
        self.recent_mean.store(recent_mean.max(1), Relaxed);
    }

    /// Returns the totals so far.
    pub(super) fn totals(&self) -> LoadTotals {
        LoadTotals {
            loads: self.loads.load(Relaxed),
            failed: self.failed.load(Relaxed),
            time: Duration::from_nanos(self.nanoseconds.load(Relaxed)),
        }
    }

    /// Returns the histogram of load durations.
    #[cfg(feature = "metrics")]
    pub(super) fn durations(&self) -> Histogram {
        lock(&self.durations).clone()
    }

    fn recent_mean(&self) -> Duration {
        Duration::from_nanos(self.recent_mean.load(Relaxed))
    }
}

#[cfg(feature = "metrics")]
fn lock(durations: &Mutex<Histogram>) -> MutexGuard<'_, Histogram> {
    durations.lock().expect("no user code runs under this lock")
}
