use std::{
    ffi::CStr,
    fmt,
    str::FromStr,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use super::Error;

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

    /// Refuses `NULL`, which is in no directory.
    pub(super) fn check(&self) -> Result<(), Error> {
        match *self {
            Self::NULL => Err(Error::InvalidName { name: self.to_string() }),
            _ => Ok(()),
        }
    }
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

impl FromStr for Name {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        if name == "NULL" {
            return Ok(Self::NULL);
        }
        name.split_once('/')
            .and_then(|(directory, element)| {
                Some(Self {
                    directory: directory_of(directory.as_bytes())?,
                    element: element_of(element.as_bytes())?,
                })
            })
            .ok_or_else(|| Error::InvalidName { name: name.to_owned() })
    }
}

impl TryFrom<&str> for Name {
    type Error = Error;

    fn try_from(name: &str) -> Result<Self, Error> {
        name.parse()
    }
}

impl TryFrom<String> for Name {
    type Error = Error;

    fn try_from(name: String) -> Result<Self, Error> {
        name.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.to_string()
    }
}

/// Makes the names of new elements: of the wall clock, and later than all it made before.
#[derive(Debug)]
pub(super) struct Stamps {
    rnd_hex: u8,
    /// Microseconds since 1970.
    last: AtomicU64,
}

impl Stamps {
    pub(super) fn new(rnd_hex: u8) -> Self {
        Self { rnd_hex, last: AtomicU64::new(0) }
    }

    /// An element's name. Where the clock stands still or goes back, it is a microsecond after the last.
    pub(super) fn next(&self) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_micros()).unwrap_or(u64::MAX / 2);
        let later = |last: u64| Some(now.max(last + 1));
        let last = self
            .last
            .fetch_update(Relaxed, Relaxed, later)
            .expect("there is always a later microsecond");
        let micros = now.max(last + 1);
        // Of the seconds, what goes into 8 digits: they begin anew in 2106, as those of the originals.
        let seconds = u64::from((micros / 1_000_000) as u32);
        seconds << 24 | (micros % 1_000_000) << 4 | u64::from(self.rnd_hex)
    }
}

/// The seconds since 1970 in an element's name.
pub(super) fn seconds(element: u64) -> u32 {
    (element >> 24) as u32
}

/// The number of an intermediate directory, if this is the name of one.
pub(super) fn directory_of(name: &[u8]) -> Option<u32> {
    (name.len() == 8).then(|| hex(name)).flatten().map(|number| number as u32)
}

/// The number of an element, if this is the name of one.
pub(super) fn element_of(name: &[u8]) -> Option<u64> {
    (name.len() == 14).then(|| hex(name)).flatten()
}

fn hex(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u64::from(value))
    })
}

/// The name of a file, in the form in which the kernel takes it.
pub(super) struct Entry {
    bytes: [u8; Self::ROOM],
    len: usize,
}

impl Entry {
    /// 14 digits, a suffix of 4 characters and the final zero fit.
    const ROOM: usize = 20;

    pub(super) fn directory(number: u32) -> Self {
        Self::new(u64::from(number), 8, "")
    }

    pub(super) fn element(number: u64) -> Self {
        Self::new(number, 14, "")
    }

    pub(super) fn temporary(number: u64) -> Self {
        Self::new(number, 14, TEMPORARY)
    }

    pub(super) fn lock(number: u64) -> Self {
        Self::new(number, 14, LOCK)
    }

    fn new(mut number: u64, digits: usize, suffix: &str) -> Self {
        let mut bytes = [0; Self::ROOM];
        for place in bytes[..digits].iter_mut().rev() {
            *place = b"0123456789abcdef"[(number & 15) as usize];
            number >>= 4;
        }
        let len = digits + suffix.len();
        bytes[digits..len].copy_from_slice(suffix.as_bytes());
        Self { bytes, len }
    }

    pub(super) fn c_str(&self) -> &CStr {
        CStr::from_bytes_with_nul(&self.bytes[..=self.len])
            .expect("digits and a suffix have no zero")
    }

    pub(super) fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes[..self.len]).expect("digits and a suffix are ASCII")
    }
}

/// What follows the name of a simple queue's element that is being written.
pub(super) const TEMPORARY: &str = ".tmp";

/// What follows the name of a simple queue's element that is locked.
pub(super) const LOCK: &str = ".lck";

#[cfg(test)]
mod tests {
    use super::*;

    /// No test from outside can turn the clock.
    #[test]
    fn names_go_on_where_the_clock_goes_back() {
        let stamps = Stamps::new(10);
        let now = stamps.next();
        let ahead = stamps.last.fetch_add(3_600_999_999, Relaxed) + 3_600_999_999;
        for i in 1..=3 {
            let (next, micros) = (stamps.next(), ahead + i);
            assert!(next > now);
            assert_eq!(u64::from(seconds(next)), micros / 1_000_000);
            assert_eq!(next & 0xff_ffff, (micros % 1_000_000) << 4 | 10);
        }
    }
}
