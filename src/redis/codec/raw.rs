//! [`Format::Raw`](super::Format::Raw): bytes and strings, written verbatim.
//!
//! serde serializes a `Vec<u8>` byte by byte, like every sequence. So a single byte is accepted here, but only as an
//! element of a sequence; elsewhere it is refused like any other number.

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
    match value.serialize(RawSerializer)? {
        Serialized::Bytes(bytes) => Ok(bytes),
        Serialized::Byte(_) => Err(refused()),
    }
}

pub(super) fn decode<V: DeserializeOwned>(bytes: &[u8]) -> Result<V, Error> {
    V::deserialize(RawDeserializer(bytes))
}

struct RawSerializer;

enum Serialized {
    Bytes(Vec<u8>),
    /// An element of a sequence, such as a `Vec<u8>`.
    Byte(u8),
}

/// Sequence of bytes, collected one by one.
struct ByteSeq(Vec<u8>);

struct RawDeserializer<'a>(&'a [u8]);

fn refused() -> Error {
    Error::custom("the raw format supports only bytes and strings")
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
        fn $method<T: Serialize + ?Sized>(self $(, _: $argument)*, _: &T) -> Result<Serialized, Error> {
            Err(refused())
        }
    )*};
}

type Unsupported = Impossible<Serialized, Error>;

impl Serializer for RawSerializer {
    type Ok = Serialized;
    type Error = Error;
    type SerializeSeq = ByteSeq;
    type SerializeTuple = ByteSeq;
    type SerializeTupleStruct = Unsupported;
    type SerializeTupleVariant = Unsupported;
    type SerializeMap = Unsupported;
    type SerializeStruct = Unsupported;
    type SerializeStructVariant = Unsupported;

    fn serialize_str(self, text: &str) -> Result<Serialized, Error> {
        Ok(Serialized::Bytes(text.as_bytes().to_vec()))
    }

    fn serialize_bytes(self, bytes: &[u8]) -> Result<Serialized, Error> {
        Ok(Serialized::Bytes(bytes.to_vec()))
    }

    fn serialize_u8(self, byte: u8) -> Result<Serialized, Error> {
        // An element of a sequence, as which serde serializes `Vec<u8>`. `encode` refuses a number by itself.
        Ok(Serialized::Byte(byte))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<Serialized, Error> {
        value.serialize(self)
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<ByteSeq, Error> {
        Ok(ByteSeq(Vec::with_capacity(len.unwrap_or(0))))
    }

    fn serialize_tuple(self, len: usize) -> Result<ByteSeq, Error> {
        Ok(ByteSeq(Vec::with_capacity(len)))
    }

    refuse! {
        serialize_bool(bool) -> Serialized;
        serialize_i8(i8) -> Serialized;
        serialize_i16(i16) -> Serialized;
        serialize_i32(i32) -> Serialized;
        serialize_i64(i64) -> Serialized;
        serialize_u16(u16) -> Serialized;
        serialize_u32(u32) -> Serialized;
        serialize_u64(u64) -> Serialized;
        serialize_f32(f32) -> Serialized;
        serialize_f64(f64) -> Serialized;
        serialize_char(char) -> Serialized;
        serialize_none() -> Serialized;
        serialize_unit() -> Serialized;
        serialize_unit_struct(&'static str) -> Serialized;
        serialize_unit_variant(&'static str, u32, &'static str) -> Serialized;
        serialize_tuple_struct(&'static str, usize) -> Unsupported;
        serialize_tuple_variant(&'static str, u32, &'static str, usize) -> Unsupported;
        serialize_map(Option<usize>) -> Unsupported;
        serialize_struct(&'static str, usize) -> Unsupported;
        serialize_struct_variant(&'static str, u32, &'static str, usize) -> Unsupported;
    }

    refuse_generic! {
        serialize_some();
        serialize_newtype_variant(&'static str, u32, &'static str);
    }
}

impl SerializeSeq for ByteSeq {
    type Ok = Serialized;
    type Error = Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        match value.serialize(RawSerializer)? {
            Serialized::Byte(byte) => self.0.push(byte),
            Serialized::Bytes(_) => return Err(refused()),
        }
        Ok(())
    }

    fn end(self) -> Result<Serialized, Error> {
        Ok(Serialized::Bytes(self.0))
    }
}

impl SerializeTuple for ByteSeq {
    type Ok = Serialized;
    type Error = Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        SerializeSeq::serialize_element(self, value)
    }

    fn end(self) -> Result<Serialized, Error> {
        Ok(Serialized::Bytes(self.0))
    }
}

impl<'de> Deserializer<'de> for RawDeserializer<'de> {
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
        // `Vec<u8>` expects a sequence of numbers, not bytes.
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
    fn raw_format_writes_bytes_and_strings_verbatim() {
        assert_eq!(encode("a\0é").expect("a string"), "a\0é".as_bytes());
        assert_eq!(encode(&vec![0_u8, 255]).expect("bytes"), [0, 255]);
        assert_eq!(encode(&[1_u8, 2]).expect("bytes"), [1, 2]);
        assert_eq!(decode::<String>("é".as_bytes()).expect("a string"), "é");
        assert_eq!(decode::<Vec<u8>>(&[0, 255]).expect("bytes"), [0, 255]);
        assert_eq!(decode::<[u8; 2]>(&[1, 2]).expect("bytes"), [1, 2]);
    }

    #[test]
    fn raw_format_refuses_other_types() {
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
