//! Limits as text, for configuration: `100/min`, and the serde form (feature `serde`).

use std::{str::FromStr, time::Duration};

use super::{InvalidLimit, Limit, limit::LimitFault};

/// Units of time, the longest first, with their nanoseconds. The first name of each is the one that is written.
const UNITS: [(&[&str], u64); 7] = [
    (&["d", "day", "days"], 86_400_000_000_000),
    (&["h", "hour", "hours"], 3_600_000_000_000),
    (&["min", "m", "minute", "minutes"], 60_000_000_000),
    (&["s", "sec", "second", "seconds"], 1_000_000_000),
    (&["ms"], 1_000_000),
    (&["us", "µs"], 1_000),
    (&["ns"], 1),
];

/// A quota, a slash and a time: `100/min`, `5/10s`, `1/500ms`.
///
/// The units are `d`, `h`, `min` (or `m`), `s`, `ms`, `us` and `ns`, or the words `day`, `hour`, `minute`, `second`,
/// also in the plural. A unit without a number is one of it.
///
/// # Examples
///
/// ```
/// use fleeting::Limit;
///
/// let limit: Limit = "100/min".parse()?;
/// assert_eq!(limit, Limit::per_minute(100));
/// assert!("100 per minute".parse::<Limit>().is_err());
/// # Ok::<(), fleeting::InvalidLimit>(())
/// ```
impl FromStr for Limit {
    type Err = InvalidLimit;

    fn from_str(text: &str) -> Result<Self, InvalidLimit> {
        let invalid = || InvalidLimit(LimitFault::Text(text.to_owned()));
        let (quota, per) = text.split_once('/').ok_or_else(invalid)?;
        let quota = quota.trim().parse().map_err(|_| invalid())?;
        Self::try_new(quota, duration(per).ok_or_else(invalid)?)
    }
}

/// Parses a time such as `10s`, `10 s` or `min`.
fn duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let (count, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let unit = unit.trim_start();
    let (_, nanoseconds) = UNITS.iter().find(|(names, _)| names.contains(&unit))?;
    let count: u64 = if count.is_empty() { 1 } else { count.parse().ok()? };
    Some(Duration::from_nanos(count.checked_mul(*nanoseconds)?))
}

#[cfg(feature = "serde")]
mod serde_form {
    use std::{borrow::Cow, fmt, time::Duration};

    use serde::{
        Deserialize, Deserializer, Serialize, Serializer,
        de::{Error, MapAccess, Visitor, value::MapAccessDeserializer},
    };

    use super::{Limit, UNITS, duration};

    /// Fields of a limit.
    #[derive(Deserialize, Serialize)]
    #[serde(deny_unknown_fields)]
    struct Fields<'a> {
        quota: u32,
        #[serde(serialize_with = "write_per", deserialize_with = "read_per")]
        per: Duration,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<Cow<'a, str>>,
        #[serde(default, skip_serializing_if = "is_false")]
        of_bytes: bool,
    }

    fn is_false(flag: &bool) -> bool {
        !flag
    }

    /// Serialized as `{quota, per, name, of_bytes}`, where `per` is a text such as `60s`; the last two are absent if
    /// they are not set.
    #[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
    impl Serialize for Limit {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let (quota, per, name) = (self.quota(), self.per(), self.name().map(Cow::Borrowed));
            Fields { quota, per, name, of_bytes: self.is_of_bytes() }.serialize(serializer)
        }
    }

    /// Deserialized from a text such as `100/min`, or from fields: `{quota, per, name, of_bytes}`, where `per` is a
    /// text such as `60s` or a number of seconds.
    ///
    /// # Examples
    ///
    /// ```
    /// use fleeting::Limit;
    ///
    /// let text = r#"["100/min", {"quota": 5000, "per": "1d", "name": "daily"}]"#;
    /// let limits: Vec<Limit> = serde_json::from_str(text)?;
    /// assert_eq!(limits[0], Limit::per_minute(100));
    /// assert_eq!(limits[1].name(), Some("daily"));
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    #[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
    impl<'de> Deserialize<'de> for Limit {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_any(LimitVisitor)
        }
    }

    struct LimitVisitor;

    impl<'de> Visitor<'de> for LimitVisitor {
        type Value = Limit;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a limit such as \"100/min\", or {quota, per, name}")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Limit, E> {
            text.parse().map_err(E::custom)
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Limit, A::Error> {
            let Fields { quota, per, name, of_bytes } =
                Fields::deserialize(MapAccessDeserializer::new(map))?;
            let mut limit = Limit::try_new(quota, per).map_err(A::Error::custom)?;
            if let Some(name) = name {
                limit = limit.named(name.into_owned());
            }
            Ok(if of_bytes { limit.of_bytes() } else { limit })
        }
    }

    fn write_per<S: Serializer>(per: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        let nanoseconds = per.as_nanos();
        // Seconds at most: `60s` and `90s` compare more easily than `1min` and `90s`.
        let mut units = UNITS[3..].iter();
        let unit = units.find(|(_, unit)| nanoseconds.is_multiple_of(u128::from(*unit)));
        let (names, unit) = unit.expect("every time is a multiple of a nanosecond");
        let count = nanoseconds / u128::from(*unit);
        serializer.collect_str(&format_args!("{count}{}", names[0]))
    }

    fn read_per<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        struct PerVisitor;

        impl Visitor<'_> for PerVisitor {
            type Value = Duration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time such as \"60s\" or \"1h\", or a number of seconds")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
                let invalid =
                    || E::custom(format_args!("invalid time {text:?}, expected e.g. 60s"));
                duration(text).ok_or_else(invalid)
            }

            fn visit_u64<E: Error>(self, seconds: u64) -> Result<Duration, E> {
                Ok(Duration::from_secs(seconds))
            }

            fn visit_i64<E: Error>(self, seconds: i64) -> Result<Duration, E> {
                u64::try_from(seconds).map(Duration::from_secs).map_err(E::custom)
            }

            fn visit_f64<E: Error>(self, seconds: f64) -> Result<Duration, E> {
                Duration::try_from_secs_f64(seconds).map_err(E::custom)
            }
        }

        deserializer.deserialize_any(PerVisitor)
    }
}
