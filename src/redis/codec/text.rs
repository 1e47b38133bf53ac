//! Encoding of keys like [`encode_key`](super::encode_key), but without an allocation: for strings and integers, which
//! most keys are.

use std::fmt;

use serde::{
    Serialize, Serializer,
    de::IgnoredAny,
    ser::{Error, Impossible},
};

/// Calls `f` with the encoded key.
///
/// Returns `None`, without a call, unless the key is an integer or a string that is not valid JSON.
#[inline]
pub(super) fn with_text<K: Serialize + ?Sized, R>(
    key: &K,
    f: impl FnOnce(&[u8]) -> R,
) -> Option<R> {
    key.serialize(Text(f)).ok()
}

/// Returns whether a text is valid JSON: a number, `null`, `true`, `false`, a string in quotes, an array or an object.
pub(super) fn reads_as_json(text: &str) -> bool {
    // Rules out most keys by their first character.
    let may_be = text.trim_ascii_start().starts_with(|first: char| {
        matches!(first, '"' | '[' | '{' | '-' | '0'..='9' | 't' | 'f' | 'n')
    });
    may_be && serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// Serializer for strings and integers.
struct Text<F>(F);

/// Error for a key of another type.
#[derive(Debug)]
struct NotText;

impl fmt::Display for NotText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("neither a string nor an integer")
    }
}

impl std::error::Error for NotText {}

impl Error for NotText {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

macro_rules! integers {
    ($($method:ident($number:ty);)*) => {$(
        #[inline]
        fn $method(self, number: $number) -> Result<R, NotText> {
            Ok(with_digits(number.into(), self.0))
        }
    )*};
}

macro_rules! others {
    ($($method:ident($($argument:ty),*) -> $result:ty;)*) => {$(
        fn $method(self $(, _: $argument)*) -> Result<$result, NotText> {
            Err(NotText)
        }
    )*};
}

macro_rules! generic_others {
    ($($method:ident($($argument:ty),*);)*) => {$(
        fn $method<T: Serialize + ?Sized>(self $(, _: $argument)*, _: &T) -> Result<R, NotText> {
            Err(NotText)
        }
    )*};
}

type Never<R> = Impossible<R, NotText>;

impl<R, F: FnOnce(&[u8]) -> R> Serializer for Text<F> {
    type Ok = R;
    type Error = NotText;
    type SerializeSeq = Never<R>;
    type SerializeTuple = Never<R>;
    type SerializeTupleStruct = Never<R>;
    type SerializeTupleVariant = Never<R>;
    type SerializeMap = Never<R>;
    type SerializeStruct = Never<R>;
    type SerializeStructVariant = Never<R>;

    #[inline]
    fn serialize_str(self, text: &str) -> Result<R, NotText> {
        // `encode_key` writes such a string as JSON.
        if reads_as_json(text) {
            return Err(NotText);
        }
        Ok((self.0)(text.as_bytes()))
    }

    #[inline]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<R, NotText> {
        value.serialize(self)
    }

    integers! {
        serialize_i8(i8);
        serialize_i16(i16);
        serialize_i32(i32);
        serialize_i64(i64);
        serialize_u8(u8);
        serialize_u16(u16);
        serialize_u32(u32);
        serialize_u64(u64);
    }

    fn serialize_i128(self, number: i128) -> Result<R, NotText> {
        Ok((self.0)(number.to_string().as_bytes()))
    }

    fn serialize_u128(self, number: u128) -> Result<R, NotText> {
        Ok((self.0)(number.to_string().as_bytes()))
    }

    others! {
        serialize_bool(bool) -> R;
        serialize_f32(f32) -> R;
        serialize_f64(f64) -> R;
        serialize_char(char) -> R;
        serialize_bytes(&[u8]) -> R;
        serialize_none() -> R;
        serialize_unit() -> R;
        serialize_unit_struct(&'static str) -> R;
        serialize_unit_variant(&'static str, u32, &'static str) -> R;
        serialize_seq(Option<usize>) -> Never<R>;
        serialize_tuple(usize) -> Never<R>;
        serialize_tuple_struct(&'static str, usize) -> Never<R>;
        serialize_tuple_variant(&'static str, u32, &'static str, usize) -> Never<R>;
        serialize_map(Option<usize>) -> Never<R>;
        serialize_struct(&'static str, usize) -> Never<R>;
        serialize_struct_variant(&'static str, u32, &'static str, usize) -> Never<R>;
    }

    generic_others! {
        serialize_some();
        serialize_newtype_variant(&'static str, u32, &'static str);
    }
}

#[inline]
fn with_digits<R>(number: i128, f: impl FnOnce(&[u8]) -> R) -> R {
    // Sufficient for 64 bits with a sign.
    let mut digits = [0; 20];
    // Narrowed from 128 bits, whose division is slow.
    let (mut at, mut rest) = (digits.len(), number.unsigned_abs() as u64);
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        at -= 1;
        digits[at] = b'-';
    }
    f(&digits[at..])
}
