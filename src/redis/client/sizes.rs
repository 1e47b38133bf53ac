//! Sizes of values: the maximum that a client sends, and the keys of large values, which get a connection of their own.

use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use ::redis::{Arg, Cmd, Value};

use super::{Client, node::Lane, shared_connection::CommandBatch};
use crate::redis::{
    Error,
    error::{key_bytes, keys_of},
};

/// Size from which a value would delay small calls on the same connection.
const LARGE: usize = 1 << 20;

/// Number of keys of large values that are remembered.
const REMEMBERED: usize = 1_024;

/// Keys whose last value was large, so that it is read over the connection for large values.
///
/// Each key has one place, which another key may take: then its next read delays other calls once more.
pub(super) struct LargeKeys {
    hasher: RandomState,
    /// Hashes of the keys; 0 for none.
    hashes: Box<[AtomicU64]>,
    /// False as long as there was no large value, which then costs nothing.
    has_any: AtomicBool,
}

impl Client {
    /// Returns this client with the lane for the sizes of `batch`, unless the caller chose a lane.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`] if a key or value is longer than the maximum of this client. The server would close the
    /// connection, and all other calls on it would fail.
    pub(super) fn for_sizes_of(&self, batch: CommandBatch<'_>) -> Result<Lane, Error> {
        let (CommandBatch::One(cmd) | CommandBatch::MultiKey(cmd)) = batch else {
            return Ok(self.lane);
        };
        let (mut total, mut longest) = (0, 0);
        for arg in cmd.args_iter() {
            if let Arg::Simple(arg) = arg {
                total += arg.len();
                longest = longest.max(arg.len());
            }
        }
        let max = self.inner.max_value_bytes;
        if longest > max {
            return Err(Error::TooLarge { bytes: longest, max });
        }
        // A client that tracks changed keys keeps its lane: replies and invalidations are only ordered within one
        // connection.
        if self.lane != Lane::Verbs || self.invalidations().is_some() {
            return Ok(self.lane);
        }
        let keys = &self.inner.large_keys;
        if total > LARGE {
            // Before it is sent: a later write of the key uses the same connection, and is executed after this one, even
            // if the caller does not wait for the reply.
            keys.insert(cmd);
            return Ok(Lane::Large);
        }
        Ok(if keys.contains(cmd) { Lane::Large } else { Lane::Verbs })
    }

    /// Remembers whether the value of a key is large, from the reply to a call on `lane`.
    pub(super) fn record_size(&self, batch: CommandBatch<'_>, lane: Lane, reply: &Value) {
        if let CommandBatch::One(cmd) = batch
            && matches!(lane, Lane::Verbs | Lane::Large)
        {
            let sent =
                || cmd.args_iter().any(|arg| matches!(arg, Arg::Simple(arg) if arg.len() > LARGE));
            match size(reply) > LARGE || lane == Lane::Large && sent() {
                true => self.inner.large_keys.insert(cmd),
                false if lane == Lane::Large => self.inner.large_keys.remove(cmd),
                false => {}
            }
        }
    }
}

impl LargeKeys {
    pub(super) fn new() -> Self {
        let hashes = (0..REMEMBERED).map(|_| AtomicU64::new(0)).collect();
        Self { hasher: RandomState::new(), hashes, has_any: AtomicBool::new(false) }
    }

    fn contains(&self, cmd: &Cmd) -> bool {
        if !self.has_any.load(Relaxed) {
            return false;
        }
        let (place, hash) = self.place(cmd);
        place.load(Relaxed) == hash
    }

    fn insert(&self, cmd: &Cmd) {
        let (place, hash) = self.place(cmd);
        place.store(hash, Relaxed);
        self.has_any.store(true, Relaxed);
    }

    fn remove(&self, cmd: &Cmd) {
        let (place, hash) = self.place(cmd);
        // Fails if another key has taken the place.
        let _ = place.compare_exchange(hash, 0, Relaxed, Relaxed);
    }

    fn place(&self, cmd: &Cmd) -> (&AtomicU64, u64) {
        let hash = self.hasher.hash_one(record_of(cmd)).max(1);
        (&self.hashes[hash as usize % REMEMBERED], hash)
    }
}

/// Returns the key of the record that a command or script is about, or else its first key.
fn record_of(cmd: &Cmd) -> &[u8] {
    // A record is `prefix:type:{name:shard}:key`; other keys of a script have no colon after the brace.
    let mut records = keys_of(cmd).filter(|key| key.windows(2).any(|pair| pair == b"}:"));
    records.next().unwrap_or_else(|| key_bytes(cmd))
}

/// Returns the size of the largest string in a reply, or in its array.
fn size(reply: &Value) -> usize {
    match reply {
        Value::BulkString(bytes) => bytes.len(),
        Value::Array(parts) => parts.iter().map(size).max().unwrap_or(0),
        _ => 0,
    }
}
