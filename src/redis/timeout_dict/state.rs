//! What all clones of a handle share, and the calls about one entry that none of the verbs sends: those by
//! which entries go back, and the search for a key of another type.

use std::time::Duration;

use ::redis::Value as Reply;
use rand::{make_rng, rngs::SmallRng};
use tokio::{sync::Mutex, time::Instant};

use super::{
    layout::{Layout, ShardKeys},
    scripts::Scripts,
};
use crate::{
    redis::{
        Client, Error,
        script::{Call, Script},
    },
    timeout_dict::Retries,
};

/// What is to be taken and is of another type, or can't be decoded, is due again after this.
pub(super) const UNREADABLE_DELAY: Duration = Duration::from_secs(60);

/// A deadline from here on is none: from it on, not each microsecond has a score.
pub(super) const NO_DEADLINE: u64 = 1 << 53;

/// In microseconds, 35 years. All ends are exact, as seconds too (with the fraction that `compat` writes), since they
/// tell claims apart.
const MAX_LEASE_MICROS: u64 = 1 << 50;

/// A take that is slower than its lease gets nothing, however patient the client is: what it is lent comes back by
/// then, where its process has died.
const MAX_TAKE_TIMEOUT: Duration = Duration::from_secs(5);
const MIN_TAKE_LEASE: Duration = Duration::from_millis(100);

pub(super) struct DictState {
    pub(super) client: Client,
    pub(super) layout: Layout,
    pub(super) ask_every: Duration,
    pub(super) retries: Retries,
    /// Who waits for what is due, one behind the other: only the first asks the server, as all others would find
    /// the same entry.
    pub(super) turn: Mutex<()>,
}

impl DictState {
    pub(super) fn shard_call(
        &self,
        shard: &ShardKeys,
        script: impl FnOnce(&'static Scripts) -> &'static Script,
    ) -> Call<'static> {
        script(self.layout.scripts).call(&shard.all()).arg(&shard.record_prefix)
    }

    /// The same for what is done with one key.
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

    /// Puts back what was taken; `was` is of remove.lua, or as there.
    pub(super) async fn put_back(
        &self,
        key: &[u8],
        saved: &[u8],
        value: &Reply,
    ) -> Result<(), Error> {
        let call = self.key_call(key, |scripts| &scripts.put_back);
        let call = call.arg(saved).arg(self.layout.args_of(value));
        // Once: by the second time another may have taken it, and it would be there twice.
        call.send_once(&self.client).await
    }

    /// Ends a lease of which nobody has heard.
    pub(super) async fn give_back(
        &self,
        key: &[u8],
        lease_end: i64,
        score: &[u8],
    ) -> Result<(), Error> {
        let call = self.key_call(key, |scripts| &scripts.give_back);
        // The second time there is no such lease any more.
        call.arg(lease_end).arg(score).send_idempotent(&self.client).await
    }

    /// Ends a claim that failed; its entry comes again in `delay`, or after its backoff. Tells whether it was not void.
    pub(super) async fn fail(
        &self,
        key: &[u8],
        lease_end: i64,
        delay: Option<Duration>,
        attempts: u32,
    ) -> Result<bool, Error> {
        let backoff = || self.retries.backoff(attempts, &mut make_rng::<SmallRng>());
        let after = delay.unwrap_or_else(backoff);
        let call = self.key_call(key, |scripts| &scripts.fail).arg(lease_end);
        // Once: the second time it would say that the claim was void.
        call.arg(micros(after)).arg(u8::from(delay.is_some())).send_once(&self.client).await
    }

    /// For how long a take is lent what it takes: as long as it tries to say that it has it.
    pub(super) fn take_lease(&self) -> Duration {
        let timeout = self.client.deadline(None).saturating_duration_since(Instant::now());
        (2 * timeout.min(MAX_TAKE_TIMEOUT)).max(MIN_TAKE_LEASE)
    }

    /// Names the key that is of another type than it should be: the server says only that one is, not which of
    /// those that the script touched.
    pub(super) async fn name_wrong_type(
        &self,
        error: Error,
        shard: &ShardKeys,
        key: Option<&[u8]>,
    ) -> Error {
        if !matches!(error, Error::WrongType { .. }) {
            return error;
        }
        let record = key.map(|key| (self.layout.record(key), self.layout.record_type()));
        let types = ["zset", "zset", "hash"];
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

/// Rounded up, so that nothing is due too soon.
pub(super) fn micros(span: Duration) -> u64 {
    let micros = span.as_nanos().div_ceil(1_000);
    u64::try_from(micros).unwrap_or(NO_DEADLINE).min(NO_DEADLINE)
}

pub(super) fn lease_micros(lease: Duration) -> u64 {
    micros(lease).min(MAX_LEASE_MICROS)
}
