//! How what is due is had from all shards: a peek into each, how much of each is among the oldest, then one
//! script in each of those; again while there is more, since a script touches 512 entries at most.

use std::{sync::Arc, time::Duration};

use ::redis::Value as Reply;
use futures_util::future::join_all;
use tokio::sync::Mutex;

use super::{
    batch_reply::{BatchReply, PackedReply},
    delivery::{Delivery, OnDrop},
    layout::ShardKeys,
    oldest_first::{DuePeek, first_peek_len, peek_len, takes_per_shard},
    state::{DUE_AGAIN, DictState, NEVER, lease_micros, micros},
};
use crate::redis::Error;

/// What is done with what is due.
#[derive(Clone, Copy)]
pub(super) enum Collect {
    Take,
    Claim { lease: Duration },
}

impl DictState {
    /// At most `max` of what is due, the oldest first; and in how long the next is.
    pub(super) async fn collect(
        self: Arc<Self>,
        how: Collect,
        max: usize,
    ) -> Result<(Vec<Delivery>, Option<Duration>), Error> {
        let shards = self.layout.shards().len();
        // Of what became due when this had begun, nothing: else it would not end while a lease of zero gives
        // back what it claims, or busy setters add what is due at once.
        let mut latest = vec![NEVER as i64; shards];
        let mut collected = Vec::new();
        loop {
            let room = max - collected.len();
            let (few, many) = (first_peek_len(room, shards), peek_len(room, shards));
            let (mut peeks, mut failure) = self.peek_all(&latest, few).await;
            let (mut takes, mut is_all) = takes_per_shard(&peeks, room);
            // Only now it is known that not all is to be had, so that the order counts.
            if !is_all && few < many {
                (peeks, failure) = self.peek_all(&latest, many).await;
                (takes, is_all) = takes_per_shard(&peeks, room);
            }
            let wait = peeks.iter().flatten().filter_map(|peek| peek.wait).min();
            for (latest, peek) in latest.iter_mut().zip(&peeks) {
                *latest = peek.as_ref().map_or(*latest, |peek| peek.now.min(*latest));
            }
            let batches = self.layout.shards().iter().zip(latest.iter().zip(&takes));
            let batches = batches.filter(|(_, (_, take))| **take > 0);
            let batches = join_all(
                batches
                    .map(|(shard, (latest, take))| self.collect_from(shard, how, *latest, *take)),
            );
            let mut entries = Vec::new();
            for batch in batches.await {
                match batch {
                    Ok(batch) => entries.extend(batch),
                    Err(error) => failure = Some(error),
                }
            }
            // With none of what was seen, others were faster: they have it, and what is left may be theirs too.
            let is_over = is_all || entries.is_empty();
            entries.sort_by(|(one, _), (other, _)| f64::total_cmp(one, other));
            collected.extend(entries.into_iter().map(|(_, entry)| entry));
            match failure {
                Some(error) if collected.is_empty() => return Err(error),
                // What was had is the caller's: an error would send it back.
                Some(error) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::warn!(error, "a shard gave nothing of what is due");
                    return Ok((collected, wait));
                }
                None if is_over || collected.len() >= max => return Ok((collected, wait)),
                None => {}
            }
        }
    }

    /// What each shard has due, with up to `count` deadlines of it; and one of the errors, if there are some.
    async fn peek_all(
        &self,
        latest: &[i64],
        count: usize,
    ) -> (Vec<Option<DuePeek>>, Option<Error>) {
        let peeks = self.layout.shards().iter().zip(latest).map(async |(shard, latest)| {
            let call = self.shard_call(shard, |scripts| &scripts.peek_due).arg(*latest).arg(count);
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

    /// Up to `count` entries that a shard has due, each with its score.
    async fn collect_from(
        self: &Arc<Self>,
        shard: &ShardKeys,
        how: Collect,
        latest: i64,
        count: usize,
    ) -> Result<Vec<(f64, Delivery)>, Error> {
        let (call, span) = match how {
            Collect::Take => (self.shard_call(shard, |scripts| &scripts.take), micros(DUE_AGAIN)),
            Collect::Claim { lease } => {
                (self.shard_call(shard, |scripts| &scripts.claim), lease_micros(lease))
            }
        };
        let call = call.arg(latest).arg(count).arg(span);
        // Once: what a lost answer held is out already, and the second time more would be.
        let answer: Vec<u8> = match call.send_once(&self.client.for_batches()).await {
            Ok(answer) => answer,
            Err(error) => return Err(self.name_wrong_type(error, shard, None).await),
        };
        let BatchReply { keys_and_scores, values, lease_ends_after: PackedReply(first_end) } =
            BatchReply::decode(&answer, &shard.index)?;
        let mut keys_and_scores = keys_and_scores.into_iter().map(|PackedReply(part)| part);
        let mut entries = Vec::with_capacity(values.len());
        for (PackedReply(value), number) in values.into_iter().zip(1..) {
            let (Some(Reply::BulkString(key)), Some(Reply::BulkString(score))) =
                (keys_and_scores.next(), keys_and_scores.next())
            else {
                break;
            };
            let at = std::str::from_utf8(&score).ok().and_then(|score| score.parse().ok());
            let on_drop = match (&value, &first_end) {
                // It had no record any more, so it was no entry.
                (Reply::Nil, _) => continue,
                // Of another type, for which the script has seen to it.
                (Reply::Int(_), _) => OnDrop::Nothing,
                (_, Reply::Int(first)) => {
                    let lease_end = Arc::new(Mutex::new(first + 2 * number));
                    OnDrop::EndLease { lease_end, score }
                }
                _ => OnDrop::PutBack { score },
            };
            entries.push((at.unwrap_or(0.0), Delivery::new(self, key, value, on_drop)));
        }
        Ok(entries)
    }
}
