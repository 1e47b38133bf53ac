//! What hashes keys where the user chose nothing.

/// What hashes keys by default: foldhash, seeded anew for each cache.
pub type DefaultHasher = foldhash::fast::RandomState;
