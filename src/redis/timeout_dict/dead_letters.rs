//! Listing of dead letters: each shard is read in pages, oldest first, and the pages are merged.
//!
//! A first page is small, because only some of each shard's letters are among the oldest of all. A further page is read
//! when the merge has used up the one before.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use ::redis::Value as Reply;
use serde::{Serialize, de::DeserializeOwned};

use super::{
    TimeoutDict,
    batch_reply::{DeadLettersReply, PackedReply},
    dict_state::DictState,
    layout::DictShardKeys,
};
use crate::{
    redis::{Error, client::has_waited, few_at_once::few_at_once},
    timeout_dict::DeadLetter,
};

/// Maximum number of letters per script, because the server executes nothing else in the meantime.
const MAX_PER_PAGE: usize = 512;

/// Number of value bytes after which a page ends: less than for a claim, since letters of a page may not be returned.
const PAGE_BYTES: usize = 64 << 10;

/// A dead letter as it is stored.
struct StoredLetter {
    key: Vec<u8>,
    value: Reply,
    attempts: u32,
    reason: Option<String>,
    /// Time at which it became dead.
    dead_at: f64,
}

/// The letters of one shard, read up to some place.
struct ShardLetters<'a> {
    shard: &'a DictShardKeys,
    /// Letters that were read and not returned yet, oldest first.
    page: VecDeque<StoredLetter>,
    /// Score of the last letter that was read, and the number of letters read with this score.
    last: (Vec<u8>, usize),
    has_more: bool,
    error: Option<Error>,
}

impl<K, V> TimeoutDict<K, V>
where
    K: Serialize + DeserializeOwned,
    V: Serialize + DeserializeOwned,
{
    /// Returns at most `max` dead letters with the reasons of their failures, oldest first. Removes nothing.
    ///
    /// An attempt that ends without [`Claim::fail`] has no reason and keeps that of an earlier attempt.
    /// [`set`](Self::set), [`revive`](Self::revive) and all calls that remove the entry clear the reason. If entries
    /// become dead or are removed during the call, they may or may not be listed.
    ///
    /// One script per shard reads its share of `max`. A shard that has more than its share of the oldest letters is
    /// asked again, and so is one for each further 512 letters or 64 KiB of values.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the call only reads.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn f(jobs: fleeting::redis::TimeoutDict<String, u32>) -> Result<(), fleeting::redis::Error> {
    /// use std::time::Duration;
    ///
    /// for dead in jobs.dead_letters(100).await? {
    ///     let reason = dead.reason.as_deref().unwrap_or("no reason");
    ///     println!("{} failed {} times: {reason}", dead.key, dead.attempts);
    ///     jobs.revive(&dead.key, Duration::ZERO).await?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// [`Claim::fail`]: super::Claim::fail
    #[doc(alias = "dead letter")]
    pub async fn dead_letters(&self, max: usize) -> Result<Vec<DeadLetter<K, V>>, Error> {
        if max == 0 || !self.state.layout.has_dead() {
            return Ok(Vec::new());
        }
        let shards = self.state.layout.shards();
        let share = max.div_ceil(shards.len());
        let page_len = share.saturating_add(share.isqrt()).min(MAX_PER_PAGE);
        let mut shards: Vec<_> = shards.iter().map(ShardLetters::new).collect();
        let (mut letters, mut failure) = (Vec::new(), None);
        while letters.len() < max {
            self.state.read_pages(&mut shards, page_len).await;
            let Some(letter) = take_oldest(&mut shards) else { break };
            match self.decode_letter(letter) {
                Ok(letter) => letters.push(letter),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        match failure.or_else(|| shards.iter_mut().find_map(|shard| shard.error.take())) {
            Some(error) if letters.is_empty() => Err(error),
            Some(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(
                    dict = self.state.name,
                    error,
                    "failed to read some of the dead letters"
                );
                Ok(letters)
            }
            None => Ok(letters),
        }
    }

    fn decode_letter(&self, letter: StoredLetter) -> Result<DeadLetter<K, V>, Error> {
        let StoredLetter { key, value, attempts, reason, .. } = letter;
        let value = self.decode(&key, &value)?;
        Ok(DeadLetter { key: self.state.layout.decode_key(&key)?, value, attempts, reason })
    }
}

impl DictState {
    /// Reads a page of each shard whose letters are used up.
    async fn read_pages(self: &Arc<Self>, shards: &mut [ShardLetters<'_>], page_len: usize) {
        let empty = shards.iter_mut().filter(|shard| shard.page.is_empty() && shard.has_more);
        // After a call that waited for its server until the timeout, no further one is sent: it would wait, too.
        let has_failed = AtomicBool::new(false);
        few_at_once(empty.map(async |shard| {
            // Without letters if those of the page were no entries.
            while shard.page.is_empty() && shard.has_more {
                if has_failed.load(Relaxed) {
                    shard.has_more = false;
                } else if let Err(error) = self.read_page(shard, page_len).await {
                    if has_waited(&error) {
                        has_failed.store(true, Relaxed);
                    }
                    shard.has_more = false;
                    shard.error = Some(self.name_wrong_type(error, shard.shard, None).await);
                }
            }
        }))
        .await;
    }

    async fn read_page(&self, of: &mut ShardLetters<'_>, page_len: usize) -> Result<(), Error> {
        let (score, skipped) = &of.last;
        let call = self.shard_call(of.shard, |scripts| &scripts.dead_letters);
        let call = call.arg(score).arg(*skipped).arg(page_len).arg(PAGE_BYTES);
        let answer: Vec<u8> = call.send_idempotent(&self.client.for_batches()).await?;
        of.add_page(DeadLettersReply::decode(&answer, &of.shard.index)?);
        Ok(())
    }
}

impl<'a> ShardLetters<'a> {
    fn new(shard: &'a DictShardKeys) -> Self {
        let last = (b"-inf".to_vec(), 0);
        Self { shard, page: VecDeque::new(), last, has_more: true, error: None }
    }

    fn add_page(&mut self, reply: DeadLettersReply) {
        let DeadLettersReply { keys_and_scores, values, attempts, reasons, has_more } = reply;
        self.has_more = false;
        let mut parts = keys_and_scores.into_iter().map(|PackedReply(part)| part);
        for ((PackedReply(value), attempts), PackedReply(reason)) in
            values.into_iter().zip(attempts).zip(reasons)
        {
            let (Some(Reply::BulkString(key)), Some(Reply::BulkString(score))) =
                (parts.next(), parts.next())
            else {
                break;
            };
            // Otherwise the same page would be requested again and again.
            self.has_more = has_more;
            let dead_at = str::from_utf8(&score).ok().and_then(|score| score.parse().ok());
            self.last = match &self.last {
                (last, count) if *last == score => (score, count + 1),
                _ => (score, 1),
            };
            // The record is missing, so it is not an entry.
            if matches!(value, Reply::Nil) {
                continue;
            }
            let reason = match reason {
                Reply::BulkString(reason) => String::from_utf8(reason).ok(),
                _ => None,
            };
            let dead_at = dead_at.unwrap_or(0.0);
            self.page.push_back(StoredLetter { key, value, attempts, reason, dead_at });
        }
    }

    fn oldest(&self) -> f64 {
        self.page.front().map_or(f64::INFINITY, |letter| letter.dead_at)
    }
}

fn take_oldest(shards: &mut [ShardLetters<'_>]) -> Option<StoredLetter> {
    let oldest = shards.iter_mut().min_by(|one, other| one.oldest().total_cmp(&other.oldest()));
    oldest?.page.pop_front()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_without_letters_is_the_last() {
        let shard =
            DictShardKeys { index: Vec::new(), others: Vec::new(), record_prefix: Vec::new() };
        let mut letters = ShardLetters::new(&shard);
        letters.add_page(DeadLettersReply {
            keys_and_scores: Vec::new(),
            values: Vec::new(),
            attempts: Vec::new(),
            reasons: Vec::new(),
            has_more: true,
        });
        assert!(!letters.has_more && letters.page.is_empty());
    }
}
