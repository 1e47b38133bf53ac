//! Borrowed form of a tuple key: finds a `(String, u32)` by a `&str`, and can be converted to it.

use fleeting::{Equivalent, ToKey};

/// Borrowed parts of a `(String, u32)`.
#[derive(Hash)]
pub(crate) struct Borrowed<'a>(pub(crate) &'a str, pub(crate) u32);

impl Equivalent<(String, u32)> for Borrowed<'_> {
    fn equivalent(&self, key: &(String, u32)) -> bool {
        self.0 == key.0 && self.1 == key.1
    }
}

impl ToKey<(String, u32)> for Borrowed<'_> {
    fn to_key(&self) -> (String, u32) {
        (self.0.to_owned(), self.1)
    }
}
