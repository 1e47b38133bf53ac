//! Names of keys on the server, and their hash tags, which keep keys in one slot of a cluster.
//!
//! 1. The part of a key before the first brace contains the type and the version of its layout. Neither a prefix nor a
//!    name contains braces, and no prefix contains the type of limiters. So keys of different prefixes, types or names
//!    never collide, regardless of the user's keys.
//! 2. A record of shard `i` is `prefix:cache1:{name:i}:key`, and the index of the shard `prefix:cache1:{name:i}`. They
//!    share a hash tag, so a cluster keeps them in one slot. The shard of a key is its CRC16 (the hash of cluster
//!    slots) modulo the number of shards, which is 16 unless a cache was built with another: see
//!    `client/shard_check.rs`. Types without shards use a single key.

use std::{
    collections::BTreeSet,
    ops::Range,
    sync::{PoisonError, RwLock},
};

use super::Error;

/// Default number of shards: enough to spread a name over a cluster, few enough to query all of them. The number is
/// part of the stored layout: with another one, existing records would not be found.
pub(super) const SHARDS: u16 = 16;

/// Prefixes of all clients of this process. A key alone does not tell where its prefix ends.
static PREFIXES: RwLock<BTreeSet<String>> = RwLock::new(BTreeSet::new());

/// Type that owns the keys. It is part of them, together with the version of its layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Cache,
    TimeoutDict,
    ExpiringSet,
    RateLimiter,
}

/// Keys of one name of one type. They are stored in users' databases: a changed layout needs another version number and
/// a migration of existing data.
#[derive(Clone, Debug)]
pub(super) struct Keyspace {
    /// Index key of each shard.
    indexes: Vec<Vec<u8>>,
    /// Part of the keys before the hash tag.
    head: String,
    name: String,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Cache, Self::TimeoutDict, Self::ExpiringSet, Self::RateLimiter];

    /// Returns the part of a key between its prefix and its name. The digit is the version of the layout, so that an
    /// incompatible layout gets keys of its own.
    const fn tag(self) -> &'static str {
        match self {
            Self::Cache => ":cache1:",
            Self::TimeoutDict => ":dict1:",
            Self::ExpiringSet => ":set1:",
            Self::RateLimiter => ":limit1:",
        }
    }
}

impl Keyspace {
    pub(super) fn new(prefix: &str, kind: Kind, name: &str) -> Result<Self, Error> {
        Self::with_shards(prefix, kind, name, SHARDS)
    }

    pub(super) fn with_shards(
        prefix: &str,
        kind: Kind,
        name: &str,
        shards: u16,
    ) -> Result<Self, Error> {
        check_name(name)?;
        let head = format!("{prefix}{}", kind.tag());
        let indexes = (0..shards).map(|shard| format!("{head}{{{name}:{shard}}}").into_bytes());
        Ok(Self { indexes: indexes.collect(), head, name: name.to_owned() })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the numbers of all shards.
    pub(super) fn shards(&self) -> Range<u16> {
        // It was made of a `u16`.
        0..self.indexes.len() as u16
    }

    /// Returns the shard of a key.
    pub(super) fn shard(&self, key: &[u8]) -> u16 {
        shard(key, self.shards().end)
    }

    /// Groups items by the shards of their keys, because the keys of a script must share a slot. Items of a shard keep
    /// their order; shards without items are left out.
    pub(super) fn by_shard<T>(
        &self,
        items: impl IntoIterator<Item = T>,
        key: impl Fn(&T) -> &[u8],
    ) -> impl Iterator<Item = (u16, Vec<T>)> {
        let mut shards: Vec<_> = self.shards().map(|shard| (shard, Vec::new())).collect();
        for item in items {
            shards[usize::from(self.shard(key(&item)))].1.push(item);
        }
        shards.into_iter().filter(|(_, items)| !items.is_empty())
    }

    /// Returns the index key of a shard, which is also the prefix of its records.
    pub(super) fn index(&self, shard: u16) -> &[u8] {
        &self.indexes[usize::from(shard)]
    }

    pub(super) fn record(&self, key: &[u8]) -> Vec<u8> {
        let index = self.index(self.shard(key));
        let mut record = Vec::with_capacity(index.len() + 1 + key.len());
        record.extend_from_slice(index);
        record.push(b':');
        record.extend_from_slice(key);
        record
    }

    /// Returns the key of a record: the inverse of [`record`](Keyspace::record).
    pub(super) fn key_of<'a>(&self, record: &'a [u8]) -> Option<&'a [u8]> {
        let after = record.strip_prefix(self.head.as_bytes())?.strip_prefix(b"{")?;
        let after = after.strip_prefix(self.name.as_bytes())?;
        // The end of the hash tag: a name contains no brace.
        let end = after.iter().position(|byte| *byte == b'}')?;
        after[end + 1..].strip_prefix(b":")
    }

    /// Returns the common prefix of all records. Other keys of the same name may have it too.
    pub(super) fn prefix(&self) -> Vec<u8> {
        format!("{}{{{}:", self.head, self.name).into_bytes()
    }

    /// Returns a pattern for `SCAN` that matches all records, and possibly other keys.
    pub(super) fn scan_pattern(&self) -> Vec<u8> {
        let stem = format!("{}{{{}", self.head, self.name);
        let mut pattern = Vec::with_capacity(stem.len() + 6);
        for byte in stem.bytes() {
            // Escapes the special characters of patterns, which names may contain.
            if b"*?[]\\".contains(&byte) {
                pattern.push(b'\\');
            }
            pattern.push(byte);
        }
        pattern.extend_from_slice(b":*}:*");
        pattern
    }

    /// Returns the single key of a name without shards, `prefix:set1:{name}`.
    pub(super) fn single(&self) -> Vec<u8> {
        format!("{}{{{}}}", self.head, self.name).into_bytes()
    }

    /// Returns a key with its own hash tag, `prefix:limit1:name:{key}`.
    pub(super) fn tagged(&self, key: &[u8]) -> Vec<u8> {
        let mut tagged = Vec::with_capacity(self.head.len() + self.name.len() + key.len() + 3);
        self.open_tag(&mut tagged);
        tagged.extend_from_slice(key);
        tagged.push(b'}');
        tagged
    }

    /// Appends the part of a [tagged](Keyspace::tagged) key before the key. The caller appends the key and a brace.
    pub(super) fn open_tag(&self, out: &mut Vec<u8>) {
        for part in [self.head.as_bytes(), self.name.as_bytes(), b":{"] {
            out.extend_from_slice(part);
        }
    }
}

/// Returns the part between the first and the last brace: the inverse of [`Keyspace::tagged`].
#[cfg(feature = "dashboard")]
pub(super) fn key_of_tagged(tagged: &[u8]) -> &[u8] {
    let begin = tagged.iter().position(|byte| *byte == b'{').map_or(0, |brace| brace + 1);
    let key = &tagged[begin..];
    key.strip_suffix(b"}").unwrap_or(key)
}

/// Splits a key of this crate behind its prefix and type; returns `None` for a key of another program.
pub(super) fn split_head(key: &str) -> Option<(Kind, &str, &str)> {
    let prefixes = PREFIXES.read().unwrap_or_else(PoisonError::into_inner);
    prefixes.iter().find_map(|prefix| {
        let rest = key.strip_prefix(prefix.as_str())?;
        Kind::ALL.into_iter().find_map(|kind| {
            let rest = rest.strip_prefix(kind.tag())?;
            let (head, rest) = key.split_at(key.len() - rest.len());
            Some((kind, head, rest))
        })
    })
}

/// Checks that `prefix` may precede all keys of a client, and remembers it for [`split_head`].
pub(super) fn register_prefix(prefix: &str) -> Result<(), Error> {
    check_name(prefix)?;
    // The name of a limiter is not in braces, so limiter `y` with prefix `shop:limit1:x` would have the keys of limiter
    // `x:limit1:y` with prefix `shop`.
    if format!("{prefix}:").contains(Kind::RateLimiter.tag()) {
        return Err(Error::Name(prefix.to_owned()));
    }
    PREFIXES.write().unwrap_or_else(PoisonError::into_inner).insert(prefix.to_owned());
    Ok(())
}

/// Checks that `name` may be part of a key.
pub(super) fn check_name(name: &str) -> Result<(), Error> {
    if name.is_empty() || name.contains(['{', '}']) {
        return Err(Error::Name(name.to_owned()));
    }
    Ok(())
}

/// Returns the shard of a key of a type with this number of shards.
pub(super) fn shard(key: &[u8], shards: u16) -> u16 {
    crc16(key) % shards
}

/// Returns the cluster slot of a key: the hash of its hash tag, or of the whole key if it has none.
pub(super) fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let after = &key[open + 1..];
        let close = after.iter().position(|byte| *byte == b'}')?;
        // Redis hashes the whole key if the tag is empty.
        (close > 0).then(|| &after[..close])
    });
    crc16(tag.unwrap_or(key)) % 16_384
}

/// CRC-16/XMODEM, as in the Redis cluster specification.
fn crc16(bytes: &[u8]) -> u16 {
    const OF_BYTE: [u16; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let (mut crc, mut bit) = ((byte as u16) << 8, 0);
            while bit < 8 {
                crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
                bit += 1;
            }
            table[byte] = crc;
            byte += 1;
        }
        table
    };
    bytes.iter().fold(0, |crc, byte| (crc << 8) ^ OF_BYTE[usize::from((crc >> 8) as u8 ^ byte)])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn crc16_is_that_of_the_cluster_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
    }

    /// The slots are those that `CLUSTER KEYSLOT` returns.
    #[test]
    fn slot_is_that_of_the_hash_tag() {
        assert_eq!(slot(b"foo"), 12_182);
        assert_eq!(slot(b"p:{foo}:}{"), 12_182);
        for whole in [&b"p:{}:foo"[..], b"p:{foo"] {
            assert_eq!(slot(whole), crc16(whole) % 16_384);
        }
    }

    fn keyspace(kind: Kind, name: &str) -> Keyspace {
        with_prefix("shop", kind, name)
    }

    fn with_prefix(prefix: &str, kind: Kind, name: &str) -> Keyspace {
        Keyspace::new(prefix, kind, name).expect("the name is valid")
    }

    #[test]
    fn key_of_a_record_is_the_key_it_was_made_from() {
        let keyspace = keyspace(Kind::Cache, "sessions");
        for key in ["", "ada", "}:{", "a:b"] {
            let record = keyspace.record(key.as_bytes());
            assert!(record.starts_with(b"shop:cache1:{sessions:"));
            assert_eq!(keyspace.key_of(&record), Some(key.as_bytes()));
        }
        assert_eq!(keyspace.key_of(b"shop:cache1:{others:0}:ada"), None);
        assert_eq!(keyspace.key_of(b"shop:dict1:{sessions:0}:ada"), None);
    }

    #[cfg(feature = "dashboard")]
    #[test]
    fn key_of_a_tagged_key_is_the_key_it_was_made_from() {
        let keyspace = keyspace(Kind::RateLimiter, "api");
        for key in ["", "ada", "{", "}", "}:{", "{a}", "a:b"] {
            assert_eq!(key_of_tagged(&keyspace.tagged(key.as_bytes())), key.as_bytes());
        }
    }

    #[test]
    fn keys_of_different_prefixes_names_or_types_never_collide() {
        let names = ["a", "b", "7", "a:b", "b:7", "a:b:7", ":", "a:7", "limit1:a", "a:cache1"];
        let parts = ["a", "b", "7", "a:b", "b:7", "a:b:7", ":", "a:7"];
        let prefixes =
            ["p", "p:a", "p:limit1", "p:limit1:a", "limit1", "limit1:limit1", "p:limit1x"];
        let prefixes = prefixes.into_iter().filter(|prefix| register_prefix(prefix).is_ok());
        let mut all = BTreeMap::new();
        let mut add = |key: Vec<u8>, owner: String| {
            let other = all.insert(key, owner.clone());
            assert!(
                other.as_ref().is_none_or(|other| *other == owner),
                "{owner} and {other:?} collide"
            );
        };
        for (prefix, name) in prefixes.flat_map(|prefix| names.map(|name| (prefix, name))) {
            let of = format!("{prefix} {name}");
            for kind in [Kind::Cache, Kind::TimeoutDict] {
                let keyspace = with_prefix(prefix, kind, name);
                (0..SHARDS).for_each(|shard| {
                    add(keyspace.index(shard).to_vec(), format!("{kind:?} {of}, {shard}"));
                });
                for key in parts.into_iter().chain(["}", "{", "}:a", "}}", ""]) {
                    add(keyspace.record(key.as_bytes()), format!("{kind:?} {of}, key {key}"));
                }
            }
            add(with_prefix(prefix, Kind::ExpiringSet, name).single(), format!("set {of}"));
            for key in parts.into_iter().chain(["}", "{", "}:a", "}}", ""]) {
                let subject = with_prefix(prefix, Kind::RateLimiter, name).tagged(key.as_bytes());
                add(subject, format!("limit {of}, key {key}"));
            }
        }
    }

    #[test]
    fn prefix_with_the_type_of_limiters_is_refused() {
        for prefix in ["shop:limit1", "shop:limit1:x", ":limit1:"] {
            assert!(matches!(register_prefix(prefix), Err(Error::Name(bad)) if bad == prefix));
        }
        for prefix in ["limit1", "limit1:x", "shop:limit1x", "shop:limit", "shop:cache1:x"] {
            assert!(register_prefix(prefix).is_ok(), "{prefix}");
        }
    }

    #[test]
    fn name_with_braces_is_refused() {
        for name in ["", "a{b", "a}b"] {
            assert!(
                matches!(Keyspace::new("p", Kind::Cache, name), Err(Error::Name(bad)) if bad == name)
            );
        }
    }
}
