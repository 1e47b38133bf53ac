//! Keys and values of all types that serde has.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    hash::{Hash, Hasher},
};

use rand::{RngExt, rngs::SmallRng};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeOwned, SeqAccess, Visitor},
};

/// A type of keys or values.
pub(super) trait Data:
    Serialize + DeserializeOwned + Clone + Debug + Eq + Hash + Send + Sync + 'static
{
    fn random(random: &mut SmallRng) -> Self;

    /// Returns the value as it is read again, where that is another one on purpose.
    fn as_read(&self) -> Self {
        self.clone()
    }
}

/// A string: also an empty one, one with NUL, JSON, and one of 64 KiB.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(super) struct Text(String);

/// Equal if all bits are, so that it may be a key.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Float(f64);

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Single(f32);

/// Serialized as a byte string, and not as a sequence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Bytes(Vec<u8>);

/// Maps whose keys are no strings.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Map {
    numbers: BTreeMap<i64, Float>,
    chars: BTreeMap<char, ()>,
    flags: BTreeMap<bool, u8>,
    wide: BTreeMap<u64, Vec<Option<Text>>>,
}

/// An option in an option: no format distinguishes `Some(None)` from `None`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Nested(Option<Option<u8>>);

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum Mixed {
    Unit,
    Newtype(Text),
    Tuple(u8, Float),
    Named { number: Option<i64>, bytes: Bytes, float: Single, unit: () },
    Recursive(Vec<Mixed>),
}

macro_rules! by_bits {
    ($($float:ident)+) => {$(
        impl PartialEq for $float {
            fn eq(&self, other: &Self) -> bool {
                self.0.to_bits() == other.0.to_bits()
            }
        }

        impl Eq for $float {}

        impl Hash for $float {
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.0.to_bits().hash(state);
            }
        }
    )+};
}

by_bits!(Float Single);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Bytes;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes(bytes.to_vec()))
            }

            // JSON has no byte strings.
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Bytes, A::Error> {
                let mut bytes = Vec::new();
                while let Some(byte) = seq.next_element()? {
                    bytes.push(byte);
                }
                Ok(Bytes(bytes))
            }
        }

        deserializer.deserialize_bytes(Either)
    }
}

/// Returns a finite number: any bits, or one that programs have.
fn finite(random: &mut SmallRng) -> f64 {
    let bits = f64::from_bits(random.random());
    if bits.is_finite() && random.random() {
        return bits;
    }
    f64::from(random.random_range(-100_000..100_000)) / f64::from(random.random_range(1..1_000))
}

fn several<T>(random: &mut SmallRng, one: impl Fn(&mut SmallRng) -> T) -> Vec<T> {
    (0..random.random_range(0..4)).map(|_| one(random)).collect()
}

fn maybe<T>(random: &mut SmallRng, some: impl Fn(&mut SmallRng) -> T) -> Option<T> {
    random.random::<bool>().then(|| some(random))
}

impl Data for Text {
    fn random(random: &mut SmallRng) -> Self {
        const SPECIAL: [&str; 20] = [
            "",
            "\0",
            "a\0b",
            "null",
            "12",
            "\"a\"",
            "[1]",
            "{",
            "}",
            "{a}",
            ":{",
            "*?[a]\\",
            " 1",
            "é\u{1F600}",
            "true",
            "1e5",
            ".groups",
            "-0.0",
            "\n",
            "Unit",
        ];
        Self(match random.random_range(0..24) {
            n @ 0..20 => SPECIAL[n].to_owned(),
            20 => char::from(random.random_range(b'a'..=b'z')).to_string().repeat(64 << 10),
            _ => format!("key {}", random.random_range(0..99)),
        })
    }
}

impl Data for Float {
    fn random(random: &mut SmallRng) -> Self {
        Self([0.0, -0.0, f64::MAX, f64::MIN_POSITIVE][random.random_range(0..4)])
            .or(random, |random| Self(finite(random)))
    }
}

impl Data for Single {
    fn random(random: &mut SmallRng) -> Self {
        let bits = f32::from_bits(random.random());
        Self(if bits.is_finite() { bits } else { 0.1 })
    }
}

impl Data for Bytes {
    fn random(random: &mut SmallRng) -> Self {
        Self(several(random, |random| random.random()))
    }
}

impl Data for Map {
    fn random(random: &mut SmallRng) -> Self {
        let (texts, number) = (|random: &mut SmallRng| maybe(random, Text::random), i64::random);
        Self {
            numbers: several(random, |random| (number(random), Float::random(random)))
                .into_iter()
                .collect(),
            chars: several(random, |random| (char::random(random), ())).into_iter().collect(),
            flags: several(random, |random| (random.random(), random.random()))
                .into_iter()
                .collect(),
            wide: several(random, |random| (u64::random(random), several(random, texts)))
                .into_iter()
                .collect(),
        }
    }
}

impl Data for Nested {
    fn random(random: &mut SmallRng) -> Self {
        Self([None, Some(None), Some(Some(7))][random.random_range(0..3)])
    }

    fn as_read(&self) -> Self {
        Self(self.0.flatten().map(Some))
    }
}

impl Data for Mixed {
    fn random(random: &mut SmallRng) -> Self {
        match random.random_range(0..6) {
            0 | 1 => Self::Unit,
            2 => Self::Newtype(Text::random(random)),
            3 => Self::Tuple(random.random(), Float::random(random)),
            4 => Self::Named {
                number: maybe(random, i64::random),
                bytes: Bytes::random(random),
                float: Single::random(random),
                unit: (),
            },
            _ => Self::Recursive(several(random, Self::random)),
        }
    }
}

macro_rules! integers {
    ($($integer:ident)+) => {$(
        impl Data for $integer {
            fn random(random: &mut SmallRng) -> Self {
                Self::or(
                    [0, 1, 10, $integer::MAX, $integer::MIN][random.random_range(0..5)],
                    random,
                    |random| random.random(),
                )
            }
        }
    )+};
}

integers!(u64 i64 i128 u128);

/// Either of two values.
trait Or: Sized {
    fn or(self, random: &mut SmallRng, other: impl Fn(&mut SmallRng) -> Self) -> Self {
        if random.random() { self } else { other(random) }
    }
}

impl<T> Or for T {}

impl Data for char {
    fn random(random: &mut SmallRng) -> Self {
        ['a', '7', '"', '\0', 'é', '\u{1F600}', '[', '\u{FFFF}'][random.random_range(0..8)]
    }
}

impl Data for () {
    fn random(_: &mut SmallRng) -> Self {}
}

impl<T: Data> Data for Option<T> {
    fn random(random: &mut SmallRng) -> Self {
        maybe(random, T::random)
    }

    fn as_read(&self) -> Self {
        self.as_ref().map(T::as_read)
    }
}

impl<T: Data, U: Data> Data for (T, U) {
    fn random(random: &mut SmallRng) -> Self {
        (T::random(random), U::random(random))
    }

    fn as_read(&self) -> Self {
        (self.0.as_read(), self.1.as_read())
    }
}
