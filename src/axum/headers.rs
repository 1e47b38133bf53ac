//! Rate limit header fields of a response, and how they are written.

use std::{borrow::Cow, cmp::Reverse};

use ::axum::http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;
use tokio::time::Instant;

use super::retry_after::{RetryAfter, whole_seconds, whole_seconds_until};
use crate::{
    engine::clock::Now,
    rate_limit::{Limit, Limited, Remaining},
};

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const LEGACY_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const LEGACY_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const LEGACY_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// Rate limit header fields of a response, from which clients learn their quota. Set by
/// [`RateLimitLayer::headers`](crate::RateLimitLayer::headers), which has an example.
#[doc(alias = "use_headers")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Headers {
    /// `RateLimit-Policy` and `RateLimit`, as in draft 11 of *RateLimit header fields for HTTP* (IETF, httpapi). They
    /// list each limit by its name:
    ///
    /// ```text
    /// RateLimit-Policy: "burst";q=10;w=1, "hourly";q=1000;w=3600
    /// RateLimit: "burst";r=9;t=1, "hourly";r=412;t=1800
    /// ```
    ///
    /// | parameter | meaning |
    /// | --- | --- |
    /// | `q` | quota |
    /// | `w` | window in seconds |
    /// | `r` | units left after the request was charged, or after its charge was corrected |
    /// | `t` | seconds, from the response on, until more units are available; absent if the whole quota is left |
    /// | `qu` | `"content-bytes"` for a limit [of bytes](crate::Limit::of_bytes) |
    /// | `pk` | the [`partition_key`](crate::RateLimitLayer::partition_key), if there is one |
    ///
    /// Seconds are rounded up. A limit without a name is called by its quota and window, as `"10-per-1s"`. Characters
    /// of a name that a field cannot contain are percent-encoded.
    #[default]
    Draft11,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, for the limit with the fewest units left. `Reset` is the number
    /// of seconds, from the response on, until more units are available, rounded up; it is zero if the whole quota is
    /// left.
    Legacy,
    /// Both `Draft11` and `Legacy`.
    Both,
    /// No fields. A denial still has `Retry-After`.
    None,
}

/// Structured field list (RFC 9651) under construction: a member for each limit, with its name and parameters.
type List = SmallVec<[u8; 128]>;

/// Parts of the fields that are the same in all responses under the same limits.
#[derive(Clone)]
pub(super) struct PolicyFields {
    field: HeaderValue,
    /// Member of the policy field for each limit.
    policies: Box<[String]>,
    /// First part of the member of each limit in the other field: `"name";r=`.
    members: Box<[String]>,
}

/// Policy together with the partition key of one response, as it is written into the fields.
#[derive(Clone, Copy)]
pub(super) struct Partition<'a> {
    pub(super) policy: &'a PolicyFields,
    pub(super) key: Option<&'a str>,
}

/// Values of the fields for one limit.
#[derive(Clone)]
pub(super) struct LimitFields<'a> {
    limit: &'a Limit,
    remaining: u32,
    /// Seconds until more units are available.
    more_after: Option<u64>,
}

impl Headers {
    /// Adds the fields to those of an inner layer. The draft's fields are lists and get more members. The legacy fields
    /// can occur only once, so those of the inner layer stay.
    pub(super) fn add<'a>(
        self,
        partition: Partition<'_>,
        fields: impl Iterator<Item = LimitFields<'a>> + Clone,
        headers: &mut HeaderMap,
    ) {
        // A structured field with an empty list is omitted (RFC 9651, 4.1).
        if partition.policy.members.is_empty() {
            return;
        }
        if matches!(self, Headers::Draft11 | Headers::Both) {
            headers.append(POLICY, partition.policy());
            if let Some(list) = partition.rate_limit(fields.clone()) {
                headers.append(RATE_LIMIT, list);
            }
        }
        if matches!(self, Headers::Legacy | Headers::Both)
            && !headers.contains_key(LEGACY_LIMIT)
            && let Some(least) = fields.min_by_key(LimitFields::scarcity)
        {
            headers.insert(LEGACY_LIMIT, least.limit.quota().into());
            headers.insert(LEGACY_REMAINING, least.remaining.into());
            headers.insert(LEGACY_RESET, least.more_after.unwrap_or(0).into());
        }
    }

    /// Writes the fields in place of all that are present.
    pub(super) fn replace<'a>(
        self,
        partition: Partition<'_>,
        fields: impl Iterator<Item = LimitFields<'a>> + Clone,
        headers: &mut HeaderMap,
    ) {
        remove_fields(headers);
        self.add(partition, fields, headers);
    }
}

pub(super) fn remove_fields(headers: &mut HeaderMap) {
    for name in [POLICY, RATE_LIMIT, LEGACY_LIMIT, LEGACY_REMAINING, LEGACY_RESET] {
        headers.remove(name);
    }
}

impl PolicyFields {
    pub(super) fn of(limits: &[Limit]) -> Self {
        // The two characters that a string of a structured field escapes (RFC 9651, 4.1.6).
        let escaped = |name: &str| name.replace('\\', r"\\").replace('"', r#"\""#);
        let quoted = |limit| format!("\"{}\"", escaped(&policy_name(limit)));
        let names: Vec<_> = limits.iter().map(quoted).collect();
        let member = |(name, limit): (&String, &Limit)| {
            let unit = if limit.is_of_bytes() { ";qu=\"content-bytes\"" } else { "" };
            // The draft requires whole seconds above 0, which `whole_seconds` returns.
            format!("{name};q={}{unit};w={}", limit.quota(), whole_seconds(limit.per()))
        };
        let policies: Box<[_]> = names.iter().zip(limits).map(member).collect();
        Self {
            field: HeaderValue::try_from(policies.join(", "))
                .expect("names and partition keys are printable ASCII"),
            policies,
            members: names.into_iter().map(|name| name + ";r=").collect(),
        }
    }
}

impl Partition<'_> {
    fn policy(&self) -> HeaderValue {
        let Some(key) = self.key else { return self.policy.field.clone() };
        let policies = self.policy.policies.iter().map(|policy| format!("{policy};pk={key}"));
        let list = policies.collect::<Vec<_>>().join(", ");
        HeaderValue::try_from(list).expect("names and partition keys are printable ASCII")
    }

    /// Returns the members of the fields; `None` if there are none.
    fn rate_limit<'a>(&self, fields: impl Iterator<Item = LimitFields<'a>>) -> Option<HeaderValue> {
        let mut list = List::new();
        for (member, field) in self.policy.members.iter().zip(fields) {
            if !list.is_empty() {
                list.extend_from_slice(b", ");
            }
            list.extend_from_slice(member.as_bytes());
            // Filled from the right, since the digits of a number are computed from the last to the first.
            // Two numbers of up to 20 digits and `;t=` take 43 bytes.
            let mut digits = [0; 48];
            let mut start = digits.len();
            if let Some(seconds) = field.more_after {
                start = write_before(start, seconds, &mut digits);
                digits[start - 3..start].copy_from_slice(b";t=");
                start -= 3;
            }
            start = write_before(start, field.remaining.into(), &mut digits);
            list.extend_from_slice(&digits[start..]);
            if let Some(key) = self.key {
                list.extend_from_slice(b";pk=");
                list.extend_from_slice(key.as_bytes());
            }
        }
        let value = || HeaderValue::from_bytes(&list);
        (!list.is_empty()).then(|| value().expect("names and partition keys are printable ASCII"))
    }
}

impl<'a> LimitFields<'a> {
    pub(super) fn of(limit: &'a Limit, left: &Remaining, now: &impl Now) -> Self {
        let more_after = left.more_at.map(|at| whole_seconds_until(at, now));
        Self { limit, remaining: left.units, more_after }
    }

    /// Values for the limit of a denial; `None` if the units left are unknown.
    pub(super) fn denied(limited: &'a Limited, retry_after: &RetryAfter<'_>) -> Option<Self> {
        // Without a wait that helps: when any units are available.
        let until = |at: Instant| whole_seconds(at.saturating_duration_since(Instant::now()));
        let more_after = retry_after.seconds().or_else(|| limited.more_at().map(until));
        Some(Self { limit: limited.limit(), remaining: limited.remaining()?, more_after })
    }

    /// The same values; but for the limit that denied the call, `t` is the wait of that call, if a wait helps. So the
    /// fields promise nothing before `Retry-After`.
    pub(super) fn after(mut self, retry_after: &RetryAfter<'_>) -> Self {
        if self.limit == retry_after.limit {
            self.more_after = retry_after.seconds().or(self.more_after);
        }
        self
    }

    /// Sort key: the limit with the least left; of several, the one with the longest wait.
    fn scarcity(&self) -> (u32, Reverse<Option<u64>>) {
        (self.remaining, Reverse(self.more_after))
    }
}

/// Returns the name of a limit in fields and bodies: printable ASCII, everything else percent-encoded.
pub(super) fn policy_name(limit: &Limit) -> Cow<'_, str> {
    let name = match limit.name() {
        Some(name) => Cow::Borrowed(name),
        None => format!("{}-per-{:?}", limit.quota(), limit.per()).into(),
    };
    if name.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return name;
    }
    let mut printable = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b' '..=b'~' => printable.push(byte.into()),
            _ => printable.push_str(&format!("%{byte:02X}")),
        }
    }
    printable.into()
}

/// Encodes a byte sequence of a structured field: base64 between colons (RFC 9651, 4.1.8).
pub(super) fn byte_sequence(bytes: &[u8]) -> Box<str> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    let mut text = String::with_capacity(2 + bytes.len().div_ceil(3) * 4);
    text.push(':');
    for three in bytes.chunks(3) {
        let at = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..4 {
            // A group of n bytes has n + 1 digits.
            let is_padding = digit > three.len();
            let value = bits >> (18 - 6 * digit) & 63;
            text.push(if is_padding { '=' } else { DIGITS[value as usize].into() });
        }
    }
    text.push(':');
    text.into()
}

fn write_before(mut start: usize, mut number: u64, text: &mut [u8]) -> usize {
    loop {
        start -= 1;
        text[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return start;
        }
    }
}
