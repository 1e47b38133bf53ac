//! Loader methods: return the live value of a key, or load it once for all concurrent callers. One question per file:
//!
//! - [`look_up`]: is the value live, due for a refresh, stale, or missing?
//! - [`join`]: is another caller loading it? (`waiters::flight` decides who accepts the value of which load.)
//! - [`store_loaded`]: is the loaded value stored, and its error kept?
//! - [`one`], [`one_future`], [`many`]: one key with a closure, one key with a future, many keys by one load.
//! - [`sync`]: the same for callers that are not async.
//! - [`refresh`]: loads although there is a value: in the background, ahead of the deadline, or explicitly.
//! - [`timeout`]: the time limit of background refreshes.
//! - [`ttl`], [`tagged`]: the TTL of a loaded value, and its tags.

mod join;
mod look_up;
mod many;
mod one;
mod one_future;
mod refresh;
mod store_loaded;
mod sync;
mod tagged;
mod timeout;
mod ttl;

#[cfg(feature = "redis")]
pub(crate) use self::timeout::REFRESH_TIMEOUT;
pub use self::{look_up::Freshness, tagged::Tagged, ttl::TimeToLive};
