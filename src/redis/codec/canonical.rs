//! JSON of keys. It is the text of a `serde_json::Value` as `serde_json` writes it with its default features: with the
//! fields of structs and maps in alphabetical order, and `f32` as `f64`.
//!
//! `serde_json` itself must not write it: a program that enables its feature `preserve_order` or `arbitrary_precision`,
//! anywhere among its dependencies, would store other bytes than its other builds, and share no key with them.
//!
//! This file depends on nothing else in this crate, so that `tests/serde_json_features` can compile it with these
//! features.

use std::{collections::BTreeMap, fmt};

use serde::{
    Serialize, Serializer,
    ser::{
        Error as _, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant,
        SerializeTuple, SerializeTupleStruct, SerializeTupleVariant,
    },
};
use serde_json::{Error, Value, to_string};

/// Name under which `serde_json` serializes a number with `arbitrary_precision`, and the only field of it.
const NUMBER: &str = "$serde_json::private::Number";
/// Name under which `serde_json` serializes a `RawValue`, with feature `raw_value`, and the only field of it.
const RAW_VALUE: &str = "$serde_json::private::RawValue";

/// A key as JSON.
#[derive(Debug)]
pub(crate) enum Canonical {
    /// A string, without quotes.
    Text(String),
    /// The JSON of any other value.
    Json(String),
}

/// Returns the JSON of `value`. Fails for integers beyond 64 bits, and for maps whose keys are not texts or numbers.
pub(crate) fn canonical<T: Serialize + ?Sized>(value: &T) -> Result<Canonical, Error> {
    value.serialize(ToCanonical)
}

impl fmt::Display for Canonical {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(&to_string(text).map_err(|_| fmt::Error)?),
            Self::Json(json) => f.write_str(json),
        }
    }
}

struct ToCanonical;

/// The JSON of the elements so far.
struct Elements {
    /// Name of the enum's variant, if it is one of an enum.
    variant: Option<&'static str>,
    json: String,
}

/// Fields in the order of their names, with their JSON.
struct Fields {
    variant: Option<&'static str>,
    by_name: BTreeMap<String, String>,
    /// Key of a map whose value follows.
    key: Option<String>,
}

/// A map with a single key, from which `serde_json` makes a text.
struct OnlyKey<'a, T: ?Sized>(&'a T);

/// A struct by which `serde_json` passes a text to itself.
enum FieldsOrPrivate {
    Fields(Fields),
    Number(String),
    RawValue(String),
}

impl Elements {
    fn new(variant: Option<&'static str>) -> Self {
        Self { variant, json: "[".to_owned() }
    }

    fn push<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        if self.json.len() > 1 {
            self.json.push(',');
        }
        self.json += &canonical(value)?.to_string();
        Ok(())
    }

    fn finish(mut self) -> Result<Canonical, Error> {
        self.json.push(']');
        in_variant(self.variant, self.json)
    }
}

impl Fields {
    fn new(variant: Option<&'static str>) -> Self {
        Self { variant, by_name: BTreeMap::new(), key: None }
    }

    fn insert<T: Serialize + ?Sized>(&mut self, name: String, value: &T) -> Result<(), Error> {
        self.by_name.insert(name, canonical(value)?.to_string());
        Ok(())
    }

    fn finish(self) -> Result<Canonical, Error> {
        let mut json = "{".to_owned();
        for (name, value) in self.by_name {
            if json.len() > 1 {
                json.push(',');
            }
            json += &to_string(&name)?;
            json.push(':');
            json += &value;
        }
        json.push('}');
        in_variant(self.variant, json)
    }
}

fn in_variant(variant: Option<&str>, json: String) -> Result<Canonical, Error> {
    Ok(Canonical::Json(match variant {
        Some(variant) => format!("{{{}:{json}}}", to_string(variant)?),
        None => json,
    }))
}

/// Returns a number as its default type writes it: an integer of 64 bits, or else an `f64`.
fn number(text: &str) -> Result<Canonical, Error> {
    if let Ok(number) = text.parse::<u64>() {
        return canonical(&number);
    }
    if let Ok(number) = text.parse::<i64>() {
        return canonical(&number);
    }
    canonical(&text.parse::<f64>().map_err(Error::custom)?)
}

macro_rules! as_json {
    ($($method:ident($type:ty);)*) => {$(
        fn $method(self, value: $type) -> Result<Canonical, Error> {
            Ok(Canonical::Json(to_string(&value)?))
        }
    )*};
}

impl Serializer for ToCanonical {
    type Ok = Canonical;
    type Error = Error;
    type SerializeSeq = Elements;
    type SerializeTuple = Elements;
    type SerializeTupleStruct = Elements;
    type SerializeTupleVariant = Elements;
    type SerializeMap = Fields;
    type SerializeStruct = FieldsOrPrivate;
    type SerializeStructVariant = Fields;

    as_json! {
        serialize_bool(bool);
        serialize_i8(i8);
        serialize_i16(i16);
        serialize_i32(i32);
        serialize_i64(i64);
        serialize_u8(u8);
        serialize_u16(u16);
        serialize_u32(u32);
        serialize_u64(u64);
        // Also writes `null` for numbers that are not finite.
        serialize_f64(f64);
    }

    fn serialize_i128(self, value: i128) -> Result<Canonical, Error> {
        match (u64::try_from(value), i64::try_from(value)) {
            (Ok(value), _) => self.serialize_u64(value),
            (_, Ok(value)) => self.serialize_i64(value),
            _ => Err(Error::custom("number out of range")),
        }
    }

    fn serialize_u128(self, value: u128) -> Result<Canonical, Error> {
        let value = u64::try_from(value).map_err(|_| Error::custom("number out of range"))?;
        self.serialize_u64(value)
    }

    fn serialize_f32(self, value: f32) -> Result<Canonical, Error> {
        self.serialize_f64(value.into())
    }

    fn serialize_char(self, value: char) -> Result<Canonical, Error> {
        Ok(Canonical::Text(value.into()))
    }

    fn serialize_str(self, value: &str) -> Result<Canonical, Error> {
        Ok(Canonical::Text(value.to_owned()))
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<Canonical, Error> {
        value.serialize(self)
    }

    fn serialize_none(self) -> Result<Canonical, Error> {
        self.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Canonical, Error> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<Canonical, Error> {
        Ok(Canonical::Json("null".to_owned()))
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<Canonical, Error> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<Canonical, Error> {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<Canonical, Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<Canonical, Error> {
        in_variant(Some(variant), canonical(value)?.to_string())
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Elements, Error> {
        Ok(Elements::new(None))
    }

    fn serialize_tuple(self, _: usize) -> Result<Elements, Error> {
        Ok(Elements::new(None))
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Elements, Error> {
        Ok(Elements::new(None))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Elements, Error> {
        Ok(Elements::new(Some(variant)))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Fields, Error> {
        Ok(Fields::new(None))
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<FieldsOrPrivate, Error> {
        Ok(match name {
            NUMBER => FieldsOrPrivate::Number(String::new()),
            RAW_VALUE => FieldsOrPrivate::RawValue(String::new()),
            _ => FieldsOrPrivate::Fields(Fields::new(None)),
        })
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Fields, Error> {
        Ok(Fields::new(Some(variant)))
    }
}

macro_rules! elements {
    ($($compound:ident: $method:ident;)*) => {$(
        impl $compound for Elements {
            type Ok = Canonical;
            type Error = Error;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
                self.push(value)
            }

            fn end(self) -> Result<Canonical, Error> {
                self.finish()
            }
        }
    )*};
}

elements! {
    SerializeSeq: serialize_element;
    SerializeTuple: serialize_element;
    SerializeTupleStruct: serialize_field;
    SerializeTupleVariant: serialize_field;
}

impl SerializeMap for Fields {
    type Ok = Canonical;
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        let Value::Object(map) = serde_json::to_value(OnlyKey(key))? else {
            return Err(Error::custom("key must be a string"));
        };
        self.key = map.into_iter().next().map(|(key, _)| key);
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        let key = self.key.take().ok_or_else(|| Error::custom("a value without its key"))?;
        self.insert(key, value)
    }

    fn end(self) -> Result<Canonical, Error> {
        self.finish()
    }
}

impl<T: Serialize + ?Sized> Serialize for OnlyKey<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry(self.0, &())?;
        map.end()
    }
}

impl SerializeStructVariant for Fields {
    type Ok = Canonical;
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        name: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        self.insert(name.to_owned(), value)
    }

    fn end(self) -> Result<Canonical, Error> {
        self.finish()
    }
}

impl SerializeStruct for FieldsOrPrivate {
    type Ok = Canonical;
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        name: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        match self {
            Self::Fields(fields) => fields.insert(name.to_owned(), value),
            Self::Number(text) | Self::RawValue(text) => {
                let Canonical::Text(value) = canonical(value)? else {
                    return Err(Error::custom("expected a text"));
                };
                *text = value;
                Ok(())
            }
        }
    }

    fn end(self) -> Result<Canonical, Error> {
        match self {
            Self::Fields(fields) => fields.finish(),
            Self::Number(text) => number(&text),
            Self::RawValue(text) => canonical(&serde_json::from_str::<Value>(&text)?),
        }
    }
}
