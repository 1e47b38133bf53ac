//! Look-up before a load: decides whether a value is live, due for a refresh, stale, or missing.

use std::{
    hash::{BuildHasher, Hash},
    time::Duration,
};

use equivalent::Equivalent;

use crate::{
    cache::SyncCache,
    engine::{
        clock::{CallTime, Now},
        coop,
        store::Seen,
    },
};

/// Freshness of a value returned by
/// [`Cache::get_or_try_set_with_freshness`](crate::Cache::get_or_try_set_with_freshness), so that you can mark an old
/// value as such.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Freshness {
    /// The value was present and live. A refresh of it may be running in the background
    /// ([`refresh_ahead`](crate::Builder::refresh_ahead)).
    Fresh,
    /// The value was loaded by this call, or by another one that this call waited for.
    Loaded,
    /// The value has expired and is within its stale window
    /// ([`stale_while_revalidate`](crate::Builder::stale_while_revalidate),
    /// [`stale_if_error`](crate::Builder::stale_if_error)).
    Stale,
}

/// A value that a loader method returns without waiting.
pub(super) struct Hit<V> {
    pub(super) value: V,
    /// Present if the value should be refreshed in the background.
    pub(super) refresh: Option<Seen>,
}

impl<V> Hit<V> {
    pub(super) fn freshness(&self) -> Freshness {
        match self.refresh {
            Some(Seen::Stale) => Freshness::Stale,
            Some(Seen::Live { .. }) | None => Freshness::Fresh,
        }
    }
}

impl<K, V, S> SyncCache<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    /// Returns the value that a loader method returns immediately; `None` if it has to be loaded.
    #[inline]
    pub(super) fn look_up<Q>(&self, key: &Q) -> Option<Hit<V>>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let settings = &self.freshness_policy.settings;
        let live = if settings.needs_deadline() {
            self.read_by(|call| {
                // An idle time is no reason to reload, so only the hard deadline counts.
                let (value, hard_deadline) = self.shared.store.get_with_hard_deadline(key, call)?;
                let remaining = hard_deadline.remaining(call.tick());
                let is_due = remaining.is_some_and(|ttl| self.freshness_policy.should_refresh(ttl));
                Some(Hit { value, refresh: is_due.then_some(Seen::Live { hard_deadline }) })
            })
        } else {
            self.look_up_live(key).map(|value| Hit { value, refresh: None })
        };
        if live.is_some() {
            return live;
        }
        let value = self.get_stale(key, settings.stale_while_revalidate)?;
        Some(Hit { value, refresh: Some(Seen::Stale) })
    }

    /// Returns the live value, for a method that never refreshes in the background and loads stale values, too.
    #[inline]
    pub(super) fn look_up_live<Q>(&self, key: &Q) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.read_by(|call| self.shared.store.get(key, call))
    }

    /// Calls `read`, publishes the event of an entry that it removed, and charges a long clone to the budget.
    #[inline]
    fn read_by<T>(&self, read: impl FnOnce(&CallTime<'_>) -> Option<T>) -> Option<T> {
        let call = self.call();
        let found = read(&call);
        if found.is_none() {
            // The look-up may have expired the entry and written to the journal.
            self.shared.publisher.flush();
        }
        coop::charge(&call);
        found
    }

    /// Returns an expired value if it expired at most `window` ago.
    pub(super) fn get_stale<Q>(&self, key: &Q, window: Duration) -> Option<V>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        if window == Duration::ZERO {
            return None;
        }
        let clock = &self.shared.clock;
        let (value, expired_at) = self.shared.store.get_stale(key, clock)?;
        (!clock.is_expired(expired_at.extended(window))).then_some(value)
    }
}
