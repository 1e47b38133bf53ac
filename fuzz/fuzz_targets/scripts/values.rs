//! Arguments: any, and those that Lua or the protocol could take for something else.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arbitrary::{Arbitrary, Result, Unstructured};

use crate::{
    LONG,
    arguments::{BYTES, NANO, TEXTS, TTLS},
};

#[derive(Arbitrary, Clone, Debug)]
pub(crate) enum Text {
    Special(u8),
    Specials(u8, u8),
    Any(String),
    Long(u8, u16),
}

impl Text {
    pub(crate) fn text(&self) -> String {
        let special = |n: u8| TEXTS[usize::from(n) % TEXTS.len()];
        match self {
            Self::Special(n) => special(*n).to_owned(),
            Self::Specials(first, second) => format!("{}{}", special(*first), special(*second)),
            Self::Any(text) => text.clone(),
            Self::Long(byte, length) => {
                char::from(byte % 128).to_string().repeat(2 * usize::from(*length))
            }
        }
    }
}

/// A key, name, tag or group: usually one of few, so that calls meet on it.
#[derive(Clone, Debug)]
pub(crate) struct Key(pub(crate) String);

impl<'a> Arbitrary<'a> for Key {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Result<Self> {
        let text = match bytes.arbitrary()? {
            n @ ..192_u8 => format!("few {}", n % 3),
            _ => Text::arbitrary(bytes)?.text(),
        };
        Ok(Self(text))
    }
}

/// A value or member.
#[derive(Clone, Debug)]
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl<'a> Arbitrary<'a> for Bytes {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Result<Self> {
        Ok(Self(match bytes.arbitrary()? {
            n @ ..128_u8 => vec![n % 4],
            n @ 128..176 => [BYTES[usize::from(n) % BYTES.len()], bytes.arbitrary()?].concat(),
            176..216 => Text::arbitrary(bytes)?.text().into_bytes(),
            216.. => bytes.arbitrary()?,
        }))
    }
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) enum Span {
    Special(u8),
    Minutes(u8),
    Nanoseconds(u64),
    Milliseconds(u64),
    Seconds(u64),
}

impl Span {
    pub(crate) fn duration(self) -> Duration {
        match self {
            Self::Special(n) => TTLS[usize::from(n) % TTLS.len()],
            Self::Minutes(n) => 60 * Duration::from_secs(n.into()),
            Self::Nanoseconds(n) => Duration::from_nanos(n),
            Self::Milliseconds(n) => Duration::from_millis(n),
            Self::Seconds(n) => Duration::from_secs(n),
        }
    }

    /// Returns the duration, a nanosecond instead of zero.
    pub(crate) fn above_zero(self) -> Duration {
        self.duration().max(NANO)
    }

    pub(crate) fn is_long(self) -> bool {
        self.duration() >= LONG
    }
}

/// A time before, at or after the present or the start of the Unix epoch.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) struct Time {
    is_since_epoch: bool,
    is_later: bool,
    by: Span,
}

impl Time {
    pub(crate) fn time(self) -> SystemTime {
        let from = if self.is_since_epoch { UNIX_EPOCH } else { SystemTime::now() };
        let by = self.by.duration();
        let time = if self.is_later { from.checked_add(by) } else { from.checked_sub(by) };
        time.unwrap_or(from)
    }
}

/// A number, often a small one or one of the ends of the range.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) enum Number {
    Small(u8),
    Large(u8),
    Any(u32),
}

impl Number {
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Small(n) => n.into(),
            Self::Large(n) => u32::MAX - u32::from(n),
            Self::Any(n) => n,
        }
    }

    pub(crate) fn count(self) -> usize {
        match self {
            Self::Large(n) => usize::MAX - usize::from(n),
            _ => self.number() as usize,
        }
    }
}
