//! Number of shards of sharded types, and the entries that each needs at least. Each shard has a lock of its own.

/// Upper limit for the number of shards. More shards only cost memory.
pub(crate) const MAX_SHARDS: usize = 65_536;

/// Entries per shard, rounded to a power of two of shards, that a store bounded by entries gets at least. Each shard
/// chooses victims among its own entries only, so smaller shards would leave the eviction policy too few candidates.
const MIN_ENTRIES_PER_SHARD: usize = 64;

/// Entries per shard, rounded as above, that such a store gets at least if the builder is given a number of shards. In
/// shards of one or two entries there is nothing to choose.
const MIN_ENTRIES_PER_GIVEN_SHARD: usize = 8;

/// Maximum number of shards that a store bounded by weight gets by default. The number of its entries is unknown and
/// may be small, and each shard chooses victims among its own entries only.
const MAX_SHARDS_BY_WEIGHT: usize = 16;

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

/// Returns the number of shards of a store that is bounded by entries: at most the `given` number, or the default.
pub(crate) fn shards_by_entries(entries: usize, given: Option<usize>) -> usize {
    let (max, min_entries) = match given {
        None => (default_shards(), MIN_ENTRIES_PER_SHARD),
        Some(shards) => (shards, MIN_ENTRIES_PER_GIVEN_SHARD),
    };
    // `DashMap` panics with a single shard.
    (entries / min_entries).next_power_of_two().clamp(2, max)
}

/// Returns the number of shards of a store that is bounded by weight.
pub(crate) fn shards_by_weight(given: Option<usize>) -> usize {
    given.unwrap_or_else(|| default_shards().min(MAX_SHARDS_BY_WEIGHT))
}
