//! Keys of any type, in a store that all caches share the code of: a store for each type of keys would double the time
//! to compile a cache.

use std::{
    any::Any,
    hash::{BuildHasher, Hash, Hasher},
    sync::Arc,
};

use equivalent::Equivalent;

/// A key with its hash, which the hasher of its cache has computed.
#[derive(Clone)]
pub(super) struct AnyKey {
    hash: u64,
    key: Arc<dyn ErasedKey>,
}

/// A key to look up: its hash, and whether a key equals it.
pub(super) struct KeyQuery<'a> {
    pub(super) hash: u64,
    pub(super) is_equal: &'a dyn Fn(&dyn Any) -> bool,
}

/// Hasher of [`AnyKey`], which returns the hash that is known.
#[derive(Clone, Copy, Default)]
pub(super) struct KnownHash(u64);

trait ErasedKey: Any + Send + Sync {
    fn equals(&self, other: &dyn Any) -> bool;
}

impl<K: Eq + Send + Sync + 'static> ErasedKey for K {
    fn equals(&self, other: &dyn Any) -> bool {
        other.downcast_ref::<K>() == Some(self)
    }
}

impl AnyKey {
    pub(super) fn new<K>(hash: u64, key: K) -> Self
    where
        K: Eq + Send + Sync + 'static,
    {
        Self { hash, key: Arc::new(key) }
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    pub(super) fn equals(&self, other: &dyn Any) -> bool {
        (*self.key).equals(other)
    }
}

impl PartialEq for AnyKey {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.equals(&*other.key)
    }
}

impl Eq for AnyKey {}

impl Hash for AnyKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Hash for KeyQuery<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Equivalent<AnyKey> for KeyQuery<'_> {
    fn equivalent(&self, key: &AnyKey) -> bool {
        self.hash == key.hash && (self.is_equal)(&*key.key)
    }
}

impl BuildHasher for KnownHash {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        Self::default()
    }
}

impl Hasher for KnownHash {
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("both types of keys write their hash");
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn keys_are_equal_if_their_hashes_types_and_values_are() {
        let key = AnyKey::new(7, "ada".to_owned());
        assert!(key == AnyKey::new(7, "ada".to_owned()));
        assert!(key != AnyKey::new(8, "ada".to_owned()));
        assert!(key != AnyKey::new(7, "grace".to_owned()));
        assert!(key != AnyKey::new(7, 7));
        let is_ada =
            |other: &dyn Any| other.downcast_ref::<String>().is_some_and(|key| key == "ada");
        for (hash, is_found) in [(7, true), (8, false)] {
            let query = KeyQuery { hash, is_equal: &is_ada };
            assert_eq!(query.equivalent(&key), is_found);
            assert_eq!(KnownHash::default().hash_one(&query), hash);
        }
        assert!(
            !KeyQuery { hash: 7, is_equal: &is_ada }
                .equivalent(&AnyKey::new(7, "grace".to_owned()))
        );
        assert_eq!(KnownHash::default().hash_one(&key), 7);
    }
}
