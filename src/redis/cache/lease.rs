//! The right to load a key, of one in the whole fleet (as leases of Facebook's memcache: Nishtala et al., NSDI 2013).
//!
//! 1. Who has it renews it while it loads, and gives it back on its way out, however it leaves; the server ends it where
//!    its holder is dead or cut off.
//! 2. A write to the key takes it away. Then, and when it is over, what is loaded is put nowhere.

use std::{convert::Infallible, mem, sync::Arc, time::Duration};

use rand::{RngExt, rngs::SmallRng};
use tokio::{runtime::Handle, select, time::sleep};

use super::{super::Error, commands::Commands, expiry::Expiry};

/// How long nobody tries again what is stale and could not be loaded.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Lease {
    commands: Arc<Commands>,
    key: Vec<u8>,
    token: String,
    length: Duration,
    /// On which it is given back, wherever it is dropped.
    runtime: Handle,
    /// Whether the server may think that we have it.
    may_be_held: bool,
    /// For how long nobody else is to have it, once it is given back.
    rests: Duration,
}

/// What is there for who asked for a lease.
pub(super) enum Sought {
    Live(Vec<u8>),
    /// The lease is ours; there may be a value to be used meanwhile.
    Leads(Option<Vec<u8>>),
    /// Somebody else has the lease, for so long if nobody renews it.
    Waits(Option<Vec<u8>>, Duration),
}

/// What `lookup_lease.lua` answers.
type SeekReply = (Option<Vec<u8>>, Option<Vec<u8>>, i64);

impl Lease {
    /// Asks for nothing yet.
    pub(super) fn new(commands: Arc<Commands>, key: Vec<u8>, length: Duration) -> Self {
        let token: u128 = rand::make_rng::<SmallRng>().random();
        Self {
            commands,
            key,
            token: format!("{token:032x}"),
            length,
            runtime: Handle::current(),
            may_be_held: false,
            rests: Duration::ZERO,
        }
    }

    pub(super) async fn seek(&mut self) -> Result<Sought, Error> {
        // Who drops this future may have got it.
        self.may_be_held = true;
        let call = self.commands.seek(&self.key, Some((&self.token, self.length)));
        let (live, stale, left): SeekReply = call.send_idempotent(&self.commands.client).await?;
        self.may_be_held = left == 0;
        Ok(match (live, u64::try_from(left)) {
            (Some(value), _) => Sought::Live(value),
            (None, Ok(0)) => {
                if stale.is_some() {
                    self.rests = PAUSE;
                }
                Sought::Leads(stale)
            }
            (None, left) => Sought::Waits(stale, Duration::from_millis(left.unwrap_or_default())),
        })
    }

    /// Awaits `load`, and renews the lease meanwhile.
    pub(super) async fn hold<F: Future>(&self, load: F) -> F::Output {
        select! {
            biased;
            loaded = load => loaded,
            never = self.renew() => match never {},
        }
    }

    /// Puts what was loaded; whether it did, and nothing was written meanwhile.
    pub(super) async fn publish(mut self, value: &[u8], expiry: Expiry) -> Result<bool, Error> {
        let call = self.commands.publish(&self.key, &self.token, value, expiry);
        // Sent again after a lost answer, it does nothing, and says so: then it is as if a write had come.
        let is_put = call.send_idempotent(&self.commands.client).await?;
        self.may_be_held = false;
        Ok(is_put)
    }

    async fn renew(&self) -> Infallible {
        loop {
            // So that one that fails, for as long as a call may take, is not the end of it.
            sleep(self.length / 4).await;
            let call = self.commands.hold(&self.key, &self.token, self.length, &self.token);
            let is_ours = call.send_idempotent::<bool>(&self.commands.client).await;
            if let Ok(false) = is_ours {
                // The load goes on, for those who wait for it here.
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
        let (commands, rests) = (self.commands.clone(), self.rests);
        let (key, token) = (mem::take(&mut self.key), mem::take(&mut self.token));
        self.runtime.spawn(async move {
            let call = commands.hold(&key, &token, rests, "nobody");
            // Where it can't be said, the lease ends by itself.
            let _ = call.send_idempotent::<bool>(&commands.client).await;
        });
    }
}

/// What may be used of a value that somebody else in this process loads, or the live one.
pub(super) async fn peek(commands: &Commands, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    let (live, stale, _): SeekReply =
        commands.seek(key, None).send_idempotent(&commands.client).await?;
    Ok(live.or(stale))
}
