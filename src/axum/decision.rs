//! `RateLimitDecision`, the argument of a layer's `on_decision`.

use std::time::Duration;

use crate::rate_limit::Limited;

/// Decision of a [`RateLimitLayer`](crate::RateLimitLayer) about a request. Passed to
/// [`on_decision`](crate::RateLimitLayer::on_decision), which has an example.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum RateLimitDecision<'a> {
    /// The request passes immediately.
    Allowed,
    /// The request passes after it had to [wait](crate::RateLimitLayer::wait) for this time.
    Waited(Duration),
    /// The request is denied.
    Denied(&'a Limited),
    /// The request would be denied, but passes because the layer is in [shadow](crate::RateLimitLayer::shadow) mode.
    Shadowed(&'a Limited),
}
