//! Calls of an `ExpiringSet`.

use std::{ops::Bound, time::SystemTime};

use arbitrary::Arbitrary;
use fleeting::redis::{Client, Error, ExpiringSet, Format};

use crate::{
    LONG, MOST_CALLS,
    outcome::{Known, Model, built, outcome},
    sequence::Sequence,
    values::{Bytes, Span, Time},
};

#[derive(Arbitrary, Clone, Debug)]
pub(crate) struct Settings {
    ttl: Span,
    is_compat: bool,
}

#[derive(Arbitrary, Clone, Debug)]
pub(crate) enum Call {
    Push(Bytes),
    PushAt(Bytes, Time),
    PushUniqueAt(Bytes, Time),
    Extend(Vec<Bytes>),
    Elements,
    Range(Limit, Limit),
    Peek,
    Pop,
    Remove(Bytes),
    RemoveRange(Limit, Limit),
    Contains(Bytes),
    Score(Bytes),
    Len,
    Clear,
}

/// End of a range.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) enum Limit {
    Included(Time),
    Excluded(Time),
    Unbounded,
}

impl Limit {
    fn bound(self) -> Bound<SystemTime> {
        match self {
            Self::Included(time) => Bound::Included(time.time()),
            Self::Excluded(time) => Bound::Excluded(time.time()),
            Self::Unbounded => Bound::Unbounded,
        }
    }
}

pub(crate) async fn run(
    client: &Client,
    name: &str,
    settings: Settings,
    Sequence(calls): Sequence<Call>,
) -> Result<(), Error> {
    let Settings { ttl, is_compat } = settings;
    let set = if is_compat {
        ExpiringSet::<Vec<u8>>::compat(client, name, ttl.duration())
    } else {
        let builder = ExpiringSet::builder(client, name, ttl.duration()).format(Format::Raw);
        let Some(set) = built(name, builder.build()) else { return Ok(()) };
        set
    };
    let is_long = ttl.is_long();
    let pushed = || if is_long { Known::Present(()) } else { Known::Unknown };
    let pushed_at = |score: SystemTime| {
        if score > SystemTime::now() + LONG { Known::Present(()) } else { Known::Unknown }
    };
    let mut model = Model::new();
    for call in calls.into_iter().take(MOST_CALLS) {
        match call.clone() {
            Call::Push(member) => {
                let member = member.0;
                if outcome(&call, set.push(member.clone()).await)?.is_some() {
                    model.set(member, pushed());
                }
            }
            Call::PushAt(member, score) => {
                let (member, score) = (member.0, score.time());
                if outcome(&call, set.push_at(member.clone(), score).await)?.is_some() {
                    model.set(member, pushed_at(score));
                }
            }
            Call::PushUniqueAt(member, score) => {
                let (member, score) = (member.0, score.time());
                if outcome(&call, set.push_unique_at(member.clone(), score).await)?.is_some() {
                    // Those with this score are removed.
                    model.forget_all();
                    model.set(member, pushed_at(score));
                }
            }
            Call::Extend(members) => {
                let members: Vec<_> = members.into_iter().map(|member| member.0).collect();
                let is_done = outcome(&call, set.extend(members.clone()).await)?.is_some();
                let known = if is_done { pushed() } else { Known::Unknown };
                members.into_iter().for_each(|member| model.set(member, known.clone()));
            }
            Call::Elements => {
                let elements = outcome(&call, set.elements().await)?.unwrap_or_default();
                for member in &elements {
                    assert!(model.of(member).may_exist(true), "{call:?}: {member:?}");
                }
                for (member, ()) in model.present() {
                    assert!(elements.contains(member), "{call:?}: {member:?} of {elements:?}");
                }
            }
            Call::Range(start, end) => {
                let found = outcome(&call, set.range((start.bound(), end.bound())).await)?;
                for member in found.unwrap_or_default() {
                    assert!(model.of(&member).may_exist(true), "{call:?}: {member:?}");
                }
            }
            Call::Peek | Call::Pop => {
                let is_pop = matches!(call, Call::Pop);
                let first = if is_pop { set.pop().await } else { set.peek().await };
                match outcome(&call, first)?.flatten() {
                    None => assert_eq!(model.present().next(), None, "{call:?}"),
                    Some(first) => {
                        assert!(model.of(&first).may_exist(true), "{call:?}: {first:?}");
                        if is_pop {
                            model.set(first, Known::Missing);
                        }
                    }
                }
            }
            Call::Remove(member) => {
                let member = member.0;
                if let Some(is_removed) = outcome(&call, set.remove(&member).await)? {
                    assert!(model.of(&member).may_exist(is_removed), "{call:?}");
                    model.set(member, Known::Missing);
                }
            }
            Call::RemoveRange(start, end) => {
                let (start, end) = (start.bound(), end.bound());
                let removed = outcome(&call, set.remove_range((start, end)).await)?;
                match (start, end, removed) {
                    (Bound::Unbounded, Bound::Unbounded, Some(removed)) => {
                        assert!(removed >= model.present().count(), "{call:?}: {removed}");
                        model.clear();
                    }
                    _ => model.forget_all(),
                }
            }
            Call::Contains(member) => {
                let member = member.0;
                if let Some(contains) = outcome(&call, set.contains(&member).await)? {
                    assert!(model.of(&member).may_exist(contains), "{call:?}");
                }
            }
            Call::Score(member) => {
                let member = member.0;
                if let Some(score) = outcome(&call, set.score(&member).await)? {
                    assert!(model.of(&member).may_exist(score.is_some()), "{call:?}");
                }
            }
            Call::Len => {
                let len = outcome(&call, set.len().await)?.unwrap_or(usize::MAX);
                assert!(len >= model.present().count(), "{call:?}: {len}");
            }
            Call::Clear => {
                outcome(&call, set.clear().await)?;
                model.clear();
            }
        }
    }
    Ok(())
}
