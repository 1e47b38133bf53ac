//! Keys and values of caches on Redis: each key decodes to itself, different keys have different bytes, and any bytes
//! on a server decode to a value or to an error.
#![no_main]

use arbitrary::Arbitrary;
use fleeting::redis::fuzzing::{FORMATS, Stored, decode, decode_key, encode, encode_key};
use libfuzzer_sys::fuzz_target;
use serde::{Deserialize, Serialize};

/// A key or value of most shapes that serde has.
#[derive(Arbitrary, Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Shape {
    Unit,
    Number(i64),
    Long(u64),
    Text(String),
    Maybe(Option<String>),
    Pair(u8, String),
    Fields { name: String, numbers: Vec<i16>, inner: Option<Box<Shape>> },
}

#[derive(Arbitrary, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Untagged {
    Number(i64),
    Text(String),
    Pair(i64, String),
}

#[derive(Arbitrary, Debug)]
enum Input {
    Keys(Vec<Shape>),
    Texts(Vec<String>),
    Untagged(Vec<Untagged>),
    Value(Shape),
    Stored { old: Vec<u8>, value: Vec<u8> },
    Foreign(Vec<u8>),
}

fuzz_target!(|input: Input| match input {
    Input::Keys(keys) => check_keys(&keys),
    Input::Texts(keys) => check_keys(&keys),
    Input::Untagged(keys) => check_keys(&keys),
    Input::Value(value) => check_value(&value),
    Input::Stored { old, value } => Stored { old, value }.check(),
    Input::Foreign(bytes) => check_foreign(&bytes),
});

fn check_keys<K>(keys: &[K])
where
    K: Serialize + for<'de> Deserialize<'de> + PartialEq + std::fmt::Debug,
{
    let encoded: Vec<Vec<u8>> =
        keys.iter().map(|key| encode_key(key).expect("the key is valid")).collect();
    for (key, bytes) in keys.iter().zip(&encoded) {
        assert_eq!(&decode_key::<K>(bytes).expect("the key decodes"), key);
        for (other, other_bytes) in keys.iter().zip(&encoded) {
            assert_eq!(key == other, bytes == other_bytes, "{key:?} and {other:?}");
        }
    }
}

fn check_value(value: &Shape) {
    for format in FORMATS {
        // `Raw` encodes only bytes and strings.
        let Ok(bytes) = encode(format, value) else { continue };
        assert_eq!(&decode::<Shape>(format, &bytes).expect("the value decodes"), value);
    }
    if let Shape::Text(text) = value {
        for format in FORMATS {
            let bytes = encode(format, text).expect("all formats encode strings");
            assert_eq!(&decode::<String>(format, &bytes).expect("the text decodes"), text);
        }
    }
}

/// Bytes that another program has written.
fn check_foreign(bytes: &[u8]) {
    for format in FORMATS {
        let _ = decode::<Shape>(format, bytes);
        let _ = decode::<serde_json::Value>(format, bytes);
        let _ = decode::<Vec<u8>>(format, bytes);
        let _ = decode::<(u64, Option<String>)>(format, bytes);
    }
    let _ = decode_key::<Shape>(bytes);
    let _ = decode_key::<u128>(bytes);
    if let Ok(text) = decode_key::<String>(bytes) {
        check_keys(&[text]);
    }
}
