//! Names of files and directories in a queue. Elements have 14 lowercase hexadecimal digits, and directories of
//! elements have 8. All other names are ignored.

use std::ffi::CStr;

/// The name of a file in a queue, NUL-terminated and on the stack: each call needs several.
pub(super) struct FileName {
    bytes: [u8; Self::CAPACITY],
    len: usize,
}

impl FileName {
    /// 8 digits, a separator, 14 digits, suffixes of 11 characters and the terminating NUL.
    const CAPACITY: usize = 35;

    pub(super) fn directory(number: u32) -> Self {
        Self::EMPTY.append_hex(u64::from(number), 8)
    }

    pub(super) fn element(number: u64) -> Self {
        Self::EMPTY.append_hex(number, 14)
    }

    pub(super) fn temporary(number: u64) -> Self {
        Self::element(number).append(TEMPORARY)
    }

    pub(super) fn lock(number: u64) -> Self {
        Self::element(number).append(LOCK)
    }

    /// Returns the name of an element's record in the directory of records.
    pub(super) fn record(directory: u32, element: u64) -> Self {
        Self::directory(directory).append(SEPARATOR).append_hex(element, 14)
    }

    /// Returns the name of a draft that will replace a record.
    pub(super) fn record_draft(directory: u32, element: u64) -> Self {
        Self::record(directory, element).append(TEMPORARY)
    }

    /// Returns the name of the reason of an element's last failure in the directory of records.
    pub(super) fn reason(directory: u32, element: u64) -> Self {
        Self::record(directory, element).append(REASON)
    }

    /// Returns the name of a draft that will replace a reason.
    pub(super) fn reason_draft(directory: u32, element: u64) -> Self {
        Self::reason(directory, element).append(TEMPORARY)
    }

    const EMPTY: Self = Self { bytes: [0; Self::CAPACITY], len: 0 };

    fn append_hex(mut self, mut number: u64, digits: usize) -> Self {
        for place in self.bytes[self.len..self.len + digits].iter_mut().rev() {
            *place = b"0123456789abcdef"[(number & 15) as usize];
            number >>= 4;
        }
        self.len += digits;
        self
    }

    fn append(mut self, text: &str) -> Self {
        self.bytes[self.len..self.len + text.len()].copy_from_slice(text.as_bytes());
        self.len += text.len();
        self
    }

    pub(super) fn c_str(&self) -> &CStr {
        CStr::from_bytes_with_nul(&self.bytes[..=self.len])
            .expect("digits and a suffix have no NUL")
    }

    pub(super) fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes[..self.len]).expect("digits and a suffix are ASCII")
    }
}

/// Suffix of a simple queue's element that is being written.
pub(super) const TEMPORARY: &str = ".tmp";

/// Suffix of a simple queue's lock.
pub(super) const LOCK: &str = ".lck";

/// Separates the two numbers in the name of a record.
const SEPARATOR: &str = "-";

/// Suffix of the reason of a failure. Releases without reasons ignore such files.
const REASON: &str = ".reason";

/// A file in the directory of records: a record or a reason, or a draft of one of them.
pub(super) struct RecordEntry {
    pub(super) directory: u32,
    pub(super) element: u64,
    pub(super) is_reason: bool,
    pub(super) is_draft: bool,
}

impl RecordEntry {
    /// Parses the name of a file in the directory of records.
    pub(super) fn parse(name: &[u8]) -> Option<Self> {
        let draft = name.strip_suffix(TEMPORARY.as_bytes());
        let name = draft.unwrap_or(name);
        let reason = name.strip_suffix(REASON.as_bytes());
        let (directory, element) = reason.unwrap_or(name).split_at_checked(8)?;
        Some(Self {
            directory: directory_of(directory)?,
            element: element_of(element.strip_prefix(SEPARATOR.as_bytes())?)?,
            is_reason: reason.is_some(),
            is_draft: draft.is_some(),
        })
    }
}

/// Parses the number of a directory of elements.
pub(super) fn directory_of(name: &[u8]) -> Option<u32> {
    (name.len() == 8).then(|| hex(name)).flatten().map(|number| number as u32)
}

/// Parses the number of an element.
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
