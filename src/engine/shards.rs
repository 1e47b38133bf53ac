//! Number of shards of sharded types. Each shard has a lock of its own.

/// Upper limit for the number of shards. More shards only cost memory.
pub(crate) const MAX_SHARDS: usize = 65_536;

/// Returns four shards per core, at least 64, so that two threads seldom contend for a lock.
pub(crate) fn default_shards() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (4 * cores).next_power_of_two().clamp(64, MAX_SHARDS)
}

/// Rounds the number of shards given to a builder up to a power of two.
///
/// # Panics
///
/// Panics if `shards` is 0 or above [`MAX_SHARDS`].
pub(crate) fn checked_shards(shards: usize) -> usize {
    assert!((1..=MAX_SHARDS).contains(&shards), "shards must be 1 to {MAX_SHARDS}, got {shards}");
    shards.next_power_of_two()
}
