//! Sequence of calls.

use arbitrary::{Arbitrary, Result, Unstructured};

/// All elements that the input has. That of a `Vec` ends after each element with a probability of one half.
#[derive(Clone, Debug)]
pub(crate) struct Sequence<T>(pub(crate) Vec<T>);

impl<'a, T: Arbitrary<'a>> Arbitrary<'a> for Sequence<T> {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Result<Self> {
        let mut elements = Vec::new();
        while !bytes.is_empty() {
            elements.push(bytes.arbitrary()?);
        }
        Ok(Self(elements))
    }
}
