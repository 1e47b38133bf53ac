//! How keys are named on the server, and by which hash tag a cluster keeps them together.
//!
//! 1. What a key begins with says of which type and layout it is, and up to the first brace it is ours to choose:
//!    neither a prefix nor a name has one. So no two keys of different names are one, whatever the user's keys are.
//! 2. A record of shard `i` is `prefix:cache1:{name:i}:key`, and the shard's index `prefix:cache1:{name:i}`: one hash
//!    tag, so that a cluster keeps them in one slot. A shard is the CRC16 of the key (as clusters count slots), modulo
//!    the number of shards. What has no shards is one key.

use futures_util::{StreamExt, stream::iter};

use super::Error;

/// Enough that a cluster spreads a name, few enough that asking each is cheap. With another number, what is on
/// servers already would not be found.
pub(super) const SHARDS: u16 = 16;

/// Whose keys they are. It is a part of them, with the version of their layout.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Cache,
    TimeoutDict,
    ExpiringSet,
    RateLimiter,
}

/// The keys of one name of one type. It is written into the data of every user: a layout that changes gets another
/// number, and a way for what is there.
#[derive(Clone, Debug)]
pub(super) struct Keyspace {
    /// For each shard.
    indexes: Vec<Vec<u8>>,
    /// Before the hash tag.
    head: String,
    name: String,
}

impl Keyspace {
    pub(super) fn new(prefix: &str, kind: Kind, name: &str) -> Result<Self, Error> {
        check_name(name)?;
        let tag = match kind {
            Kind::Cache => "cache1",
            Kind::TimeoutDict => "dict1",
            Kind::ExpiringSet => "set1",
            Kind::RateLimiter => "limit1",
        };
        let head = format!("{prefix}:{tag}:");
        let indexes = (0..SHARDS).map(|shard| format!("{head}{{{name}:{shard}}}").into_bytes());
        Ok(Self { indexes: indexes.collect(), head, name: name.to_owned() })
    }

    /// The index of a shard, which is also what all names of its records begin with.
    pub(super) fn index(&self, shard: u16) -> &[u8] {
        &self.indexes[usize::from(shard)]
    }

    pub(super) fn record(&self, key: &[u8]) -> Vec<u8> {
        let index = self.index(shard(key));
        let mut record = Vec::with_capacity(index.len() + 1 + key.len());
        record.extend_from_slice(index);
        record.push(b':');
        record.extend_from_slice(key);
        record
    }

    /// The key that [`record`](Keyspace::record) was given.
    pub(super) fn key_of<'a>(&self, record: &'a [u8]) -> Option<&'a [u8]> {
        let after = record.strip_prefix(self.head.as_bytes())?.strip_prefix(b"{")?;
        let after = after.strip_prefix(self.name.as_bytes())?;
        let end = after.iter().position(|byte| *byte == b'}')?;
        after[end + 1..].strip_prefix(b":")
    }

    /// What all records begin with, and little else.
    pub(super) fn prefix(&self) -> Vec<u8> {
        format!("{}{{{}:", self.head, self.name).into_bytes()
    }

    /// What `SCAN` may look for to find all records; not all that it finds are.
    pub(super) fn scan_pattern(&self) -> Vec<u8> {
        let stem = format!("{}{{{}", self.head, self.name);
        let mut pattern = Vec::with_capacity(stem.len() + 6);
        for byte in stem.bytes() {
            // A name may have what means something in a pattern.
            if b"*?[]\\".contains(&byte) {
                pattern.push(b'\\');
            }
            pattern.push(byte);
        }
        pattern.extend_from_slice(b":*}:*");
        pattern
    }

    /// The one key of a name without shards, `prefix:set1:{name}`.
    pub(super) fn single(&self) -> Vec<u8> {
        format!("{}{{{}}}", self.head, self.name).into_bytes()
    }

    /// A key that has a hash tag of its own, `prefix:limit1:name:{key}`.
    pub(super) fn tagged(&self, key: &[u8]) -> Vec<u8> {
        [self.head.as_bytes(), self.name.as_bytes(), b":{", key, b"}"].concat()
    }
}

/// The key that [`Keyspace::tagged`] was given: what is between the first brace and the last.
#[cfg(feature = "dashboard")]
pub(super) fn key_of_tagged(tagged: &[u8]) -> &[u8] {
    let begin = tagged.iter().position(|byte| *byte == b'{').map_or(0, |brace| brace + 1);
    let key = &tagged[begin..];
    key.strip_suffix(b"}").unwrap_or(key)
}

/// Asks shards for what may be large, four at once: all answers come by one connection, each in the time that a client
/// gives it. In their order.
pub(super) async fn few_at_once<F: Future>(asks: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let asks: Vec<_> = asks.into_iter().collect();
    iter(asks).buffered(4).collect().await
}

/// Whether it may stand in a key.
pub(super) fn check_name(name: &str) -> Result<(), Error> {
    if name.is_empty() || name.contains(['{', '}']) {
        return Err(Error::Name(name.to_owned()));
    }
    Ok(())
}

pub(super) fn shard(key: &[u8]) -> u16 {
    crc16(key) % SHARDS
}

/// Which of a cluster's slots has a key: what is between the first braces tells, if there is anything.
pub(super) fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let after = &key[open + 1..];
        let close = after.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &after[..close])
    });
    crc16(tag.unwrap_or(key)) % 16_384
}

/// CRC-16/XMODEM, as in Redis' cluster specification.
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

    /// As `CLUSTER KEYSLOT` says.
    #[test]
    fn a_slot_is_that_of_the_hash_tag() {
        assert_eq!(slot(b"foo"), 12_182);
        assert_eq!(slot(b"p:{foo}:}{"), 12_182);
        for whole in [&b"p:{}:foo"[..], b"p:{foo"] {
            assert_eq!(slot(whole), crc16(whole) % 16_384);
        }
    }

    fn keyspace(kind: Kind, name: &str) -> Keyspace {
        Keyspace::new("shop", kind, name).expect("it is a name")
    }

    #[test]
    fn a_record_gives_its_key_back() {
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
    fn what_is_tagged_gives_its_key_back() {
        let keyspace = keyspace(Kind::RateLimiter, "api");
        for key in ["", "ada", "{", "}", "}:{", "{a}", "a:b"] {
            assert_eq!(key_of_tagged(&keyspace.tagged(key.as_bytes())), key.as_bytes());
        }
    }

    #[test]
    fn no_two_keys_of_different_names_or_types_are_one() {
        let parts = ["a", "b", "7", "a:b", "b:7", "a:b:7", ":", "a:7"];
        let mut all = BTreeMap::new();
        let mut add = |key: Vec<u8>, whose: String| {
            let other = all.insert(key, whose.clone());
            assert!(other.as_ref().is_none_or(|other| *other == whose), "{whose} and {other:?}");
        };
        for name in parts {
            for kind in [Kind::Cache, Kind::TimeoutDict] {
                let keyspace = keyspace(kind, name);
                (0..SHARDS).for_each(|shard| {
                    add(keyspace.index(shard).to_vec(), format!("{kind:?} {name}, {shard}"));
                });
                for key in parts.into_iter().chain(["}", "{", "}:a", "}}", ""]) {
                    add(keyspace.record(key.as_bytes()), format!("{kind:?} {name}, key {key}"));
                }
            }
            add(keyspace(Kind::ExpiringSet, name).single(), format!("set {name}"));
            for key in parts.into_iter().chain(["}", "{", "}:a", "}}", ""]) {
                let subject = keyspace(Kind::RateLimiter, name).tagged(key.as_bytes());
                add(subject, format!("limit {name}, key {key}"));
            }
        }
    }

    #[test]
    fn braces_are_no_part_of_a_name() {
        for name in ["", "a{b", "a}b"] {
            assert!(
                matches!(Keyspace::new("p", Kind::Cache, name), Err(Error::Name(bad)) if bad == name)
            );
        }
    }
}
