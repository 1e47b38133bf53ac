//! Look-ups by loader methods: a live value, its refresh before it expires, or the kept error of a failed load.

use std::{fmt::Debug, sync::Arc};

use futures_util::FutureExt;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{runtime::Handle, time::Instant};

use super::{
    super::Error,
    Cache,
    expiry::expires_at,
    failures::BegunLoad,
    lease::{Lease, LeaseLookup},
    load::Load,
};
use crate::{cache::TimeToLive, engine::tasks::spawn};

impl<K, V> Cache<K, V>
where
    K: Serialize + DeserializeOwned,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    /// Looks up a key for a loader method. Returns its live value, and whether that is to be refreshed now.
    pub(super) async fn look_up(&self, key: &[u8]) -> Result<Option<(V, bool)>, Error> {
        let freshness = &self.state.freshness;
        let needs_ttl = freshness.settings.needs_deadline();
        let (value, expires_at) = match &self.state.near {
            Some(near) => {
                let found = self.get_near_encoded(near, key).await?;
                (found.value, found.expires_at)
            }
            None if needs_ttl => self.read_with_ttl(key).await?,
            None => (self.get_encoded(key).await?, None),
        };
        let is_due = needs_ttl
            && expires_at.is_some_and(|at| {
                freshness.should_refresh(at.saturating_duration_since(Instant::now()))
            });
        Ok(value.map(|value| (value, is_due)))
    }

    /// Starts to load a live value in the background, unless it is being loaded, or has failed to recently.
    pub(super) fn spawn_refresh_ahead<E, F, Fut>(
        &self,
        key: Vec<u8>,
        ttl: impl TimeToLive<V> + Send + 'static,
        loader: F,
    ) where
        E: Debug + Send + Sync + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
    {
        if self.state.failures.as_ref().is_some_and(|failures| !failures.may_retry(&key)) {
            return;
        }
        let mut guard = self.state.flights.join(&key);
        if !guard.is_leader() {
            return;
        }
        let begun = self.begin_load(&key);
        let commands = self.state.commands.clone();
        let mut lease = Lease::new(commands, key.clone(), self.state.lease, ttl.has_tags());
        let (name, format) = (self.state.name.clone(), self.state.format);
        let (counters, freshness) = (self.state.counters.clone(), self.state.freshness.clone());
        let mut request = Box::pin(async move {
            let found = lease.lookup(true).await;
            (lease, found)
        });
        // Sent before the caller has the value: what it does next to the key then comes later on the connection, and
        // takes precedence over the load.
        let answer = (&mut request).now_or_never();
        let refresh = Box::pin(async move {
            guard.begin_load();
            let (lease, found) = match answer {
                Some(answer) => answer,
                None => request.await,
            };
            // If another process loads the key or the server fails, nothing is to be done: the value is live. A caller
            // that waits for this flight becomes its leader, and asks the server itself.
            let Ok(LeaseLookup::Acquired(_)) = found else { return };
            let lease = Ok(lease);
            let load = Load {
                name,
                key,
                guard,
                lease,
                format,
                counters,
                freshness,
                begun,
                is_refresh: true,
            };
            load.run_refresh(ttl, loader).await;
        });
        spawn(&Handle::current(), "refresh", &self.state.name, refresh);
    }

    /// Returns the error of a recent load of the key in this process, if errors are kept.
    pub(super) fn kept_error<E: Send + Sync + 'static>(&self, key: &[u8]) -> Option<Arc<E>> {
        self.state.failures.as_ref()?.error(key)
    }

    /// Notes the beginning of a load, if failures are kept.
    pub(super) fn begin_load(&self, key: &[u8]) -> Option<BegunLoad> {
        self.state.failures.as_ref().map(|failures| failures.begin_load(key))
    }

    /// Looks up a key and the time at which its value expires, if it does.
    async fn read_with_ttl(&self, key: &[u8]) -> Result<(Option<V>, Option<Instant>), Error> {
        // Before the request, so that the time is not too late.
        let started = Instant::now();
        let (get, ttl) = (self.commands().get(key), self.commands().pttl(key));
        let (value, ttl, _): (Option<Vec<u8>>, i64, _) =
            get.send_both_tracked(ttl, self.client()).await?;
        let value = self.commands().live_or_current(key, value).await?;
        self.state.counters.read(&value);
        let value = value.map(|value| self.state.decode(key, &value)).transpose()?;
        Ok((value, expires_at(started, ttl)))
    }
}
