//! Bytes and strings, written as they are.

use serde::{
    Deserializer, Serialize, Serializer,
    de::{
        DeserializeOwned, Error as _, Visitor,
        value::{Error, SeqDeserializer},
    },
    forward_to_deserialize_any,
    ser::{Impossible, SerializeSeq, SerializeTuple},
};

pub(super) fn encode<V: Serialize + ?Sized>(value: &V) -> Result<Vec<u8>, Error> {
    match value.serialize(Encoder)? {
        Raw::Bytes(bytes) => Ok(bytes),
        Raw::Byte(_) => Err(refused()),
    }
}

pub(super) fn decode<V: DeserializeOwned>(bytes: &[u8]) -> Result<V, Error> {
    V::deserialize(Decoder(bytes))
}

struct Encoder;

enum Raw {
    Bytes(Vec<u8>),
    /// One of those that come one by one, as those of a `Vec<u8>` do.
    Byte(u8),
}

struct Bytes(Vec<u8>);

struct Decoder<'a>(&'a [u8]);

fn refused() -> Error {
    Error::custom("the raw format is for bytes and strings")
}

macro_rules! refuse {
    ($($method:ident($($argument:ty),*) -> $result:ty;)*) => {$(
        fn $method(self $(, _: $argument)*) -> Result<$result, Error> {
            Err(refused())
        }
    )*};
}

macro_rules! refuse_generic {
    ($($method:ident($($argument:ty),*);)*) => {$(
        fn $method<T: Serialize + ?Sized>(self $(, _: $argument)*, _: &T) -> Result<Raw, Error> {
            Err(refused())
        }
    )*};
}

type No = Impossible<Raw, Error>;

impl Serializer for Encoder {
    type Ok = Raw;
    type Error = Error;
    type SerializeSeq = Bytes;
    type SerializeTuple = Bytes;
    type SerializeTupleStruct = No;
    type SerializeTupleVariant = No;
    type SerializeMap = No;
    type SerializeStruct = No;
    type SerializeStructVariant = No;

    fn serialize_str(self, text: &str) -> Result<Raw, Error> {
        Ok(Raw::Bytes(text.as_bytes().to_vec()))
    }

    fn serialize_bytes(self, bytes: &[u8]) -> Result<Raw, Error> {
        Ok(Raw::Bytes(bytes.to_vec()))
    }

    fn serialize_u8(self, byte: u8) -> Result<Raw, Error> {
        Ok(Raw::Byte(byte))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<Raw, Error> {
        value.serialize(self)
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Bytes, Error> {
        Ok(Bytes(Vec::with_capacity(len.unwrap_or(0))))
    }

    fn serialize_tuple(self, len: usize) -> Result<Bytes, Error> {
        Ok(Bytes(Vec::with_capacity(len)))
    }

    refuse! {
        serialize_bool(bool) -> Raw;
        serialize_i8(i8) -> Raw;
        serialize_i16(i16) -> Raw;
        serialize_i32(i32) -> Raw;
        serialize_i64(i64) -> Raw;
        serialize_u16(u16) -> Raw;
        serialize_u32(u32) -> Raw;
        serialize_u64(u64) -> Raw;
        serialize_f32(f32) -> Raw;
        serialize_f64(f64) -> Raw;
        serialize_char(char) -> Raw;
        serialize_none() -> Raw;
        serialize_unit() -> Raw;
        serialize_unit_struct(&'static str) -> Raw;
        serialize_unit_variant(&'static str, u32, &'static str) -> Raw;
        serialize_tuple_struct(&'static str, usize) -> No;
        serialize_tuple_variant(&'static str, u32, &'static str, usize) -> No;
        serialize_map(Option<usize>) -> No;
        serialize_struct(&'static str, usize) -> No;
        serialize_struct_variant(&'static str, u32, &'static str, usize) -> No;
    }

    refuse_generic! {
        serialize_some();
        serialize_newtype_variant(&'static str, u32, &'static str);
    }
}

impl SerializeSeq for Bytes {
    type Ok = Raw;
    type Error = Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        match value.serialize(Encoder)? {
            Raw::Byte(byte) => self.0.push(byte),
            Raw::Bytes(_) => return Err(refused()),
        }
        Ok(())
    }

    fn end(self) -> Result<Raw, Error> {
        Ok(Raw::Bytes(self.0))
    }
}

impl SerializeTuple for Bytes {
    type Ok = Raw;
    type Error = Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        SerializeSeq::serialize_element(self, value)
    }

    fn end(self) -> Result<Raw, Error> {
        Ok(Raw::Bytes(self.0))
    }
}

impl<'de> Deserializer<'de> for Decoder<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_borrowed_bytes(self.0)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_borrowed_str(std::str::from_utf8(self.0).map_err(Error::custom)?)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(SeqDeserializer::new(self.0.iter().copied()))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char bytes byte_buf option unit unit_struct
        tuple_struct map struct enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn bytes_and_strings_are_written_as_they_are() {
        assert_eq!(encode("a\0é").expect("a string"), "a\0é".as_bytes());
        assert_eq!(encode(&vec![0_u8, 255]).expect("bytes"), [0, 255]);
        assert_eq!(encode(&[1_u8, 2]).expect("bytes"), [1, 2]);
        assert_eq!(decode::<String>("é".as_bytes()).expect("a string"), "é");
        assert_eq!(decode::<Vec<u8>>(&[0, 255]).expect("bytes"), [0, 255]);
        assert_eq!(decode::<[u8; 2]>(&[1, 2]).expect("bytes"), [1, 2]);
    }

    #[test]
    fn all_else_is_refused() {
        assert!(encode(&1_u8).is_err());
        assert!(encode(&1.5).is_err());
        assert!(encode(&vec!["a"]).is_err());
        assert!(encode(&vec![1_u32]).is_err());
        assert!(encode(&BTreeMap::from([("a", 1)])).is_err());
        assert!(encode(&Some("a")).is_err());
        assert!(decode::<u64>(b"1").is_err());
        assert!(decode::<String>(&[255]).is_err());
    }
}
