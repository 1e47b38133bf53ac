//! Why a snapshot could not be written or restored.

use std::{error, io};

/// Why a snapshot could not be written or restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The writer failed. What it has is no whole snapshot, and is refused as one.
    #[error("the snapshot can't be written")]
    Write(#[source] io::Error),
    /// The reader failed.
    #[error("the snapshot can't be read")]
    Read(#[source] io::Error),
    /// What the reader gave does not begin as a snapshot does.
    #[error("this is no snapshot of a cache")]
    NotASnapshot,
    /// Another release of this crate wrote it.
    #[error("the snapshot is of version {0}, which this release can't read")]
    Version(u16),
    /// It ends before its end: whoever wrote it was stopped, or it was cut.
    #[error("the snapshot is cut short")]
    Truncated,
    /// It is not as it was written.
    #[error("the snapshot is damaged: a checksum is wrong")]
    Damaged,
    /// serde refused a key or a value.
    #[error("an entry can't be written to a snapshot")]
    Encode(#[source] Box<dyn error::Error + Send + Sync>),
    /// It is whole, and holds entries of other types.
    #[error("the snapshot has an entry that is none of this cache")]
    Decode(#[source] Box<dyn error::Error + Send + Sync>),
}
