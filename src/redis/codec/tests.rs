//! Keys and values decode to themselves, and foreign data to an error.

use std::{collections::BTreeMap, fmt::Debug};

use proptest::prelude::*;
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
        assert_eq!(decode_key::<K>(&bytes, Vec::new).expect("the key decodes"), key);
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
        let bytes = Format::MessagePack.encode(&Some(x)).expect("MessagePack has these numbers");
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
        decode_key::<u64>(b"session-token", Vec::new).expect_err("it is not a number"),
        decode_key::<Tagged>(b"session-token", Vec::new).expect_err("it is not a variant"),
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

/// Bytes of one element in another, of each encoding and kind of nesting.
fn nested_bytes(format: Format, depth: usize) -> Vec<Vec<u8>> {
    match format {
        Format::MessagePack => [&[0x91][..], b"\x81\xa1a", b"\xdd\0\0\0\x01", b"\x81\xa4Deep"]
            .map(|open| [open.repeat(depth), vec![1]].concat())
            .into(),
        _ => [(&b"["[..], &b"]"[..]), (b"{\"a\":", b"}"), (b"{\"Deep\":", b"}")]
            .map(|(open, close)| [&open.repeat(depth)[..], b"1", &close.repeat(depth)].concat())
            .into(),
    }
}

#[derive(Serialize, Deserialize, Debug, PartialEq)]
enum Chain {
    End,
    Deep(Box<Chain>),
    Pair(u8, Box<Chain>),
    Named { next: Option<Box<Chain>> },
}

#[test]
fn foreign_value_that_is_nested_too_deeply_is_a_decode_error() {
    for (format, depth) in [Format::MessagePack, Format::Json]
        .into_iter()
        .flat_map(|format| [MAX_DEPTH + 1, 2_000, 1_000_000].map(|depth| (format, depth)))
    {
        for bytes in nested_bytes(format, depth) {
            let values = format.decode::<Json>(&bytes, Vec::new).map(drop);
            let chains = format.decode::<Chain>(&bytes, Vec::new).map(drop);
            for decoded in [values, chains] {
                assert!(matches!(decoded, Err(Error::Decode { .. })), "{format:?}, depth {depth}");
            }
        }
    }
    for format in [Format::MessagePack, Format::Json] {
        for bytes in nested_bytes(format, MAX_DEPTH) {
            assert!(format.decode::<Json>(&bytes, Vec::new).is_ok(), "{format:?}");
        }
    }
}

#[test]
fn value_is_written_if_and_only_if_its_depth_can_be_read() {
    fn check<V: Serialize + DeserializeOwned + PartialEq + Debug>(value: V, is_valid: bool) {
        for format in [Format::MessagePack, Format::Json] {
            let written = format.encode(&value);
            assert_eq!(written.is_ok(), is_valid, "{format:?}");
            if let Ok(bytes) = written {
                assert_eq!(format.decode::<V>(&bytes, Vec::new).expect("it decodes"), value);
            }
        }
        let written = encode_key(&value);
        assert_eq!((written.is_ok(), encode_bare_key(&value).is_ok()), (is_valid, is_valid));
        if let Ok(bytes) = written {
            assert_eq!(decode_key::<V>(&bytes, Vec::new).expect("it decodes"), value);
        }
    }
    fn chain(levels: usize, link: impl Fn(Box<Chain>) -> Chain) -> Chain {
        (0..levels).fold(Chain::End, |chain, _| link(Box::new(chain)))
    }
    for (depth, is_valid) in [(100, true), (126, true), (127, true), (128, false), (1_000, false)] {
        check((0..depth).fold(Json::from(1), |value, _| Json::from(vec![value])), is_valid);
        check(chain(depth, Chain::Deep), is_valid);
    }
    for (links, is_valid) in [(63, true), (64, false)] {
        check(chain(links, |next| Chain::Pair(1, next)), is_valid);
        check(chain(links, |next| Chain::Named { next: Some(next) }), is_valid);
    }
}

/// A number in each place that an encoding treats differently.
#[derive(Serialize, Deserialize, Debug)]
struct Places<F> {
    plain: F,
    optional: Option<F>,
    list: Vec<F>,
    pair: (u8, F),
    #[serde(flatten)]
    flattened: BTreeMap<String, F>,
    buffered: Buffered<F>,
}

/// serde reads it through a buffer, in which each number is an `f64`.
#[derive(Serialize, Deserialize, Debug)]
#[serde(untagged)]
enum Buffered<F> {
    Number(F),
    Text(String),
}

impl<F: Copy> Places<F> {
    fn all(number: F) -> Self {
        Self {
            plain: number,
            optional: Some(number),
            list: vec![number; 2],
            pair: (1, number),
            flattened: BTreeMap::from([("more".to_owned(), number)]),
            buffered: Buffered::Number(number),
        }
    }
}

proptest! {
    #[test]
    fn each_bit_of_a_double_is_read_as_it_was_written(bits: u64) {
        check_number(f64::from_bits(bits), f64::to_bits, f64::is_finite);
    }

    #[test]
    fn each_bit_of_a_single_is_read_as_it_was_written(bits: u32) {
        check_number(f32::from_bits(bits), f32::to_bits, f32::is_finite);
    }

    /// Random bits are rarely of numbers that programs have.
    #[test]
    fn each_bit_of_a_price_is_read_as_it_was_written(numerator in -1_000_000_i32..1_000_000, divisor in 1..10_000) {
        let number = f64::from(numerator) / f64::from(divisor);
        check_number(number, f64::to_bits, f64::is_finite);
        check_number(number as f32, f32::to_bits, f32::is_finite);
    }
}

/// Checks a number as a value, as a member of a set, which is a value, and as a key.
fn check_number<F, B>(number: F, bits: fn(F) -> B, is_finite: fn(F) -> bool)
where
    F: Serialize + DeserializeOwned + Copy + Debug,
    B: PartialEq + Debug,
{
    for format in [Format::Json, Format::MessagePack] {
        let written = format.encode(&Places::all(number));
        if format == Format::Json && !is_finite(number) {
            assert!(matches!(written, Err(Error::Encode(_))));
            continue;
        }
        let written = written.expect("the value is valid");
        let read: Places<F> = format.decode(&written, Vec::new).expect("the value decodes");
        let Buffered::Number(buffered) = read.buffered else { panic!("{read:?}") };
        let numbers = [&[read.plain, read.pair.1, buffered][..], &read.list];
        let numbers = numbers.into_iter().flatten().chain(&read.optional);
        for read in numbers.chain(read.flattened.values()) {
            assert_eq!(bits(*read), bits(number), "{format:?}");
        }
        // A set finds a member by its bytes.
        let again = format.encode(&Places::all(read.plain)).expect("the value is valid");
        assert_eq!(again, written);
    }
    for written in [encode_key(&(1, number)), encode_bare_key(&(1, number))] {
        let Ok(written) = written else {
            assert!(!is_finite(number), "{number:?} is refused");
            continue;
        };
        let (_, read): (u8, F) = decode_key(&written, Vec::new).expect("the key decodes");
        assert_eq!((bits(read), is_finite(read)), (bits(number), true));
        assert_eq!(encode_key(&(1, read)).expect("the key is valid"), written);
    }
    if is_finite(number) {
        let written = encode_key(&number).expect("the key is valid");
        let read: F = decode_key(&written, Vec::new).expect("the key decodes");
        assert_eq!(bits(read), bits(number));
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
        let mut json = Vec::new();
        canonical(&value, |_| false, &mut json).expect("the value is JSON");
        assert_eq!(String::from_utf8(json).expect("JSON is UTF-8"), expected);
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
    assert!(encode_key(&[u128::MAX]).is_err());
    assert!(encode_key(&BTreeMap::from([(vec![1], 1)])).is_err());
}

#[test]
fn plain_string_key_is_written_verbatim() {
    for text in ["", "ada", "user 7", "10.0.0.1", "1f3c-22", "nobody", "{braces", "a\"b", "é"] {
        assert_eq!(encode_key(text).expect("the key is valid"), text.as_bytes());
        assert_eq!(encode_key(&UserId(text.into())).expect("the key is valid"), text.as_bytes());
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
