//! Reading of a snapshot: all entries are read and checked before the first is inserted into the cache.

use std::{
    iter::Flatten,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
    vec,
};

use serde::de::DeserializeOwned;
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    task::yield_now,
};

use super::{
    error::SnapshotError,
    format::{FRAME_SIZE, Frame, Head},
};
use crate::engine::clock::{Clock, Deadline, wall_clock};

/// Entries that were read and checked, in one vector per block, so that the memory of a block is freed when its entries
/// are inserted.
pub(super) type EntryBlocks<K, V> = Vec<Vec<StoredEntry<K, V>>>;

/// Entry that was live when it was read.
pub(super) struct StoredEntry<K, V> {
    pub(super) key: K,
    pub(super) value: V,
    pub(super) deadline: Deadline,
    /// Boxed, because few entries have tags, and all entries are held in memory at once.
    #[allow(clippy::box_collection)]
    pub(super) tags: Option<Box<Vec<Box<str>>>>,
}

/// Inserts entries into the cache. Dropping it inserts the rest, so that a cancelled `restore` does not leave a part of
/// the snapshot out.
pub(super) struct RestoreGuard<K, V, P: FnMut(StoredEntry<K, V>)> {
    entries: Flatten<vec::IntoIter<Vec<StoredEntry<K, V>>>>,
    put: P,
}

/// Reads a whole snapshot and returns its live entries.
pub(super) async fn read<K, V>(
    clock: &Clock,
    mut reader: impl AsyncRead + Unpin,
) -> Result<EntryBlocks<K, V>, SnapshotError>
where
    K: DeserializeOwned,
    V: DeserializeOwned,
{
    let now = clock.now();
    let now_wall = wall_clock(clock.instant(now));
    let mut buffer = Vec::new();
    read_up_to(&mut reader, FRAME_SIZE as u64, &mut buffer).await?;
    let (head, mut chain) = Head::parse(&buffer)?;
    let elapsed = round_to_milliseconds(now_wall.saturating_sub(head.created_at));
    let mut entries = Vec::new();
    let mut count = 0;
    loop {
        read_up_to(&mut reader, FRAME_SIZE as u64, &mut buffer).await?;
        let frame = buffer[..].try_into().map_err(|_| SnapshotError::Truncated)?;
        let Some(frame) = Frame::parse(frame, head, count, &mut chain)? else {
            return Ok(entries);
        };
        count += frame.entries;
        read_up_to(&mut reader, frame.stored_len, &mut buffer).await?;
        if (buffer.len() as u64) < frame.stored_len {
            return Err(SnapshotError::Truncated);
        }
        let mut block = Vec::new();
        frame.entries(head, &buffer, |remaining, tags, key, value| {
            if let Some(deadline) = remaining.deadline_after(now, elapsed) {
                let tags = (!tags.is_empty()).then(|| Box::new(tags));
                block.push(StoredEntry { key, value, deadline, tags });
            }
        })?;
        entries.push(block);
        // A reader of memory never waits, so without this a large snapshot would block its worker.
        yield_now().await;
    }
}

impl<K, V, P: FnMut(StoredEntry<K, V>)> RestoreGuard<K, V, P> {
    pub(super) fn new(entries: EntryBlocks<K, V>, put: P) -> Self {
        Self { entries: entries.into_iter().flatten(), put }
    }

    /// Inserts the next entry; returns false if there is none left.
    pub(super) fn put_next(&mut self) -> bool {
        let next = self.entries.next();
        next.map(|entry| (self.put)(entry)).is_some()
    }
}

impl<K, V, P: FnMut(StoredEntry<K, V>)> Drop for RestoreGuard<K, V, P> {
    fn drop(&mut self) {
        // A panic of user code in one insertion must not prevent the others.
        while catch_unwind(AssertUnwindSafe(|| self.put_next())).unwrap_or(true) {}
    }
}

/// Reads `bytes` bytes, or fewer at the end of the input. Memory is allocated as data arrives, because a forged length
/// may be arbitrarily large.
async fn read_up_to(
    reader: &mut (impl AsyncRead + Unpin),
    bytes: u64,
    into: &mut Vec<u8>,
) -> Result<(), SnapshotError> {
    into.clear();
    reader.take(bytes).read_to_end(into).await.map_err(SnapshotError::Read)?;
    Ok(())
}

/// Rounds to the nearest millisecond: smaller differences between two readings of the wall clock are noise.
fn round_to_milliseconds(duration: Duration) -> Duration {
    Duration::from_millis(duration.saturating_add(Duration::from_micros(500)).as_millis() as u64)
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::{
        super::format::{Block, Frames, RemainingTtl},
        *,
    };
    use crate::engine::clock::Tick;

    const SECOND: Duration = Duration::from_secs(1);

    async fn restored(bytes: &[u8]) -> Result<Vec<(u32, u32, Deadline)>, SnapshotError> {
        let entries = read(&Clock::new(), bytes).await?.into_iter().flatten();
        Ok(entries.map(|StoredEntry { key, value, deadline, .. }| (key, value, deadline)).collect())
    }

    fn written(head: Head) -> Vec<u8> {
        let (mut frames, bytes) = Frames::new(head);
        let mut block = Block::new(head.is_compressed, Vec::new());
        let deadline = Tick::EPOCH.after(SECOND);
        block.push(RemainingTtl::of(deadline, deadline, Tick::EPOCH), &[], &1_u32, &2_u32).unwrap();
        let never = Deadline::PERSISTENT;
        block.push(RemainingTtl::of(never, never, Tick::EPOCH), &[], &3_u32, &4_u32).unwrap();
        let block = frames.add(block.seal());
        [&bytes[..], &block, &frames.end().0].concat()
    }

    #[tokio::test(start_paused = true)]
    async fn wall_clock_set_back_takes_nothing_off_a_restored_ttl() {
        let created_at = wall_clock(tokio::time::Instant::now()) + 3_600 * SECOND;
        let entries = restored(&written(Head { created_at, is_compressed: false })).await.unwrap();
        let remaining = entries[0].2.remaining(Clock::new().now());
        assert!(remaining <= Some(SECOND) && remaining > Some(SECOND / 2), "{remaining:?}");
        assert_eq!(entries.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn restore_skips_expired_entries_of_a_snapshot_from_1970() {
        let head = Head { created_at: Duration::ZERO, is_compressed: true };
        assert_eq!(restored(&written(head)).await.unwrap(), [(3, 4, Deadline::PERSISTENT)]);
    }

    #[tokio::test]
    async fn restore_rejects_an_unknown_version_or_flag() {
        let mut bytes = written(Head { created_at: SECOND, is_compressed: false });
        bytes[8] = 3;
        let checksum = crc32fast::hash(&bytes[..28]);
        bytes[28..32].copy_from_slice(&checksum.to_le_bytes());
        assert!(matches!(restored(&bytes).await, Err(SnapshotError::Version(3))));
        // A flag that this version does not define.
        bytes[8] = 2;
        bytes[11] = 0x80;
        let checksum = crc32fast::hash(&bytes[..28]);
        bytes[28..32].copy_from_slice(&checksum.to_le_bytes());
        assert!(matches!(restored(&bytes).await, Err(SnapshotError::Version(2))));
    }

    /// The checksums are valid, as in a forged file. No memory may be allocated for data that is not there.
    #[tokio::test]
    async fn restore_rejects_frames_with_impossible_lengths() {
        for (is_compressed, stored_len, plain_len, entries) in [
            (false, 1 << 62, 1 << 62, 1 << 40),
            (false, 100, 100, 26),
            (false, 100, 99, 1),
            (true, 100, 25_501, 1),
            (true, u64::MAX, u64::MAX, 1),
            (true, 0, 1, 0),
            (true, 0, 0, 1),
        ] {
            let head = Head { created_at: SECOND, is_compressed };
            let mut bytes = head.to_bytes().to_vec();
            for number in [stored_len, plain_len, entries] {
                bytes.extend(u64::to_le_bytes(number));
            }
            bytes.extend([0; 4]);
            let mut hasher = crc32fast::Hasher::new();
            hasher.update(&bytes[..28]);
            hasher.update(&bytes[32..]);
            bytes.extend(hasher.finalize().to_le_bytes());
            bytes.extend([0xc0; 100]);
            let result = restored(&bytes).await;
            let is_rejected =
                matches!(result, Err(SnapshotError::Damaged | SnapshotError::Truncated));
            assert!(
                is_rejected,
                "lengths {stored_len} and {plain_len}, {entries} entries: {result:?}"
            );
        }
    }
}
