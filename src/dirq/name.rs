//! Names of elements. A name is validated once, when it is parsed, so that no call can access files outside its queue.

mod parse;

use std::fmt;

use serde::{Deserialize, Serialize};

/// The name of an element: the name of its directory in the queue and its own name, for instance
/// `5f3c1a80/5f3c1aa1d3e4f7`.
///
/// ```
/// use fleeting::dirq::{Error, Name};
///
/// let name: Name = "5f3c1a80/5f3c1aa1d3e4f7".parse()?;
/// assert_eq!(name.to_string(), "5f3c1a80/5f3c1aa1d3e4f7");
///
/// let bad = "../../etc/cron.d/x".parse::<Name>();
/// assert_eq!(bad.unwrap_err().to_string(), r#"invalid element name "../../etc/cron.d/x""#);
/// # Ok::<(), Error>(())
/// ```
///
/// It consists of 8 and 14 lowercase hexadecimal digits. Your text from a file, a command line or a message is
/// validated when it is parsed into a `Name`, so that no name refers to a file outside its queue.
///
/// The 14 digits encode the time at which the element was added (8 digits of seconds since 1970, 5 of microseconds) and
/// one digit of its writer. Names of one queue have the same order as its elements.
///
/// `NULL` is also a name: the name of everything added to a [`QueueNull`](super::QueueNull). Any other queue rejects
/// it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Name {
    pub(super) directory: u32,
    /// 56 bits, except for `NULL`.
    pub(super) element: u64,
}

impl Name {
    pub(super) const NULL: Self = Self { directory: u32::MAX, element: u64::MAX };
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NULL => f.pad("NULL"),
            Self { directory, element } => f.pad(&format!("{directory:08x}/{element:014x}")),
        }
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name({self})")
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.to_string()
    }
}
