//! Invalidations: keys that a server reports as changed (`CLIENT TRACKING` over RESP3), and the versions that show
//! whether a cached answer is still valid.
//!
//! 1. All commands of a near cache use the connection that is tracked, so replies and invalidations arrive in the
//!    server's order. No caller gets a reply before the invalidations that the server sent ahead of it were applied.
//! 2. Code that learns about a key in any way other than a reply that is cached invalidates the key, before it passes
//!    the news on. So a cached answer is never older than a value that this process has seen or written.
//! 3. When a connection is retired, all keys are invalidated, after no caller can obtain that connection any more.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use ::redis::{Cmd, Value};

pub(in crate::redis) use super::key_versions::KeyVersion;
use super::key_versions::KeyVersions;
use crate::redis::{error::keys_of, keyspace::Keyspace};

pub(in crate::redis) struct Invalidations {
    keyspace: Keyspace,
    versions: KeyVersions,
    /// Number of changed keys that servers have reported.
    received: AtomicU64,
    /// Set when the warning about a server without tracking was logged, so that it is logged once.
    refusal_logged: AtomicBool,
}

/// A command in flight. However it ends, cached answers about its keys may be outdated, so its drop invalidates them.
pub(super) struct InFlightCommand<'a> {
    pub(super) invalidations: &'a Invalidations,
    pub(super) cmd: &'a Cmd,
}

impl Invalidations {
    /// Creates the invalidations of `keyspace`, for about `keys` cached keys.
    pub(in crate::redis) fn new(keyspace: Keyspace, keys: usize) -> Self {
        Self {
            keyspace,
            versions: KeyVersions::new(keys),
            received: AtomicU64::new(0),
            refusal_logged: AtomicBool::new(false),
        }
    }

    pub(in crate::redis) fn version(&self, key: &[u8]) -> KeyVersion {
        self.versions.version(self.versions.bucket(key))
    }

    #[inline]
    pub(in crate::redis) fn is_current(&self, version: KeyVersion) -> bool {
        self.versions.is_current(version)
    }

    /// Invalidates `key`, because something was received or sent about it.
    pub(in crate::redis) fn invalidate(&self, key: &[u8]) {
        self.versions.invalidate(self.versions.bucket(key));
    }

    pub(in crate::redis) fn invalidate_all(&self) {
        self.versions.invalidate_all();
    }

    /// Returns the number of changed keys that the servers have reported.
    pub(in crate::redis) fn changes_received(&self) -> u64 {
        self.received.load(Relaxed)
    }

    /// Returns the command that makes a server report changes from then on, over the connection that sends it.
    pub(super) fn tracking_command(&self) -> Cmd {
        let mut track = ::redis::cmd("CLIENT");
        // Without NOLOOP, so own writes are reported too: one whose caller was cancelled may be executed later than any
        // other.
        track.arg(&["TRACKING", "ON", "BCAST", "PREFIX"]).arg(self.keyspace.prefix());
        track
    }

    /// Logs once that a server, or a proxy in front of it, does not support tracking.
    pub(super) fn tracking_refused(&self, error: &dyn std::fmt::Display) {
        if !self.refusal_logged.swap(true, Relaxed) {
            tracing::warn!(%error, "the server does not support client tracking, near caching is disabled");
        }
    }

    /// Applies a push of the server. It runs on the task that reads the connection, so it only increments counters.
    pub(super) fn on_push(&self, data: &[Value]) {
        let [Value::Array(records)] = data else {
            // A push without keys concerns all of them, as after `FLUSHALL`.
            self.invalidate_all();
            return;
        };
        let mut received = 0;
        for record in records {
            // Other keys of the cache have the same prefix as its records; these are skipped.
            if let Value::BulkString(record) = record
                && let Some(key) = self.keyspace.key_of(record)
            {
                self.invalidate(key);
                received += 1;
            }
        }
        self.received.fetch_add(received, Relaxed);
    }
}

impl Drop for InFlightCommand<'_> {
    fn drop(&mut self) {
        let invalidations = self.invalidations;
        let keys = keys_of(self.cmd).filter_map(|record| invalidations.keyspace.key_of(record));
        keys.for_each(|key| invalidations.invalidate(key));
    }
}
