//! What a script gives at once of what is due: one string of MessagePack, since a reply of thousands of parts
//! takes both sides longer than all else.

use std::fmt;

use ::redis::Value as Reply;
use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Visitor},
};

use super::super::Error;

/// Keys and deadlines in turns; for each key its value; and of claims, where the leases begin to end.
#[derive(Deserialize)]
pub(super) struct Batch(pub(super) Vec<Part>, pub(super) Vec<Part>, pub(super) Part);

impl Batch {
    /// What a script of the shard `index` gave.
    pub(super) fn read(answer: &[u8], index: &[u8]) -> Result<Self, Error> {
        rmp_serde::from_slice(answer).map_err(|source| Error::Decode {
            key: String::from_utf8_lossy(index).into_owned(),
            source: source.into(),
        })
    }
}

/// As the script would give it by itself.
pub(super) struct Part(pub(super) Reply);

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Parts)
    }
}

struct Parts;

impl<'de> Visitor<'de> for Parts {
    type Value = Part;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes, fields, a number or false")
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<Part, E> {
        Ok(Part(Reply::Nil))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Part, E> {
        Ok(Part(Reply::Int(number)))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Part, E> {
        Ok(Part(Reply::Int(number.cast_signed())))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Part, E> {
        self.visit_bytes(text.as_bytes())
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Part, E> {
        Ok(Part(Reply::BulkString(bytes.to_vec())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut fields: A) -> Result<Part, A::Error> {
        let mut parts = Vec::with_capacity(fields.size_hint().unwrap_or(0));
        while let Some(Part(field)) = fields.next_element()? {
            parts.push(field);
        }
        Ok(Part(Reply::Array(parts)))
    }
}
