//! The file: a head, blocks of entries, an end. Nothing of it is believed before it was checked.
//!
//! 1. All numbers are little-endian. Head and frames have 32 bytes each, which end with their checksum (CRC-32).
//! 2. That of a frame is of all frames before it too: so blocks can't be left out, doubled or exchanged, or come from
//!    another snapshot.
//! 3. A frame tells how long its block is, and what checksum that has. The frame of no bytes is the end, and tells how
//!    many entries there were.
//! 4. A block is entries one after the other, each the MessagePack of `(left, more, tags, key, value)` with the names of
//!    fields: see [`RemainingTtl`].

use std::{io::Cursor, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize, Serializer, de::DeserializeOwned};

use super::error::SnapshotError;
use crate::engine::{
    clock::{Deadline, Tick},
    store::Tag,
};

/// How many bytes a head has, and a frame.
pub(super) const FRAME: usize = 32;

const MAGIC: [u8; 8] = *b"fleeting";
const VERSION: u16 = 2;
const LZ4: u16 = 1;

/// How many times its size a block of LZ4 may have when it is unpacked.
const MOST_UNPACKED: u64 = 255;

/// How few bytes an entry may have: five of its parts, and what tells that there are five.
const LEAST_ENTRY: u64 = 6;

/// What a snapshot begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// When it was begun: since 1970.
    pub(super) at: Duration,
    pub(super) is_compressed: bool,
}

/// What a block begins with.
pub(super) struct Frame {
    /// How many bytes the block has in the file.
    pub(super) stored: u64,
    unpacked: u64,
    pub(super) entries: u64,
    checksum: u32,
}

/// What an entry had left to live, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RemainingTtl {
    /// None: it has no deadline.
    left: Option<u64>,
    /// How much more that is where somebody reads it, in a cache whose entries die idle; the most there is, for ever.
    more: u64,
}

/// The names of the tags of an entry.
struct Names<'a>(&'a [Arc<Tag>]);

/// The checksum of all heads and frames so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chain(u32);

/// Entries on their way into the file.
pub(super) struct Block {
    is_compressed: bool,
    chain: Chain,
    /// With room for the frame before them.
    plain: Vec<u8>,
    packed: Vec<u8>,
    entries: u64,
    entries_before: u64,
}

impl Head {
    pub(super) fn to_bytes(self) -> [u8; FRAME] {
        let mut bytes = [0; FRAME];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10..12].copy_from_slice(&if self.is_compressed { LZ4 } else { 0 }.to_le_bytes());
        let at = u64::try_from(self.at.as_nanos()).unwrap_or(u64::MAX);
        bytes[16..24].copy_from_slice(&at.to_le_bytes());
        seal(Chain(0), &mut bytes);
        bytes
    }

    /// Of the first bytes of a file, which may be too few.
    pub(super) fn parse(bytes: &[u8]) -> Result<(Self, Chain), SnapshotError> {
        let magic = bytes.len().min(MAGIC.len());
        if bytes[..magic] != MAGIC[..magic] {
            return Err(SnapshotError::NotASnapshot);
        }
        let bytes: &[u8; FRAME] = bytes.try_into().map_err(|_| SnapshotError::Truncated)?;
        let chain = open(Chain(0), bytes)?;
        let version = u16::from_le_bytes(part(bytes, 8));
        let flags = u16::from_le_bytes(part(bytes, 10));
        if version != VERSION || flags & !LZ4 != 0 {
            return Err(SnapshotError::Version(version));
        }
        let at = Duration::from_nanos(u64::from_le_bytes(part(bytes, 16)));
        Ok((Self { at, is_compressed: flags & LZ4 != 0 }, chain))
    }
}

impl Frame {
    /// None at the end of a file that has had so many entries.
    pub(super) fn parse(
        bytes: &[u8; FRAME],
        head: Head,
        entries_before: u64,
        chain: &mut Chain,
    ) -> Result<Option<Self>, SnapshotError> {
        *chain = open(*chain, bytes)?;
        let frame = Self {
            stored: u64::from_le_bytes(part(bytes, 0)),
            unpacked: u64::from_le_bytes(part(bytes, 8)),
            entries: u64::from_le_bytes(part(bytes, 16)),
            checksum: u32::from_le_bytes(part(bytes, 24)),
        };
        let is_right = match frame.stored {
            0 => frame.unpacked == 0 && frame.entries == entries_before,
            stored if head.is_compressed => {
                frame.unpacked <= stored.saturating_mul(MOST_UNPACKED) && frame.is_filled()
            }
            stored => frame.unpacked == stored && frame.is_filled(),
        };
        if !is_right {
            return Err(SnapshotError::Damaged);
        }
        Ok((frame.stored > 0).then_some(frame))
    }

    /// Whether it may have so many entries.
    fn is_filled(&self) -> bool {
        self.entries > 0 && self.entries <= self.unpacked / LEAST_ENTRY
    }

    /// The entries of a block, each with what it had left; `stored` is what the file has of it.
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
        let unpacked;
        let plain = if head.is_compressed {
            let size = usize::try_from(self.unpacked).map_err(|_| SnapshotError::Damaged)?;
            let plain = lz4_flex::block::decompress(stored, size);
            unpacked = plain.map_err(|_| SnapshotError::Damaged)?;
            &unpacked[..]
        } else {
            stored
        };
        let mut from = rmp_serde::Deserializer::new(Cursor::new(plain));
        for _ in 0..self.entries {
            let entry = <(Option<u64>, u64, Vec<Box<str>>, K, V)>::deserialize(&mut from);
            let (left, more, tags, key, value) =
                entry.map_err(|error| SnapshotError::Decode(error.into()))?;
            each(RemainingTtl { left, more }, tags, key, value);
        }
        if from.position() != plain.len() as u64 {
            return Err(SnapshotError::Decode("a block has more than its entries".into()));
        }
        Ok(())
    }
}

impl RemainingTtl {
    /// Of an entry that dies at `deadline`, and may live until `hard_deadline`.
    pub(super) fn of(deadline: Deadline, hard_deadline: Deadline, now: Tick) -> Self {
        let left = |deadline: Deadline| deadline.remaining(now).map(|left| left.as_nanos() as u64);
        let more = match (left(deadline), left(hard_deadline)) {
            (Some(left), Some(hard_deadline)) => hard_deadline.saturating_sub(left),
            (Some(_), None) => u64::MAX,
            (None, _) => 0,
        };
        Self { left: left(deadline), more }
    }

    /// Until when it may live, `away` later; none where it has died.
    pub(super) fn until(self, now: Tick, away: Duration) -> Option<Deadline> {
        let Some(left) = self.left else { return Some(Deadline::PERSISTENT) };
        let left = Duration::from_nanos(left).checked_sub(away).filter(|left| !left.is_zero())?;
        Some(match self.more {
            u64::MAX => Deadline::PERSISTENT,
            more => now.after(left.saturating_add(Duration::from_nanos(more))),
        })
    }
}

impl Block {
    /// Also what a file with this head begins with.
    pub(super) fn first(head: Head) -> (Self, [u8; FRAME]) {
        let bytes = head.to_bytes();
        let chain = Chain(u32::from_le_bytes(part(&bytes, FRAME - 4)));
        let block = Self {
            is_compressed: head.is_compressed,
            chain,
            plain: vec![0; FRAME],
            packed: Vec::new(),
            entries: 0,
            entries_before: 0,
        };
        (block, bytes)
    }

    /// How many bytes are in it.
    pub(super) fn len(&self) -> usize {
        self.plain.len() - FRAME
    }

    pub(super) fn push<K, V>(
        &mut self,
        RemainingTtl { left, more }: RemainingTtl,
        tags: &[Arc<Tag>],
        key: &K,
        value: &V,
    ) -> Result<(), SnapshotError>
    where
        K: Serialize,
        V: Serialize,
    {
        let mut to = rmp_serde::Serializer::new(&mut self.plain).with_struct_map();
        let entry = (left, more, Names(tags), key, value).serialize(&mut to);
        entry.map_err(|error| SnapshotError::Encode(error.into()))?;
        self.entries += 1;
        Ok(())
    }

    /// The block as the file has it. What is pushed afterwards is in the next one.
    pub(super) fn seal(&mut self) -> &[u8] {
        let unpacked = self.len();
        let bytes = if self.is_compressed {
            self.packed.resize(FRAME + lz4_flex::block::get_maximum_output_size(unpacked), 0);
            let packed =
                lz4_flex::block::compress_into(&self.plain[FRAME..], &mut self.packed[FRAME..]);
            self.packed.truncate(FRAME + packed.expect("there is room for the worst"));
            &mut self.packed
        } else {
            &mut self.plain
        };
        let (frame, stored) = bytes.split_at_mut(FRAME);
        let frame: &mut [u8; FRAME] = frame.try_into().expect("it was split there");
        let checksum = crc32fast::hash(stored);
        frame[..8].copy_from_slice(&(stored.len() as u64).to_le_bytes());
        frame[8..16].copy_from_slice(&(unpacked as u64).to_le_bytes());
        frame[16..24].copy_from_slice(&self.entries.to_le_bytes());
        frame[24..28].copy_from_slice(&checksum.to_le_bytes());
        self.chain = seal(self.chain, frame);
        self.entries_before += self.entries;
        self.entries = 0;
        bytes
    }

    /// Makes room for the next block, in the same memory.
    pub(super) fn clear(&mut self) {
        self.plain.truncate(FRAME);
    }

    /// What the file ends with, and how many entries it has.
    pub(super) fn end(self) -> ([u8; FRAME], u64) {
        let mut bytes = [0; FRAME];
        bytes[16..24].copy_from_slice(&self.entries_before.to_le_bytes());
        seal(self.chain, &mut bytes);
        (bytes, self.entries_before)
    }
}

impl Serialize for Names<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|tag| tag.name()))
    }
}

/// Writes the checksum to its place.
fn seal(chain: Chain, bytes: &mut [u8; FRAME]) -> Chain {
    let checksum = checksum(chain, bytes);
    bytes[FRAME - 4..].copy_from_slice(&checksum.to_le_bytes());
    Chain(checksum)
}

/// Whether the checksum is right.
fn open(chain: Chain, bytes: &[u8; FRAME]) -> Result<Chain, SnapshotError> {
    let checksum = checksum(chain, bytes);
    let is_right = bytes[FRAME - 4..] == checksum.to_le_bytes();
    is_right.then_some(Chain(checksum)).ok_or(SnapshotError::Damaged)
}

fn checksum(chain: Chain, bytes: &[u8; FRAME]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(chain.0);
    hasher.update(&bytes[..FRAME - 4]);
    hasher.finalize()
}

fn part<const N: usize>(bytes: &[u8; FRAME], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("it is within the frame")
}
