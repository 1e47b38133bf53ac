//! Encoding of keys and values. It must not change between releases or differ between processes, since the bytes are
//! stored.

mod canonical;
mod finite;
mod raw;
mod text;

use rmp_serde::decode::Error as MessagePackError;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value as Json, error::Category};

use self::{
    canonical::{Canonical, canonical},
    finite::{NotFinite, is_finite},
    text::{reads_as_json, with_text},
};
use super::Error;

/// Maximum depth of the values in a decoded value. `serde_json` has the same.
const MAX_DEPTH: usize = 128;

/// Encoding of values on the server. Decoding never executes code. A value that is nested deeper than 128 levels is
/// written, but decoding it is an error ([`Error::Decode`]).
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
            Self::Json => {
                let text = serde_json::to_string(value);
                check_finite(value, text.map_err(|error| Error::Encode(error.into()))?)
            }
            Self::MessagePack => {
                rmp_serde::to_vec_named(value).map_err(|error| Error::Encode(error.into()))
            }
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
            Self::MessagePack => decode_message_pack(bytes).map_err(message_pack_error::<V>),
            Self::Raw => raw::decode(bytes).map_err(|_| mismatch::<V>(None)),
        };
        value.map_err(|source| decode_error(&key(), source))
    }
}

/// Decodes MessagePack whose nesting fits the stack of a thread, also in a build without optimizations.
fn decode_message_pack<V: DeserializeOwned>(bytes: &[u8]) -> Result<V, rmp_serde::decode::Error> {
    let mut deserializer = rmp_serde::Deserializer::from_read_ref(bytes);
    deserializer.set_max_depth(MAX_DEPTH);
    V::deserialize(&mut deserializer)
}

/// Encodes a key: a string verbatim, any other value as JSON.
///
/// To rule out collisions, a string that is valid JSON is encoded as JSON too: the string `null` with quotes, `None`
/// without.
pub(super) fn encode_key<K: Serialize + ?Sized>(key: &K) -> Result<Vec<u8>, Error> {
    encode_text(key, |text| !reads_as_json(text))
}

/// Calls `f` with the output of [`encode_key`], without an allocation if possible.
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

/// Decodes the output of [`encode_key`].
pub(super) fn decode_key<K: DeserializeOwned>(bytes: &[u8]) -> Result<K, Error> {
    let text = std::str::from_utf8(bytes).map_err(|error| decode_error(bytes, error.into()))?;
    // The same test as in `encode_key`, which writes strings that read as JSON as JSON.
    let key = match reads_as_json(text) {
        true => serde_json::from_str(text),
        false => serde_json::from_value(Json::String(text.to_owned())),
    };
    key.map_err(|error| decode_error(bytes, json_error::<K>(error)))
}

/// Encodes a key as other programs do: every string verbatim, even if it is valid JSON.
pub(super) fn encode_bare_key<K: Serialize + ?Sized>(key: &K) -> Result<Vec<u8>, Error> {
    encode_text(key, |_| true)
}

/// Encodes a string verbatim if `is_verbatim`, any other value as JSON, and integers beyond 64 bits as digits.
fn encode_text<K: Serialize + ?Sized>(
    key: &K,
    is_verbatim: impl FnOnce(&str) -> bool,
) -> Result<Vec<u8>, Error> {
    match canonical(key) {
        Ok(Canonical::Text(text)) if is_verbatim(&text) => Ok(text.into_bytes()),
        Ok(other) => check_finite(key, other.to_string()),
        // Integers beyond 64 bits, which the canonical form does not have.
        Err(error) => with_text(key, <[u8]>::to_vec).ok_or_else(|| Error::Encode(error.into())),
    }
}

/// Decodes the output of [`encode_bare_key`].
pub(super) fn decode_bare_key<K: DeserializeOwned>(bytes: &[u8]) -> Result<K, Error> {
    let text = std::str::from_utf8(bytes).map_err(|error| decode_error(bytes, error.into()))?;
    // As a string first, as most keys are strings: for a `String` key, `12` is a string and not a JSON number.
    serde_json::from_value(Json::String(text.to_owned()))
        .or_else(|_| serde_json::from_str(text))
        .map_err(|error| decode_error(bytes, json_error::<K>(error)))
}

/// Returns the JSON of a value, unless it contains a number that JSON cannot represent.
fn check_finite<T: Serialize + ?Sized>(value: &T, json: String) -> Result<Vec<u8>, Error> {
    // `serde_json` writes `null` for such a number, so other JSON needs no second pass over the value.
    if json.contains("null") && !is_finite(value) {
        return Err(Error::Encode(NotFinite.into()));
    }
    Ok(json.into_bytes())
}

fn decode_error(key: &[u8], source: Source) -> Error {
    Error::Decode { key: String::from_utf8_lossy(key).into_owned(), source }
}

/// Source of an [`Error::Decode`]. Its text contains nothing of the data, which may be a secret: it is logged.
type Source = Box<dyn std::error::Error + Send + Sync>;

fn json_error<T>(error: serde_json::Error) -> Source {
    match error.classify() {
        // The text is by the type, and cites the data.
        Category::Data => mismatch::<T>(Some((error.line(), error.column()))),
        _ => error.into(),
    }
}

fn message_pack_error<T>(error: MessagePackError) -> Source {
    match error {
        MessagePackError::Uncategorized(_)
        | MessagePackError::Syntax(_)
        | MessagePackError::TypeMismatch(_) => mismatch::<T>(None),
        error => error.into(),
    }
}

/// Returns the error of data that is not of the type `T`, found at this line and column.
pub(super) fn mismatch<T>(place: Option<(usize, usize)>) -> Source {
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

    /// Asserts that each key decodes to itself, and that no two encode to the same bytes.
    fn assert_round_trip<K: Serialize + DeserializeOwned + PartialEq + Debug>(
        keys: impl IntoIterator<Item = K>,
    ) {
        let mut written = BTreeMap::new();
        for key in keys {
            let bytes = encode_key(&key).expect("the key is valid");
            assert_eq!(decode_key::<K>(&bytes).expect("the key decodes"), key);
            let same = with_key(&key, <[u8]>::to_vec).expect("the key is valid");
            assert_eq!(same, bytes, "{key:?}");
            if let Some(other) = written.insert(bytes, key) {
                panic!("{other:?} collides with another key: {written:?}");
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
    fn keys_decode_to_themselves_and_never_collide() {
        let texts = || TEXTS.map(str::to_owned);
        assert_round_trip(texts());
        assert_round_trip(texts().map(UserId));
        assert_round_trip(texts().map(Some).into_iter().chain([None]));
        assert_round_trip(texts().map(|text| Some(UserId(text))).into_iter().chain([None]));
        assert_round_trip(
            texts().map(|text| Tagged::User(UserId(text))).into_iter().chain([Tagged::Nobody]),
        );
        let numbers = [0, 12, -1_000_000_000, i64::MAX].map(Either::Number);
        let both = texts().map(|text| Either::Both(1, text));
        let names = texts().map(|text| Either::Name(UserId(text)));
        assert_round_trip(numbers.into_iter().chain(both).chain(names));
        assert_round_trip(texts().map(Json::String).into_iter().chain([
            Json::Null,
            Json::Bool(true),
            Json::from(12),
            Json::from(vec!["a"]),
        ]));
        assert_round_trip([u64::MAX, 0, 7, 10, 100]);
        assert_round_trip([i64::MIN, -1, 0, 10, i64::MAX]);
        assert_round_trip([i8::MIN, i8::MAX]);
        assert_round_trip([u128::MAX, 1 << 64, u64::MAX.into(), 0]);
        assert_round_trip([i128::MIN, i64::MIN.into(), -1, 0, 1 << 63, 1 << 64, i128::MAX]);
        assert_round_trip([Wide(u128::MAX), Wide(7)]);
        assert_round_trip([0.5, -3.0, 1e300]);
        assert_round_trip([true, false]);
        assert_round_trip(['a', '7', '"', '[']);
    }

    #[test]
    fn json_refuses_nan_and_infinity() {
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
            let bytes =
                Format::MessagePack.encode(&Some(x)).expect("MessagePack has these numbers");
            let back: Option<f32> =
                Format::MessagePack.decode(&bytes, Vec::new).expect("the number decodes");
            assert_eq!(back.map(f32::to_bits), Some(x.to_bits()));
        }
        for fine in [Of::One(1.0), Of::Two(1, 1.0), Of::Named { x: 1.0, name: None }] {
            assert!(Format::Json.encode(&fine).is_ok());
        }
        assert_eq!(
            Format::Json.encode(&(None::<f64>, "null", ())).expect("there is no number in it"),
            b"[null,\"null\",null]"
        );
        assert_eq!(encode_key(&(None::<f64>, 7)).expect("the key is valid"), b"[null,7]");
    }

    #[test]
    fn texts_of_decode_errors_contain_nothing_of_the_data() {
        let value = |format: Format, bytes: &[u8]| {
            format.decode::<u64>(bytes, Vec::new).expect_err("it is not a number")
        };
        let text = Format::MessagePack.encode("session-token").expect("strings are valid");
        let map = BTreeMap::from([("session-token", 1)]);
        let map = Format::MessagePack.encode(&map).expect("maps are valid");
        for error in [
            decode_key::<u64>(b"session-token").expect_err("it is not a number"),
            decode_key::<Tagged>(b"session-token").expect_err("it is not a variant"),
            decode_bare_key::<u64>(b"session-token").expect_err("it is not a number"),
            decode_bare_key::<u64>(b"\"session-token\"").expect_err("it is not a number"),
            value(Format::Json, b"\"session-token\""),
            value(Format::Json, b"{\"session-token\": 1}"),
            value(Format::Json, b"session-token"),
            value(Format::MessagePack, &text),
            value(Format::MessagePack, &map),
            value(Format::Raw, b"session-token"),
        ] {
            let source = std::error::Error::source(&error).expect("the decoder has failed");
            for text in [format!("{error:?}"), source.to_string(), format!("{source:?}")] {
                assert!(!text.contains("session"), "{text}");
            }
        }
        let error = value(Format::Json, b"\"session-token\"");
        let text = "data of another type at line 1 column 15, expected `u64`";
        assert!(format!("{error:?}").contains(text), "{error:?}");
    }

    #[test]
    fn deeply_nested_value_is_a_decode_error() {
        for depth in [200, 2_000, 1_000_000] {
            let nested = |format: Format, open: u8| {
                format.decode::<Json>(&vec![open; depth], Vec::new).expect_err("it is too deep")
            };
            // Arrays of one element each.
            assert!(matches!(nested(Format::MessagePack, 0x91), Error::Decode { .. }));
            assert!(matches!(nested(Format::Json, b'['), Error::Decode { .. }));
        }
        let mut value = Json::from(1);
        for _ in 0..100 {
            value = Json::from(vec![value]);
        }
        for format in [Format::MessagePack, Format::Json] {
            let bytes = format.encode(&value).expect("the value is valid");
            assert_eq!(format.decode::<Json>(&bytes, Vec::new).expect("it decodes"), value);
        }
    }

    /// The canonical form is that of `serde_json` with its default features, which this crate's tests use.
    #[test]
    fn canonical_form_is_the_text_of_a_json_value() {
        #[derive(Serialize)]
        struct Point {
            y: f32,
            x: Option<i64>,
            name: &'static str,
            nested: BTreeMap<u8, (char, [bool; 2])>,
        }
        #[derive(Serialize)]
        struct Unit;
        #[derive(Serialize)]
        enum Shape {
            Empty,
            Tuple(i8, u64),
            Named { b: f64, a: Vec<u8> },
            One(Unit),
        }
        fn assert_same<T: Serialize>(value: T) {
            let expected = serde_json::to_value(&value).expect("the value is JSON").to_string();
            assert_eq!(canonical(&value).expect("the value is JSON").to_string(), expected);
        }
        let nested = BTreeMap::from([(10, ('"', [true, false])), (9, ('a', [true; 2]))]);
        assert_same(Point { y: 0.1, x: None, name: "a\"\n\u{1}é", nested });
        assert_same((Shape::Empty, Shape::Tuple(-1, u64::MAX), Shape::One(Unit)));
        assert_same(Shape::Named { b: 1e300, a: vec![0, 255] });
        assert_same([0.0, -0.0, 1.5e-7, 123_456_789.0, f64::MAX]);
        assert_same([f32::MIN_POSITIVE, 1e20, 3.4]);
        assert_same((i128::from(i64::MIN), u128::from(u64::MAX), (), Some("null")));
        assert_same(Vec::<u8>::new());
        assert_same(BTreeMap::<String, ()>::new());
        assert_same(BTreeMap::from([(true, 1), (false, 2)]));
        assert_same(serde_json::json!({"b": [1.0, {"d": null, "c": -7}], "a": 1e-5}));
        assert!(canonical(&[u128::MAX]).is_err());
        assert!(canonical(&BTreeMap::from([(vec![1], 1)])).is_err());
    }

    #[test]
    fn plain_string_key_is_written_verbatim() {
        for text in ["", "ada", "user 7", "10.0.0.1", "1f3c-22", "nobody", "{braces", "a\"b", "é"]
        {
            assert_eq!(encode_key(text).expect("the key is valid"), text.as_bytes());
            assert_eq!(
                encode_key(&UserId(text.into())).expect("the key is valid"),
                text.as_bytes()
            );
        }
        assert_eq!(encode_key("12").expect("the key is valid"), b"\"12\"");
        assert_eq!(encode_key(&12).expect("the key is valid"), b"12");
        assert_eq!(
            encode_bare_key(&(1_u128 << 64)).expect("the key is valid"),
            b"18446744073709551616"
        );
    }

    #[test]
    fn bare_string_key_is_written_verbatim() {
        for text in TEXTS {
            assert_eq!(encode_bare_key(text).expect("the key is valid"), text.as_bytes());
            assert_eq!(decode_bare_key::<String>(text.as_bytes()).expect("the key decodes"), text);
            let user: UserId = decode_bare_key(text.as_bytes()).expect("the key decodes");
            assert_eq!(user.0, text);
        }
        assert_eq!(decode_bare_key::<(u8, String)>(b"[1,\"a\"]").expect("the key decodes").0, 1);
    }
}
