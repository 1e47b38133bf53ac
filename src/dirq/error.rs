//! All that can go wrong with a directory queue, a variant for each cause.

use std::{io, path::PathBuf, str::Utf8Error};

use rustix::io::Errno;

use super::{Name, fs::is_out_of_file_descriptors};

/// Why an operation on a directory queue failed.
///
/// Each says what it is about: a path, a name, or a field. What another process did first, such as a lock it
/// took or an element it removed, is no error where the answer can say so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name is not 8 hexadecimal digits, `/`, and 14 more, all in lower case; or it is that of the null
    /// queue, and the queue is not.
    #[error("invalid element name {name:?}")]
    InvalidName {
        /// What was given.
        name: String,
    },

    /// An option of a builder is out of its range.
    #[error("invalid option {option}: {reason}")]
    InvalidOption {
        /// The builder's method.
        option: &'static str,
        /// What it must be, and what it is.
        reason: String,
    },

    /// The text of a schema is not to be read as one.
    #[error("invalid schema: {reason}")]
    InvalidSchema {
        /// What is wrong with it.
        reason: String,
    },

    /// The name of a schema's field is not of ASCII letters and digits, or is "locked".
    #[error("invalid field name {field:?}")]
    InvalidFieldName {
        /// What was given.
        field: String,
    },

    /// The type of a schema's field is none of `binary`, `string` and `table`, each with `?` or `*` or both.
    #[error("invalid type {given:?} of the field {field:?}")]
    InvalidFieldType {
        /// The field.
        field: String,
        /// What was given as its type.
        given: String,
    },

    /// All fields of a schema are optional.
    #[error("the schema has no mandatory field")]
    NoMandatoryField,

    /// An element is to be written or read, and the queue was opened without a schema.
    #[error("the queue {} has no schema", path.display())]
    NoSchema {
        /// The queue.
        path: PathBuf,
    },

    /// An element has a field that the schema has not.
    #[error("unexpected field {field:?}")]
    UnexpectedField {
        /// The field.
        field: String,
    },

    /// The value of an element's field is of another type than the schema says.
    #[error("the field {field:?} is a {given} and should be a {expected}")]
    WrongType {
        /// The field.
        field: String,
        /// The type in the schema.
        expected: &'static str,
        /// The type of the value.
        given: &'static str,
    },

    /// An element to be written has no value for a field that the schema demands.
    #[error("missing mandatory field {field:?}")]
    MissingField {
        /// The field.
        field: String,
    },

    /// An element on disk has no file for a field that the schema demands.
    #[error("missing data file {}", path.display())]
    MissingFile {
        /// The file.
        path: PathBuf,
    },

    /// The file of a `string` or `table` is not UTF-8.
    #[error("the field {field:?} in {} is not UTF-8", path.display())]
    NotUtf8 {
        /// The field.
        field: String,
        /// The element's directory.
        path: PathBuf,
        /// Where it ends to be UTF-8.
        source: Utf8Error,
    },

    /// A line of a table's file is not a key, a tabulator and a value.
    #[error("line {line} of the table {field:?} in {} is not a key, a tabulator and a value", path.display())]
    InvalidTable {
        /// The field.
        field: String,
        /// The element's directory.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },

    /// What has the place of an element, or of one of its files, is not what the format puts there: a
    /// symbolic link, which is never followed, a pipe, or a file whose name can't be a field.
    #[error("{} is no part of a queue", path.display())]
    Foreign {
        /// What is there.
        path: PathBuf,
    },

    /// An operation that needs the lock of an element was asked for one that is not locked, or not there.
    #[error("{} is not locked", path.display())]
    NotLocked {
        /// The element.
        path: PathBuf,
    },

    /// The null queue has no elements, and so not this operation on one.
    #[error("the null queue does not support {operation}")]
    Unsupported {
        /// The method.
        operation: &'static str,
    },

    /// What an element holds, or one of its fields, is longer than the queue was opened to take
    /// ([`max_size`](super::QueueSimpleBuilder::max_size)).
    #[error("{} is longer than {limit} bytes", path.display())]
    TooLarge {
        /// The file of it; the queue, where it was to be added.
        path: PathBuf,
        /// How long it may be.
        limit: u64,
    },

    /// The queue has as many elements as it may have ([`max_elements`](super::QueueSimpleBuilder::max_elements) of a
    /// simple queue, [`max_total`](super::QueueBuilder::max_total) of a normal one), or would have more.
    #[error("the queue {} is full: it may have {max_elements} elements", path.display())]
    Full {
        /// The queue.
        path: PathBuf,
        /// How many elements it may have.
        max_elements: u64,
    },

    /// A file to be moved into a queue is on another file system.
    #[error("{} is on another file system than the queue {}", from.display(), queue.display())]
    OtherFileSystem {
        /// The file, which stays.
        from: PathBuf,
        /// The queue.
        queue: PathBuf,
    },

    /// A queue is in the set already.
    #[error("the queue {} is in the set already", path.display())]
    Duplicate {
        /// The queue.
        path: PathBuf,
    },

    /// The operating system refused.
    #[error("cannot {operation} {}", path.display())]
    Io {
        /// What was tried, such as "create" or "lock".
        operation: &'static str,
        /// With what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },

    /// Other processes were in the way each time.
    #[error("gave up to {operation} {} after {tries} tries", path.display())]
    GaveUp {
        /// What was tried.
        operation: &'static str,
        /// Where.
        path: PathBuf,
        /// How often.
        tries: u32,
    },

    /// Some elements were added, and then something failed: the add of the next, which is not there, nor are those
    /// after_adding it; or, where all are there, the sync that was to let them survive a crash of the machine. To add
    /// those that have names once more would double them.
    #[error("{} of the elements were added before a failure", names.len())]
    Partial {
        /// Those that were added.
        names: Vec<Name>,
        /// What failed.
        source: Box<Error>,
    },
}

impl Error {
    /// That of an element after_adding those that were added.
    pub(super) fn after_adding(self, names: Vec<Name>) -> Self {
        match names.is_empty() {
            true => self,
            false => Self::Partial { names, source: Box::new(self) },
        }
    }

    /// The same, for one more of those who are to be told.
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

    /// Whether it is because too many files are open, in the process or in all.
    pub(super) fn is_out_of_file_descriptors(&self) -> bool {
        let code = match self {
            Self::Io { source, .. } => source.raw_os_error(),
            _ => None,
        };
        code.map(Errno::from_raw_os_error).is_some_and(is_out_of_file_descriptors)
    }

    /// Why a file can't be read.
    pub(super) fn unreadable(
        operation: &'static str,
        path: PathBuf,
        error: Errno,
        limit: u64,
    ) -> Self {
        match error {
            Errno::LOOP | Errno::INVAL => Self::Foreign { path },
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

    /// The same for a closure: `map_err(Error::on("create", || path))`.
    pub(super) fn on<P: Into<PathBuf>>(
        operation: &'static str,
        path: impl FnOnce() -> P,
    ) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::io(operation, path(), errno)
    }
}
