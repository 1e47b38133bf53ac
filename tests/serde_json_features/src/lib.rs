//! Keys have the same bytes as with the default features of `serde_json`.

#![cfg(test)]

#[path = "../../../src/redis/codec/canonical.rs"]
mod canonical;

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, value::RawValue};

use self::canonical::canonical;

#[derive(Serialize)]
struct Point {
    y: f32,
    x: f64,
    name: Option<&'static str>,
}

#[derive(Serialize)]
enum Shape {
    Circle { y: f32, radius: u8 },
}

fn text<T: Serialize>(value: T) -> String {
    let mut json = Vec::new();
    canonical(&value, |_| false, &mut json).expect("the value is JSON");
    String::from_utf8(json).expect("JSON is UTF-8")
}

#[test]
fn features_are_enabled() {
    let point = Point { y: 0.1, x: 1.0, name: None };
    let expected = r#"{"y":0.1,"x":1.0,"name":null}"#;
    assert_eq!(serde_json::to_value(point).expect("JSON").to_string(), expected);
}

#[test]
fn fields_are_sorted_and_f32_is_written_as_f64() {
    let point = || Point { y: 0.1, x: 1.0, name: None };
    let expected = r#"{"name":null,"x":1.0,"y":0.10000000149011612}"#;
    assert_eq!(text(point()), expected);
    assert_eq!(text((point(), 1)), format!("[{expected},1]"));
    let circle = Shape::Circle { y: 3.4, radius: 7 };
    assert_eq!(text(circle), r#"{"Circle":{"radius":7,"y":3.4000000953674316}}"#);
    assert_eq!(text(BTreeMap::from([(10, 'a'), (9, 'b')])), r#"{"10":"a","9":"b"}"#);
}

#[test]
fn numbers_of_json_values_are_written_as_their_default_types() {
    let value: Value = serde_json::from_str(
        r#"{"b": 1.50, "a": [1e2, 18446744073709551615, -7, 0.1], "0": 100000000000000000000}"#,
    )
    .expect("JSON");
    let expected = r#"{"0":1e+20,"a":[100.0,18446744073709551615,-7,0.1],"b":1.5}"#;
    assert_eq!(text(value), expected);
    let raw = r#"{ "b": 1.50, "a": "x", "c": 117.63331139400017 }"#;
    let raw = RawValue::from_string(raw.to_owned()).expect("JSON");
    assert_eq!(text(raw), r#"{"a":"x","b":1.5,"c":117.63331139400017}"#);
}

#[test]
fn integers_beyond_64_bits_are_refused_inside_of_other_values() {
    assert!(canonical(&[u128::MAX], |_| false, &mut Vec::new()).is_err());
    assert!(canonical(&[i128::MIN], |_| false, &mut Vec::new()).is_err());
    assert_eq!(text(u128::from(u64::MAX)), "18446744073709551615");
    assert_eq!(text(i128::MIN), "-170141183460469231731687303715884105728");
}
