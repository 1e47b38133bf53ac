//! Check of values while they are encoded, so that no encoding is written that cannot be read as the same value.

use std::fmt::Display;

use serde::{
    Serialize, Serializer,
    ser::{
        SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
        SerializeTupleStruct, SerializeTupleVariant,
    },
};

use super::nesting::{MAX_DEPTH, TooDeep};

/// A value whose encoding fails if it is nested deeper than [`MAX_DEPTH`].
///
/// The depth is checked before the encoder descends, so a deeper value does not exhaust the stack either.
pub(crate) struct Encodable<'a, T: ?Sized> {
    value: &'a T,
    limits: SizeLimits,
}

#[derive(Clone, Copy)]
struct SizeLimits {
    /// Number of levels that the value may still have.
    depth: usize,
    /// JSON cannot represent NaN and infinity. `serde_json` writes `null` for them, so the number would be lost.
    only_finite: bool,
}

/// Error for a number that JSON cannot represent.
#[derive(Debug, thiserror::Error)]
#[error("JSON cannot represent NaN and infinity")]
struct NotFinite;

impl<'a, T: Serialize + ?Sized> Encodable<'a, T> {
    /// For an encoding that represents all numbers.
    #[cfg(any(feature = "redis", feature = "serde"))]
    pub(crate) fn new(value: &'a T) -> Self {
        Self { value, limits: SizeLimits { depth: MAX_DEPTH, only_finite: false } }
    }

    /// For JSON: its encoding also fails if it contains NaN or infinity.
    #[cfg(any(feature = "redis", all(feature = "dirq", unix)))]
    pub(crate) fn as_json(value: &'a T) -> Self {
        Self { value, limits: SizeLimits { depth: MAX_DEPTH, only_finite: true } }
    }

    /// For a value inside of `levels` arrays or maps, which count too.
    #[cfg(all(feature = "dirq", unix))]
    pub(crate) fn inside(mut self, levels: usize) -> Self {
        self.limits.depth -= levels;
        self
    }
}

impl<T: Serialize + ?Sized> Serialize for Encodable<'_, T> {
    #[inline]
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(Checked { inner: serializer, limits: self.limits })
    }
}

/// Serializer that checks each value before it passes it on.
struct Checked<S> {
    inner: S,
    limits: SizeLimits,
}

impl SizeLimits {
    /// Returns the limits of values `levels` further down.
    #[inline]
    fn below<E: serde::ser::Error>(self, levels: usize) -> Result<Self, E> {
        let depth = self.depth.checked_sub(levels).ok_or_else(|| E::custom(TooDeep))?;
        Ok(Self { depth, ..self })
    }

    #[inline]
    fn check<E: serde::ser::Error>(self, is_finite: bool) -> Result<(), E> {
        if self.only_finite && !is_finite { Err(E::custom(NotFinite)) } else { Ok(()) }
    }

    #[inline]
    fn of<T: Serialize + ?Sized>(self, value: &T) -> Encodable<'_, T> {
        Encodable { value, limits: self }
    }
}

macro_rules! unchanged {
    ($($method:ident($($argument:ident: $type:ty),*);)*) => {$(
        #[inline]
        fn $method(self $(, $argument: $type)*) -> Result<S::Ok, S::Error> {
            self.inner.$method($($argument),*)
        }
    )*};
}

/// Methods that begin an array or map, and the number of levels that it takes.
macro_rules! compounds {
    ($($method:ident($($argument:ident: $type:ty),*) -> $compound:ident, $levels:literal;)*) => {$(
        #[inline]
        fn $method(self $(, $argument: $type)*) -> Result<Checked<S::$compound>, S::Error> {
            let limits = self.limits.below($levels)?;
            Ok(Checked { inner: self.inner.$method($($argument),*)?, limits })
        }
    )*};
}

impl<S: Serializer> Serializer for Checked<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Checked<S::SerializeSeq>;
    type SerializeTuple = Checked<S::SerializeTuple>;
    type SerializeTupleStruct = Checked<S::SerializeTupleStruct>;
    type SerializeTupleVariant = Checked<S::SerializeTupleVariant>;
    type SerializeMap = Checked<S::SerializeMap>;
    type SerializeStruct = Checked<S::SerializeStruct>;
    type SerializeStructVariant = Checked<S::SerializeStructVariant>;

    unchanged! {
        serialize_bool(value: bool);
        serialize_i8(value: i8);
        serialize_i16(value: i16);
        serialize_i32(value: i32);
        serialize_i64(value: i64);
        serialize_i128(value: i128);
        serialize_u8(value: u8);
        serialize_u16(value: u16);
        serialize_u32(value: u32);
        serialize_u64(value: u64);
        serialize_u128(value: u128);
        serialize_char(value: char);
        serialize_str(value: &str);
        serialize_bytes(value: &[u8]);
        serialize_none();
        serialize_unit();
        serialize_unit_struct(name: &'static str);
        serialize_unit_variant(name: &'static str, index: u32, variant: &'static str);
    }

    compounds! {
        serialize_seq(len: Option<usize>) -> SerializeSeq, 1;
        serialize_tuple(len: usize) -> SerializeTuple, 1;
        serialize_tuple_struct(name: &'static str, len: usize) -> SerializeTupleStruct, 1;
        serialize_tuple_variant(name: &'static str, index: u32, variant: &'static str, len: usize)
            -> SerializeTupleVariant, 2;
        serialize_map(len: Option<usize>) -> SerializeMap, 1;
        serialize_struct(name: &'static str, len: usize) -> SerializeStruct, 1;
        serialize_struct_variant(name: &'static str, index: u32, variant: &'static str, len: usize)
            -> SerializeStructVariant, 2;
    }

    #[inline]
    fn serialize_f32(self, number: f32) -> Result<S::Ok, S::Error> {
        self.limits.check(number.is_finite())?;
        self.inner.serialize_f32(number)
    }

    #[inline]
    fn serialize_f64(self, number: f64) -> Result<S::Ok, S::Error> {
        self.limits.check(number.is_finite())?;
        self.inner.serialize_f64(number)
    }

    #[inline]
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.inner.serialize_some(&self.limits.of(value))
    }

    #[inline]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.inner.serialize_newtype_struct(name, &self.limits.of(value))
    }

    #[inline]
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        let limits = self.limits.below(1)?;
        self.inner.serialize_newtype_variant(name, index, variant, &limits.of(value))
    }

    #[inline]
    fn collect_str<T: Display + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.inner.collect_str(value)
    }

    #[inline]
    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

macro_rules! each {
    ($($compound:ident: $($method:ident),+;)*) => {$(
        impl<C: $compound> $compound for Checked<C> {
            type Ok = C::Ok;
            type Error = C::Error;

            $(#[inline]
            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), C::Error> {
                self.inner.$method(&self.limits.of(value))
            })+

            #[inline]
            fn end(self) -> Result<C::Ok, C::Error> {
                self.inner.end()
            }
        }
    )*};
}

each! {
    SerializeSeq: serialize_element;
    SerializeTuple: serialize_element;
    SerializeTupleStruct: serialize_field;
    SerializeTupleVariant: serialize_field;
    SerializeMap: serialize_key, serialize_value;
}

macro_rules! each_field {
    ($($compound:ident),+) => {$(
        impl<C: $compound> $compound for Checked<C> {
            type Ok = C::Ok;
            type Error = C::Error;

            #[inline]
            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                name: &'static str,
                value: &T,
            ) -> Result<(), C::Error> {
                self.inner.serialize_field(name, &self.limits.of(value))
            }

            #[inline]
            fn skip_field(&mut self, name: &'static str) -> Result<(), C::Error> {
                self.inner.skip_field(name)
            }

            #[inline]
            fn end(self) -> Result<C::Ok, C::Error> {
                self.inner.end()
            }
        }
    )+};
}

each_field!(SerializeStruct, SerializeStructVariant);
