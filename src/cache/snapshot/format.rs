//! Binary format of a snapshot: a head, blocks of entries, and an end frame. No field is trusted before it is checked.
//!
//! 1. All numbers are little-endian. The head and each frame have 32 bytes, of which the last four are a checksum
//!    (CRC-32).
//! 2. The checksum of a frame also covers all frames before it. So blocks cannot be left out, duplicated, exchanged, or
//!    taken from another snapshot.
//! 3. A frame precedes each block, with its length, entry count and checksum. A frame of length 0 ends the snapshot,
//!    and has the total number of entries.
//! 4. A block is a sequence of entries, each encoded as the MessagePack of `(ttl, idle_extension, tags, key, value)`
//!    with the names of fields: see [`RemainingTtl`].

use std::{io::Cursor, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize, Serializer, de::DeserializeOwned};

use super::error::SnapshotError;
use crate::engine::{
    clock::{Deadline, Tick},
    encodable::Encodable,
    nesting::{MAX_DEPTH, check_message_pack},
    store::Tag,
};

/// Size of the head and of a frame, in bytes.
pub(super) const FRAME_SIZE: usize = 32;

/// First bytes of every snapshot.
const MAGIC: [u8; 8] = *b"fleeting";
/// Version of this format. Others are rejected.
const VERSION: u16 = 2;
/// Flag of the head: the blocks are compressed.
const FLAG_LZ4: u16 = 1;

/// Maximum size of a decompressed block, as a multiple of its stored size: the limit of LZ4. It bounds the memory that
/// a forged frame can make `restore` allocate.
const MAX_EXPANSION: u64 = 255;

/// Minimum size of an encoded entry, in bytes: the header of the array and one byte for each of its five elements.
const MIN_ENTRY_SIZE: u64 = 6;

/// Start of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Wall-clock time at which the snapshot was started, since the Unix epoch.
    pub(super) created_at: Duration,
    pub(super) is_compressed: bool,
}

/// Header of a block.
pub(super) struct Frame {
    /// Length of the block in the file, in bytes.
    pub(super) stored_len: u64,
    /// Length of the block after decompression, in bytes.
    plain_len: u64,
    /// Number of entries in the block; in the end frame, in all blocks.
    pub(super) entries: u64,
    /// CRC-32 of the block as stored.
    checksum: u32,
}

/// Remaining lifetime of an entry when the snapshot was started, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RemainingTtl {
    /// Time until its deadline; `None` if it has none.
    ttl: Option<u64>,
    /// Time from that deadline to its hard deadline, by which reads may extend it in a cache with `time_to_idle`.
    /// `u64::MAX` if it has no hard deadline.
    idle_extension: u64,
}

/// Serializes the tags of an entry as a sequence of their names.
struct SerializedTags<'a>(&'a [Arc<Tag>]);

/// Checksum of the head and all frames so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chain(u32);

/// Frames of a snapshot, in the order in which they are written: each depends on all before it.
pub(super) struct Frames {
    chain: Chain,
    /// Number of entries in the blocks so far.
    entries: u64,
}

/// Encoded entries, with space for their frame. Blocks do not depend on each other, so any thread can fill one.
pub(super) struct Block {
    is_compressed: bool,
    /// Encoded entries, preceded by `FRAME_SIZE` bytes for the frame, so that both are written in one call.
    bytes: Vec<u8>,
    entries: u64,
}

/// A block as it is written, except for the part of its frame that depends on the frames before it.
pub(super) struct SealedBlock {
    bytes: Vec<u8>,
    entries: u64,
}

impl Head {
    /// Encodes the head.
    pub(super) fn to_bytes(self) -> [u8; FRAME_SIZE] {
        let mut bytes = [0; FRAME_SIZE];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10..12].copy_from_slice(&if self.is_compressed { FLAG_LZ4 } else { 0 }.to_le_bytes());
        let created_at = u64::try_from(self.created_at.as_nanos()).unwrap_or(u64::MAX);
        bytes[16..24].copy_from_slice(&created_at.to_le_bytes());
        write_checksum(Chain(0), &mut bytes);
        bytes
    }

    /// Decodes the head from the first bytes of a file, which may be too few.
    pub(super) fn parse(bytes: &[u8]) -> Result<(Self, Chain), SnapshotError> {
        let len = bytes.len().min(MAGIC.len());
        if bytes[..len] != MAGIC[..len] {
            return Err(SnapshotError::NotASnapshot);
        }
        let bytes: &[u8; FRAME_SIZE] = bytes.try_into().map_err(|_| SnapshotError::Truncated)?;
        let chain = verify_checksum(Chain(0), bytes)?;
        let version = u16::from_le_bytes(field(bytes, 8));
        let flags = u16::from_le_bytes(field(bytes, 10));
        if version != VERSION || flags & !FLAG_LZ4 != 0 {
            return Err(SnapshotError::Version(version));
        }
        let created_at = Duration::from_nanos(u64::from_le_bytes(field(bytes, 16)));
        Ok((Self { created_at, is_compressed: flags & FLAG_LZ4 != 0 }, chain))
    }
}

impl Frame {
    /// Decodes a frame and continues `chain`; returns `None` for the end frame. `entries_before` is the number of
    /// entries of the preceding blocks, which the end frame has to match.
    pub(super) fn parse(
        bytes: &[u8; FRAME_SIZE],
        head: Head,
        entries_before: u64,
        chain: &mut Chain,
    ) -> Result<Option<Self>, SnapshotError> {
        *chain = verify_checksum(*chain, bytes)?;
        let frame = Self {
            stored_len: u64::from_le_bytes(field(bytes, 0)),
            plain_len: u64::from_le_bytes(field(bytes, 8)),
            entries: u64::from_le_bytes(field(bytes, 16)),
            checksum: u32::from_le_bytes(field(bytes, 24)),
        };
        let is_valid = match frame.stored_len {
            0 => frame.plain_len == 0 && frame.entries == entries_before,
            stored_len if head.is_compressed => {
                frame.plain_len <= stored_len.saturating_mul(MAX_EXPANSION)
                    && frame.has_possible_entry_count()
            }
            stored_len => frame.plain_len == stored_len && frame.has_possible_entry_count(),
        };
        if !is_valid {
            return Err(SnapshotError::Damaged);
        }
        Ok((frame.stored_len > 0).then_some(frame))
    }

    /// Returns whether the entry count is possible for the size of the block. It bounds the loop over a forged count.
    fn has_possible_entry_count(&self) -> bool {
        self.entries > 0 && self.entries <= self.plain_len / MIN_ENTRY_SIZE
    }

    /// Decodes the entries of a block from its stored bytes, and passes each with its remaining TTL and tags to `each`.
    pub(super) fn entries<K, V>(
        &self,
        head: Head,
        stored: &[u8],
        mut each: impl FnMut(RemainingTtl, Vec<Box<str>>, K, V),
    ) -> Result<(), SnapshotError>
    where
        K: DeserializeOwned,
        V: DeserializeOwned,
    {
        if crc32fast::hash(stored) != self.checksum {
            return Err(SnapshotError::Damaged);
        }
        let decompressed;
        let plain = if head.is_compressed {
            let plain_len = usize::try_from(self.plain_len).map_err(|_| SnapshotError::Damaged)?;
            let result = lz4_flex::block::decompress(stored, plain_len);
            decompressed = result.map_err(|_| SnapshotError::Damaged)?;
            &decompressed[..]
        } else {
            stored
        };
        // Each entry is an array around its key and value.
        check_message_pack(plain, MAX_DEPTH + 1)
            .map_err(|error| SnapshotError::Decode(error.into()))?;
        let mut deserializer = rmp_serde::Deserializer::new(Cursor::new(plain));
        for _ in 0..self.entries {
            let entry = <(Option<u64>, u64, Vec<Box<str>>, K, V)>::deserialize(&mut deserializer);
            let (ttl, idle_extension, tags, key, value) =
                entry.map_err(|error| SnapshotError::Decode(error.into()))?;
            each(RemainingTtl { ttl, idle_extension }, tags, key, value);
        }
        if deserializer.position() != plain.len() as u64 {
            return Err(SnapshotError::Decode("a block has data after its last entry".into()));
        }
        Ok(())
    }
}

impl RemainingTtl {
    /// Returns the remaining TTL of an entry with these two deadlines.
    pub(super) fn of(deadline: Deadline, hard_deadline: Deadline, now: Tick) -> Self {
        let remaining =
            |deadline: Deadline| deadline.remaining(now).map(|ttl| ttl.as_nanos() as u64);
        let idle_extension = match (remaining(deadline), remaining(hard_deadline)) {
            (Some(ttl), Some(hard_ttl)) => hard_ttl.saturating_sub(ttl),
            (Some(_), None) => u64::MAX,
            (None, _) => 0,
        };
        Self { ttl: remaining(deadline), idle_extension }
    }

    /// Returns the hard deadline of an entry that is restored `elapsed` after the snapshot; `None` if it has expired.
    pub(super) fn deadline_after(self, now: Tick, elapsed: Duration) -> Option<Deadline> {
        let Some(ttl) = self.ttl else { return Some(Deadline::PERSISTENT) };
        let ttl = Duration::from_nanos(ttl).checked_sub(elapsed).filter(|ttl| !ttl.is_zero())?;
        Some(match self.idle_extension {
            u64::MAX => Deadline::PERSISTENT,
            idle_extension => now.after(ttl.saturating_add(Duration::from_nanos(idle_extension))),
        })
    }
}

impl Frames {
    /// Returns the frames of a snapshot with this head, and the encoded head, which is written first.
    pub(super) fn new(head: Head) -> (Self, [u8; FRAME_SIZE]) {
        let bytes = head.to_bytes();
        let chain = Chain(u32::from_le_bytes(field(&bytes, FRAME_SIZE - 4)));
        (Self { chain, entries: 0 }, bytes)
    }

    /// Completes the frame of the next block; returns the frame and the block.
    pub(super) fn add(&mut self, SealedBlock { mut bytes, entries }: SealedBlock) -> Vec<u8> {
        let frame = bytes.first_chunk_mut().expect("a block begins with its frame");
        self.chain = write_checksum(self.chain, frame);
        self.entries += entries;
        bytes
    }

    /// Returns the end frame and the total number of entries.
    pub(super) fn end(self) -> ([u8; FRAME_SIZE], u64) {
        let mut bytes = [0; FRAME_SIZE];
        bytes[16..24].copy_from_slice(&self.entries.to_le_bytes());
        write_checksum(self.chain, &mut bytes);
        (bytes, self.entries)
    }
}

impl Block {
    /// Returns an empty block in the memory of `bytes`.
    pub(super) fn new(is_compressed: bool, mut bytes: Vec<u8>) -> Self {
        bytes.clear();
        bytes.resize(FRAME_SIZE, 0);
        Self { is_compressed, bytes, entries: 0 }
    }

    /// Returns the size of the encoded entries, in bytes.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - FRAME_SIZE
    }

    /// Encodes an entry to the end of the block.
    pub(super) fn push<K, V>(
        &mut self,
        RemainingTtl { ttl, idle_extension }: RemainingTtl,
        tags: &[Arc<Tag>],
        key: &K,
        value: &V,
    ) -> Result<(), SnapshotError>
    where
        K: Serialize,
        V: Serialize,
    {
        let mut serializer = rmp_serde::Serializer::new(&mut self.bytes).with_struct_map();
        let (key, value) = (Encodable::new(key), Encodable::new(value));
        let entry =
            (ttl, idle_extension, SerializedTags(tags), key, value).serialize(&mut serializer);
        entry.map_err(|error| SnapshotError::Encode(error.into()))?;
        self.entries += 1;
        Ok(())
    }

    /// Compresses the block, if it is to be, and computes its checksum.
    pub(super) fn seal(self) -> SealedBlock {
        let plain_len = self.len();
        let mut bytes = if self.is_compressed { compressed(&self.bytes) } else { self.bytes };
        let (frame, stored) = bytes.split_at_mut(FRAME_SIZE);
        frame[..8].copy_from_slice(&(stored.len() as u64).to_le_bytes());
        frame[8..16].copy_from_slice(&(plain_len as u64).to_le_bytes());
        frame[16..24].copy_from_slice(&self.entries.to_le_bytes());
        frame[24..28].copy_from_slice(&crc32fast::hash(stored).to_le_bytes());
        SealedBlock { bytes, entries: self.entries }
    }
}

impl SealedBlock {
    pub(super) fn is_empty(&self) -> bool {
        self.entries == 0
    }
}

/// Compresses a block, except for the space for its frame.
fn compressed(plain: &[u8]) -> Vec<u8> {
    let plain = &plain[FRAME_SIZE..];
    let mut bytes = vec![0; FRAME_SIZE + lz4_flex::block::get_maximum_output_size(plain.len())];
    let len = lz4_flex::block::compress_into(plain, &mut bytes[FRAME_SIZE..]);
    bytes.truncate(FRAME_SIZE + len.expect("the buffer has the maximum output size"));
    bytes
}

impl Serialize for SerializedTags<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|tag| tag.name()))
    }
}

/// Writes the checksum to the end of a head or frame, and returns the new chain.
fn write_checksum(chain: Chain, bytes: &mut [u8; FRAME_SIZE]) -> Chain {
    let checksum = chained_checksum(chain, bytes);
    bytes[FRAME_SIZE - 4..].copy_from_slice(&checksum.to_le_bytes());
    Chain(checksum)
}

/// Verifies the checksum of a head or frame, and returns the new chain.
fn verify_checksum(chain: Chain, bytes: &[u8; FRAME_SIZE]) -> Result<Chain, SnapshotError> {
    let checksum = chained_checksum(chain, bytes);
    let is_valid = bytes[FRAME_SIZE - 4..] == checksum.to_le_bytes();
    is_valid.then_some(Chain(checksum)).ok_or(SnapshotError::Damaged)
}

/// Computes the checksum of a head or frame, continued from the previous one.
fn chained_checksum(chain: Chain, bytes: &[u8; FRAME_SIZE]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(chain.0);
    hasher.update(&bytes[..FRAME_SIZE - 4]);
    hasher.finalize()
}

/// Returns `N` bytes of a head or frame at `offset`.
fn field<const N: usize>(bytes: &[u8; FRAME_SIZE], offset: usize) -> [u8; N] {
    bytes[offset..offset + N].try_into().expect("the slice has this length")
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    enum Chain {
        Deep(#[allow(dead_code)] Box<Chain>),
    }

    /// Bytes that this release does not write, with a valid checksum.
    #[test]
    fn restore_rejects_a_value_that_is_nested_too_deeply() {
        for (open, depth) in
            [(&b"\x81\xa4Deep"[..], 128), (b"\x81\xa4Deep", 1_000_000), (b"\x91", 900)]
        {
            let entry = [&[0x95, 0xc0, 0, 0x90, 1], &open.repeat(depth)[..], &[1]].concat();
            let len = entry.len() as u64;
            let checksum = crc32fast::hash(&entry);
            let frame = Frame { stored_len: len, plain_len: len, entries: 1, checksum };
            let head = Head { created_at: Duration::ZERO, is_compressed: false };
            let result = frame.entries::<u32, Chain>(head, &entry, |_, _, _, _| {});
            assert!(
                matches!(&result, Err(SnapshotError::Decode(error)) if error.to_string().contains("127 levels")),
                "{result:?}"
            );
        }
    }
}
