//! Encoding of keys and values. It must not change between releases or differ between processes, since the bytes are
//! stored.

mod canonical;
mod raw;
#[cfg(test)]
mod tests;

use std::cell::Cell;

use rmp_serde::decode::Error as MessagePackError;
use serde::{
    Serialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::{Value as Json, error::Category};

use self::canonical::canonical;
use super::Error;
use crate::engine::{
    encodable::Encodable,
    nesting::{MAX_DEPTH, check_message_pack},
};

/// Maximum capacity of the buffer for keys that a thread keeps.
const KEPT_CAPACITY: usize = 4 * 1_024;

/// Encoding of your values on the server.
///
/// ```no_run
/// # use fleeting::redis::{Cache, Client, Format};
/// # async fn f(client: Client) -> Result<(), fleeting::redis::Error> {
/// let pages: Cache<String, Vec<u8>> =
///     Cache::builder(&client, "pages").format(Format::Raw).build()?;
/// # Ok(())
/// # }
/// ```
///
/// Decoding never executes code. A value that is nested deeper than 127 arrays or maps is refused, both when it is
/// written ([`Error::Encode`]) and when it is read ([`Error::Decode`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// JSON, which programs in any language can read. It cannot represent NaN and infinities: a value that contains one
    /// is refused ([`Error::Encode`]).
    #[default]
    Json,
    /// MessagePack with named fields: smaller and faster than JSON, and supported by many languages.
    MessagePack,
    /// The bytes of the value itself, for values that are bytes or strings (`Vec<u8>`, `String`,
    /// `serde_bytes::ByteBuf`, `bytes::Bytes`). Values of other types are refused ([`Error::Encode`]).
    Raw,
}

impl Format {
    pub(super) fn encode<V: Serialize + ?Sized>(self, value: &V) -> Result<Vec<u8>, Error> {
        match self {
            Self::Json => serde_json::to_vec(&Encodable::as_json(value))
                .map_err(|error| Error::Encode(error.into())),
            Self::MessagePack => rmp_serde::to_vec_named(&Encodable::new(value))
                .map_err(|error| Error::Encode(error.into())),
            Self::Raw => raw::encode(value).map_err(|error| Error::Encode(error.into())),
        }
    }

    /// Decodes the output of `encode`. `key` is the key on the server, for the error.
    pub(super) fn decode<V: DeserializeOwned>(
        self,
        bytes: &[u8],
        key: impl FnOnce() -> Vec<u8>,
    ) -> Result<V, Error> {
        let value = match self {
            Self::Json => serde_json::from_slice(bytes).map_err(json_error::<V>),
            Self::MessagePack => decode_message_pack(bytes),
            Self::Raw => raw::decode(bytes).map_err(|_| mismatch::<V>(None)),
        };
        value.map_err(|source| decode_error(&key(), source))
    }
}

fn decode_message_pack<V: DeserializeOwned>(bytes: &[u8]) -> Result<V, DecodeSource> {
    check_message_pack(bytes, MAX_DEPTH)?;
    rmp_serde::from_slice(bytes).map_err(message_pack_error::<V>)
}

/// Encodes a key: a string verbatim, any other value as JSON.
///
/// To rule out collisions, a string that is valid JSON is encoded as JSON too: the string `null` with quotes, `None`
/// without.
pub(super) fn encode_key<K: Serialize + ?Sized>(key: &K) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    append_key(key, &mut bytes)?;
    Ok(bytes)
}

/// Appends the output of [`encode_key`].
#[inline]
pub(super) fn append_key<K: Serialize + ?Sized>(key: &K, out: &mut Vec<u8>) -> Result<(), Error> {
    write_key(key, |text| !reads_as_json(text), out)
}

/// Calls `f` with the output of [`encode_key`], without an allocation for most keys.
#[inline]
pub(super) fn with_key<K: Serialize + ?Sized, R>(
    key: &K,
    f: impl FnOnce(&[u8]) -> R,
) -> Result<R, Error> {
    with_buffer(|bytes| {
        append_key(key, bytes)?;
        Ok(f(bytes))
    })
}

/// Calls `f` with an empty buffer, without an allocation for most keys.
#[inline]
pub(super) fn with_buffer<R>(f: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    thread_local! {
        static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    }

    // Taken, because `Serialize` and `f` may encode another key. It is gone while the thread ends.
    let mut bytes = BUFFER.try_with(Cell::take).unwrap_or_default();
    bytes.clear();
    let result = f(&mut bytes);
    if bytes.capacity() <= KEPT_CAPACITY {
        let _ = BUFFER.try_with(|buffer| buffer.set(bytes));
    }
    result
}

/// Decodes the output of [`encode_key`]. `record` is the key on the server, for the error.
pub(super) fn decode_key<K: DeserializeOwned>(
    bytes: &[u8],
    record: impl FnOnce() -> Vec<u8>,
) -> Result<K, Error> {
    let key = std::str::from_utf8(bytes).map_err(DecodeSource::from).and_then(|text| {
        // The same test as in `encode_key`, which writes strings that read as JSON as JSON.
        let key = match reads_as_json(text) {
            true => serde_json::from_str(text),
            false => serde_json::from_value(Json::String(text.to_owned())),
        };
        key.map_err(json_error::<K>)
    });
    key.map_err(|source| decode_error(&record(), source))
}

/// Encodes a key as other programs do: every string verbatim, even if it is valid JSON.
pub(super) fn encode_bare_key<K: Serialize + ?Sized>(key: &K) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    write_key(key, |_| true, &mut bytes)?;
    Ok(bytes)
}

/// Appends a string verbatim if `is_verbatim`, any other value as JSON.
#[inline]
fn write_key<K: Serialize + ?Sized>(
    key: &K,
    is_verbatim: fn(&str) -> bool,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    canonical(&Encodable::as_json(key), is_verbatim, out)
        .map_err(|error| Error::Encode(error.into()))
}

/// Returns whether a text is valid JSON: a number, `null`, `true`, `false`, a string in quotes, an array or an object.
fn reads_as_json(text: &str) -> bool {
    // Rules out most keys by their first character.
    let may_be = text.trim_ascii_start().starts_with(|first: char| {
        matches!(first, '"' | '[' | '{' | '-' | '0'..='9' | 't' | 'f' | 'n')
    });
    may_be && serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// Decodes the output of [`encode_bare_key`], which is the key on the server.
pub(super) fn decode_bare_key<K: DeserializeOwned>(bytes: &[u8]) -> Result<K, Error> {
    let key = std::str::from_utf8(bytes).map_err(DecodeSource::from).and_then(|text| {
        // As a string first, as most keys are strings: for a `String` key, `12` is a string and not a JSON number.
        serde_json::from_value(Json::String(text.to_owned()))
            .or_else(|_| serde_json::from_str(text))
            .map_err(json_error::<K>)
    });
    key.map_err(|source| decode_error(bytes, source))
}

fn decode_error(key: &[u8], source: DecodeSource) -> Error {
    Error::Decode { key: String::from_utf8_lossy(key).into_owned(), source }
}

/// Source of an [`Error::Decode`]. Its text contains nothing of the data, which may be a secret: it is logged.
type DecodeSource = Box<dyn std::error::Error + Send + Sync>;

fn json_error<T>(error: serde_json::Error) -> DecodeSource {
    match error.classify() {
        // The text is by the type, and cites the data.
        Category::Data => mismatch::<T>(Some((error.line(), error.column()))),
        _ => error.into(),
    }
}

fn message_pack_error<T>(error: MessagePackError) -> DecodeSource {
    match error {
        MessagePackError::Uncategorized(_)
        | MessagePackError::Syntax(_)
        | MessagePackError::TypeMismatch(_) => mismatch::<T>(None),
        error => error.into(),
    }
}

/// Returns the error of data that is not of the type `T`, found at this line and column.
pub(super) fn mismatch<T>(place: Option<(usize, usize)>) -> DecodeSource {
    let expected = std::any::type_name::<T>();
    match place {
        // `serde_json` counts from 1; without a text, it has no place.
        Some((line @ 1.., column)) => {
            format!("data of another type at line {line} column {column}, expected `{expected}`")
        }
        _ => format!("data of another type, expected `{expected}`"),
    }
    .into()
}
