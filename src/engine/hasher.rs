//! The default hasher of keys.

/// Default hasher of keys: foldhash, with a new random seed for each cache.
pub type DefaultHasher = foldhash::fast::RandomState;
