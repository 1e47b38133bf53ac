//! Backoff of background refreshes of a key whose loader fails.

use std::time::Duration;

/// Backoff after the first failed refresh of a key, doubled by each further one. A popular key would otherwise start
/// the next refresh right after the failed one.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
/// Maximum backoff, so that a source that has recovered is tried again within about a minute.
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// Returns the time until a refresh may be tried again, after one more failure than `consecutive`.
pub(crate) fn refresh_backoff(consecutive: u32) -> Duration {
    FIRST_BACKOFF.saturating_mul(2_u32.saturating_pow(consecutive)).min(MAX_BACKOFF)
}
