//! Replies of `lease.lua` and `dead_letters.lua`: one string of MessagePack, because a reply with thousands of parts takes the server and the
//! client longer than everything else.

use std::fmt;

use ::redis::Value as Reply;
use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Visitor},
};

use super::super::Error;

/// An array of these fields, in this order.
#[derive(Deserialize)]
pub(super) struct BatchReply {
    /// Keys and their scores in turn.
    pub(super) keys_and_scores: Vec<PackedReply>,
    /// Value of each key.
    pub(super) values: Vec<PackedReply>,
    /// The first lease ends four microseconds after this, and each further one four microseconds later.
    pub(super) lease_ends_after: i64,
    /// Number of the attempt of each key, from 1; empty if all are the first.
    pub(super) attempts: Vec<u32>,
    /// True if the reply reached its maximum size, so that there may be more entries.
    pub(super) is_cut: bool,
    /// Time of the server in microseconds.
    pub(super) now: i64,
}

impl BatchReply {
    /// Decodes the reply of the shard whose index is the key `index`.
    pub(super) fn decode(answer: &[u8], index: &[u8]) -> Result<Self, Error> {
        decode(answer, index)
    }
}

/// An array of these fields, in this order.
#[derive(Deserialize)]
pub(super) struct DeadLettersReply {
    /// Keys and the times at which they became dead, in turn.
    pub(super) keys_and_scores: Vec<PackedReply>,
    /// Value of each key.
    pub(super) values: Vec<PackedReply>,
    /// Number of failed attempts of each key.
    pub(super) attempts: Vec<u32>,
    /// Reason of each key.
    pub(super) reasons: Vec<PackedReply>,
    pub(super) has_more: bool,
}

impl DeadLettersReply {
    /// Decodes the reply of the shard whose index is the key `index`.
    pub(super) fn decode(answer: &[u8], index: &[u8]) -> Result<Self, Error> {
        decode(answer, index)
    }
}

fn decode<'a, T: Deserialize<'a>>(answer: &'a [u8], index: &[u8]) -> Result<T, Error> {
    rmp_serde::from_slice(answer).map_err(|source| Error::Decode {
        key: String::from_utf8_lossy(index).into_owned(),
        source: source.into(),
    })
}

/// Part of the reply, converted to what Redis would return for it, so that `Layout` handles both alike.
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
        // Lua's `false`, in place of a missing record.
        Ok(PackedReply(Reply::Nil))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<PackedReply, E> {
        Ok(PackedReply(Reply::Int(number)))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<PackedReply, E> {
        // Numbers from zero on are packed as unsigned.
        Ok(PackedReply(Reply::Int(number.cast_signed())))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<PackedReply, E> {
        // Lua strings are packed as text. Those that are not UTF-8 arrive in `visit_bytes`.
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
