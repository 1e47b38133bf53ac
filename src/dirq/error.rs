//! The error type of directory queues, with one variant per cause.

use std::{io, path::PathBuf, str::Utf8Error};

use rustix::io::Errno;

use super::{Name, fs::is_out_of_file_descriptors};

/// Error of an operation on a directory queue, with one variant per cause.
///
/// ```
/// # use fleeting::dirq::{Error, QueueSimple};
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let queue = QueueSimple::builder(dir.path()).max_elements(1).open().await?;
/// queue.add("one").await?;
/// match queue.add("two").await {
///     Err(Error::Full { max_elements, .. }) => println!("full: {max_elements} jobs, try later"),
///     other => println!("{other:?}"),
/// }
/// # assert!(matches!(queue.add("two").await, Err(Error::Full { max_elements: 1, .. })));
/// # Ok(()) }
/// ```
///
/// Variants name their subject if there is one: a path, a name, or a field. Interference by another process, such as a
/// lock that it acquired or an element that it removed first, is not an error if the return type can express it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name does not consist of 8 lowercase hexadecimal digits, `/`, and 14 more. Or it is the name `NULL`, and the
    /// queue is not a [`QueueNull`](super::QueueNull).
    #[error("invalid element name {name:?}")]
    InvalidName {
        /// The given name.
        name: String,
    },

    /// A setting of a builder is out of range.
    #[error("invalid option {option}: {reason}")]
    InvalidOption {
        /// The builder's method.
        option: &'static str,
        /// The permitted range and the given value.
        reason: String,
    },

    /// The text of a schema cannot be parsed, or a field occurs twice.
    #[error("invalid schema: {reason}")]
    InvalidSchema {
        /// The reason.
        reason: String,
    },

    /// The name of a schema's field is not made of ASCII letters and digits, or is "locked".
    #[error("invalid field name {field:?}")]
    InvalidFieldName {
        /// The given name.
        field: String,
    },

    /// The type of a schema's field is not `binary`, `string` or `table`, optionally followed by `?`, `*` or both.
    #[error("invalid type {given:?} of field {field:?}, expected binary, string or table")]
    InvalidFieldType {
        /// The field.
        field: String,
        /// The given type.
        given: String,
    },

    /// All fields of a schema are optional.
    #[error("the schema has no mandatory field")]
    NoMandatoryField,

    /// An element was to be written or read, but the queue was opened without a schema.
    #[error("queue {} has no schema; open it with a schema to add or read elements", path.display())]
    NoSchema {
        /// The queue.
        path: PathBuf,
    },

    /// An element has a field that is not in the schema.
    #[error("unexpected field {field:?}, which is not in the schema")]
    UnexpectedField {
        /// The field.
        field: String,
    },

    /// The value of a field has another type than in the schema.
    #[error("field {field:?} is a {given}, expected a {expected}")]
    WrongType {
        /// The field.
        field: String,
        /// The type in the schema.
        expected: &'static str,
        /// The type of the value.
        given: &'static str,
    },

    /// An element to be written has no value for a mandatory field of the schema.
    #[error("missing mandatory field {field:?}")]
    MissingField {
        /// The field.
        field: String,
    },

    /// An element on disk has no file for a mandatory field of the schema.
    #[error("missing data file {}", path.display())]
    MissingFile {
        /// The file.
        path: PathBuf,
    },

    /// The file of a `string` or `table` field is not valid UTF-8.
    #[error("field {field:?} in {} is not valid UTF-8", path.display())]
    NotUtf8 {
        /// The field.
        field: String,
        /// The element's directory.
        path: PathBuf,
        /// The position of the first invalid byte.
        source: Utf8Error,
    },

    /// A line in the file of a `table` field is not a key, a tab and a value.
    #[error("invalid line {line} of table {field:?} in {}, expected a key, a tab and a value", path.display())]
    InvalidTable {
        /// The field.
        field: String,
        /// The element's directory.
        path: PathBuf,
        /// The line number, counted from 1.
        line: usize,
    },

    /// The path of an element or of one of its files leads to something that the format does not permit there: a
    /// symbolic link, which is never followed, a pipe, or a file whose name cannot be a field.
    #[error("{} is not a file or directory of the queue's format", path.display())]
    Foreign {
        /// The offending path.
        path: PathBuf,
    },

    /// The operation needs the lock of the element, which is not locked or does not exist.
    #[error("element {} is not locked", path.display())]
    NotLocked {
        /// The element.
        path: PathBuf,
    },

    /// The null queue has no elements and does not support this operation.
    #[error("the null queue does not support {operation}")]
    Unsupported {
        /// The method.
        operation: &'static str,
    },

    /// An element, or one of its fields, is larger than the queue's [`max_size`](super::QueueSimpleBuilder::max_size).
    #[error("element or field in {} is larger than the queue's max_size of {limit} bytes", path.display())]
    TooLarge {
        /// The element's file if it was read, otherwise the queue or the file to be added.
        path: PathBuf,
        /// The maximum size in bytes.
        limit: u64,
    },

    /// The queue has reached its bound ([`max_elements`](super::QueueSimpleBuilder::max_elements) of a simple queue,
    /// [`max_total`](super::QueueBuilder::max_total) of a normal one), or the add would exceed it.
    #[error("queue {} is full, its bound is {max_elements} elements", path.display())]
    Full {
        /// The queue.
        path: PathBuf,
        /// The bound.
        max_elements: u64,
    },

    /// A file to be moved into a queue is on another file system.
    #[error("cannot move {} into queue {} on another file system; add its content instead", from.display(), queue.display())]
    OtherFileSystem {
        /// The file, which was not moved.
        from: PathBuf,
        /// The queue.
        queue: PathBuf,
    },

    /// The queue is already in the set.
    #[error("queue {} is already in the set", path.display())]
    Duplicate {
        /// The queue.
        path: PathBuf,
    },

    /// The operating system returned an error.
    #[error("cannot {operation} {}", path.display())]
    Io {
        /// The operation, such as "create" or "lock".
        operation: &'static str,
        /// The path it was applied to.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },

    /// The disk, or a quota, has no free block or inode for the lock of an element. No element of the queue can be
    /// locked, and so none can be removed, until there is some space: free it outside of the queue.
    #[error(
        "cannot lock {}: the disk or a quota has no free block or inode for the lock; free some outside of the queue",
        path.display()
    )]
    NoSpaceForLock {
        /// The element.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },

    /// Other processes interfered with each attempt.
    #[error("cannot {operation} {}: other processes interfered with each of {tries} attempts", path.display())]
    GaveUp {
        /// The operation.
        operation: &'static str,
        /// The path it was applied to.
        path: PathBuf,
        /// The number of attempts.
        tries: u32,
    },

    /// Some elements were added before an error. Either an element could not be added, and neither it nor those after
    /// it are in the queue; or all are in the queue, but the final [`sync`](super::QueueSimpleBuilder::sync) failed.
    /// Adding the named elements again would duplicate them.
    #[error("{} elements were added before an error", names.len())]
    Partial {
        /// The names of the elements that were added.
        names: Vec<Name>,
        /// The error.
        source: Box<Error>,
    },
}

impl Error {
    /// Adds the names of the elements that were added before the error, if any.
    pub(super) fn after_adding(self, names: Vec<Name>) -> Self {
        match names.is_empty() {
            true => self,
            false => Self::Partial { names, source: Box::new(self) },
        }
    }

    /// Returns a copy of the error for another caller. `io::Error` is not `Clone`.
    pub(super) fn duplicate(&self) -> Self {
        match self {
            Self::Io { operation, path, source } => {
                let source = match source.raw_os_error() {
                    Some(code) => io::Error::from_raw_os_error(code),
                    None => io::Error::new(source.kind(), source.to_string()),
                };
                Self::io(operation, path, source)
            }
            other => Self::io("add to", PathBuf::new(), io::Error::other(other.to_string())),
        }
    }

    /// Returns whether the same call may succeed a moment later: the process or the system was short of something, and
    /// the file itself is not at fault.
    pub(super) fn is_passing(&self) -> bool {
        self.errno().is_some_and(|error| {
            is_out_of_file_descriptors(error)
                || [Errno::NOMEM, Errno::NOBUFS, Errno::AGAIN, Errno::INTR, Errno::BUSY]
                    .contains(&error)
        })
    }

    /// Returns whether a file or directory does not exist.
    pub(super) fn is_missing(&self) -> bool {
        self.errno() == Some(Errno::NOENT)
    }

    /// Returns whether the disk or a quota has no free block or inode for a lock.
    pub(super) fn is_out_of_space(&self) -> bool {
        matches!(self, Self::NoSpaceForLock { .. })
    }

    fn errno(&self) -> Option<Errno> {
        match self {
            Self::Io { source, .. } => source.raw_os_error().map(Errno::from_raw_os_error),
            _ => None,
        }
    }

    /// Returns whether the process, or the system, has too many open files.
    pub(super) fn is_out_of_file_descriptors(&self) -> bool {
        self.errno().is_some_and(is_out_of_file_descriptors)
    }

    /// Returns the error of an element that cannot be locked.
    pub(super) fn not_lockable(path: impl Into<PathBuf>, error: Errno) -> Self {
        match error {
            Errno::NOSPC | Errno::DQUOT => {
                Self::NoSpaceForLock { path: path.into(), source: error.into() }
            }
            error => Self::io("lock", path, error),
        }
    }

    /// Returns the error of a file that cannot be read.
    pub(super) fn unreadable(
        operation: &'static str,
        path: PathBuf,
        error: Errno,
        limit: u64,
    ) -> Self {
        match error {
            Errno::LOOP | Errno::INVAL | Errno::NXIO => Self::Foreign { path },
            Errno::FBIG => Self::TooLarge { path, limit },
            error => Self::io(operation, path, error),
        }
    }

    pub(super) fn io(
        operation: &'static str,
        path: impl Into<PathBuf>,
        source: impl Into<io::Error>,
    ) -> Self {
        Self::Io { operation, path: path.into(), source: source.into() }
    }

    /// Returns a closure that converts an [`Errno`]: `map_err(Error::on("create", || path))`.
    pub(super) fn on<P: Into<PathBuf>>(
        operation: &'static str,
        path: impl FnOnce() -> P,
    ) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::io(operation, path(), errno)
    }
}
