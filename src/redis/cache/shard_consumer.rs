//! Events of a shard that a subscriber of a group has leased: after how many attempts one is dead, when it is delivered
//! again, and the acknowledgements that are still to send.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
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

/// Time at which an event that failed is delivered again.
pub(super) enum Redelivery {
    /// When its lease ends. It could not be decoded, but a subscriber of another release may be able to.
    Lease,
    /// After a delay that grows with the number of failed attempts.
    Backoff,
    Delay(Duration),
}

/// Number of missed events that this subscriber has leased, as it leases events.
enum LeasedMissed {
    None,
    Read(u64),
    /// In the channel to the subscriber.
    Queued(u64),
    Received,
    /// The subscription has ended, so that another subscriber should receive it.
    Returned,
}

pub(super) struct ShardConsumer {
    /// Ids of events in this process that are neither acknowledged nor given back.
    leased: BTreeSet<String>,
    /// Those of them that are no longer in the stream: they were kept for longer than the retention.
    trimmed: BTreeSet<String>,
    /// Number of these that were to be given back, and not sent yet.
    lost: usize,
    /// Events that are given back at a time, with their number of failed attempts. They are leased until then.
    retries: BTreeMap<(Instant, String), u32>,
    /// Ids that the next poll sends. They are kept until the server has replied, because a request may be lost; to send
    /// them twice changes nothing.
    acked: Vec<String>,
    /// Events to give back, with their number of failed attempts, and the delay of their delivery.
    nacked: Vec<(String, u32, Duration)>,
    missed: LeasedMissed,
    /// Id of the lease on this number. Each has another one, so that no copy of a request ends a later one.
    missed_lease: String,
    /// True if the last poll failed: the leases may have expired since.
    must_renew: bool,
    /// Id of the counts on the server. It changes if the server loses its data.
    counts_id: String,
}

impl ShardConsumer {
    pub(super) fn new(counts_id: String) -> Self {
        Self {
            leased: BTreeSet::new(),
            trimmed: BTreeSet::new(),
            lost: 0,
            retries: BTreeMap::new(),
            acked: Vec::new(),
            nacked: Vec::new(),
            missed: LeasedMissed::None,
            missed_lease: new_lease_id(),
            must_renew: false,
            counts_id,
        }
    }

    /// Adds a leased event; returns false if it was leased already.
    pub(super) fn lease(&mut self, id: String) -> bool {
        self.leased.insert(id)
    }

    /// Returns whether there is a lease to renew.
    pub(super) fn has_leased(&self) -> bool {
        !self.leased.is_empty() || !matches!(self.missed, LeasedMissed::None)
    }

    /// Returns the number of missed events that was not sent to the subscriber yet.
    pub(super) fn unsent_missed(&self) -> u64 {
        match self.missed {
            LeasedMissed::Read(events) => events,
            _ => 0,
        }
    }

    pub(super) fn has_sent_missed(&self) -> bool {
        matches!(self.missed, LeasedMissed::Queued(_))
    }

    /// Records that the unsent number is in the channel to the subscriber.
    pub(super) fn mark_missed_sent(&mut self) {
        if let LeasedMissed::Read(events) = self.missed {
            self.missed = LeasedMissed::Queued(events);
        }
    }

    /// Records that the subscriber has received the number that was sent.
    pub(super) fn mark_missed_received(&mut self) {
        if self.has_sent_missed() {
            self.missed = LeasedMissed::Received;
        }
    }

    /// Gives the number back, unless the subscriber has received it.
    pub(super) fn return_missed(&mut self) {
        if matches!(self.missed, LeasedMissed::Read(_) | LeasedMissed::Queued(_)) {
            self.missed = LeasedMissed::Returned;
        }
    }

    pub(super) fn ack(&mut self, id: StreamId) {
        self.trimmed.remove(&id.entry);
        if self.leased.remove(&id.entry) {
            self.acked.push(id.entry);
        }
    }

    /// Gives an event back, to be delivered to another subscriber immediately.
    pub(super) fn nack(&mut self, id: StreamId) {
        self.give_back(id.entry, id.failures, Duration::ZERO);
    }

    /// Gives an event back. If it is no longer in the stream, it is lost.
    fn give_back(&mut self, id: String, failures: u32, delay: Duration) {
        if self.trimmed.remove(&id) {
            self.lost += 1;
        } else if self.leased.remove(&id) {
            self.nacked.push((id, failures, delay));
        }
    }

    /// Gives an event back after a failed attempt. Returns whether it is dead.
    ///
    /// A dead event that was delivered is acknowledged. One that could not be decoded remains until its retention has
    /// passed, and is missed then.
    pub(super) fn retry(&mut self, mut id: StreamId, after: Redelivery, lease: Duration) -> bool {
        id.failures += 1;
        if id.failures >= MAX_ATTEMPTS {
            match after {
                Redelivery::Lease => self.nack(id),
                Redelivery::Backoff | Redelivery::Delay(_) => self.ack(id),
            }
            return true;
        }
        let delay = match after {
            Redelivery::Lease => lease,
            Redelivery::Backoff => {
                Retries::DEFAULT.backoff(id.failures, make_rng::<SmallRng>().random())
            }
            Redelivery::Delay(delay) => delay,
        };
        if self.leased.contains(&id.entry) || self.trimmed.contains(&id.entry) {
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
        while self.next_retry().is_some_and(|due| due <= now) {
            self.give_back_next(now);
        }
    }

    /// Gives back all events that are to be delivered again, with the rest of their delay. Of those that were received
    /// and not acknowledged, the ones that are no longer in the stream are lost.
    pub(super) fn give_back_all(&mut self) {
        let now = Instant::now();
        while self.give_back_next(now) {}
        self.lost += mem::take(&mut self.trimmed).len();
        // The leases of the others expire. A renewal could take a trimmed one off the server, where it would be missed.
        self.leased.clear();
    }

    /// Returns false if there is none.
    fn give_back_next(&mut self, now: Instant) -> bool {
        let Some(((due, id), failures)) = self.retries.pop_first() else { return false };
        self.give_back(id, failures, due.saturating_duration_since(now));
        true
    }

    /// Returns whether there are no acknowledgements to send.
    pub(super) fn is_synced(&self) -> bool {
        let is_missed_synced =
            !matches!(self.missed, LeasedMissed::Received | LeasedMissed::Returned);
        self.acked.is_empty() && self.nacked.is_empty() && self.lost == 0 && is_missed_synced
    }

    /// Adds the arguments of `read_group.lua` from the id of the counts on.
    pub(super) fn add_args<'a>(&self, call: Call<'a>, must_renew: bool) -> Call<'a> {
        let renewed = if must_renew || self.must_renew { self.leased.len() } else { 0 };
        let missed = match self.missed {
            LeasedMissed::Received => "RECEIVED",
            LeasedMissed::Returned => "RETURNED",
            LeasedMissed::None | LeasedMissed::Read(_) | LeasedMissed::Queued(_) => "HELD",
        };
        let call = call
            .arg(&self.counts_id)
            .arg(MAX_ATTEMPTS)
            .arg(&self.missed_lease)
            .arg(missed)
            .arg(self.lost)
            .arg(self.acked.len())
            .arg(renewed)
            .arg(self.nacked.len())
            .arg(&self.acked);
        let call = self.leased.iter().take(renewed).fold(call, |call, id| call.arg(id));
        self.nacked.iter().fold(call, |call, (id, failures, delay)| {
            call.arg(id).arg(*failures).arg(delay.as_micros().div_ceil(1_000).to_string())
        })
    }

    pub(super) fn record_failed_poll(&mut self) {
        self.must_renew = true;
    }

    /// Records the leased number of missed events and the events that were trimmed, and forgets the acknowledgements
    /// that the server has received. Returns whether other subscribers have leased events.
    pub(super) fn record_reply(
        &mut self,
        counts_id: String,
        leased_in_group: usize,
        missed: u64,
        trimmed: Vec<String>,
    ) -> bool {
        for id in trimmed {
            if self.leased.remove(&id) {
                self.trimmed.insert(id);
            }
        }
        self.acked.clear();
        self.nacked.clear();
        self.must_renew = false;
        self.counts_id = counts_id;
        self.lost = 0;
        if !self.is_synced() {
            self.missed_lease = new_lease_id();
        }
        self.missed = match self.missed {
            LeasedMissed::Queued(sent) if sent == missed => LeasedMissed::Queued(sent),
            _ if missed == 0 => LeasedMissed::None,
            _ => LeasedMissed::Read(missed),
        };
        leased_in_group > self.leased.len()
    }
}

fn new_lease_id() -> String {
    format!("{:016x}", make_rng::<SmallRng>().random::<u64>())
}
