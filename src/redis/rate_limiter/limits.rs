//! Limits set for all processes of a name. They are stored under one key on the server, which each process polls.

use std::{
    sync::{Arc, LazyLock, Weak},
    time::{Duration, Instant as RealInstant},
};

use serde::{Deserialize, Serialize};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use super::{
    super::{Error, script::Call},
    limit_set::LimitSet,
    limiter_state::LimiterState,
};
use crate::rate_limit::Limit;

/// Polling interval of the key. `set_limits` promises other processes the new limits within a second, and a poll may
/// take its time too.
const POLL_INTERVAL: Duration = Duration::from_millis(400);

/// Longest time on a paused clock between two looks at the real one: see [`until_next_poll`].
const MAX_PAUSED_INTERVAL: Duration = Duration::from_secs(60);

/// Number of changes of limits by this process. After each, all its limiters poll immediately: there may be several of
/// one name.
static CHANGES: LazyLock<watch::Sender<u64>> = LazyLock::new(watch::Sender::default);

/// A limit as stored: quota, nanoseconds, name, and the unit unless it is requests.
#[derive(Deserialize, Serialize)]
#[serde(untagged)]
enum StoredLimit {
    OfRequests(u32, u64, Option<String>),
    Of(u32, u64, Option<String>, Unit),
}

#[derive(Deserialize, Serialize)]
enum Unit {
    #[serde(rename = "content-bytes")]
    Bytes,
}

/// Result of a poll: the limiter, the stored limits, and its limits before the poll.
type Poll = (Arc<LimiterState>, Option<Vec<u8>>, Arc<LimitSet>);

impl LimiterState {
    /// Sets the limits for all processes.
    pub(super) async fn set_limits(&self, limits: Vec<Limit>) -> Result<(), Error> {
        let call = Call::command("SET", &self.limits_key()).arg(encode(&limits));
        // Sent once, as below: a late copy would undo a later change.
        call.within(self.timeout).send_once::<()>(&self.client).await?;
        self.change_limits(Some(limits));
        Ok(())
    }

    /// Removes the stored limits, so that those of the builder apply in all processes.
    pub(super) async fn clear_limits(&self) -> Result<(), Error> {
        let call = Call::command("DEL", &self.limits_key()).within(self.timeout);
        call.send_once::<u64>(&self.client).await?;
        self.change_limits(None);
        Ok(())
    }

    /// Polls for limits that other processes or limiters set, until the last handle is dropped.
    pub(super) async fn watch_limits(state: Weak<Self>) {
        let mut changes = CHANGES.subscribe();
        let mut is_checked = false;
        loop {
            let begin = (Instant::now(), RealInstant::now());
            // Before the poll: it may miss a change that is made during it.
            changes.mark_unchanged();
            let Some(stored) = Self::poll_limits(&state).await else { return };
            if let Some((limiter, text, before)) = stored {
                if !is_checked {
                    is_checked = true;
                    limiter.check_eviction();
                }
                limiter.apply_stored(text.as_deref(), &before);
            }
            until_next_poll(begin, &mut changes).await;
        }
    }

    /// Reads the stored limits. Returns `None` if the last handle was dropped, and `Some(None)` if the call failed.
    /// Otherwise returns them with the limits before the call.
    async fn poll_limits(state: &Weak<Self>) -> Option<Option<Poll>> {
        let limiter = state.upgrade()?;
        let call = Call::command("GET", &limiter.limits_key()).within(limiter.timeout);
        let (client, before) = (limiter.client.clone(), limiter.current_limits.get());
        // The task must not keep the limiter alive during the call.
        drop(limiter);
        // Failures of the server are logged by checks.
        let Ok(text) = call.send_idempotent(&client).await else { return Some(None) };
        Some(Some((state.upgrade()?, text, before)))
    }

    /// Logs a warning if the server may evict keys of the limiter.
    fn check_eviction(&self) {
        let (client, name) = (self.client.clone(), self.name.clone());
        // A task, because the nodes of a cluster are asked one after the other, and only the log waits for them.
        tokio::spawn(async move {
            if let Some(policy) = client.evicting_policy().await {
                tracing::warn!(
                    limiter = name,
                    policy,
                    "server may evict keys of a rate limiter, set maxmemory-policy to noeviction"
                );
            }
        });
    }

    /// Applies the result of a poll; `None` if no limits are stored.
    ///
    /// If the limits are not those of `before` the poll, this process has set or cleared them since, and the result may
    /// be older than that.
    fn apply_stored(&self, text: Option<&[u8]>, before: &Arc<LimitSet>) {
        let stored = match text.map(decode) {
            None => None,
            Some(Some(limits)) => Some(limits),
            Some(None) => {
                tracing::warn!(
                    limiter = self.name,
                    "limits stored on the server cannot be decoded, keeping the current ones"
                );
                return;
            }
        };
        let is_override = stored.is_some();
        if !self.current_limits.apply_poll(stored, self.window, before) {
            return;
        }
        self.announce_change();
        let limits = &*self.limits_text();
        match is_override {
            true => tracing::info!(
                limiter = self.name,
                limits,
                "limits stored on the server replace those of the builder"
            ),
            false => tracing::info!(
                limiter = self.name,
                limits,
                "no limits are stored on the server any more, those of the builder apply"
            ),
        }
    }

    /// Returns the current limits for log messages.
    fn limits_text(&self) -> String {
        let limits = &self.current_limits.get().limits;
        limits.iter().map(Limit::to_string).collect::<Vec<_>>().join(", ")
    }

    /// Replaces the limits, or restores those of the builder.
    fn change_limits(&self, stored: Option<Vec<Limit>>) {
        if self.current_limits.replace(stored, self.window) {
            self.announce_change();
        }
        CHANGES.send_modify(|changes| *changes = changes.wrapping_add(1));
    }

    fn announce_change(&self) {
        // Before waiters are woken, which check again at once.
        if let Some(denials) = &self.deny_cache {
            denials.forget_all();
        }
        self.current_limits.notify_change();
    }

    /// Returns the key of the stored limits. It differs from every subject, as those end with a brace.
    fn limits_key(&self) -> Vec<u8> {
        [self.keyspace.tagged(b"").as_slice(), b":limits"].concat()
    }
}

/// Waits until the next poll is due after the one that began at a time of Tokio's clock and of the real one.
///
/// Other processes change limits in real time. While Tokio's clock is paused, as in tests, a day may pass in a
/// millisecond: then no poll can find anything, and the interval at which the real clock is read grows.
async fn until_next_poll(begin: (Instant, RealInstant), changes: &mut watch::Receiver<u64>) {
    let (mut wake_at, mut pause) = (begin.0 + POLL_INTERVAL, POLL_INTERVAL);
    // Ends early if this process changes limits.
    while timeout_at(wake_at, changes.changed()).await.is_err() {
        // Always true unless the clock is paused. Half of the interval, so that no rounding counts.
        if begin.1.elapsed() >= POLL_INTERVAL / 2 {
            return;
        }
        pause = MAX_PAUSED_INTERVAL.min(2 * pause);
        wake_at += pause;
    }
}

fn encode(limits: &[Limit]) -> Vec<u8> {
    let each = limits.iter().map(|limit| {
        let nanoseconds =
            u64::try_from(limit.per().as_nanos()).expect("a limit is at most a century");
        let (quota, name) = (limit.quota(), limit.name().map(str::to_owned));
        if limit.is_of_bytes() {
            StoredLimit::Of(quota, nanoseconds, name, Unit::Bytes)
        } else {
            StoredLimit::OfRequests(quota, nanoseconds, name)
        }
    });
    // Stored, and read by processes with other releases: the format must not change.
    serde_json::to_vec(&each.collect::<Vec<_>>()).expect("numbers and strings can be serialized")
}

/// Decodes the output of [`encode`]. Returns `None` if `text` is anything else.
fn decode(text: &[u8]) -> Option<Vec<Limit>> {
    let stored: Vec<StoredLimit> = serde_json::from_slice(text).ok()?;
    let limits: Option<Vec<Limit>> = stored.into_iter().map(restore).collect();
    limits.filter(|limits| !limits.is_empty())
}

fn restore(stored: StoredLimit) -> Option<Limit> {
    let (quota, per, name, unit) = match stored {
        StoredLimit::OfRequests(quota, per, name) => (quota, per, name, None),
        StoredLimit::Of(quota, per, name, unit) => (quota, per, name, Some(unit)),
    };
    let mut limit = Limit::try_new(quota, Duration::from_nanos(per)).ok()?;
    if let Some(name) = name {
        limit = limit.named(name);
    }
    Some(if let Some(Unit::Bytes) = unit { limit.of_bytes() } else { limit })
}
