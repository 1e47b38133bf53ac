//! `Window`: the algorithm by which a limiter counts, and its bounds.

/// Algorithm by which a [`RateLimiter`](crate::RateLimiter) counts admitted calls: exact, compact or smooth.
///
/// ```
/// use fleeting::{Limit, RateLimiter, Window};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// // A large quota: counters take less memory than the time of each call.
/// let limiter: RateLimiter<String> =
///     RateLimiter::builder().limit(Limit::per_hour(100_000)).window(Window::Buckets(60)).build();
/// # }
/// ```
///
/// Keep the default, `Log`, unless your quotas are above a few thousand.
///
/// | | admits at most, in any period of length `per` | quota is free again | memory per limit of a key |
/// | --- | --- | --- | --- |
/// | `Log` | the quota | after exactly `per` | 12 bytes per distinct time of an admitted call |
/// | `Buckets(n)` | the quota | after `per`, up to `per / n` late | 4 bytes for each of `n + 1` buckets |
/// | `Gcra` | twice the quota, less one | evenly, one unit every `per / quota` | 40 bytes |
///
/// [Several limits for one key](crate::guide::rate_limits#several-limits-for-one-key) defines what a limit counts if a
/// key is checked by other limits, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Window {
    /// Sliding-window log: the time of every admitted call. Exact, and suited to quotas of up to a few thousand.
    #[default]
    Log,
    /// Counters for `n` parts of the window. The oldest part counts in full until all of it has left the window, so the
    /// quota is never exceeded. Memory does not grow with the quota.
    ///
    /// Other algorithms with counters, which weigh the oldest part by its overlap or start again with each window,
    /// admit up to twice the quota in some windows; this one does not. If `n` does not divide `per`, each part is
    /// rounded up to whole nanoseconds. If a key is checked by a limit with another `per` for the first time, calls
    /// that share a bucket of an earlier limit count as if they were made at its end, or at the last call.
    Buckets(usize),
    /// Generic cell rate algorithm (ITU-T I.371): a bucket that leaks one unit every `per / quota`, exactly, even if
    /// that is less than a nanosecond. (On Redis, an interval of a millisecond or more is rounded up to whole
    /// microseconds, an error below 0.1 %; shorter ones are exact.) Smooth, with the least memory. But a key may use
    /// its whole quota at once and then one unit every `per / quota`: up to twice the quota, less one unit, within one
    /// `per`.
    ///
    /// It stores only a sum and not each call. The refund of the last call of a key is exact, for the limits by which
    /// the key has been checked. If other calls were charged in between, a permit may give back less than it should,
    /// but never more; the rest leaks. If you refund most calls, and in another order than they were charged, that is
    /// most of the quota: use `Log` or `Buckets`. After random refunds of one to three units, a limit of 50 admitted 10
    /// to 13.
    ///
    /// If a key is checked by other limits (a plan), its usage remains the same number of units, and leaks as the new
    /// limits say. So a key that used 100 units of a large plan and then is checked by a plan of one per minute is
    /// denied until 100 minutes have passed or it is checked by the large plan again.
    Gcra,
}

/// More buckets would not make a window noticeably more precise. The number also has to fit into a `u16`, in which
/// `Buckets` counts them.
const MAX_BUCKETS: usize = 10_000;

impl Window {
    /// Returns itself, for a builder. Panics if the number of buckets is out of range.
    pub(crate) fn checked(self) -> Self {
        if let Self::Buckets(n) = self {
            assert!((1..=MAX_BUCKETS).contains(&n), "Buckets must be 1 to {MAX_BUCKETS}, got {n}");
        }
        self
    }
}
