use std::{
    borrow::Cow,
    cmp::Reverse,
    fmt::{self, Write},
    time::Duration,
};

use ::axum::http::{HeaderMap, HeaderName, HeaderValue};

use super::denial::Denial;
use crate::{Limit, Standing};

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const LEGACY_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const LEGACY_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const LEGACY_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// Which fields tell a client of its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Headers {
    /// `RateLimit-Policy` and `RateLimit`, as in draft 11 of *RateLimit header fields for HTTP* (IETF,
    /// httpapi). They tell of each limit, by its name:
    ///
    /// ```text
    /// RateLimit-Policy: "burst";q=10;w=1, "hourly";q=1000;w=3600
    /// RateLimit: "burst";r=9;t=1, "hourly";r=412;t=1800
    /// ```
    ///
    /// `q` is the quota, `w` the window in seconds, `r` what is left, and `t` in how many seconds there is
    /// more; it is absent where all of the quota is left. Seconds are rounded up. A limit without a name is
    /// called by its figures, as `"10-per-1s"`; what a field can't carry of a name is percent-encoded.
    #[default]
    Draft11,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset` of the limit that has the least left. `Reset` is in
    /// seconds from now, rounded up; zero where all of the quota is left.
    Legacy,
    /// `Draft11` and `Legacy`.
    Both,
    /// None of them. A denial has its `Retry-After` all the same.
    None,
}

/// What is the same in the fields of all answers by the same limits.
#[derive(Clone)]
pub(super) struct Policy {
    field: HeaderValue,
    /// What each limit is called, as a field has it.
    names: Box<[String]>,
}

/// What the fields tell of one limit.
pub(super) struct Field<'a> {
    limit: &'a Limit,
    remaining: u32,
    /// In how long there is more.
    more_after: Option<Duration>,
}

impl Headers {
    /// Adds to what an inner layer has set: the fields of the draft are lists, and get more members. Of the
    /// legacy ones there can be but one set, so the inner layer's stays.
    pub(super) fn add(self, policy: &Policy, fields: &[Field<'_>], headers: &mut HeaderMap) {
        let Some(least) = fields.iter().min_by_key(|field| field.scarcity()) else { return };
        if matches!(self, Headers::Draft11 | Headers::Both) {
            headers.append(POLICY, policy.field.clone());
            headers.append(RATE_LIMIT, list(&policy.names, fields, Field::rate_limit));
        }
        if matches!(self, Headers::Legacy | Headers::Both) && !headers.contains_key(LEGACY_LIMIT) {
            let reset = least.more_after.map_or(0, whole_seconds);
            headers.insert(LEGACY_LIMIT, least.limit.quota().into());
            headers.insert(LEGACY_REMAINING, least.remaining.into());
            headers.insert(LEGACY_RESET, reset.into());
        }
    }

    /// Puts these in the place of all that are there.
    pub(super) fn replace(self, policy: &Policy, fields: &[Field<'_>], headers: &mut HeaderMap) {
        if self != Headers::None {
            for name in [POLICY, RATE_LIMIT, LEGACY_LIMIT, LEGACY_REMAINING, LEGACY_RESET] {
                headers.remove(name);
            }
            self.add(policy, fields, headers);
        }
    }
}

impl Policy {
    pub(super) fn of(limits: &[Limit]) -> Self {
        let escaped = |name: &str| name.replace('\\', r"\\").replace('"', r#"\""#);
        let quoted = |limit| format!("\"{}\"", escaped(&policy_name(limit)));
        let names: Box<[_]> = limits.iter().map(quoted).collect();
        let field = list(&names, limits, |list, limit| {
            write!(list, "q={};w={}", limit.quota(), whole_seconds(limit.per()))
        });
        Self { field, names }
    }
}

impl<'a> Field<'a> {
    pub(super) fn of(standing: &'a Standing) -> Self {
        Self {
            limit: standing.limit(),
            remaining: standing.remaining(),
            more_after: standing.more_after(),
        }
    }

    /// Of the limit that denied a call: for such a call nothing is left.
    pub(super) fn denied(denial: &Denial<'a>) -> Self {
        Self { limit: denial.limit, remaining: 0, more_after: denial.wait }
    }

    /// That this limit denied a call, if it was this one. More counts from when such a call would pass, so
    /// that the fields promise nothing before `Retry-After`.
    pub(super) fn deny(&mut self, denial: &Denial<'_>) {
        if self.limit == denial.limit {
            // There may be room for the call by now.
            self.remaining = self.remaining.min(denial.cost.saturating_sub(1));
            self.more_after = denial.wait;
        }
    }

    fn rate_limit(list: &mut String, field: &Self) -> fmt::Result {
        match field.more_after {
            None => write!(list, "r={}", field.remaining),
            Some(wait) => write!(list, "r={};t={}", field.remaining, whole_seconds(wait)),
        }
    }

    /// The least has the least left; of several, the one that it takes longest to wait for.
    fn scarcity(&self) -> (u32, Reverse<Option<Duration>>) {
        (self.remaining, Reverse(self.more_after))
    }
}

/// What a limit is called in fields and bodies: printable ASCII, all else percent-encoded.
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

/// Rounded up, and at least 1: who comes again at once would be denied again.
pub(super) fn whole_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

/// A list of structured fields (RFC 9651): a member for each limit, with its name and its parameters.
fn list<T>(
    names: &[String],
    members: &[T],
    parameters: impl Fn(&mut String, &T) -> fmt::Result,
) -> HeaderValue {
    let mut list = String::with_capacity(64);
    for (name, member) in names.iter().zip(members) {
        list.push_str(if list.is_empty() { "" } else { ", " });
        list.push_str(name);
        list.push(';');
        parameters(&mut list, member).expect("a string takes all");
    }
    HeaderValue::try_from(list).expect("it is printable ASCII")
}
