//! State shared by all clones of a handle, and calls about one entry that are not methods: those that return entries,
//! and the search for a key of the wrong type.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use ::redis::{FromRedisValue, Value as Reply};
use rand::{RngExt, make_rng, rngs::SmallRng};
use tokio::sync::{Mutex, Notify};

#[cfg(feature = "metrics")]
use super::metrics::{DictMetrics, MeasuredHandle};
use super::{
    counters::DictCounters,
    layout::{DictShardKeys, Layout},
    read_ahead::ReadAhead,
    scripts::Scripts,
};
use crate::{
    engine::retries::Retries,
    redis::{
        Client, Error,
        script::{Call, Script},
    },
};

/// Microseconds from which a deadline means none: above 2^53, a double cannot represent each microsecond.
pub(super) const NO_DEADLINE: u64 = 1 << 53;

/// Maximum lease in microseconds, 35 years. Ends of leases identify claims and must be exact doubles, even as the
/// seconds with a fraction that `compat` writes.
const MAX_LEASE_MICROS: u64 = 1 << 50;

pub(super) struct DictState {
    pub(super) client: Client,
    /// For log messages.
    pub(super) name: String,
    pub(super) layout: Arc<Layout>,
    pub(super) ask_every: Duration,
    pub(super) retries: Retries,
    /// Turn of the waiters for due entries, in FIFO order. Only the first asks the server, because all others would
    /// find the same entry.
    pub(super) turn: Mutex<ReadAhead>,
    /// Bit of each shard in which this handle has changed a deadline since the waiter read it.
    changed_shards: AtomicU32,
    /// Wakes the first waiter after such a change.
    pub(super) changed: Notify,
    /// True once the first call was sent: see [`on_use`](Self::on_use).
    is_used: AtomicBool,
    pub(super) counters: Arc<DictCounters>,
    #[cfg(feature = "metrics")]
    metrics: Arc<DictMetrics>,
    /// Set at the first call, because a handle that is not used sends nothing to the server.
    #[cfg(feature = "metrics")]
    measured: std::sync::OnceLock<Arc<MeasuredHandle>>,
}

/// Marks a shard as changed when it is dropped: after the reply, or if the caller is dropped.
struct ShardChange<'a> {
    state: &'a DictState,
    shard: usize,
}

impl Drop for ShardChange<'_> {
    fn drop(&mut self) {
        // `Relaxed`: no other data depends on it. The waiter reads the shard on the server.
        self.state.changed_shards.fetch_or(1 << self.shard, Relaxed);
        self.state.changed.notify_one();
    }
}

/// Failed attempt: the end of a claim without an ack.
pub(super) struct Failure {
    /// Number of the attempt, from 1.
    pub(super) attempt: u32,
    /// Time after which the entry is due again, if not after its backoff.
    pub(super) delay: Option<Duration>,
    pub(super) reason: Option<Box<str>>,
}

impl DictState {
    pub(super) fn new(
        client: Client,
        name: String,
        layout: Layout,
        ask_every: Duration,
        retries: Retries,
    ) -> Self {
        let turn = Mutex::new(ReadAhead::new(layout.shards().len(), client.is_cluster()));
        let (changed_shards, changed) = (AtomicU32::new(0), Notify::new());
        #[cfg(feature = "metrics")]
        let metrics = DictMetrics::of(&client, &name, &layout);
        Self {
            #[cfg(feature = "metrics")]
            counters: metrics.counters.clone(),
            #[cfg(not(feature = "metrics"))]
            counters: Arc::default(),
            #[cfg(feature = "metrics")]
            metrics,
            #[cfg(feature = "metrics")]
            measured: Default::default(),
            client,
            name,
            layout: Arc::new(layout),
            ask_every,
            retries,
            turn,
            changed_shards,
            changed,
            is_used: AtomicBool::new(false),
        }
    }

    /// To be called by each call that sets, takes or claims entries. The first has the entries measured for the
    /// metrics, and has a task warn of a server that may evict them or their index.
    pub(super) fn on_use(&self) {
        // A load first: the swap would take the cache line from other processors at each call.
        if !self.is_used.load(Relaxed) && !self.is_used.swap(true, Relaxed) {
            #[cfg(feature = "metrics")]
            self.measured.get_or_init(|| self.metrics.add_handle(&self.client, &self.layout));
            let (client, name) = (self.client.clone(), self.name.clone());
            tokio::spawn(async move {
                // The keys have no TTL, so that the `volatile` policies do not evict them.
                let policy = client.evicting_policy().await;
                if let Some(policy) = policy.filter(|policy| policy.starts_with("allkeys")) {
                    tracing::warn!(
                        dict = name,
                        policy,
                        "server may evict entries of a dictionary, set maxmemory-policy to noeviction"
                    );
                }
            });
        }
    }

    /// Returns the shards that were changed since the last call, one bit each.
    pub(super) fn take_changed_shards(&self) -> u32 {
        self.changed_shards.swap(0, Relaxed)
    }

    pub(super) fn shard_call(
        &self,
        shard: &DictShardKeys,
        script: impl FnOnce(&'static Scripts) -> &'static Script,
    ) -> Call<'static> {
        script(self.layout.scripts).call(&shard.all()).arg(&shard.record_prefix)
    }

    /// Returns a call of a script about one key.
    pub(super) fn key_call(
        &self,
        key: &[u8],
        script: impl FnOnce(&'static Scripts) -> &'static Script,
    ) -> Call<'static> {
        let shard = self.layout.shard_of(key);
        let record = self.layout.record(key);
        let mut keys = shard.all();
        keys.push(&record);
        script(self.layout.scripts).call(&keys).arg(&shard.record_prefix).arg(key)
    }

    /// Puts back a removed entry, in the state that `remove.lua` returned.
    pub(super) async fn put_back(
        &self,
        key: &[u8],
        saved: &[u8],
        value: &Reply,
    ) -> Result<(), Error> {
        let call = self.key_call(key, |scripts| &scripts.put_back);
        let call = call.arg(saved).arg(self.layout.args_of(value));
        // Sent once: before a retry, another client may have taken the entry, which would then be there twice.
        self.send_change(key, call).await
    }

    /// Ends a lease as if the entry had not been delivered. Returns false if the lease was void.
    pub(super) async fn give_back(
        &self,
        key: &[u8],
        lease_end: i64,
        score: &[u8],
    ) -> Result<bool, Error> {
        let call = self.key_call(key, |scripts| &scripts.give_back).arg(lease_end).arg(score);
        self.send_change(key, call).await
    }

    /// Fails a claim. Returns false if the claim was void.
    pub(super) async fn fail(
        &self,
        key: &[u8],
        lease_end: i64,
        failure: Failure,
    ) -> Result<bool, Error> {
        let Failure { attempt, delay, reason } = failure;
        let backoff = || self.retries.backoff(attempt, make_rng::<SmallRng>().random());
        let after = delay.unwrap_or_else(backoff);
        let reason = reason.map(|reason| format!("{attempt} {reason}"));
        let call = self.key_call(key, |scripts| &scripts.fail).arg(lease_end).arg(micros(after));
        let call = call.arg(u8::from(delay.is_some())).arg(reason.unwrap_or_default());
        // Sent once: a retry would return false, as if the claim had been void.
        let has_failed = self.send_change(key, call).await?;
        if has_failed {
            self.counters.failed();
        }
        Ok(has_failed)
    }

    /// Sends a script that may change a deadline: the waiters of this handle then read the shard again.
    pub(super) async fn send_change<T: FromRedisValue>(
        &self,
        key: &[u8],
        call: Call<'_>,
    ) -> Result<T, Error> {
        let _change = ShardChange { state: self, shard: self.layout.shard_index(key) };
        self.send_once(key, call).await
    }

    /// Sends a script about one key. An error of type names the key that has the wrong type.
    pub(super) async fn send_once<T: FromRedisValue>(
        &self,
        key: &[u8],
        call: Call<'_>,
    ) -> Result<T, Error> {
        match call.send_once(&self.client).await {
            Ok(answer) => Ok(answer),
            Err(error) => {
                Err(self.name_wrong_type(error, self.layout.shard_of(key), Some(key)).await)
            }
        }
    }

    /// Adds the key to an error of type: the server reports only that a key has the wrong type, not which of the keys
    /// of the script.
    pub(super) async fn name_wrong_type(
        &self,
        error: Error,
        shard: &DictShardKeys,
        key: Option<&[u8]>,
    ) -> Error {
        if !matches!(error, Error::WrongType { .. }) {
            return error;
        }
        let record = key.map(|key| (self.layout.record(key), self.layout.record_type()));
        // In the order of `DictShardKeys::all`: index, dead letters, failures, reasons.
        let types = ["zset", "zset", "hash", "hash"];
        let others = shard.all().into_iter().map(<[u8]>::to_vec).zip(types);
        for (key, expected) in record.into_iter().chain(others) {
            let call = Call::command("TYPE", &key);
            let found: Result<String, _> = call.send_idempotent(&self.client).await;
            if found.is_ok_and(|found| found != expected && found != "none") {
                return Error::WrongType { key: String::from_utf8_lossy(&key).into_owned() };
            }
        }
        error
    }
}

/// Converts to microseconds, rounded up, so that no entry is due early.
pub(super) fn micros(span: Duration) -> u64 {
    let micros = span.as_nanos().div_ceil(1_000);
    u64::try_from(micros).unwrap_or(NO_DEADLINE).min(NO_DEADLINE)
}

pub(super) fn lease_micros(lease: Duration) -> u64 {
    micros(lease).min(MAX_LEASE_MICROS)
}
