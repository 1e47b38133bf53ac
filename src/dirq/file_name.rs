//! The names of files and directories, as the format has them: hexadecimal digits in lower case, of which an element
//! has 14 and a directory of elements 8. All else in a queue is somebody else's, and is let be.

use std::ffi::CStr;

/// The name of a file in a queue, with its final zero and without an allocation: each call needs several.
pub(super) struct FileName {
    bytes: [u8; Self::CAPACITY],
    len: usize,
}

impl FileName {
    /// 14 digits, a suffix of 4 characters and the final zero fit.
    const CAPACITY: usize = 20;

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
        let mut bytes = [0; Self::CAPACITY];
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
