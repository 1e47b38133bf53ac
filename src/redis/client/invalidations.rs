//! What a server tells of changes by itself (RESP3's `CLIENT TRACKING`), and what of that which is kept here still stands.
//!
//! 1. All that is sent goes by the connection that is told: so its answers and what it is told come in the server's order,
//!    and nobody has an answer before all has been told that the server said before it.
//! 2. Whoever learns of a key by another way than an answer that is kept lets its mark fall, before anybody else can know
//!    what came: so what is kept is never older than what this process has seen or written.
//! 3. Where a connection is not used any more, all marks fall, after nobody can be given it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use ::redis::{Cmd, Value};

pub(in crate::redis) use super::key_versions::Mark;
use super::key_versions::Marks;
use crate::redis::{error::keys_of, keyspace::Keyspace};

pub(in crate::redis) struct Feed {
    keyspace: Keyspace,
    marks: Marks,
    /// How many changes it was told of.
    told: AtomicU64,
    /// That a server doesn't tell is logged once.
    is_refused: AtomicBool,
}

/// A command on its way: however it ends, what is kept of its keys may be older.
pub(super) struct Sent<'a> {
    pub(super) feed: &'a Feed,
    pub(super) cmd: &'a Cmd,
}

impl Feed {
    /// For about so many keys.
    pub(in crate::redis) fn new(keyspace: Keyspace, keys: usize) -> Self {
        Self {
            keyspace,
            marks: Marks::new(keys),
            told: AtomicU64::new(0),
            is_refused: AtomicBool::new(false),
        }
    }

    pub(in crate::redis) fn mark(&self, key: &[u8]) -> Mark {
        self.marks.mark(self.marks.place(key))
    }

    #[inline]
    pub(in crate::redis) fn stands(&self, mark: Mark) -> bool {
        self.marks.stands(mark)
    }

    /// Something came about a key, or was sent.
    pub(in crate::redis) fn fall(&self, key: &[u8]) {
        self.marks.fall(self.marks.place(key));
    }

    pub(in crate::redis) fn fall_all(&self) {
        self.marks.fall_all();
    }

    /// How many changes of keys the servers have told of.
    pub(in crate::redis) fn told_of(&self) -> u64 {
        self.told.load(Relaxed)
    }

    /// What asks a server to tell, from then on, on the connection that asks.
    pub(super) fn track(&self) -> Cmd {
        let mut track = ::redis::cmd("CLIENT");
        // The own changes too: one whose answer nobody waits for any more may be carried out later than any other.
        track.arg(&["TRACKING", "ON", "BCAST", "PREFIX"]).arg(self.keyspace.prefix());
        track
    }

    /// A server, or what stands before it, does not tell.
    pub(super) fn refused(&self, why: &dyn std::fmt::Display) {
        if !self.is_refused.swap(true, Relaxed) {
            tracing::warn!(%why, "the server does not tell of changes: nothing is kept near");
        }
    }

    /// What came without being asked for. It runs where the connection is read: it only counts.
    pub(super) fn tell(&self, data: &[Value]) {
        let [Value::Array(records)] = data else {
            // Of all keys, as by `FLUSHALL`.
            self.fall_all();
            return;
        };
        let mut told = 0;
        for record in records {
            // The cache has more than records, which begin as these do.
            if let Value::BulkString(record) = record
                && let Some(key) = self.keyspace.key_of(record)
            {
                self.fall(key);
                told += 1;
            }
        }
        self.told.fetch_add(told, Relaxed);
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        let keys = keys_of(self.cmd).filter_map(|record| self.feed.keyspace.key_of(record));
        keys.for_each(|key| self.feed.fall(key));
    }
}
