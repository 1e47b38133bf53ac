//! Entry points of the fuzzer to the encoding of keys and values. Compiled only with `--cfg fleeting_fuzzing`, and not
//! a part of the public API. `--cfg fuzzing` also applies if a program that uses this crate is fuzzed, whose copy of
//! the crate does not contain this file.

use serde::{Serialize, de::DeserializeOwned};

use super::{Error, Format, cache::fuzzing as stored_value, codec};

/// All formats.
pub const FORMATS: [Format; 3] = [Format::Json, Format::MessagePack, Format::Raw];

/// A value as it is stored, with or without tags, and the encoded value that replaces it.
pub struct Stored {
    /// Any bytes.
    pub old: Vec<u8>,
    /// Any bytes.
    pub value: Vec<u8>,
}

impl Stored {
    /// Asserts that a value is read as it was written, regardless of the bytes with which it begins.
    pub fn check(&self) {
        stored_value::check(&self.old, &self.value);
    }
}

/// Encodes a key.
pub fn encode_key<K: Serialize>(key: &K) -> Result<Vec<u8>, Error> {
    let bytes = codec::encode_key(key)?;
    let same = codec::with_key(key, <[u8]>::to_vec)?;
    assert_eq!(bytes, same, "both ways to encode a key are the same");
    Ok(bytes)
}

/// Decodes a key, or any bytes.
pub fn decode_key<K: DeserializeOwned>(bytes: &[u8]) -> Result<K, Error> {
    let _ = codec::decode_bare_key::<K>(bytes);
    codec::decode_key(bytes, Vec::new)
}

/// Encodes a value.
pub fn encode<V: Serialize>(format: Format, value: &V) -> Result<Vec<u8>, Error> {
    format.encode(value)
}

/// Decodes a value, or any bytes.
pub fn decode<V: DeserializeOwned>(format: Format, bytes: &[u8]) -> Result<V, Error> {
    format.decode(bytes, Vec::new)
}
