//! Check of the number of shards of a cache, which is kept on the server: a process with another number would not find
//! the values of the others, and would not remove them.
//!
//! 1. The record is the number in decimal, without a TTL, at the key `.shards` of shard 0. A cache without a record has
//!    16 shards: releases that knew no other number have written none, and a cache with the default writes none either.
//! 2. A cache whose number was given reads the record before its first command, and writes it if it is missing. While
//!    the numbers differ, none of its commands is sent.
//! 3. A cache with the default reads the record together with its first command, and does not wait for it. So it
//!    depends on no other node of a cluster, and its errors are those of its own commands. Once the numbers are known
//!    to differ, rule 2 applies. Only what must change all shards waits for it: it would return without an error, and
//!    have left values in the shards that it does not know.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering::Relaxed},
};

use ::redis::{Cmd, FromRedisValue, cmd};
use tokio::time::Instant;

use super::{
    Client, CommandBatch, Resend,
    checked_shards::{PASSED, READING, REQUIRED, ShardCheck, UNREAD},
};
use crate::redis::{
    Error,
    error::unexpected_reply,
    keyspace::{Keyspace, SHARDS},
};

/// Number of keys of each node that are examined for values in other shards, before the record is written.
const SAMPLE: usize = 1_000;

impl Client {
    /// Returns a client for the commands of the cache with these keys.
    pub(in crate::redis) fn with_shard_check(&self, keyspace: &Keyspace, is_given: bool) -> Self {
        let check = self.inner.checked_caches.check(keyspace.clone(), is_given);
        Self { shard_check: Some(Arc::new(check)), ..self.clone() }
    }

    /// Checks the number of shards, if this client is that of a cache that has not been checked yet.
    pub(super) async fn check_shards(&self, deadline: Instant) -> Result<(), Error> {
        let Some(check) = &self.shard_check else { return Ok(()) };
        match check.state.load(Relaxed) {
            // Boxed, so that the futures of all other commands stay small.
            REQUIRED => return Box::pin(check.run(self, deadline)).await,
            UNREAD if change(&check.state, UNREAD, READING) => {
                let (check, client) = (check.clone(), self.clone());
                let reset = ResetOnDrop(check.state.clone());
                tokio::spawn(async move {
                    let _reset = reset;
                    check.read_concurrently(&client).await;
                });
            }
            _ => {}
        }
        Ok(())
    }

    /// Awaits the check of this cache, before a change of all its shards.
    pub(in crate::redis) async fn await_shards(&self) -> Result<(), Error> {
        let Some(check) = &self.shard_check else { return Ok(()) };
        if check.state.load(Relaxed) == PASSED {
            return Ok(());
        }
        match Box::pin(check.run(self, self.deadline(None))).await {
            // Not readable, as in `read_concurrently`.
            Err(error) if !check.is_given && is_unreadable(&error) => Ok(()),
            checked => checked,
        }
    }
}

impl ShardCheck {
    async fn run(&self, client: &Client, deadline: Instant) -> Result<(), Error> {
        let configured = self.keyspace.shards().end;
        let mut get = cmd("GET");
        get.arg(self.record());
        let mut recorded = number_in_reply(client, &get, deadline).await?;
        if recorded.is_none() && self.is_given {
            // Values of processes that write no record.
            let is_used = configured != SHARDS && self.has_other_shards(client, deadline).await?;
            recorded = if is_used { Some(SHARDS) } else { self.write(client, deadline).await? };
        }
        // Without a record, the number is the default, or the one that was just written.
        let recorded = recorded.unwrap_or(configured);
        if recorded != configured {
            let name = self.keyspace.name().to_owned();
            return Err(Error::ShardCount { name, recorded, configured });
        }
        self.state.store(PASSED, Relaxed);
        Ok(())
    }

    /// Reads the record once. Errors are those of the commands of the cache too, which report them.
    async fn read_concurrently(&self, client: &Client) {
        match self.run(client, client.deadline(None)).await {
            Ok(()) => {}
            Err(error @ Error::ShardCount { .. }) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(
                    cache = self.keyspace.name(),
                    error,
                    "the server has another number of shards of a cache, its calls fail"
                );
                self.state.store(REQUIRED, Relaxed);
            }
            // As in releases without a record.
            Err(error) if is_unreadable(&error) => self.state.store(PASSED, Relaxed),
            // The next command of the cache starts another attempt.
            Err(_) => {}
        }
    }

    fn record(&self) -> Vec<u8> {
        [self.keyspace.index(0), b".shards"].concat()
    }

    /// Writes the record, unless another process has; returns the number that this process has written.
    async fn write(&self, client: &Client, deadline: Instant) -> Result<Option<u16>, Error> {
        let mut set = cmd("SET");
        set.arg(self.record()).arg(self.keyspace.shards().end).arg("NX").arg("GET");
        number_in_reply(client, &set, deadline).await
    }

    /// Returns whether a sample of the keys on the servers contains a value that is not in the shard of its key.
    async fn has_other_shards(&self, client: &Client, deadline: Instant) -> Result<bool, Error> {
        let mut scan = cmd("SCAN");
        scan.arg(0).arg("MATCH").arg(self.keyspace.scan_pattern()).arg("COUNT").arg(SAMPLE);
        for node in client.inner.router.nodes(deadline).await? {
            let batch = CommandBatch::One(&scan);
            let reply = client.send_unchecked(Some(&node), batch, Resend::Once, deadline).await?;
            let (_, records): (u64, Vec<Vec<u8>>) = FromRedisValue::from_redis_value(reply)
                .map_err(|_| unexpected_reply("unexpected reply to SCAN"))?;
            let is_elsewhere = |record: &Vec<u8>| {
                let key = self.keyspace.key_of(record);
                key.is_some_and(|key| self.keyspace.record(key) != *record)
            };
            if records.iter().any(is_elsewhere) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Returns whether the record cannot be read, for example by a user without the permission.
fn is_unreadable(error: &Error) -> bool {
    !matches!(error, Error::ShardCount { .. }) && !error.is_temporary()
}

/// Sends a command whose reply is the record; returns `None` if there is no record.
async fn number_in_reply(
    client: &Client,
    cmd: &Cmd,
    deadline: Instant,
) -> Result<Option<u16>, Error> {
    // A second `SET` with `NX` changes nothing.
    let reply = client.send_unchecked(None, CommandBatch::One(cmd), Resend::Once, deadline).await?;
    FromRedisValue::from_redis_value(reply)
        .map_err(|_| unexpected_reply("the recorded number of shards is not a number"))
}

/// Ends a reading without a result, also if the task is dropped with its runtime.
struct ResetOnDrop(Arc<AtomicU8>);

impl Drop for ResetOnDrop {
    fn drop(&mut self) {
        change(&self.0, READING, UNREAD);
    }
}

/// Changes the state if it is `old`, and returns whether it was.
fn change(state: &AtomicU8, old: u8, new: u8) -> bool {
    state.compare_exchange(old, new, Relaxed, Relaxed).is_ok()
}
