//! What `lease.lua` answers: one string of MessagePack, since a reply of thousands of parts takes
//! both sides longer than all else.

use std::fmt;

use ::redis::Value as Reply;
use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Visitor},
};

use super::super::Error;

/// Written as an array of these, in this order.
#[derive(Deserialize)]
pub(super) struct BatchReply {
    /// Keys and their scores, in turns.
    pub(super) keys_and_scores: Vec<PackedReply>,
    /// For each key its value.
    pub(super) values: Vec<PackedReply>,
    /// Each lease ends four microseconds after the one before, and the first after this.
    pub(super) lease_ends_after: i64,
    /// For each key the number of this attempt.
    pub(super) attempts: Vec<u32>,
    /// Whether what came was enough for one answer, and there may be more.
    pub(super) is_cut: bool,
}

impl BatchReply {
    /// What a script of the shard `index` gave.
    pub(super) fn decode(answer: &[u8], index: &[u8]) -> Result<Self, Error> {
        rmp_serde::from_slice(answer).map_err(|source| Error::Decode {
            key: String::from_utf8_lossy(index).into_owned(),
            source: source.into(),
        })
    }
}

/// What the reply would be if the script gave this by itself: for `Layout` both are the same.
pub(super) struct PackedReply(pub(super) Reply);

impl<'de> Deserialize<'de> for PackedReply {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PackedReplyVisitor)
    }
}

struct PackedReplyVisitor;

impl<'de> Visitor<'de> for PackedReplyVisitor {
    type Value = PackedReply;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes, fields, a number or false")
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<PackedReply, E> {
        Ok(PackedReply(Reply::Nil))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<PackedReply, E> {
        Ok(PackedReply(Reply::Int(number)))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<PackedReply, E> {
        Ok(PackedReply(Reply::Int(number.cast_signed())))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<PackedReply, E> {
        self.visit_bytes(text.as_bytes())
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<PackedReply, E> {
        Ok(PackedReply(Reply::BulkString(bytes.to_vec())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut fields: A) -> Result<PackedReply, A::Error> {
        let mut parts = Vec::with_capacity(fields.size_hint().unwrap_or(0));
        while let Some(PackedReply(field)) = fields.next_element()? {
            parts.push(field);
        }
        Ok(PackedReply(Reply::Array(parts)))
    }
}
