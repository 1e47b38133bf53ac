//! Events of a shard that a subscriber of a group has leased, and the acknowledgements that it still has to send.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use rand::{RngExt, make_rng, rngs::SmallRng};
use tokio::time::Instant;

use super::super::{client::MAX_DURATION, script::Call};
use crate::engine::retries::Retries;

/// Number of failed attempts after which an event is dead: it is not delivered again. With the default lease, the
/// subscribers of an old release take almost three minutes for this many attempts to decode it.
pub(super) const MAX_ATTEMPTS: u32 = 16;

/// Location of an event on the server.
#[derive(Clone, Debug)]
pub(super) struct StreamId {
    pub(super) shard: u16,
    pub(super) entry: String,
    /// Number of failed attempts before this delivery.
    pub(super) failures: u32,
}

/// When an event that failed is to be delivered again.
pub(super) enum RetryAfter {
    /// As if its subscriber had crashed. Other subscribers may be able to process it.
    Lease,
    /// The longer, the more attempts have failed.
    Backoff,
    Delay(Duration),
}

pub(super) struct ShardConsumer {
    /// Ids of events in this process that are neither acknowledged nor given back.
    leased: BTreeSet<String>,
    /// Events that are given back at a time, with their number of failed attempts. They are leased until then.
    retries: BTreeMap<(Instant, String), u32>,
    /// Ids that the next poll sends. They are kept until the server has replied, because a request may be lost; to send
    /// them twice changes nothing.
    acked: Vec<String>,
    /// The same for events that are given back, with their number of failed attempts.
    nacked: Vec<(String, u32)>,
    /// Id of the counts on the server. It changes if the server loses its data.
    counts_id: String,
}

impl ShardConsumer {
    pub(super) fn new(counts_id: String) -> Self {
        let (leased, retries) = (BTreeSet::new(), BTreeMap::new());
        Self { leased, retries, acked: Vec::new(), nacked: Vec::new(), counts_id }
    }

    /// Adds a leased event; returns false if it was leased already.
    pub(super) fn lease(&mut self, id: String) -> bool {
        self.leased.insert(id)
    }

    pub(super) fn is_leased(&self, id: &str) -> bool {
        self.leased.contains(id)
    }

    pub(super) fn has_leased(&self) -> bool {
        !self.leased.is_empty()
    }

    pub(super) fn ack(&mut self, id: StreamId) {
        if self.leased.remove(&id.entry) {
            self.acked.push(id.entry);
        }
    }

    /// Gives an event back, to be delivered to another subscriber immediately.
    pub(super) fn nack(&mut self, id: StreamId) {
        if self.leased.remove(&id.entry) {
            self.nacked.push((id.entry, id.failures));
        }
    }

    /// Gives an event back after a failed attempt. Returns whether it is dead.
    pub(super) fn retry(&mut self, mut id: StreamId, after: RetryAfter, lease: Duration) -> bool {
        id.failures += 1;
        if id.failures >= MAX_ATTEMPTS {
            self.nack(id);
            return true;
        }
        let delay = match after {
            RetryAfter::Lease => lease,
            RetryAfter::Backoff => {
                Retries::DEFAULT.backoff(id.failures, make_rng::<SmallRng>().random())
            }
            RetryAfter::Delay(delay) => delay,
        };
        if self.leased.contains(&id.entry) {
            let due = Instant::now() + delay.min(MAX_DURATION);
            self.retries.insert((due, id.entry), id.failures);
        }
        false
    }

    /// Returns when the next event is to be given back.
    pub(super) fn next_retry(&self) -> Option<Instant> {
        self.retries.keys().next().map(|(due, _)| *due)
    }

    /// Gives back the events whose delay has passed.
    pub(super) fn give_back_due(&mut self) {
        let now = Instant::now();
        while let Some(retry) = self.retries.first_entry()
            && retry.key().0 <= now
        {
            let ((_, id), failures) = retry.remove_entry();
            self.leased.remove(&id);
            self.nacked.push((id, failures));
        }
    }

    /// Returns whether there are no acknowledgements to send.
    pub(super) fn is_synced(&self) -> bool {
        self.acked.is_empty() && self.nacked.is_empty()
    }

    /// Adds the arguments of `read_group.lua` from the id of the counts on.
    pub(super) fn add_args<'a>(&self, call: Call<'a>, must_renew: bool) -> Call<'a> {
        let renewed = if must_renew { self.leased.len() } else { 0 };
        let call = call
            .arg(&self.counts_id)
            .arg(MAX_ATTEMPTS)
            .arg(self.acked.len())
            .arg(renewed)
            .arg(self.nacked.len())
            .arg(&self.acked);
        let call = self.leased.iter().take(renewed).fold(call, |call, id| call.arg(id));
        self.nacked.iter().fold(call, |call, (id, failures)| call.arg(id).arg(*failures))
    }

    /// Forgets the acknowledgements that the server has received. Returns whether other subscribers have leased events.
    pub(super) fn record_reply(&mut self, counts_id: String, leased_in_group: usize) -> bool {
        self.acked.clear();
        self.nacked.clear();
        self.counts_id = counts_id;
        leased_in_group > self.leased.len()
    }
}
