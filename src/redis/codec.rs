//! Keys and values as bytes, the same in every process and every release: they are what is stored.

mod raw;

use serde::{
    Serialize,
    de::{
        DeserializeOwned, IntoDeserializer,
        value::{Error as ValueError, StrDeserializer},
    },
};

use super::Error;

/// How values are written on the server. None of these runs anything when it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// JSON, which programs in any language read.
    #[default]
    Json,
    /// MessagePack with named fields: smaller and faster than JSON, and known to many languages.
    MessagePack,
    /// The bytes of a value themselves: for values that are bytes or strings (`Vec<u8>`, `String`,
    /// `serde_bytes::ByteBuf`, `bytes::Bytes`). Values of other types are refused.
    Raw,
}

impl Format {
    pub(super) fn encode<V: Serialize + ?Sized>(self, value: &V) -> Result<Vec<u8>, Error> {
        match self {
            Self::Json => serde_json::to_vec(value).map_err(|error| Error::Encode(error.into())),
            Self::MessagePack => {
                rmp_serde::to_vec_named(value).map_err(|error| Error::Encode(error.into()))
            }
            Self::Raw => raw::encode(value).map_err(|error| Error::Encode(error.into())),
        }
    }

    /// What `encode` wrote; an error names where.
    pub(super) fn decode<V: DeserializeOwned>(
        self,
        bytes: &[u8],
        key: impl FnOnce() -> Vec<u8>,
    ) -> Result<V, Error> {
        let value = match self {
            Self::Json => serde_json::from_slice(bytes).map_err(Into::into),
            Self::MessagePack => rmp_serde::from_slice(bytes).map_err(Into::into),
            Self::Raw => raw::decode(bytes).map_err(Into::into),
        };
        value.map_err(|source| decode_error(&key(), source))
    }
}

/// A key as bytes: a string as it is, anything else as JSON. So a key is readable in `redis-cli`, and the
/// same in every process.
pub(super) fn encode_key<K: Serialize + ?Sized>(key: &K) -> Result<Vec<u8>, Error> {
    match serde_json::to_value(key).map_err(|error| Error::Encode(error.into()))? {
        serde_json::Value::String(text) => Ok(text.into_bytes()),
        other => Ok(other.to_string().into_bytes()),
    }
}

/// What `encode_key` wrote.
pub(super) fn decode_key<K: DeserializeOwned>(bytes: &[u8]) -> Result<K, Error> {
    let text = std::str::from_utf8(bytes).map_err(|error| decode_error(bytes, error.into()))?;
    // As a string first, as most keys are one: `12` is the key of a `String` too, which as JSON is a number.
    let string: StrDeserializer<'_, ValueError> = text.into_deserializer();
    match K::deserialize(string) {
        Ok(key) => Ok(key),
        Err(_) => serde_json::from_str(text).map_err(|error| decode_error(bytes, error.into())),
    }
}

fn decode_error(key: &[u8], source: Box<dyn std::error::Error + Send + Sync>) -> Error {
    Error::Decode { key: String::from_utf8_lossy(key).into_owned(), source }
}
