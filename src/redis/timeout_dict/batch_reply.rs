//! Replies of `lease.lua` and `dead_letters.lua`: one string of MessagePack, because a reply with thousands of parts
//! takes the server and the client longer than everything else.

use std::fmt;

use ::redis::Value as Reply;
use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Visitor},
};

use super::super::Error;

/// Maximum depth of a reply. Those of the scripts have less, and more would not fit the stack of a thread in a build
/// without optimizations.
const MAX_DEPTH: usize = 16;

/// Maximum number of fields for which memory is allocated before they are read.
const MAX_RESERVED: usize = 64;

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
    let mut deserializer = rmp_serde::Deserializer::from_read_ref(answer);
    deserializer.set_max_depth(MAX_DEPTH);
    T::deserialize(&mut deserializer).map_err(|source| Error::Decode {
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
        // The length is that in the reply, which may be forged.
        let mut parts = Vec::with_capacity(fields.size_hint().unwrap_or(0).min(MAX_RESERVED));
        while let Some(PackedReply(field)) = fields.next_element()? {
            parts.push(field);
        }
        Ok(PackedReply(Reply::Array(parts)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Begins a batch whose first key is `key`, as MessagePack.
    fn batch(key: &[u8]) -> Vec<u8> {
        [&[0x96, 0x91][..], key].concat()
    }

    fn assert_refused(answer: &[u8]) {
        assert!(matches!(BatchReply::decode(answer, b"index"), Err(Error::Decode { .. })));
        assert!(matches!(DeadLettersReply::decode(answer, b"index"), Err(Error::Decode { .. })));
    }

    /// Memory for an array of that length could not be allocated, which would end the process.
    #[test]
    fn forged_length_is_a_decode_error() {
        assert_refused(&batch(&[0xdd, 0xff, 0xff, 0xff, 0xff]));
        assert_refused(&[0x96, 0xdd, 0xff, 0xff, 0xff, 0xff]);
    }

    #[test]
    fn deeply_nested_reply_is_a_decode_error() {
        assert_refused(&batch(&vec![0x91; 1_000_000]));
    }

    #[test]
    fn records_of_a_batch_are_decoded() {
        // A key, and a hash of one field.
        let answer =
            [0x96, 0x91, 0xa1, b'k', 0x91, 0x92, 0xa1, b'f', 0xa1, b'v', 7, 0x91, 1, 0xc2, 9];
        let reply = BatchReply::decode(&answer, b"index").expect("the reply is valid");
        let bytes = |text: &[u8]| Reply::BulkString(text.to_vec());
        assert_eq!(reply.keys_and_scores[0].0, bytes(b"k"));
        assert_eq!(reply.values[0].0, Reply::Array(vec![bytes(b"f"), bytes(b"v")]));
        assert_eq!((reply.lease_ends_after, reply.is_cut, reply.now), (7, false, 9));
    }
}
