//! JSON of keys. It is the text of a `serde_json::Value` as `serde_json` writes it with its default features: with the
//! fields of structs and maps in alphabetical order, and `f32` as `f64`.
//!
//! `serde_json` itself must not write it: a program that enables its feature `preserve_order` or `arbitrary_precision`,
//! anywhere among its dependencies, would store other bytes than its other builds, and share no key with them.
//!
//! This file depends on nothing else in this crate, so that `tests/serde_json_features` can compile it with these
//! features.

use std::collections::BTreeMap;

use serde::{
    Serialize, Serializer,
    ser::{
        Error as _, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant,
        SerializeTuple, SerializeTupleStruct, SerializeTupleVariant,
    },
};
use serde_json::{Error, Value, from_str, to_value, to_writer};

/// Name under which `serde_json` serializes a number with `arbitrary_precision`, and the only field of it.
const NUMBER: &str = "$serde_json::private::Number";
/// Name under which `serde_json` serializes a `RawValue`, with feature `raw_value`, and the only field of it.
const RAW_VALUE: &str = "$serde_json::private::RawValue";

/// Appends the JSON of `value` to `out`. If the value itself is a string for which `is_verbatim` returns true, appends
/// it without quotes.
///
/// Fails for maps whose keys are not texts or numbers, and for integers beyond 64 bits inside of another value.
#[inline]
pub(crate) fn canonical<T: Serialize + ?Sized>(
    value: &T,
    is_verbatim: fn(&str) -> bool,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    value.serialize(Canonical { out, is_verbatim: Some(is_verbatim) })
}

struct Canonical<'a> {
    out: &'a mut Vec<u8>,
    /// `None` inside of another value.
    is_verbatim: Option<fn(&str) -> bool>,
}

/// An array, written up to its last element.
struct Elements<'a> {
    out: &'a mut Vec<u8>,
    is_empty: bool,
    in_variant: bool,
}

/// Fields in the order of their names, with their JSON.
struct Fields<'a> {
    out: &'a mut Vec<u8>,
    by_name: BTreeMap<String, Vec<u8>>,
    /// Key of a map whose value follows.
    key: Option<String>,
    in_variant: bool,
}

/// A map with a single key, from which `serde_json` makes a text.
struct OnlyKey<'a, T: ?Sized>(&'a T);

/// A struct, or a text that `serde_json` passes to itself as a struct.
enum FieldsOrPrivate<'a> {
    Fields(Fields<'a>),
    Number(Canonical<'a>, String),
    RawValue(Canonical<'a>, String),
}

/// Appends the JSON of a value inside of another one.
fn nested<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) -> Result<(), Error> {
    value.serialize(Canonical { out, is_verbatim: None })
}

impl<'a> Canonical<'a> {
    fn begin_variant(&mut self, variant: &'static str) -> Result<(), Error> {
        self.out.push(b'{');
        to_writer(&mut *self.out, variant)?;
        self.out.push(b':');
        Ok(())
    }

    fn elements(self, in_variant: bool) -> Elements<'a> {
        self.out.push(b'[');
        Elements { out: self.out, is_empty: true, in_variant }
    }

    fn fields(self, in_variant: bool) -> Fields<'a> {
        Fields { out: self.out, by_name: BTreeMap::new(), key: None, in_variant }
    }

    /// Writes a number as its default type does: an integer of 64 bits, or else an `f64`.
    fn number(self, text: &str) -> Result<(), Error> {
        if let Ok(number) = text.parse::<u64>() {
            return self.serialize_u64(number);
        }
        if let Ok(number) = text.parse::<i64>() {
            return self.serialize_i64(number);
        }
        self.serialize_f64(text.parse().map_err(Error::custom)?)
    }

    /// Writes an integer beyond 64 bits. A `serde_json::Value` has none, so they are refused inside of other values.
    fn wide(self, digits: &str) -> Result<(), Error> {
        if self.is_verbatim.is_none() {
            return Err(Error::custom("number out of range"));
        }
        self.out.extend_from_slice(digits.as_bytes());
        Ok(())
    }
}

impl Elements<'_> {
    fn push<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        if !self.is_empty {
            self.out.push(b',');
        }
        self.is_empty = false;
        nested(value, self.out)
    }

    fn finish(self) -> Result<(), Error> {
        self.out.push(b']');
        if self.in_variant {
            self.out.push(b'}');
        }
        Ok(())
    }
}

impl Fields<'_> {
    fn insert<T: Serialize + ?Sized>(&mut self, name: String, value: &T) -> Result<(), Error> {
        let mut json = Vec::new();
        nested(value, &mut json)?;
        self.by_name.insert(name, json);
        Ok(())
    }

    fn finish(self) -> Result<(), Error> {
        let mut before = b'{';
        for (name, value) in self.by_name {
            self.out.push(before);
            to_writer(&mut *self.out, &name)?;
            self.out.push(b':');
            self.out.extend_from_slice(&value);
            before = b',';
        }
        if before == b'{' {
            self.out.push(before);
        }
        self.out.push(b'}');
        if self.in_variant {
            self.out.push(b'}');
        }
        Ok(())
    }
}

macro_rules! as_json {
    ($($method:ident($type:ty);)*) => {$(
        #[inline]
        fn $method(self, value: $type) -> Result<(), Error> {
            to_writer(self.out, &value)
        }
    )*};
}

impl<'a> Serializer for Canonical<'a> {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = Elements<'a>;
    type SerializeTuple = Elements<'a>;
    type SerializeTupleStruct = Elements<'a>;
    type SerializeTupleVariant = Elements<'a>;
    type SerializeMap = Fields<'a>;
    type SerializeStruct = FieldsOrPrivate<'a>;
    type SerializeStructVariant = Fields<'a>;

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

    fn serialize_i128(self, value: i128) -> Result<(), Error> {
        match (u64::try_from(value), i64::try_from(value)) {
            (Ok(value), _) => self.serialize_u64(value),
            (_, Ok(value)) => self.serialize_i64(value),
            _ => self.wide(&value.to_string()),
        }
    }

    fn serialize_u128(self, value: u128) -> Result<(), Error> {
        match u64::try_from(value) {
            Ok(value) => self.serialize_u64(value),
            Err(_) => self.wide(&value.to_string()),
        }
    }

    fn serialize_f32(self, value: f32) -> Result<(), Error> {
        self.serialize_f64(value.into())
    }

    fn serialize_char(self, value: char) -> Result<(), Error> {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    #[inline]
    fn serialize_str(self, value: &str) -> Result<(), Error> {
        if self.is_verbatim.is_some_and(|is_verbatim| is_verbatim(value)) {
            self.out.extend_from_slice(value.as_bytes());
            return Ok(());
        }
        to_writer(self.out, value)
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_none(self) -> Result<(), Error> {
        self.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Error> {
        to_writer(self.out, &())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Error> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<(), Error> {
        self.serialize_str(variant)
    }

    #[inline]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        mut self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        self.begin_variant(variant)?;
        nested(value, self.out)?;
        self.out.push(b'}');
        Ok(())
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Elements<'a>, Error> {
        Ok(self.elements(false))
    }

    fn serialize_tuple(self, _: usize) -> Result<Elements<'a>, Error> {
        Ok(self.elements(false))
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Elements<'a>, Error> {
        Ok(self.elements(false))
    }

    fn serialize_tuple_variant(
        mut self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Elements<'a>, Error> {
        self.begin_variant(variant)?;
        Ok(self.elements(true))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Fields<'a>, Error> {
        Ok(self.fields(false))
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<FieldsOrPrivate<'a>, Error> {
        Ok(match name {
            NUMBER => FieldsOrPrivate::Number(self, String::new()),
            RAW_VALUE => FieldsOrPrivate::RawValue(self, String::new()),
            _ => FieldsOrPrivate::Fields(self.fields(false)),
        })
    }

    fn serialize_struct_variant(
        mut self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Fields<'a>, Error> {
        self.begin_variant(variant)?;
        Ok(self.fields(true))
    }
}

macro_rules! elements {
    ($($compound:ident: $method:ident;)*) => {$(
        impl $compound for Elements<'_> {
            type Ok = ();
            type Error = Error;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
                self.push(value)
            }

            fn end(self) -> Result<(), Error> {
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

impl SerializeMap for Fields<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        let Value::Object(map) = to_value(OnlyKey(key))? else {
            return Err(Error::custom("key must be a string"));
        };
        self.key = map.into_iter().next().map(|(key, _)| key);
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        let key = self.key.take().ok_or_else(|| Error::custom("a value without its key"))?;
        self.insert(key, value)
    }

    fn end(self) -> Result<(), Error> {
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

impl SerializeStructVariant for Fields<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        name: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        self.insert(name.to_owned(), value)
    }

    fn end(self) -> Result<(), Error> {
        self.finish()
    }
}

impl SerializeStruct for FieldsOrPrivate<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        name: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        match self {
            Self::Fields(fields) => fields.insert(name.to_owned(), value),
            Self::Number(_, text) | Self::RawValue(_, text) => {
                let mut bytes = Vec::new();
                canonical(value, |_| true, &mut bytes)?;
                *text = String::from_utf8(bytes).map_err(Error::custom)?;
                Ok(())
            }
        }
    }

    fn end(self) -> Result<(), Error> {
        match self {
            Self::Fields(fields) => fields.finish(),
            Self::Number(to, text) => to.number(&text),
            Self::RawValue(to, text) => from_str::<Value>(&text)?.serialize(to),
        }
    }
}
