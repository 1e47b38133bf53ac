//! Lease on the load of a key, one in all processes, as in Facebook's memcache (Nishtala et al., NSDI 2013); and how
//! long others wait for it, or after a failed load.
//!
//! 1. The holder renews the lease during the load, and releases it when it is dropped. The server expires the lease of
//!    a holder that crashed or lost its connection.
//! 2. A write to the key revokes the lease. The value loaded with a revoked or expired lease is not written, even if a
//!    copy of the request for the lease is executed after the write.

use std::{convert::Infallible, mem, sync::Arc, time::Duration};

use rand::{RngExt, rngs::SmallRng};
use tokio::{runtime::Handle, select, time::sleep};

use super::{
    super::{Error, error::is_out_of_memory},
    commands::Commands,
    expiry::Expiry,
};

/// Shortest and longest pause between two polls of a key that another process is loading.
const POLL_PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

/// Pause after a failed refresh of a stale value, during which no process tries again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Returns the pause before the next poll of a key that another process is loading: a quarter of the time waited so
/// far, and at most the rest of that process's lease.
pub(super) fn poll_pause(waited: Duration, lease_left: Duration) -> Duration {
    let (shortest, longest) = POLL_PAUSES;
    (waited / 4).clamp(shortest, longest).min(lease_left)
}

pub(super) struct Lease {
    commands: Arc<Commands>,
    key: Vec<u8>,
    token: String,
    /// Time at which the server granted the lease; empty until then.
    grant: String,
    duration: Duration,
    /// True if the loaded value is to have tags.
    has_tags: bool,
    /// Runtime on which the lease is released, since it may be dropped on a thread without one.
    runtime: Handle,
    /// True if the server may regard this lease as held, so that `Drop` must release it.
    may_be_held: bool,
    /// Time after the release of the lease during which no other process may take it.
    retry_pause: Duration,
}

/// Result of a request for a lease.
pub(super) enum LeaseLookup {
    Live(Vec<u8>),
    /// The lease was acquired. A stale value may be used during the load.
    Acquired(Option<Vec<u8>>),
    /// Another process holds the lease. Its stale value, if any, and the time until it expires unless renewed.
    HeldElsewhere(Option<Vec<u8>>, Duration),
}

/// Reply of `lookup_lease.lua`.
type LookupReply = (Option<Vec<u8>>, Option<Vec<u8>>, i64, Option<String>);

impl Lease {
    /// Creates a lease that is not held yet. Sends nothing.
    pub(super) fn new(
        commands: Arc<Commands>,
        key: Vec<u8>,
        duration: Duration,
        has_tags: bool,
    ) -> Self {
        let token: u128 = rand::make_rng::<SmallRng>().random();
        Self {
            commands,
            key,
            token: format!("{token:032x}"),
            grant: String::new(),
            duration,
            has_tags,
            runtime: Handle::current(),
            may_be_held: false,
            retry_pause: Duration::ZERO,
        }
    }

    /// Requests the lease. For a refresh, it is granted only if there is a live value; else only if there is none.
    pub(super) async fn lookup(&mut self, is_refresh: bool) -> Result<LeaseLookup, Error> {
        // Before the request: if this future is dropped, the server may still grant the lease.
        self.may_be_held = true;
        let call = self.commands.lookup_lease(
            &self.key,
            Some((&self.token, self.duration)),
            self.has_tags,
        );
        let call = if is_refresh { call.arg("REFRESH") } else { call };
        let answer = call.send_idempotent(&self.commands.client).await;
        if answer.as_ref().is_err_and(is_out_of_memory) {
            // Nothing to release: the server has refused the lease.
            self.may_be_held = false;
        }
        let (live, stale, remaining, grant): LookupReply = answer?;
        self.may_be_held = remaining == 0;
        self.grant = grant.unwrap_or_default();
        Ok(match (live, u64::try_from(remaining)) {
            (Some(value), _) => LeaseLookup::Live(value),
            (None, Ok(0)) => {
                if stale.is_some() {
                    self.retry_pause = RETRY_PAUSE;
                }
                LeaseLookup::Acquired(stale)
            }
            (None, remaining) => LeaseLookup::HeldElsewhere(
                stale,
                // -1: nothing to refresh.
                Duration::from_millis(remaining.unwrap_or_default()),
            ),
        })
    }

    /// Awaits `load` and renews the lease until it completes.
    pub(super) async fn renew_during<F: Future>(&self, load: F) -> F::Output {
        select! {
            // The load first: its result is not delayed by a renewal.
            biased;
            loaded = load => loaded,
            never = self.renew() => match never {},
        }
    }

    /// Writes the loaded value; returns false if the lease was lost or revoked by a write. Without `tags`, the value
    /// keeps those of the one that it replaces.
    pub(super) async fn publish(
        mut self,
        value: &[u8],
        expiry: Expiry,
        tags: Option<&[String]>,
    ) -> Result<bool, Error> {
        let holder = (&*self.token, &*self.grant);
        let call = self.commands.publish(&self.key, holder, value, expiry, tags);
        // Idempotent enough: a retry after a lost reply finds no lease and returns false, as if a write had revoked it.
        let is_put = call.send_idempotent(&self.commands.client).await?;
        self.may_be_held = false;
        Ok(is_put)
    }

    async fn renew(&self) -> Infallible {
        loop {
            // A quarter of the lease, so that the lease survives a renewal that fails only after the client's timeout.
            sleep(self.duration / 4).await;
            let (token, duration) = (&self.token, self.duration);
            let call = self.commands.update_lease(&self.key, token, duration, token, self.has_tags);
            let is_ours = call.send_idempotent::<bool>(&self.commands.client).await;
            // After an error, the lease may still be held, and the next renewal tries again.
            if let Ok(false) = is_ours {
                // The load continues without the lease, for the waiters in this process.
                return std::future::pending().await;
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.may_be_held {
            return;
        }
        let (commands, retry_pause) = (self.commands.clone(), self.retry_pause);
        let (key, token) = (mem::take(&mut self.key), mem::take(&mut self.token));
        self.runtime.spawn(async move {
            let call = commands.update_lease(&key, &token, retry_pause, "released", false);
            // Errors are ignored, because the lease expires by itself.
            let _ = call.send_idempotent::<bool>(&commands.client).await;
        });
    }
}

/// Returns the live value, or the stale value of a key that this process is loading.
pub(super) async fn peek(commands: &Commands, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    let (live, stale, ..): LookupReply =
        commands.lookup_lease(key, None, false).send_idempotent(&commands.client).await?;
    Ok(live.or(stale))
}
