//! What a layer tells its user of each request that it decides.

use std::time::Duration;

use crate::rate_limit::Limited;

/// What a [`RateLimitLayer`](crate::RateLimitLayer) has decided of a request: see
/// [`on_decision`](crate::RateLimitLayer::on_decision).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum RateLimitDecision<'a> {
    /// It passes at once.
    Allowed,
    /// It passes, and had to [wait](crate::RateLimitLayer::wait) so long.
    Waited(Duration),
    /// It does not pass.
    Denied(&'a Limited),
    /// It would not pass, but the layer only [watches](crate::RateLimitLayer::shadow).
    Shadowed(&'a Limited),
}
