//! The name of an element, as users have it: checked once, when it is read, so that no call can leave its queue.

mod parse;

use std::fmt;

use serde::{Deserialize, Serialize};

/// The name of an element: its directory in the queue and its own, as `5f3c1a80/5f3c1aa1d3e4f7`.
///
/// 8 and 14 hexadecimal digits in lower case, and nothing else: what was read from a file, a command line or
/// a message is checked when it becomes a `Name`, so that none leads out of its queue. The 14 digits are the
/// time at which the element was added (8 of seconds since 1970, 5 of microseconds) and one of its writer.
/// Names of one queue order as its elements do.
///
/// `NULL` is a name too, that of all a [`QueueNull`](super::QueueNull) was given. Any other queue refuses it.
///
/// # Examples
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
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Name {
    pub(super) directory: u32,
    /// Of 56 bits, but for that of `NULL`.
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
