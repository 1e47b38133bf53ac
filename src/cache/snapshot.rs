//! Snapshots: write the entries of a cache to a file or stream, and restore them in another process.

mod encoding;
mod error;
mod file;
mod format;
mod read;
mod write;

use std::{
    hash::{BuildHasher, Hash},
    io,
    path::Path,
};

use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    fs::File,
    io::{AsyncRead, AsyncWrite},
};

pub use self::error::SnapshotError;
use self::{
    file::SnapshotFile,
    read::{RestoreGuard, StoredEntry, read},
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
    /// Writes all live entries with their remaining TTLs and tags, and returns how many were written (Redis: `BGSAVE`).
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let sessions: Cache<String, u64> = Cache::new();
    /// sessions.set_ex("ada".into(), 42, Duration::from_secs(3_600)).await;
    ///
    /// let mut stream = Vec::new();
    /// assert_eq!(sessions.snapshot(&mut stream).await?, 1);
    ///
    /// // In another process:
    /// let sessions: Cache<String, u64> = Cache::new();
    /// assert_eq!(sessions.restore(&stream[..]).await?, 1);
    /// assert_eq!(sessions.get("ada").await, Some(42));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`restore`](Cache::restore) reads them again, usually in another process.
    ///
    /// The snapshot is weakly consistent: concurrent reads and writes continue. An entry that is present all the time
    /// is included, with a value that it had while the snapshot was written; an entry that is inserted or removed in
    /// that time may be included. If a large shard grows during the snapshot, some of its entries may be written and
    /// counted twice, and `restore` keeps the later copy.
    ///
    /// A few entries at a time are cloned under the read lock of their shard, for about 50 µs, and encoded and written
    /// after the lock is released. If the cache is large, Tokio's threads for blocking work help the caller's task to
    /// copy and encode: at most half as many as there are processors, and at most three. `Clone` and `Serialize` of
    /// keys and values run there too; if one panics, so does this call. The memory needed does not grow with the cache:
    /// it is about a megabyte at most, plus a few copies of large values.
    ///
    /// Keys and values are encoded as MessagePack by serde, with the names of fields. So a later version of the program
    /// can read them even if its types have fewer fields, or more (with `#[serde(default)]`). Values with the same
    /// encoding in MessagePack, such as `Some(None)` and `None`, are not distinguished. Byte strings are smallest and
    /// fastest with `serde_bytes`. Keys and values may be nested up to 127 arrays or maps deep.
    ///
    /// The writer is flushed, but neither synced nor shut down. For a file, [`snapshot_to`](Cache::snapshot_to) does
    /// that, and replaces an earlier snapshot as a whole.
    ///
    /// # Errors
    ///
    /// Returns [`SnapshotError::Write`] if the writer fails, and [`SnapshotError::Encode`] if serde cannot encode an
    /// entry, or if it is nested too deeply. The incomplete output is rejected by `restore`.
    ///
    /// # Cancel safety
    ///
    /// If the call is cancelled, the output is incomplete, and `restore` rejects it. The cache is not changed. Threads
    /// that help stop after the entries that they are copying.
    #[doc(alias = "save")]
    pub async fn snapshot(&self, writer: impl AsyncWrite + Unpin) -> Result<u64, SnapshotError>
    where
        K: Serialize,
        V: Serialize,
    {
        write(&self.inner.shared, writer, false).await
    }

    /// Writes a [`snapshot`](Cache::snapshot) compressed with LZ4.
    ///
    /// It is usually at most half as large, at the cost of processor time. [`restore`](Cache::restore) reads both
    /// formats.
    ///
    /// # Errors
    ///
    /// As for [`snapshot`](Cache::snapshot).
    ///
    /// # Cancel safety
    ///
    /// As for [`snapshot`](Cache::snapshot).
    ///
    /// # Examples
    ///
    /// ```
    /// # use fleeting::Cache;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let sessions = Cache::new();
    /// sessions.set("token".to_owned(), "ada ".repeat(1_000)).await;
    /// let mut bytes = Vec::new();
    /// sessions.snapshot_compressed(&mut bytes).await?;
    /// assert!(bytes.len() < 1_000);
    ///
    /// let restored: Cache<String, String> = Cache::new();
    /// assert_eq!(restored.restore(&bytes[..]).await?, 1);
    /// # Ok(()) }
    /// ```
    pub async fn snapshot_compressed(
        &self,
        writer: impl AsyncWrite + Unpin,
    ) -> Result<u64, SnapshotError>
    where
        K: Serialize,
        V: Serialize,
    {
        write(&self.inner.shared, writer, true).await
    }

    /// Replaces the file at `path` by a [compressed snapshot](Cache::snapshot_compressed), and returns how many entries
    /// it has.
    ///
    /// ```
    /// use fleeting::Cache;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("sessions");
    /// let sessions: Cache<String, u64> = Cache::new();
    /// sessions.restore_from(&path).await?; // 0 at the first start
    /// sessions.set("ada".into(), 42).await;
    /// sessions.snapshot_to(&path).await?;
    ///
    /// // In the next process:
    /// let sessions: Cache<String, u64> = Cache::new();
    /// assert_eq!(sessions.restore_from(&path).await?, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The snapshot is written to a new file in the same directory, synced, and renamed to `path`, which therefore
    /// names a complete snapshot at any time, also after a crash of the machine. On Unix, only the user of the process
    /// may read the file. Links and files that other users may have put next to it are never opened, and a link at
    /// `path` is replaced, not followed. The new file is named after `path`, with a random part and the extension
    /// `new`.
    ///
    /// # Errors
    ///
    /// As for [`snapshot`](Cache::snapshot). The file at `path` is unchanged then, unless its directory cannot be
    /// synced after the rename. The message of the source names the file.
    ///
    /// # Panics
    ///
    /// Panics if it is called outside of a Tokio runtime, whose threads for blocking work write the file.
    ///
    /// # Cancel safety
    ///
    /// If the call is cancelled, the file at `path` is complete: the old one, or the new one. The new file is removed.
    /// If the process is killed in the meantime, it is left.
    #[doc(alias = "save")]
    pub async fn snapshot_to(&self, path: impl AsRef<Path>) -> Result<u64, SnapshotError>
    where
        K: Serialize,
        V: Serialize,
    {
        let path = path.as_ref();
        let written = async {
            let mut new = SnapshotFile::create(path).await.map_err(SnapshotError::Write)?;
            let count = self.snapshot_compressed(&mut new.file).await?;
            new.replace(path).await.map_err(SnapshotError::Write)?;
            Ok(count)
        };
        written.await.map_err(|error: SnapshotError| error.of_file(path))
    }

    /// Inserts all entries of a [`snapshot`](Cache::snapshot), or none of them, and returns how many were inserted.
    ///
    /// The remaining TTL of an entry is that of the snapshot, less the time since then by the wall clock, to the
    /// millisecond. If the wall clock was set back, the elapsed time counts as zero. Entries that have expired in the
    /// meantime are skipped, without an event: by their TTL, or because their idle time has ended, as no one has read
    /// them since the snapshot. In a cache with [`time_to_idle`](super::Builder::time_to_idle), the idle time of the
    /// others starts again; their TTLs still limit them.
    ///
    /// The snapshot is read and checked completely before the cache changes. Until then its entries are held in memory
    /// in addition to those of the cache; their heap memory (such as the bytes of a `String`) is moved later and not
    /// copied. Your reader is not read beyond the end of the snapshot, so a file may contain several snapshots, or
    /// other data after one.
    ///
    /// Each entry is then written as by [`set_tagged`](Cache::set_tagged): it replaces the current value of its key,
    /// later writes replace it, and it evicts others from a full cache: also entries of the snapshot, which are counted
    /// nevertheless. Keys that are not in the snapshot stay.
    /// Concurrent callers may see only some of the restored entries.
    ///
    /// Checksums detect damage, not manipulation: read snapshots only from files that you trust.
    ///
    /// # Errors
    ///
    /// Returns a [`SnapshotError`] if the reader fails, or if its data is not a complete snapshot of a cache with these
    /// key and value types. The cache is not changed then.
    ///
    /// # Cancel safety
    ///
    /// A call cancelled while it reads changes nothing. A call cancelled after that inserts the remaining entries
    /// before its drop returns, in less than a microsecond per entry.
    ///
    /// # Examples
    ///
    /// See [`snapshot`](Cache::snapshot).
    pub async fn restore(&self, reader: impl AsyncRead + Unpin) -> Result<u64, SnapshotError>
    where
        K: DeserializeOwned,
        V: DeserializeOwned,
    {
        let clock = &self.inner.shared.clock;
        let entries = read(clock, reader).await?;
        let mut count = 0;
        let mut guard = RestoreGuard::new(entries, |StoredEntry { key, value, deadline, tags }| {
            // It may have expired since it was read.
            if !clock.is_expired(deadline) {
                count += 1;
                let tags = tags.map_or_else(Vec::new, |tags| *tags);
                self.inner.put_tagged(key, value, tags, &self.inner.call(), deadline);
            }
        });
        while guard.put_next() {
            coop::proceed().await;
            self.inner.finish(()).await;
        }
        drop(guard);
        Ok(count)
    }

    /// [Restores](Cache::restore) the snapshot in the file at `path`. Returns 0 if there is no such file, as at the
    /// first start of a program.
    ///
    /// # Errors
    ///
    /// As for [`restore`](Cache::restore). The message of the source names a file that cannot be read.
    ///
    /// # Panics
    ///
    /// Panics if it is called outside of a Tokio runtime, whose threads for blocking work read the file.
    ///
    /// # Cancel safety
    ///
    /// As for [`restore`](Cache::restore).
    ///
    /// # Examples
    ///
    /// See [`snapshot_to`](Cache::snapshot_to).
    pub async fn restore_from(&self, path: impl AsRef<Path>) -> Result<u64, SnapshotError>
    where
        K: DeserializeOwned,
        V: DeserializeOwned,
    {
        let path = path.as_ref();
        let restored = match File::open(path).await {
            Ok(file) => self.restore(file).await,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(SnapshotError::Read(error)),
        };
        restored.map_err(|error| error.of_file(path))
    }
}
