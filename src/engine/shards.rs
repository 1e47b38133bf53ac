//! How many parts, each with a lock of its own, everything that is sharded has.

/// More would only take memory.
pub(crate) const MAX_SHARDS: usize = 65_536;

/// Four for each core, and 64 at least: so two threads seldom meet at one lock.
pub(crate) fn default_shards() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (4 * cores).next_power_of_two().clamp(64, MAX_SHARDS)
}

/// The number of shards that a builder is asked for, as it takes them: a power of two.
///
/// # Panics
///
/// Where `shards` is 0 or above [`MAX_SHARDS`].
pub(crate) fn checked_shards(shards: usize) -> usize {
    assert!((1..=MAX_SHARDS).contains(&shards), "shards must be 1 to {MAX_SHARDS}, got {shards}");
    shards.next_power_of_two()
}
