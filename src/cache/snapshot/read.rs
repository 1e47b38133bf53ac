//! Reading a snapshot: all of it is read and checked before any of it comes into the cache.

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
    format::{FRAME, Frame, Head},
};
use crate::engine::clock::{Clock, Deadline, wall_clock};

/// Entries that were read and checked, block by block, so that the memory of each goes as it comes into the cache.
pub(super) type Entries<K, V> = Vec<Vec<Stored<K, V>>>;

/// An entry that was live when it was read.
pub(super) struct Stored<K, V> {
    pub(super) key: K,
    pub(super) value: V,
    pub(super) until: Deadline,
    /// Boxed: hardly any entry has some, and all are held at once.
    #[allow(clippy::box_collection)]
    pub(super) tags: Option<Box<Vec<Box<str>>>>,
}

/// Entries on their way into the cache: all of them come there, also where whoever awaits that gives up.
pub(super) struct RestoreGuard<K, V, P: FnMut(Stored<K, V>)> {
    entries: Flatten<vec::IntoIter<Vec<Stored<K, V>>>>,
    put: P,
}

/// The live entries of a snapshot, all of it.
pub(super) async fn read<K, V>(
    clock: &Clock,
    mut reader: impl AsyncRead + Unpin,
) -> Result<Entries<K, V>, SnapshotError>
where
    K: DeserializeOwned,
    V: DeserializeOwned,
{
    let now = clock.now();
    let at = wall_clock(clock.instant(now));
    let mut stored = Vec::new();
    fill(&mut reader, FRAME as u64, &mut stored).await?;
    let (head, mut chain) = Head::parse(&stored)?;
    let away = whole_milliseconds(at.saturating_sub(head.at));
    let mut entries = Vec::new();
    let mut count = 0;
    loop {
        fill(&mut reader, FRAME as u64, &mut stored).await?;
        let frame = stored[..].try_into().map_err(|_| SnapshotError::Truncated)?;
        let Some(frame) = Frame::parse(frame, head, count, &mut chain)? else {
            return Ok(entries);
        };
        count += frame.entries;
        fill(&mut reader, frame.stored, &mut stored).await?;
        if (stored.len() as u64) < frame.stored {
            return Err(SnapshotError::Truncated);
        }
        let mut block = Vec::new();
        frame.entries(head, &stored, |left, tags, key, value| {
            if let Some(until) = left.until(now, away) {
                let tags = (!tags.is_empty()).then(|| Box::new(tags));
                block.push(Stored { key, value, until, tags });
            }
        })?;
        entries.push(block);
        // Who reads from memory never waits by itself.
        yield_now().await;
    }
}

impl<K, V, P: FnMut(Stored<K, V>)> RestoreGuard<K, V, P> {
    pub(super) fn new(entries: Entries<K, V>, put: P) -> Self {
        Self { entries: entries.into_iter().flatten(), put }
    }

    /// Puts the next one; tells whether there was one.
    pub(super) fn put_next(&mut self) -> bool {
        let next = self.entries.next();
        next.map(|stored| (self.put)(stored)).is_some()
    }
}

impl<K, V, P: FnMut(Stored<K, V>)> Drop for RestoreGuard<K, V, P> {
    fn drop(&mut self) {
        // One that panics keeps none of the others out.
        while catch_unwind(AssertUnwindSafe(|| self.put_next())).unwrap_or(true) {}
    }
}

/// Reads so many bytes, or all there are. Memory is taken as they come: what is foreign may ask for anything.
async fn fill(
    reader: &mut (impl AsyncRead + Unpin),
    bytes: u64,
    into: &mut Vec<u8>,
) -> Result<(), SnapshotError> {
    into.clear();
    reader.take(bytes).read_to_end(into).await.map_err(SnapshotError::Read)?;
    Ok(())
}

/// To the nearest: what two readings of two clocks differ by beside that is chance.
fn whole_milliseconds(duration: Duration) -> Duration {
    Duration::from_millis(duration.saturating_add(Duration::from_micros(500)).as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::{
        super::format::{Block, RemainingTtl},
        *,
    };
    use crate::engine::clock::Tick;

    const SECOND: Duration = Duration::from_secs(1);

    async fn restored(bytes: &[u8]) -> Result<Vec<(u32, u32, Deadline)>, SnapshotError> {
        let entries = read(&Clock::new(), bytes).await?.into_iter().flatten();
        Ok(entries.map(|Stored { key, value, until, .. }| (key, value, until)).collect())
    }

    fn written(head: Head) -> Vec<u8> {
        let (mut block, bytes) = Block::first(head);
        let dies = Tick::EPOCH.after(SECOND);
        block.push(RemainingTtl::of(dies, dies, Tick::EPOCH), &[], &1_u32, &2_u32).unwrap();
        let never = Deadline::PERSISTENT;
        block.push(RemainingTtl::of(never, never, Tick::EPOCH), &[], &3_u32, &4_u32).unwrap();
        let sealed = block.seal().to_vec();
        [&bytes[..], &sealed, &block.end().0].concat()
    }

    #[tokio::test(start_paused = true)]
    async fn a_wall_clock_that_was_set_back_counts_as_no_time() {
        let at = wall_clock(tokio::time::Instant::now()) + 3_600 * SECOND;
        let entries = restored(&written(Head { at, is_compressed: false })).await.unwrap();
        let left = entries[0].2.remaining(Clock::new().now());
        assert!(left <= Some(SECOND) && left > Some(SECOND / 2), "{left:?}");
        assert_eq!(entries.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_older_than_anything_has_died() {
        let head = Head { at: Duration::ZERO, is_compressed: true };
        assert_eq!(restored(&written(head)).await.unwrap(), [(3, 4, Deadline::PERSISTENT)]);
    }

    #[tokio::test]
    async fn a_later_version_says_so() {
        let mut bytes = written(Head { at: SECOND, is_compressed: false });
        bytes[8] = 3;
        let checksum = crc32fast::hash(&bytes[..28]);
        bytes[28..32].copy_from_slice(&checksum.to_le_bytes());
        assert!(matches!(restored(&bytes).await, Err(SnapshotError::Version(3))));
        // A flag that nobody knows yet.
        bytes[8] = 2;
        bytes[11] = 0x80;
        let checksum = crc32fast::hash(&bytes[..28]);
        bytes[28..32].copy_from_slice(&checksum.to_le_bytes());
        assert!(matches!(restored(&bytes).await, Err(SnapshotError::Version(2))));
    }

    /// With right checksums, as of who means ill: nobody takes memory for what is not there.
    #[tokio::test]
    async fn frames_that_claim_too_much_are_refused() {
        for (is_compressed, stored, unpacked, entries) in [
            (false, 1 << 62, 1 << 62, 1 << 40),
            (false, 100, 100, 26),
            (false, 100, 99, 1),
            (true, 100, 25_501, 1),
            (true, u64::MAX, u64::MAX, 1),
            (true, 0, 1, 0),
            (true, 0, 0, 1),
        ] {
            let head = Head { at: SECOND, is_compressed };
            let mut bytes = head.to_bytes().to_vec();
            for number in [stored, unpacked, entries] {
                bytes.extend(u64::to_le_bytes(number));
            }
            bytes.extend([0; 4]);
            let mut hasher = crc32fast::Hasher::new();
            hasher.update(&bytes[..28]);
            hasher.update(&bytes[32..]);
            bytes.extend(hasher.finalize().to_le_bytes());
            bytes.extend([0xc0; 100]);
            let refused = restored(&bytes).await;
            let is_right =
                matches!(refused, Err(SnapshotError::Damaged | SnapshotError::Truncated));
            assert!(is_right, "{stored} {unpacked} {entries}: {refused:?}");
        }
    }
}
