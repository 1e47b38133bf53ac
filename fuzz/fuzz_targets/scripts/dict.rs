//! Calls of a `TimeoutDict`.

use arbitrary::Arbitrary;
use fleeting::{
    Ttl,
    redis::{Claim, Client, Error, Format, TimeoutDict},
};

use crate::{
    MOST_CALLS,
    outcome::{Known, Model, built, outcome},
    sequence::Sequence,
    values::{Bytes, Key, Number, Span, Text},
};

#[derive(Arbitrary, Clone, Debug)]
pub(crate) struct Settings {
    max_attempts: Option<Number>,
    backoff: Option<(Span, Span)>,
}

#[derive(Arbitrary, Clone, Debug)]
pub(crate) enum Call {
    Set(Key, Bytes, Span),
    SetNx(Key, Bytes, Span),
    SetTimeout(Key, Span),
    RemoveTimeout(Key),
    Get(Key),
    ContainsKey(Key),
    Ttl(Key),
    Remove(Key),
    TakeExpired(Number),
    ClaimExpired(Number, Span, AfterClaim),
    TakeDead(Number),
    DeadLetters(Number),
    Revive(Key, Span),
    Len,
    Clear,
}

#[derive(Arbitrary, Clone, Debug)]
pub(crate) enum AfterClaim {
    Ack,
    RetryIn(Span),
    Fail(Text),
    Release,
    Extend(Span),
    Drop,
}

/// A value, and whether it does not become due during the input.
type Entry = (Vec<u8>, bool);

pub(crate) async fn run(
    client: &Client,
    name: &str,
    Settings { max_attempts, backoff }: Settings,
    Sequence(calls): Sequence<Call>,
) -> Result<(), Error> {
    let mut builder = TimeoutDict::<String, Vec<u8>>::builder(client, name).format(Format::Raw);
    if let Some(attempts) = max_attempts {
        builder = builder.max_attempts(attempts.number().max(1));
    }
    if let Some((one, other)) = backoff {
        let (one, other) = (one.duration(), other.duration());
        builder = builder.backoff(one.min(other), one.max(other));
    }
    let Some(dict) = built(name, builder.build()) else { return Ok(()) };
    let mut model = Model::new();
    for call in calls.into_iter().take(MOST_CALLS) {
        run_one(&dict, call, &mut model).await?;
    }
    Ok(())
}

async fn run_one(
    dict: &TimeoutDict<String, Vec<u8>>,
    call: Call,
    model: &mut Model<String, Entry>,
) -> Result<(), Error> {
    match call.clone() {
        Call::Set(key, value, ttl) => {
            let (key, value) = (key.0, value.0);
            let replaced = dict.set(key.clone(), value.clone(), ttl.duration()).await;
            if let Some(replaced) = outcome(&call, replaced)? {
                assert!(value_of(model, &key).is(&replaced), "{call:?}: {replaced:?}");
                model.set(key, Known::Present((value, ttl.is_long())));
            }
        }
        Call::SetNx(key, value, ttl) => {
            let (key, value) = (key.0, value.0);
            let is_set = dict.set_nx(key.clone(), value.clone(), ttl.duration()).await;
            if let Some(is_set) = outcome(&call, is_set)? {
                assert!(model.of(&key).may_exist(!is_set), "{call:?}: {is_set}");
                if is_set {
                    model.set(key, Known::Present((value, ttl.is_long())));
                }
            }
        }
        Call::SetTimeout(key, ttl) => {
            let key = key.0;
            if let Some(is_set) = outcome(&call, dict.set_timeout(&key, ttl.duration()).await)? {
                assert!(model.of(&key).may_exist(is_set), "{call:?}: {is_set}");
                if let Known::Present((value, _)) = model.of(&key) {
                    model.set(key, Known::Present((value, ttl.is_long())));
                }
            }
        }
        Call::RemoveTimeout(key) => {
            let key = key.0;
            if let Some(is_removed) = outcome(&call, dict.remove_timeout(&key).await)? {
                match model.of(&key) {
                    Known::Present((value, _)) => model.set(key, Known::Present((value, true))),
                    Known::Missing => assert!(!is_removed, "{call:?}"),
                    Known::Unknown => {}
                }
            }
        }
        Call::Get(key) => {
            let key = key.0;
            if let Some(found) = outcome(&call, dict.get(&key).await)? {
                assert!(value_of(model, &key).is(&found), "{call:?}: {found:?}");
            }
        }
        Call::ContainsKey(key) => {
            let key = key.0;
            if let Some(contains) = outcome(&call, dict.contains_key(&key).await)? {
                assert!(model.of(&key).may_exist(contains), "{call:?}");
            }
        }
        Call::Ttl(key) => {
            let key = key.0;
            if let Some(ttl) = outcome(&call, dict.ttl(&key).await)? {
                assert!(model.of(&key).may_exist(ttl != Ttl::Missing), "{call:?}: {ttl:?}");
            }
        }
        Call::Remove(key) => {
            let key = key.0;
            if let Some(removed) = outcome(&call, dict.remove(&key).await)? {
                assert!(value_of(model, &key).is(&removed), "{call:?}: {removed:?}");
                model.set(key, Known::Missing);
            }
        }
        Call::TakeExpired(max) => {
            let taken = outcome(&call, dict.take_expired(max.count()).await)?.unwrap_or_default();
            assert!(taken.len() <= max.count(), "{call:?}");
            for (key, value) in taken {
                assert!(may_be_due(model, &key, &value), "{call:?}: {key:?}");
                model.set(key, Known::Missing);
            }
        }
        Call::ClaimExpired(max, lease, after) => {
            let claims = dict.claim_expired(max.count(), lease.duration()).await;
            let claims = outcome(&call, claims)?.unwrap_or_default();
            assert!(claims.len() <= max.count(), "{call:?}");
            for claim in claims {
                let key = claim.key().clone();
                assert!(may_be_due(model, &key, claim.value()), "{call:?}: {key:?}");
                let is_held = end_claim(&call, claim, &after).await?;
                // An ended lease voids the claim.
                assert!(is_held || !lease.is_long(), "{call:?}: {key:?}");
                let is_gone = is_held && matches!(after, AfterClaim::Ack);
                model.set(key, if is_gone { Known::Missing } else { Known::Unknown });
            }
        }
        Call::TakeDead(max) => {
            let taken = outcome(&call, dict.take_dead(max.count()).await)?.unwrap_or_default();
            assert!(taken.len() <= max.count(), "{call:?}");
            for (key, value) in taken {
                assert!(may_be_due(model, &key, &value), "{call:?}: {key:?}");
                model.set(key, Known::Missing);
            }
        }
        Call::DeadLetters(max) => {
            let letters = outcome(&call, dict.dead_letters(max.count()).await)?;
            let letters = letters.unwrap_or_default();
            assert!(letters.len() <= max.count(), "{call:?}");
            for letter in letters {
                assert!(may_be_due(model, &letter.key, &letter.value), "{call:?}: {letter:?}");
            }
        }
        Call::Revive(key, ttl) => {
            let key = key.0;
            if let Some(is_revived) = outcome(&call, dict.revive(&key, ttl.duration()).await)? {
                assert!(!is_revived || model.of(&key) == Known::Unknown, "{call:?}");
            }
        }
        Call::Len => {
            let len = outcome(&call, dict.len().await)?.unwrap_or(usize::MAX);
            assert!(len >= model.present().count(), "{call:?}: {len}");
            outcome(&call, dict.dead_len().await)?;
        }
        Call::Clear => {
            outcome(&call, dict.clear().await)?;
            model.clear();
        }
    }
    Ok(())
}

/// Returns whether the claim was still held.
async fn end_claim(
    call: &Call,
    claim: Claim<String, Vec<u8>>,
    after: &AfterClaim,
) -> Result<bool, Error> {
    let is_held = match after {
        AfterClaim::Ack => claim.ack().await,
        AfterClaim::RetryIn(delay) => claim.retry_in(delay.duration()).await,
        AfterClaim::Fail(reason) => claim.fail(reason.text()).await,
        AfterClaim::Release => claim.release().await,
        AfterClaim::Extend(lease) => claim.extend(lease.duration()).await,
        AfterClaim::Drop => return Ok(true),
    };
    Ok(outcome(call, is_held)?.unwrap_or(true))
}

fn value_of(model: &Model<String, Entry>, key: &String) -> Known<Vec<u8>> {
    match model.of(key) {
        Known::Present((value, _)) => Known::Present(value),
        Known::Missing => Known::Missing,
        Known::Unknown => Known::Unknown,
    }
}

fn may_be_due(model: &Model<String, Entry>, key: &String, value: &[u8]) -> bool {
    match model.of(key) {
        Known::Present((known, is_long)) => !is_long && known == value,
        Known::Missing => false,
        Known::Unknown => true,
    }
}
