//! The bound of a store: the maximum number of entries, or their maximum weight as computed by a weigher.

mod deferred;
pub(crate) mod limit;
mod make_room;
