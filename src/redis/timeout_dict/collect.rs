//! How what is due is had from all shards, in rounds: a peek into each, how much of each is among the oldest, then
//! one script in each of those, which lends it. A script touches 512 entries at most and stops at about a mebibyte of
//! values, so there may be another round.

use std::{sync::Arc, time::Duration};

use ::redis::Value as Reply;
use futures_util::future::join_all;

use super::{
    batch_reply::{BatchReply, PackedReply},
    delivery::{Delivery, OnDrop},
    layout::ShardKeys,
    oldest_first::{DuePeek, first_peek_len, peek_len, take_counts},
    state::{DictState, NO_DEADLINE, lease_micros},
};
use crate::redis::{Error, keyspace::few_at_once};

/// After so many bytes of values a script stops: all others wait meanwhile, and an answer that is too long for the time
/// that a client gives it is none.
const BATCH_BYTES: usize = 1 << 20;

/// What is done with what is due.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CollectMode {
    /// What is out only once it is [confirmed](DictState::confirm).
    Take,
    Claim {
        lease: Duration,
    },
    /// As `Take`, of what is dead.
    TakeDead,
}

/// What one round gave.
pub(super) struct Round {
    pub(super) entries: Vec<Delivery>,
    /// In how long the next is due.
    pub(super) wait: Option<Duration>,
    /// Whether there is nothing more to be had.
    pub(super) is_last: bool,
    /// What shards said that gave nothing.
    pub(super) failure: Option<Error>,
}

/// What one script gave.
struct Batch {
    entries: Vec<Delivery>,
    /// Whether there may be more of what it was asked for.
    is_cut: bool,
    /// Whether it met anything due, be it no entry.
    found_any: bool,
}

/// For each shard, until when what is due counts: of what became due when a call had begun, nothing. Else it would not
/// end while a lease of zero gives back what it claims, or busy setters add what is due at once.
pub(super) type Horizon = Vec<i64>;

impl DictState {
    pub(super) fn horizon(&self) -> Horizon {
        vec![NO_DEADLINE as i64; self.layout.shards().len()]
    }

    /// At most `limit` of what is due, among them the oldest.
    pub(super) async fn collect(
        self: Arc<Self>,
        how: CollectMode,
        limit: usize,
        mut horizon: Horizon,
    ) -> Result<(Round, Horizon), Error> {
        let shards = self.layout.shards().len();
        let (few, many) = (first_peek_len(limit, shards), peek_len(limit, shards));
        let (mut peeks, mut failure) = self.peek_all(how, &horizon, few).await;
        let (mut takes, mut is_all) = take_counts(&peeks, limit);
        // Only now it is known that not all is to be had, so that the order counts.
        if !is_all && few < many {
            (peeks, failure) = self.peek_all(how, &horizon, many).await;
            (takes, is_all) = take_counts(&peeks, limit);
        }
        let wait = peeks.iter().flatten().filter_map(|peek| peek.wait).min();
        for (latest, peek) in horizon.iter_mut().zip(&peeks) {
            *latest = peek.as_ref().map_or(*latest, |peek| peek.now.min(*latest));
        }
        let batches = self.layout.shards().iter().zip(horizon.iter().zip(&takes));
        let batches = batches.filter(|(_, (_, take))| **take > 0);
        let batches =
            batches.map(|(shard, (latest, take))| self.lease_from(shard, how, *latest, *take));
        let mut entries = Vec::new();
        let (mut is_cut, mut found_any) = (false, false);
        for batch in few_at_once(batches).await {
            match batch {
                Ok(batch) => {
                    entries.extend(batch.entries);
                    is_cut |= batch.is_cut;
                    found_any |= batch.found_any;
                }
                Err(error) => failure = Some(error),
            }
        }
        if entries.is_empty()
            && let Some(error) = failure
        {
            return Err(error);
        }
        // With none of what was seen, others were faster: they have it, and what is left may be theirs too.
        let is_last = !is_cut && (is_all || !found_any);
        Ok((Round { entries, wait, is_last, failure }, horizon))
    }

    /// What each shard has due, with up to `count` deadlines of it; and one of the errors, if there are some.
    async fn peek_all(
        &self,
        how: CollectMode,
        horizon: &Horizon,
        count: usize,
    ) -> (Vec<Option<DuePeek>>, Option<Error>) {
        let peeks = self.layout.shards().iter().zip(horizon).map(async |(shard, latest)| {
            let call = self.shard_call(shard, |scripts| &scripts.peek_due).arg(*latest).arg(count);
            let call = call.arg(how.name());
            let answer: Result<Vec<i64>, _> = call.send_idempotent(&self.client).await;
            match answer {
                Ok(answer) => Ok(DuePeek::new(&answer)),
                Err(error) => Err(self.name_wrong_type(error, shard, None).await),
            }
        });
        let mut failure = None;
        let peeks = join_all(peeks).await.into_iter().map(|peek| match peek {
            Ok(peek) => peek,
            Err(error) => {
                failure = Some(error);
                None
            }
        });
        (peeks.collect(), failure)
    }

    /// Up to `count` entries that a shard has due.
    async fn lease_from(
        self: &Arc<Self>,
        shard: &ShardKeys,
        how: CollectMode,
        latest: i64,
        count: usize,
    ) -> Result<Batch, Error> {
        let lease = match how {
            CollectMode::Claim { lease } => lease,
            CollectMode::Take | CollectMode::TakeDead => self.take_lease(),
        };
        let call = self.shard_call(shard, |scripts| &scripts.lease).arg(latest).arg(count);
        let call = call.arg(BATCH_BYTES).arg(lease_micros(lease)).arg(how.name());
        let call = call.arg(match self.retries.max_attempts {
            u32::MAX => 0,
            most => most,
        });
        // Once: what a lost answer held is lent already, and the second time more would be.
        let answer: Vec<u8> = match call.send_once(&self.client.for_batches()).await {
            Ok(answer) => answer,
            Err(error) => return Err(self.name_wrong_type(error, shard, None).await),
        };
        let BatchReply { keys_and_scores, values, lease_ends_after, attempts, is_cut } =
            BatchReply::decode(&answer, &shard.index)?;
        let mut keys_and_scores = keys_and_scores.into_iter().map(|PackedReply(part)| part);
        let found_any = !values.is_empty();
        let mut entries = Vec::with_capacity(values.len());
        for ((PackedReply(value), attempts), number) in values.into_iter().zip(attempts).zip(1..) {
            let (Some(Reply::BulkString(key)), Some(Reply::BulkString(score))) =
                (keys_and_scores.next(), keys_and_scores.next())
            else {
                break;
            };
            // It had no record any more, so it was no entry; or it has just died.
            if matches!(value, Reply::Nil) {
                continue;
            }
            let due = std::str::from_utf8(&score).ok().and_then(|score| score.parse().ok());
            let on_drop = OnDrop::GiveBack { lease_end: lease_ends_after + 4 * number, score };
            let mut entry = Delivery::new(self, key, value, on_drop);
            (entry.due, entry.attempts) = (due.unwrap_or(0.0), attempts);
            entries.push(entry);
        }
        Ok(Batch { entries, is_cut, found_any })
    }
}

impl CollectMode {
    /// As scripts call it.
    fn name(self) -> &'static str {
        match self {
            Self::Take => "TAKE",
            Self::Claim { .. } => "CLAIM",
            Self::TakeDead => "DEAD",
        }
    }
}
