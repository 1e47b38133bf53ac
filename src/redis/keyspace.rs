//! How keys are named on the server, and by which hash tag a cluster keeps them together.
//!
//! A record of shard `i` is `prefix:{name:i}:key`, and the shard's index `prefix:{name:i}`: one hash tag, so
//! that a cluster keeps them in one slot. A shard is the CRC16 of the key (as clusters count slots), modulo
//! the number of shards.

use super::Error;

/// Enough that a cluster spreads a name, few enough that asking each is cheap. With another number, what is on
/// servers already would not be found.
pub(super) const SHARDS: u16 = 16;

/// The keys of one name. It is written into the data of every user: nothing here may ever change.
#[derive(Clone, Debug)]
pub(super) struct Keyspace {
    /// For each shard.
    indexes: Vec<Vec<u8>>,
    /// Up to the shard's number.
    stem: String,
}

impl Keyspace {
    pub(super) fn new(prefix: &str, name: &str) -> Result<Self, Error> {
        check_name(name)?;
        let stem = format!("{prefix}:{{{name}");
        let indexes = (0..SHARDS).map(|shard| format!("{stem}:{shard}}}").into_bytes());
        Ok(Self { indexes: indexes.collect(), stem })
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
        let after = record.strip_prefix(self.stem.as_bytes())?;
        let end = after.iter().position(|byte| *byte == b'}')?;
        after[end + 1..].strip_prefix(b":")
    }

    /// What `SCAN` may look for to find all records; not all that it finds are.
    pub(super) fn scan_pattern(&self) -> Vec<u8> {
        let mut pattern = Vec::with_capacity(self.stem.len() + 6);
        for byte in self.stem.bytes() {
            // A name may have what means something in a pattern.
            if b"*?[]\\".contains(&byte) {
                pattern.push(b'\\');
            }
            pattern.push(byte);
        }
        pattern.extend_from_slice(b":*}:*");
        pattern
    }

    /// A key of the name that has a hash tag of its own: `prefix:{name:key}`.
    pub(super) fn tagged(&self, key: &[u8]) -> Vec<u8> {
        let mut tagged = Vec::with_capacity(self.stem.len() + key.len() + 2);
        tagged.extend_from_slice(self.stem.as_bytes());
        tagged.push(b':');
        tagged.extend_from_slice(key);
        tagged.push(b'}');
        tagged
    }
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

    #[test]
    fn a_record_gives_its_key_back() {
        let keyspace = Keyspace::new("shop", "sessions").expect("it is a name");
        for key in ["", "ada", "}:{", "a:b"] {
            let record = keyspace.record(key.as_bytes());
            assert!(record.starts_with(b"shop:{sessions:"));
            assert_eq!(keyspace.key_of(&record), Some(key.as_bytes()));
        }
        assert_eq!(keyspace.key_of(b"shop:{others:0}:ada"), None);
    }

    #[test]
    fn braces_are_no_part_of_a_name() {
        for name in ["", "a{b", "a}b"] {
            assert!(matches!(Keyspace::new("p", name), Err(Error::Name(bad)) if bad == name));
        }
    }
}
