//! Loader methods: stale windows, kept errors and background refreshes.

use std::time::Duration;

use super::{Key, Oracle, RemovedTag, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freshness {
    Fresh,
    Loaded,
    Stale,
}

/// Arguments of a loader method, and what it does. Loads take no time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Value or error of the loader.
    pub(crate) source: Result<Value, Value>,
    pub(crate) ttl: Option<Duration>,
    /// Tags of the loaded value; `None` keeps those of the value that it replaces.
    pub(crate) tags: Option<[u8; 2]>,
    /// True if the method may refresh in the background.
    pub(crate) refreshes: bool,
    /// True if the method may fail, and so returns kept errors.
    pub(crate) is_fallible: bool,
}

/// Duration of each load as the cache counts it, in seconds.
const SHORTEST_LOAD: f64 = 1e-9;
/// A refresh ahead is not due earlier than this many times the duration of a load, times the factor of the builder.
const EARLIEST_REFRESH: f64 = 40.0;

impl Oracle {
    /// Returns the result of a loader method. The background refresh that it may have started has ended, and `has_run`
    /// is whether the loader was called.
    pub(crate) fn load(
        &mut self,
        key: Key,
        load: Load,
        has_run: bool,
    ) -> Result<(Value, Freshness), Value> {
        let may_retry = self.failures.may_retry(key, self.now);
        if let Some(live) = self.get(key) {
            if has_run {
                assert!(load.refreshes && self.may_refresh_ahead(key), "{load:?} of a live value");
                assert_ne!(may_retry, Some(false), "a refresh ahead during a backoff");
                self.refresh(key, load);
            }
            return Ok((live, Freshness::Fresh));
        }
        if load.refreshes
            && let Some(stale) = self.stale(key, self.settings.stale_while_revalidate)
        {
            assert_eq!(has_run, may_retry.unwrap_or(has_run), "{load:?} of a stale value");
            if has_run {
                self.refresh(key, load);
            }
            return Ok((stale, Freshness::Stale));
        }
        let (error, is_kept) = self.failures.error(key, self.now);
        let is_returned = if load.is_fallible { is_kept } else { Some(false) };
        assert_eq!(has_run, is_returned.map_or(has_run, |it| !it), "{load:?} of a missing value");
        let error = if has_run {
            match self.run_loader(key, load) {
                Ok(value) => return Ok((value, Freshness::Loaded)),
                Err(error) => error,
            }
        } else {
            error
        };
        let stale = self.stale(key, self.settings.stale_if_error);
        stale.map(|value| (value, Freshness::Stale)).ok_or(error)
    }

    /// Takes the keys and errors of the failed background refreshes of the call.
    pub(crate) fn take_failed_refreshes(&mut self) -> Vec<(Key, Value)> {
        std::mem::take(&mut self.failed_refreshes)
    }

    fn refresh(&mut self, key: Key, load: Load) {
        if let Err(error) = self.run_loader(key, load) {
            self.failed_refreshes.push((key, error));
        }
    }

    fn run_loader(
        &mut self,
        key: Key,
        Load { source, ttl, tags, .. }: Load,
    ) -> Result<Value, Value> {
        self.loads.0 += 1;
        match source {
            Ok(value) => self.put_loaded(key, value, ttl, tags.or(self.kept_tags(key))),
            Err(error) => {
                self.loads.1 += 1;
                self.failures.record(key, error, self.now);
            }
        }
        source
    }

    pub(crate) fn put_loaded(
        &mut self,
        key: Key,
        value: Value,
        ttl: Option<Duration>,
        tags: Option<[u8; 2]>,
    ) {
        self.put(key, value, self.written(ttl));
        self.tag(key, tags);
    }

    /// Returns the tags of the live or stale value of `key`, which a value that replaces it keeps.
    pub(crate) fn kept_tags(&self, key: Key) -> Option<[u8; 2]> {
        let entry = self.entries.get(&key)?;
        let window = self.settings.stale_while_revalidate.max(self.settings.stale_if_error);
        let end = entry.deadline().map(|deadline| deadline.saturating_add(window));
        let is_replaced =
            entry.removed_tag == RemovedTag::None && end.is_none_or(|end| self.now < end);
        entry.tags.filter(|_| is_replaced)
    }

    /// Returns the expired value of `key` within a stale window.
    fn stale(&self, key: Key, window: Duration) -> Option<Value> {
        let entry = self.entries.get(&key)?;
        let end = entry.deadline()?.saturating_add(window);
        (self.now < end && entry.removed_tag == RemovedTag::None).then_some(entry.value)
    }

    fn may_refresh_ahead(&self, key: Key) -> bool {
        // An idle time never causes a refresh.
        let Some(deadline) = self.entries[&key].hard_deadline.latest else { return false };
        let ahead = EARLIEST_REFRESH * SHORTEST_LOAD * self.settings.refresh_ahead;
        self.loads.0 > 0 && (deadline - self.now).as_secs_f64() <= ahead
    }
}
