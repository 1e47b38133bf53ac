//! A cache in a file, and back: what a restart would forget.

mod error;
mod format;
mod read;
mod write;

use std::hash::{BuildHasher, Hash};

use serde::{Serialize, de::DeserializeOwned};
use tokio::io::{AsyncRead, AsyncWrite};

pub use self::error::SnapshotError;
use self::{
    read::{RestoreGuard, Stored, read},
    write::write,
};
use super::Cache;
use crate::engine::{clock::Now, coop};

impl<K, V, S> Cache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Writes the live entries, with what is left of their TTLs and with their tags, for [`restore`](Cache::restore) in another process;
    /// returns how many.
    ///
    /// Others read and write meanwhile. It is weakly consistent: an entry that is there all the time is in it, with a
    /// value that it had meanwhile; one that comes or goes may be. (Where a large shard grows meanwhile, some of its
    /// entries may be written and counted twice; the later one counts.) A few entries at a time are cloned under the
    /// lock of their shard for reading, for some 50 µs, and written without one. What it takes in memory does not grow
    /// with the cache: some hundred kilobytes, and where values are large, a few copies of them.
    ///
    /// Keys and values are written as MessagePack by serde, with the names of fields, so a later program whose types
    /// have more fields (with `#[serde(default)]`) or fewer can read them. Types that serde itself can't tell apart there
    /// (`Some(None)` and `None`) come back as it reads them. Bytes are shortest and fastest with `serde_bytes`.
    ///
    /// The writer is flushed, and neither synced nor shut down. A file should be written beside the one that it replaces
    /// and renamed, so that there is always a whole one.
    ///
    /// # Errors
    ///
    /// [`SnapshotError::Write`] where the writer fails, [`SnapshotError::Encode`] where serde refuses an entry. What was
    /// written by then is refused by `restore`.
    ///
    /// # Cancel safety
    ///
    /// A call that is dropped leaves what it has written, which `restore` refuses. The cache is as it was.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("sessions");
    /// let sessions: Cache<String, u64> = Cache::new();
    /// sessions.set_ex("ada".into(), 42, Duration::from_secs(3_600)).await;
    ///
    /// let new = path.with_extension("new");
    /// let mut file = tokio::fs::File::create(&new).await?;
    /// assert_eq!(sessions.snapshot(&mut file).await?, 1);
    /// file.sync_all().await?;
    /// tokio::fs::rename(&new, &path).await?;
    ///
    /// // In the next process:
    /// let sessions: Cache<String, u64> = Cache::new();
    /// assert_eq!(sessions.restore(tokio::fs::File::open(&path).await?).await?, 1);
    /// assert_eq!(sessions.get("ada").await, Some(42));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn snapshot(&self, writer: impl AsyncWrite + Unpin) -> Result<u64, SnapshotError>
    where
        K: Serialize,
        V: Serialize,
    {
        write(&self.shared, writer, false).await
    }

    /// As [`snapshot`](Cache::snapshot), compressed by LZ4: smaller, mostly by half or more, for some processor time.
    /// [`restore`](Cache::restore) reads both.
    pub async fn snapshot_compressed(
        &self,
        writer: impl AsyncWrite + Unpin,
    ) -> Result<u64, SnapshotError>
    where
        K: Serialize,
        V: Serialize,
    {
        write(&self.shared, writer, true).await
    }

    /// Puts in all entries of a [`snapshot`](Cache::snapshot), or none; returns how many.
    ///
    /// Each may live as long as it still had, less the time between by the wall clock, to the millisecond. (A wall clock
    /// that was set back counts as no time at all.) Those that have died meanwhile are left out, without an event.
    ///
    /// What dies idle ([`time_to_idle`](super::Builder::time_to_idle)) begins anew to be idle, up to its own deadline, if
    /// it had not died.
    ///
    /// All is read and checked before anything changes. Until then the entries are held beside the cache, which so takes
    /// the memory of a table of them more: what they point to (the bytes of a `String`) is only moved. Nothing is read
    /// beyond the end of the snapshot, so one file may have several, or something else behind it.
    ///
    /// Then each entry is put as by [`set_tagged`](Cache::set_tagged), with the tags that it had: what a key had before is replaced, later writes replace
    /// it, and where the cache has a bound, others leave for it. Keys that the snapshot does not have stay. Others read
    /// and write meanwhile, and may see a part of it.
    ///
    /// Checksums tell what is damaged, not what is forged: a snapshot is as trustworthy as who may write the file.
    ///
    /// # Errors
    ///
    /// Where the reader fails, and where what it gives is no whole snapshot of such entries, as [`SnapshotError`] says.
    /// Nothing has changed then.
    ///
    /// # Cancel safety
    ///
    /// A call that is dropped while it reads changes nothing. One that is dropped afterwards puts in what is left before
    /// the drop returns, at less than a microsecond an entry.
    pub async fn restore(&self, reader: impl AsyncRead + Unpin) -> Result<u64, SnapshotError>
    where
        K: DeserializeOwned,
        V: DeserializeOwned,
    {
        let clock = &self.shared.clock;
        let entries = read(clock, reader).await?;
        let mut count = 0;
        let mut arrival = RestoreGuard::new(entries, |Stored { key, value, until, tags }| {
            // It may have died since it was read.
            if !clock.is_dead(until) {
                count += 1;
                let tags = tags.map_or_else(Vec::new, |tags| *tags);
                self.put_tagged(key, value, tags, &self.call(), until);
            }
        });
        while arrival.put_next() {
            coop::proceed().await;
        }
        drop(arrival);
        Ok(count)
    }
}
