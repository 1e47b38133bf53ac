//! Errors of snapshots.

use std::{error, io, path::Path};

/// Error of [`Cache::snapshot`](crate::Cache::snapshot) or [`Cache::restore`](crate::Cache::restore).
///
/// ```
/// # use fleeting::{Cache, SnapshotError};
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let sessions: Cache<String, u64> = Cache::new();
/// match sessions.restore(&b"not a snapshot"[..]).await {
///     Ok(entries) => println!("{entries} sessions"),
///     Err(SnapshotError::NotASnapshot) => println!("start without sessions"),
///     Err(error) => panic!("{error}"),
/// }
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The writer failed. Its output is incomplete, and [`restore`](crate::Cache::restore) rejects it.
    #[error("failed to write the snapshot")]
    Write(#[source] io::Error),
    /// The reader failed.
    #[error("failed to read the snapshot")]
    Read(#[source] io::Error),
    /// The data does not start with the magic bytes of a snapshot.
    #[error("the data is not a snapshot of a cache")]
    NotASnapshot,
    /// The format has a version, or a flag, that this release of the crate does not support.
    #[error(
        "snapshot format version {0} is not supported; restore it with the release that wrote it"
    )]
    Version(u16),
    /// The snapshot ends too early: its writer was interrupted, or the file was truncated.
    #[error("the snapshot is truncated; its writer was interrupted or the file was cut")]
    Truncated,
    /// The snapshot is not as it was written: a checksum or a length does not match.
    #[error("the snapshot is corrupted: a checksum or a length does not match")]
    Damaged,
    /// serde failed to encode a key or a value, or it is nested deeper than 127 arrays or maps.
    #[error("failed to encode a snapshot entry")]
    Encode(#[source] Box<dyn error::Error + Send + Sync>),
    /// The snapshot is intact, but an entry cannot be decoded to the types of this cache.
    #[error(
        "a snapshot entry is not a key and value of this cache's types; \
         restore into the cache type it was written from"
    )]
    Decode(#[source] Box<dyn error::Error + Send + Sync>),
}

impl SnapshotError {
    /// Returns the error with the name of the file in the message of its source, if the file system failed.
    pub(super) fn of_file(self, path: &Path) -> Self {
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        match self {
            Self::Write(error) => Self::Write(named(error)),
            Self::Read(error) => Self::Read(named(error)),
            other => other,
        }
    }
}
