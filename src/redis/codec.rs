//! Keys and values as bytes, the same in every process and every release: they are what is stored.

mod finite;
mod raw;
mod text;

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value as Json;

use self::{
    finite::{NotFinite, is_finite},
    text::{reads_as_json, with_text},
};
use super::Error;

/// How values are written on the server. None of these runs anything when it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// JSON, which programs in any language read. It has no NaN and no infinities: a value that has one is refused
    /// ([`Error::Encode`]).
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
            Self::Json => {
                let text = serde_json::to_string(value);
                checked(value, text.map_err(|error| Error::Encode(error.into()))?)
            }
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

/// A key as bytes, the same in every process: a string as it is, anything else as JSON. So that no two keys are one, a
/// string that reads as JSON is JSON too: the name `null` in quotes, no name without.
pub(super) fn encode_key<K: Serialize + ?Sized>(key: &K) -> Result<Vec<u8>, Error> {
    encode_text(key, |text| !reads_as_json(text))
}

/// What `f` returns for the key as `encode_key` writes it.
#[inline]
pub(super) fn with_key<K: Serialize + ?Sized, R>(
    key: &K,
    mut f: impl FnMut(&[u8]) -> R,
) -> Result<R, Error> {
    match with_text(key, &mut f) {
        Some(result) => Ok(result),
        None => encode_key(key).map(|key| f(&key)),
    }
}

/// What `encode_key` wrote.
pub(super) fn decode_key<K: DeserializeOwned>(bytes: &[u8]) -> Result<K, Error> {
    let text = std::str::from_utf8(bytes).map_err(|error| decode_error(bytes, error.into()))?;
    let key = match reads_as_json(text) {
        true => serde_json::from_str(text),
        false => serde_json::from_value(Json::String(text.to_owned())),
    };
    key.map_err(|error| decode_error(bytes, error.into()))
}

/// A key as programs write it that know nothing of this crate: any string as it is, also one that reads as JSON.
pub(super) fn encode_bare_key<K: Serialize + ?Sized>(key: &K) -> Result<Vec<u8>, Error> {
    encode_text(key, |_| true)
}

/// A string as it is where it `stays` so, anything else as JSON; and numbers that JSON has not, as they are read.
fn encode_text<K: Serialize + ?Sized>(
    key: &K,
    stays: impl FnOnce(&str) -> bool,
) -> Result<Vec<u8>, Error> {
    match to_json(key) {
        Ok(Json::String(text)) if stays(&text) => Ok(text.into_bytes()),
        Ok(other) => checked(key, other.to_string()),
        Err(error) => with_text(key, <[u8]>::to_vec).ok_or(error),
    }
}

/// What `encode_bare_key` wrote.
pub(super) fn decode_bare_key<K: DeserializeOwned>(bytes: &[u8]) -> Result<K, Error> {
    let text = std::str::from_utf8(bytes).map_err(|error| decode_error(bytes, error.into()))?;
    // As a string first, as most keys are one: `12` is the key of a `String` too, which as JSON is a number.
    serde_json::from_value(Json::String(text.to_owned()))
        .or_else(|_| serde_json::from_str(text))
        .map_err(|error| decode_error(bytes, error.into()))
}

/// Its numbers have 64 bits at most.
fn to_json<K: Serialize + ?Sized>(key: &K) -> Result<Json, Error> {
    serde_json::to_value(key).map_err(|error| Error::Encode(error.into()))
}

/// The JSON of a value, where none of its numbers was lost.
fn checked<T: Serialize + ?Sized>(value: &T, json: String) -> Result<Vec<u8>, Error> {
    if json.contains("null") && !is_finite(value) {
        return Err(Error::Encode(NotFinite.into()));
    }
    Ok(json.into_bytes())
}

fn decode_error(key: &[u8], source: Box<dyn std::error::Error + Send + Sync>) -> Error {
    Error::Decode { key: String::from_utf8_lossy(key).into_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fmt::Debug};

    use serde::Deserialize;

    use super::*;

    #[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
    struct UserId(String);

    #[derive(Serialize, Deserialize, Debug, PartialEq)]
    struct Wide(u128);

    #[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
    #[serde(untagged)]
    enum Either {
        Number(i64),
        Name(UserId),
        Both(i64, String),
    }

    #[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
    enum Tagged {
        Nobody,
        User(UserId),
    }

    /// Each comes back, and no two are one.
    fn are_keys<K: Serialize + DeserializeOwned + PartialEq + Debug>(
        keys: impl IntoIterator<Item = K>,
    ) {
        let mut written = BTreeMap::new();
        for key in keys {
            let bytes = encode_key(&key).expect("it is a key");
            assert_eq!(decode_key::<K>(&bytes).expect("it comes back"), key);
            let same = with_key(&key, <[u8]>::to_vec).expect("it is a key");
            assert_eq!(same, bytes, "{key:?}");
            if let Some(other) = written.insert(bytes, key) {
                panic!("{other:?} is another key, too: {written:?}");
            }
        }
    }

    const TEXTS: [&str; 16] = [
        "",
        "ada",
        "null",
        "\"null\"",
        "12",
        " 12",
        "12 ",
        "-1e9",
        "true",
        "[1,\"a\"]",
        "{}",
        "nobody",
        "\n",
        "\"",
        "10.0.0.1",
        "Nobody",
    ];

    #[test]
    fn each_key_comes_back_and_no_two_are_one() {
        let texts = || TEXTS.map(str::to_owned);
        are_keys(texts());
        are_keys(texts().map(UserId));
        are_keys(texts().map(Some).into_iter().chain([None]));
        are_keys(texts().map(|text| Some(UserId(text))).into_iter().chain([None]));
        are_keys(
            texts().map(|text| Tagged::User(UserId(text))).into_iter().chain([Tagged::Nobody]),
        );
        let numbers = [0, 12, -1_000_000_000, i64::MAX].map(Either::Number);
        let both = texts().map(|text| Either::Both(1, text));
        let names = texts().map(|text| Either::Name(UserId(text)));
        are_keys(numbers.into_iter().chain(both).chain(names));
        are_keys(texts().map(Json::String).into_iter().chain([
            Json::Null,
            Json::Bool(true),
            Json::from(12),
            Json::from(vec!["a"]),
        ]));
        are_keys([u64::MAX, 0, 7, 10, 100]);
        are_keys([i64::MIN, -1, 0, 10, i64::MAX]);
        are_keys([i8::MIN, i8::MAX]);
        are_keys([u128::MAX, 1 << 64, u64::MAX.into(), 0]);
        are_keys([i128::MIN, i64::MIN.into(), -1, 0, 1 << 63, 1 << 64, i128::MAX]);
        are_keys([Wide(u128::MAX), Wide(7)]);
        are_keys([0.5, -3.0, 1e300]);
        are_keys([true, false]);
        are_keys(['a', '7', '"', '[']);
    }

    #[test]
    fn numbers_that_json_does_not_have_are_refused() {
        #[derive(Serialize)]
        enum Of {
            One(f32),
            Two(i8, f32),
            Named { x: f32, name: Option<String> },
        }
        let refused = |bytes: Result<Vec<u8>, Error>| matches!(bytes, Err(Error::Encode(_)));
        for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(refused(Format::Json.encode(&x)));
            assert!(refused(Format::Json.encode(&Some(f64::from(x)))));
            assert!(refused(Format::Json.encode(&[(1, vec![Some(1.0), None, Some(x)])])));
            assert!(refused(Format::Json.encode(&BTreeMap::from([("a", [None, Some(x)])]))));
            assert!(refused(Format::Json.encode(&Of::One(x))));
            assert!(refused(Format::Json.encode(&Of::Two(1, x))));
            assert!(refused(Format::Json.encode(&Of::Named { x, name: None })));
            assert!(refused(encode_key(&x)) && refused(encode_key(&(1, Some(x)))));
            assert!(refused(encode_bare_key(&x)));
            let bytes = Format::MessagePack.encode(&Some(x)).expect("it has them");
            let back: Option<f32> = Format::MessagePack.decode(&bytes, Vec::new).expect("and back");
            assert_eq!(back.map(f32::to_bits), Some(x.to_bits()));
        }
        for fine in [Of::One(1.0), Of::Two(1, 1.0), Of::Named { x: 1.0, name: None }] {
            assert!(Format::Json.encode(&fine).is_ok());
        }
        assert_eq!(
            Format::Json.encode(&(None::<f64>, "null", ())).expect("none is odd"),
            b"[null,\"null\",null]"
        );
        assert_eq!(encode_key(&(None::<f64>, 7)).expect("it is a key"), b"[null,7]");
    }

    #[test]
    fn a_plain_string_is_written_as_it_is() {
        for text in ["", "ada", "user 7", "10.0.0.1", "1f3c-22", "nobody", "{braces", "a\"b", "é"]
        {
            assert_eq!(encode_key(text).expect("it is a key"), text.as_bytes());
            assert_eq!(encode_key(&UserId(text.into())).expect("it is a key"), text.as_bytes());
        }
        assert_eq!(encode_key("12").expect("it is a key"), b"\"12\"");
        assert_eq!(encode_key(&12).expect("it is a key"), b"12");
        assert_eq!(encode_bare_key(&(1_u128 << 64)).expect("it is a key"), b"18446744073709551616");
    }

    #[test]
    fn other_programs_write_any_string_as_it_is() {
        for text in TEXTS {
            assert_eq!(encode_bare_key(text).expect("it is a key"), text.as_bytes());
            assert_eq!(decode_bare_key::<String>(text.as_bytes()).expect("it is one"), text);
            let user: UserId = decode_bare_key(text.as_bytes()).expect("it is one");
            assert_eq!(user.0, text);
        }
        assert_eq!(decode_bare_key::<(u8, String)>(b"[1,\"a\"]").expect("it is one").0, 1);
    }
}
