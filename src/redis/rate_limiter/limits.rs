//! The limits of a name, which hold for all processes: on the server there is one key for them, which each looks at twice
//! a second.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::time::{MissedTickBehavior, interval};

use super::{
    super::{Error, script::Call},
    state::LimiterState,
};
use crate::rate_limit::Limit;

/// How often the key is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(400);

/// A limit as it is written: quota, nanoseconds, name, and the unit where it is not a request.
#[derive(Deserialize, Serialize)]
#[serde(untagged)]
enum Written {
    OfRequests(u32, u64, Option<String>),
    Of(u32, u64, Option<String>, Unit),
}

#[derive(Deserialize, Serialize)]
enum Unit {
    #[serde(rename = "content-bytes")]
    Bytes,
}

impl LimiterState {
    /// Sets the limits for all processes.
    pub(super) async fn set_limits(&self, limits: Vec<Limit>) -> Result<(), Error> {
        let call = Call::command("SET", &self.limits_key()).arg(written(&limits));
        // The same, however often it is sent.
        call.within(self.timeout).send_idempotent::<()>(&self.client).await?;
        self.change_limits(limits);
        Ok(())
    }

    /// Sees until the last handle is gone what other processes set.
    pub(super) async fn watch_limits(state: Weak<Self>) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_warned = false;
        loop {
            looks.tick().await;
            let Some(limiter) = state.upgrade() else { return };
            let call = Call::command("GET", &limiter.limits_key()).within(limiter.timeout);
            let (client, before) = (limiter.client.clone(), limiter.plan.present());
            let to_warn = (!is_warned).then(|| limiter.name.clone());
            // The task must not be what keeps it alive.
            drop(limiter);
            // Where the server fails, those who check say so.
            let Ok(text) = call.send_idempotent::<Option<Vec<u8>>>(&client).await else { continue };
            if let Some(name) = to_warn {
                is_warned = true;
                client.warn_of_eviction(&name).await;
            }
            let Some(text) = text else { continue };
            let Some(limiter) = state.upgrade() else { return };
            match read(&text) {
                // Else it was read before what this process has set since.
                Some(_) if !Arc::ptr_eq(&limiter.plan.present(), &before) => {}
                Some(limits) => limiter.change_limits(limits),
                None => tracing::warn!(limiter = limiter.name, "no limits of ours are set"),
            }
        }
    }

    fn change_limits(&self, limits: Vec<Limit>) {
        if self.plan.replace(limits, self.window) {
            // Before those who wait ask again.
            if let Some(denials) = &self.deny_cache {
                denials.forget_all();
            }
            self.plan.tell();
        }
    }

    /// No subject has it for a key, as those end in a brace.
    fn limits_key(&self) -> Vec<u8> {
        [self.keyspace.tagged(b"").as_slice(), b":limits"].concat()
    }
}

fn written(limits: &[Limit]) -> Vec<u8> {
    let each = limits.iter().map(|limit| {
        let nanoseconds = u64::try_from(limit.per().as_nanos()).expect("a century fits");
        let (quota, name) = (limit.quota(), limit.name().map(str::to_owned));
        if limit.is_of_bytes() {
            Written::Of(quota, nanoseconds, name, Unit::Bytes)
        } else {
            Written::OfRequests(quota, nanoseconds, name)
        }
    });
    serde_json::to_vec(&each.collect::<Vec<_>>()).expect("numbers and texts can be written")
}

/// `None` where they are not what [`written`] writes.
fn read(text: &[u8]) -> Option<Vec<Limit>> {
    let written: Vec<Written> = serde_json::from_slice(text).ok()?;
    let limits: Option<Vec<Limit>> = written.into_iter().map(limit).collect();
    limits.filter(|limits| !limits.is_empty())
}

fn limit(written: Written) -> Option<Limit> {
    /// A century.
    const LONGEST: u64 = 100 * 365 * 86_400 * 1_000_000_000;

    let (quota, per, name, unit) = match written {
        Written::OfRequests(quota, per, name) => (quota, per, name, None),
        Written::Of(quota, per, name, unit) => (quota, per, name, Some(unit)),
    };
    if quota == 0 || !(1..=LONGEST).contains(&per) {
        return None;
    }
    let mut limit = Limit::new(quota, Duration::from_nanos(per));
    if let Some(name) = name {
        limit = limit.named(name);
    }
    Some(if let Some(Unit::Bytes) = unit { limit.of_bytes() } else { limit })
}
