//! Collection of due entries from all shards, in rounds. A round peeks into each shard, computes how many entries of
//! each are among the oldest, and sends one script to each of these, which leases them. A script processes at most 512
//! entries and stops at about a mebibyte of values, so that more rounds may follow.

use std::{
    iter::repeat,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use ::redis::Value as Reply;
use futures_util::future::join_all;

use super::{
    batch_reply::{BatchReply, PackedReply},
    delivery::{OnDrop, TakenEntry},
    dict_state::{DictState, NO_DEADLINE, lease_micros},
    layout::DictShardKeys,
    oldest_first::{DuePeek, first_peek_len, peek_len, take_counts},
};
use crate::redis::{Error, client::has_waited, few_at_once::few_at_once};

/// Number of value bytes after which a script stops. The server executes nothing else in the meantime, and a reply that
/// takes longer than the client's timeout would be lost.
const BATCH_BYTES: usize = 1 << 20;

/// Purpose for which entries are collected.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CollectMode {
    /// Entries are removed once they are [confirmed](DictState::confirm).
    Take,
    Claim {
        lease: Duration,
    },
    /// Removes dead letters.
    TakeDead,
}

/// Result of one round.
pub(super) struct Round {
    pub(super) entries: Vec<TakenEntry>,
    /// True if there are no more entries to collect.
    pub(super) is_last: bool,
    /// Error of a shard, if one failed.
    pub(super) failure: Option<Error>,
}

/// Result of one script.
pub(super) struct Batch {
    pub(super) entries: Vec<TakenEntry>,
    /// True if the reply reached its maximum size, so that there may be more entries.
    is_cut: bool,
    /// True if the script found due members of the index, even if none was an entry.
    pub(super) found_any: bool,
    /// Time of the server in microseconds.
    pub(super) now: i64,
}

/// Latest deadline by shard that counts as due: nothing that became due after the call began. Otherwise, a call might
/// not end while its own zero leases expire, or while others set entries that are due immediately.
pub(super) type DueDeadlines = Vec<i64>;

impl DictState {
    pub(super) fn horizon(&self) -> DueDeadlines {
        vec![NO_DEADLINE as i64; self.layout.shards().len()]
    }

    /// Collects at most `limit` due entries, including the oldest.
    pub(super) async fn collect(
        self: Arc<Self>,
        mode: CollectMode,
        limit: usize,
        mut horizon: DueDeadlines,
    ) -> Result<(Round, DueDeadlines), Error> {
        let shards = self.layout.shards().len();
        let (few, many) = (first_peek_len(limit, shards), peek_len(limit, shards));
        let (mut peeks, mut failure) = self.peek_all(mode, &horizon, few).await;
        let (mut takes, mut is_all) = take_counts(&peeks, limit);
        // Not all due entries fit, so that their order matters: peek at more deadlines.
        let waited = failure.as_ref().is_some_and(has_waited);
        if !is_all && few < many && !waited {
            (peeks, failure) = self.peek_all(mode, &horizon, many).await;
            (takes, is_all) = take_counts(&peeks, limit);
        }
        for (latest, peek) in horizon.iter_mut().zip(&peeks) {
            *latest = peek.as_ref().map_or(*latest, |peek| peek.now.min(*latest));
        }
        let batches = self.layout.shards().iter().zip(horizon.iter().zip(&takes));
        let batches = batches.filter(|(_, (_, take))| **take > 0);
        // After a call that waited for its server until the timeout, no further one is sent: it would wait, too.
        let has_failed = AtomicBool::new(false);
        let batches = batches.map(async |(shard, (latest, take))| {
            if has_failed.load(Relaxed) {
                return None;
            }
            let batch = self.lease_from(shard, mode, *latest, *take).await;
            if batch.as_ref().is_err_and(has_waited) {
                has_failed.store(true, Relaxed);
            }
            Some(batch)
        });
        let mut entries = Vec::new();
        let (mut is_cut, mut found_any) = (false, false);
        for batch in few_at_once(batches).await.into_iter().flatten() {
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
        // If no script found anything that was seen in the peek, other callers took it, and may be taking the rest.
        let is_last = !found_any || is_all && !is_cut;
        Ok((Round { entries, is_last, failure }, horizon))
    }

    /// Peeks into each shard for up to `count` deadlines. Also returns the last of the errors, if any.
    async fn peek_all(
        &self,
        mode: CollectMode,
        horizon: &DueDeadlines,
        count: usize,
    ) -> (Vec<Option<DuePeek>>, Option<Error>) {
        let peeks = self.layout.shards().iter().zip(horizon).map(async |(shard, latest)| {
            let call = self.shard_call(shard, |scripts| &scripts.peek_due).arg(*latest).arg(count);
            let call = call.arg(mode.name());
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

    /// Leases the first due entry of the shard with this index.
    pub(super) async fn lease_one(
        self: Arc<Self>,
        shard: usize,
        mode: CollectMode,
    ) -> Result<Batch, Error> {
        let shard = &self.layout.shards()[shard];
        self.lease_from(shard, mode, NO_DEADLINE as i64, 1).await
    }

    /// Leases up to `count` due entries of a shard.
    async fn lease_from(
        self: &Arc<Self>,
        shard: &DictShardKeys,
        mode: CollectMode,
        latest: i64,
        count: usize,
    ) -> Result<Batch, Error> {
        let lease = match mode {
            CollectMode::Claim { lease } => lease,
            CollectMode::Take | CollectMode::TakeDead => self.take_lease(),
        };
        let call = self.shard_call(shard, |scripts| &scripts.lease).arg(latest).arg(count);
        let call = call.arg(BATCH_BYTES).arg(lease_micros(lease)).arg(mode.name());
        let call = call.arg(match self.retries.max_attempts {
            // No bound, for the script.
            u32::MAX => 0,
            most => most,
        });
        // Sent once: the entries of a lost reply are leased already, and a retry would lease others.
        let answer: Vec<u8> = match call.send_once(&self.client.for_batches()).await {
            Ok(answer) => answer,
            Err(error) => return Err(self.name_wrong_type(error, shard, None).await),
        };
        let BatchReply { keys_and_scores, values, lease_ends_after, attempts, is_cut, now } =
            BatchReply::decode(&answer, &shard.index)?;
        let mut keys_and_scores = keys_and_scores.into_iter().map(|PackedReply(part)| part);
        let mut found_any = false;
        let mut entries = Vec::with_capacity(values.len());
        // None are sent if all are first attempts.
        let attempts = attempts.into_iter().chain(repeat(1));
        for ((PackedReply(value), attempts), number) in values.into_iter().zip(attempts).zip(1..) {
            let (Some(Reply::BulkString(key)), Some(Reply::BulkString(score))) =
                (keys_and_scores.next(), keys_and_scores.next())
            else {
                break;
            };
            found_any = true;
            // The record was missing, so there was no entry, or the entry has just become a dead letter.
            if matches!(value, Reply::Nil) {
                continue;
            }
            // Only for the order of the result, so a score that cannot be parsed is ignored.
            let due = std::str::from_utf8(&score).ok().and_then(|score| score.parse().ok());
            let lease_end = lease_ends_after.saturating_add(4 * number);
            let on_drop = OnDrop::GiveBack { lease_end, score };
            let mut entry = TakenEntry::new(self, key, value, on_drop);
            (entry.due, entry.attempts) = (due.unwrap_or(0.0), attempts);
            entry.is_dead = mode == CollectMode::TakeDead;
            entries.push(entry);
        }
        Ok(Batch { entries, is_cut, found_any, now })
    }
}

impl CollectMode {
    /// Returns the name that the scripts use.
    fn name(self) -> &'static str {
        match self {
            Self::Take => "TAKE",
            Self::Claim { .. } => "CLAIM",
            Self::TakeDead => "DEAD",
        }
    }
}
