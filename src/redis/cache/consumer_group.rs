//! Delivery of expirations to one subscriber of a group, at least once. Each [`LosslessEvents`](super::LosslessEvents)
//! has a task that reads events from the streams (`XREADGROUP`), renews their leases while they are in this process,
//! and acks them.
//!
//! On the server, all subscribers of a group are one consumer. The lease of an event is the time for which it has been
//! pending: each poll takes over events that have been pending for longer (`XAUTOCLAIM`).

use std::{
    collections::BTreeSet,
    mem,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::try_join_all;
use serde::de::DeserializeOwned;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

use super::{
    super::{
        Error,
        keyspace::{SHARDS, few_at_once},
        script::Call,
    },
    event_record::{ClockPair, EventDecoder, EventRecord, StreamEntry},
    shard_hints::{CHECK_EVERY, ShardHints},
    state::CacheState,
    stats::Counters,
};
use crate::engine::event::Event;

/// Maximum number of events that are buffered in this process for a subscriber.
const BUFFER_CAPACITY: usize = 1_024;

/// Maximum number of events read from a shard at once. The server executes nothing else during a script.
const BATCH: usize = 64;

/// Bytes of buffered events at which no more are read ahead.
const MAX_BUFFERED_BYTES: usize = 16 << 20;

/// Item of the channel from the task to the subscriber.
pub(super) enum Delivery<K, V> {
    /// An event and its size in bytes.
    Event(StreamId, Event<K, V>, usize),
    Undecodable(StreamId, Error, usize),
    /// The server has become unreachable.
    Unreachable(Error),
}

/// Location of an event on the server.
#[derive(Clone, Debug)]
pub(super) struct StreamId {
    pub(super) shard: u16,
    pub(super) entry: String,
}

/// Reply of the subscriber to an event.
pub(super) enum Acknowledgement {
    /// The event was processed.
    Ack(StreamId),
    /// The event was never received: another subscriber should get it immediately.
    Nack(StreamId),
}

/// The subscriber's ends of the channels to its task.
pub(super) struct Subscription<K, V> {
    pub(super) deliveries: mpsc::Receiver<Delivery<K, V>>,
    /// Unbounded, because the `Drop` of a subscription cannot wait.
    pub(super) acknowledgements: mpsc::UnboundedSender<Acknowledgement>,
    /// Total size of the buffered deliveries.
    pub(super) buffered_bytes: Arc<AtomicUsize>,
}

struct ConsumerTask<K, V> {
    decoder: EventDecoder<K, V>,
    counters: Arc<Counters>,
    group: Arc<str>,
    lease: Duration,
    /// `None` once the subscription is ending: no further events are read.
    deliveries: Option<mpsc::Sender<Delivery<K, V>>>,
    acknowledgements: mpsc::UnboundedReceiver<Acknowledgement>,
    buffered_bytes: Arc<AtomicUsize>,
    shards: Vec<ShardConsumer>,
    hints: ShardHints,
    leases_renewed: Instant,
    /// True if the last poll failed. An outage is reported to the subscriber once, not at each poll.
    is_unreachable: bool,
}

/// Events of a shard that this subscriber has leased, and acknowledgements that were not sent yet.
#[derive(Default)]
struct ShardConsumer {
    /// Ids of events in this process that are not acknowledged.
    leased: BTreeSet<String>,
    /// Ids that the next poll sends. They are kept until the server has replied, because a request may be lost; to send
    /// them twice changes nothing.
    acked: Vec<String>,
    nacked: Vec<String>,
}

/// Reply of `read_group.lua`: the server's time, entries, whether there are more, the stream's version, and the number
/// of events that the group had leased before this poll.
type ReadGroupReply = (u64, Vec<StreamEntry>, bool, String, usize);

/// Joins a group, and creates it if it is new.
pub(super) async fn join<K, V>(
    state: &CacheState<K, V>,
    group: &str,
) -> Result<Subscription<K, V>, Error>
where
    K: DeserializeOwned + Send + 'static,
    V: DeserializeOwned + Send + 'static,
{
    let commands = &state.commands;
    let creations = (0..SHARDS)
        .map(|shard| commands.create_group(shard, group).send_idempotent::<bool>(&commands.client));
    try_join_all(creations).await?;
    let (deliveries, delivered) = mpsc::channel(BUFFER_CAPACITY);
    let (acknowledge, acknowledgements) = mpsc::unbounded_channel();
    let buffered_bytes = Arc::<AtomicUsize>::default();
    let task = ConsumerTask {
        decoder: state.event_decoder(),
        counters: state.counters.clone(),
        group: group.into(),
        lease: state.lease,
        deliveries: Some(deliveries),
        acknowledgements,
        buffered_bytes: buffered_bytes.clone(),
        shards: (0..SHARDS).map(|_| ShardConsumer::default()).collect(),
        hints: ShardHints::new(),
        leases_renewed: Instant::now(),
        is_unreachable: false,
    };
    tokio::spawn(task.run(state.poll_every, state.stop.subscribe()));
    Ok(Subscription { deliveries: delivered, acknowledgements: acknowledge, buffered_bytes })
}

impl<K, V> ConsumerTask<K, V>
where
    K: DeserializeOwned + Send + 'static,
    V: DeserializeOwned + Send + 'static,
{
    async fn run(mut self, poll_every: Duration, mut stop: watch::Receiver<bool>) {
        while let Some(deliveries) = self.deliveries.clone() {
            // `has_changed` fails once the last handle of the cache has dropped the sender.
            let is_stopped =
                *stop.borrow() || stop.has_changed().is_err() || deliveries.is_closed();
            if is_stopped {
                // The subscriber still receives the buffered deliveries, and then the end of the stream.
                self.deliveries = None;
                break;
            }
            self.drain_acknowledgements();
            // At most the free capacity of the channel: an event that could not be delivered would be leased, and
            // renewed here, while no subscriber can get it.
            let capacity = self.capacity(&deliveries);
            if self.poll(capacity).await && self.capacity(&deliveries) > 0 {
                continue;
            }
            let poll_at = Instant::now() + poll_every;
            // With a long `poll_every`, leases are renewed in between.
            while tokio::select! {
                _ = stop.wait_for(|is_stopped| *is_stopped) => false,
                () = deliveries.closed() => false,
                () = sleep_until(poll_at) => false,
                () = sleep_until(self.renewal_due_at()), if self.has_leased_events() => true,
            } {
                self.drain_acknowledgements();
                self.poll(0).await;
            }
        }
        // Keeps renewing leases and sending acks until the subscription is dropped. The timer comes first, so that a
        // stream of acks cannot delay the renewals.
        let (mut poll_at, pause) = (Instant::now(), poll_every.min(self.lease / 3));
        loop {
            tokio::select! {
                biased;
                () = sleep_until(poll_at) => {
                    self.poll(0).await;
                    poll_at = Instant::now() + pause;
                }
                acknowledgement = self.acknowledgements.recv() => match acknowledgement {
                    Some(acknowledgement) => self.record_acknowledgement(acknowledgement),
                    None => break,
                },
            }
        }
        // Sends the last acknowledgements. If this fails, the leases expire and the events are delivered again.
        self.poll(0).await;
    }

    /// Returns how many events of each shard may be read.
    fn capacity(&self, deliveries: &mpsc::Sender<Delivery<K, V>>) -> usize {
        match self.buffered_bytes.load(Relaxed) {
            MAX_BUFFERED_BYTES.. => 0,
            _ => (deliveries.capacity() / self.shards.len()).min(BATCH),
        }
    }

    /// Receives the acknowledgements that the subscriber has sent so far.
    fn drain_acknowledgements(&mut self) {
        while let Ok(acknowledgement) = self.acknowledgements.try_recv() {
            self.record_acknowledgement(acknowledgement);
        }
    }

    /// Records an acknowledgement, which the next poll sends.
    fn record_acknowledgement(&mut self, acknowledgement: Acknowledgement) {
        let (id, is_ack) = match acknowledgement {
            Acknowledgement::Ack(id) => (id, true),
            Acknowledgement::Nack(id) => (id, false),
        };
        let shard = &mut self.shards[usize::from(id.shard)];
        if shard.leased.remove(&id.entry) {
            let ids = if is_ack { &mut shard.acked } else { &mut shard.nacked };
            ids.push(id.entry);
        }
    }

    /// Polls the shards that may have events or for which there is something to send, and reads up to `capacity` events
    /// from each. Returns whether more can be read immediately.
    async fn poll(&mut self, capacity: usize) -> bool {
        let must_renew = Instant::now() >= self.renewal_due_at();
        if must_renew {
            // Before the requests, so that their duration does not delay the next renewal.
            self.leases_renewed = Instant::now();
        }
        let (may_take, mut failure) = match capacity {
            0 => (false, None),
            _ => self.hints.refresh(&self.decoder.commands).await,
        };
        let polls = self.shards.iter().zip(0..).filter(|(shard, number)| {
            may_take && self.hints.needs_read(*number)
                || !shard.is_synced()
                || must_renew && !shard.leased.is_empty()
        });
        let client = self.decoder.commands.client.for_batches();
        let polls = polls.map(async |(shard, number)| {
            let call = self.read_call(shard, number, capacity, must_renew);
            // Sent once: a retry would lease further events. Those of a lost reply are delivered when their lease
            // expires.
            let answer = call.send_once::<ReadGroupReply>(&client).await;
            (number, answer, Instant::now())
        });
        let answers = few_at_once(polls).await;
        let mut more = false;
        for (number, answer, local) in answers {
            match answer {
                Ok((server, entries, has_more, stream_version, leased_in_group)) => {
                    let now = ClockPair { server, local };
                    let shard = &mut self.shards[usize::from(number)];
                    shard.clear_reported();
                    more |= has_more;
                    if capacity > 0 {
                        // Events leased by other subscribers become available when those crash, without any hint.
                        let is_shared = leased_in_group > shard.leased.len();
                        let next_check = if is_shared { self.lease / 2 } else { CHECK_EVERY };
                        self.hints.record_read(
                            number,
                            now,
                            stream_version,
                            has_more,
                            next_check.min(CHECK_EVERY),
                        );
                    }
                    for entry in entries {
                        self.deliver(number, entry.into(), now);
                    }
                }
                Err(error) => failure = Some(error),
            }
        }
        let was_unreachable = mem::replace(&mut self.is_unreachable, failure.is_some());
        if let (Some(error), Some(deliveries), false) = (failure, &self.deliveries, was_unreachable)
        {
            // Skipped if the channel is full: the subscriber has events to read, and does not notice the outage.
            let _ = deliveries.try_send(Delivery::Unreachable(error));
        }
        more && !self.is_unreachable
    }

    /// A third of the lease after the last renewal, so that the lease survives two failed polls.
    fn renewal_due_at(&self) -> Instant {
        self.leases_renewed + self.lease / 3
    }

    fn has_leased_events(&self) -> bool {
        self.shards.iter().any(|shard| !shard.leased.is_empty())
    }

    /// Arguments in the order of `read_group.lua`.
    fn read_call(
        &self,
        shard: &ShardConsumer,
        number: u16,
        capacity: usize,
        must_renew: bool,
    ) -> Call<'_> {
        let renewed = if must_renew { shard.leased.len() } else { 0 };
        let call = self
            .decoder
            .commands
            .read_group(number)
            .arg(&*self.group)
            .arg(self.lease.as_millis().to_string())
            .arg(capacity)
            // Trimming reads the state of all groups, which is expensive, so only the periodic check does it.
            .arg(u8::from(self.hints.needs_check(number)))
            .arg(shard.acked.len())
            .arg(shard.nacked.len())
            .arg(renewed)
            .arg(&shard.acked)
            .arg(&shard.nacked);
        shard.leased.iter().take(renewed).fold(call, |call, id| call.arg(id))
    }

    fn deliver(&mut self, shard: u16, record: EventRecord, now: ClockPair) {
        let id = StreamId { shard, entry: record.id.clone() };
        let size = record.size();
        let delivery = match self.decoder.decode(&record, now) {
            Ok(event) => Delivery::Event(id, event, size),
            Err(error) => Delivery::Undecodable(id, error, size),
        };
        let shard = &mut self.shards[usize::from(shard)];
        // Our own lease had expired, and we took the event over from ourselves: it was delivered already.
        if !shard.leased.insert(record.id.clone()) {
            return;
        }
        // Before the delivery is sent, because the subscriber subtracts it on receipt. `Relaxed`: it is only a bound.
        self.buffered_bytes.fetch_add(size, Relaxed);
        let deliveries = self.deliveries.as_ref();
        if deliveries.is_some_and(|deliveries| deliveries.try_send(delivery).is_ok()) {
            self.counters.event();
        } else {
            // The subscription has just been dropped.
            shard.leased.remove(&record.id);
            shard.nacked.push(record.id);
        }
    }
}

impl ShardConsumer {
    /// Forgets the acknowledgements that the server has received.
    fn clear_reported(&mut self) {
        self.acked.clear();
        self.nacked.clear();
    }

    /// Returns whether there are no acknowledgements to send.
    fn is_synced(&self) -> bool {
        self.acked.is_empty() && self.nacked.is_empty()
    }
}
