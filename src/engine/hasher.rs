//! The default hasher of keys.

// The variant with a second round, of about a nanosecond. With one round, the seed of one process in 200 gives a shard
// two to five times its share of sequential integers, because the upper bits are hardly mixed.
use foldhash::quality as variant;

/// Default hasher of keys: foldhash, with a new random seed for each cache.
pub type DefaultHasher = variant::RandomState;

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::hash::Hasher;

    use foldhash::SharedSeed;
    use rand::{RngExt, SeedableRng, rngs::SmallRng};

    use super::variant::FoldHasher;

    #[test]
    fn sequential_integers_spread_over_the_shards_with_any_seed() {
        let mut random = SmallRng::seed_from_u64(0x5eed);
        for _ in 0..2_000 {
            let seed = random.random();
            // All hashers of a process share this seed.
            let shared = SharedSeed::from_u64(seed);
            let mut shards = [0; 64];
            for key in 0..4_000 {
                let mut hasher = FoldHasher::with_seed(seed, &shared);
                hasher.write_u64(key);
                // The bits by which `dashmap` chooses a shard.
                shards[(hasher.finish() << 7 >> 58) as usize] += 1;
            }
            assert!(shards.iter().all(|keys| *keys < 120), "seed {seed}: {shards:?}");
        }
    }
}
