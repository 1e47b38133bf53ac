//! Delivery of expirations to one subscriber of a group, at least once. Each [`LosslessEvents`](super::LosslessEvents)
//! has a task that reads events from the streams (`XREADGROUP`), renews their leases while they are in this process,
//! and acks them.
//!
//! On the server, all subscribers of a group are one consumer. The lease of an event is the time for which it has been
//! pending: each poll takes over events that have been pending for longer (`XCLAIM`).

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use ::redis::{FromRedisValue, ParsingError, Value as Reply};
use futures_util::future::try_join_all;
use serde::de::DeserializeOwned;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

use super::{
    super::{Error, few_at_once::few_at_once, script::Call},
    cache_state::CacheState,
    event_record::{ClockPair, EventDecoder, EventRecord, StreamEntry},
    shard_consumer::{Redelivery, ShardConsumer, StreamId},
    shard_hints::{CHECK_EVERY, ShardHints, pause_after},
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
pub(super) enum EventDelivery<K, V> {
    /// An event and its size in bytes.
    Event(StreamId, Event<K, V>, usize),
    Undecodable(StreamId, Error, usize),
    /// Number of events that were lost. At most one is in the channel.
    Missed(u64),
    /// The server has become unreachable.
    Unreachable(Error),
}

/// Reply of the subscriber to an event.
pub(super) enum Acknowledgement {
    /// The event was processed.
    Ack(StreamId),
    /// The event was never received: another subscriber should get it immediately.
    Nack(StreamId),
    /// The event was received, and is to be delivered again. The text is the reason for the log, if it was a failure.
    Retry(StreamId, Redelivery, Option<String>),
    /// The number of missed events was received.
    Missed,
}

/// The subscriber's ends of the channels to its task.
pub(super) struct GroupSubscription<K, V> {
    pub(super) deliveries: mpsc::Receiver<EventDelivery<K, V>>,
    /// Unbounded, because the `Drop` of a subscription cannot wait.
    pub(super) acknowledgements: mpsc::UnboundedSender<Acknowledgement>,
    /// Total size of the buffered deliveries.
    pub(super) buffered_bytes: Arc<AtomicUsize>,
    /// True once the group was removed. The channel of deliveries then ends.
    pub(super) is_removed: Arc<AtomicBool>,
    pub(super) counters: Arc<Counters>,
}

struct ConsumerTask<K, V> {
    /// Name of the cache, for log messages.
    name: String,
    decoder: EventDecoder<K, V>,
    counters: Arc<Counters>,
    group: Arc<str>,
    lease: Duration,
    /// `None` once the subscription is ending: no further events are read.
    deliveries: Option<mpsc::Sender<EventDelivery<K, V>>>,
    acknowledgements: mpsc::UnboundedReceiver<Acknowledgement>,
    buffered_bytes: Arc<AtomicUsize>,
    is_removed: Arc<AtomicBool>,
    shards: Vec<ShardConsumer>,
    hints: ShardHints,
    leases_renewed: Instant,
    /// True if the last poll failed. An outage is reported to the subscriber once, not at each poll.
    is_unreachable: bool,
}

/// Reply of `read_group.lua`, in its order.
struct ReadGroupReply {
    /// Time of the server.
    server: u64,
    entries: Vec<StreamEntry>,
    /// Number of failed deliveries of each entry.
    failures: Vec<u32>,
    has_more: bool,
    stream_version: String,
    /// Number of events that the group has leased, including those of other subscribers.
    leased_in_group: usize,
    counts_id: String,
    missed: u64,
    /// True if the group has been removed.
    is_removed: bool,
    /// Ids of held events that are no longer in the stream.
    trimmed: Vec<String>,
}

impl FromRedisValue for ReadGroupReply {
    fn from_redis_value(reply: Reply) -> Result<Self, ParsingError> {
        let (
            server,
            entries,
            failures,
            has_more,
            stream_version,
            leased_in_group,
            counts_id,
            missed,
            is_removed,
            trimmed,
        ) = FromRedisValue::from_redis_value(reply)?;
        let reply = Self {
            server,
            entries,
            failures,
            has_more,
            stream_version,
            leased_in_group,
            counts_id,
            missed,
            is_removed,
            trimmed,
        };
        Ok(reply)
    }
}

/// Group that marks a stream whose groups have been created: `MARKER` in subscriber_prelude.lua.
const RESERVED_GROUP: &str = "fleeting:restored";

/// Joins a group, and creates it if it is new.
pub(super) async fn join<K, V>(
    state: &CacheState<K, V>,
    group: &str,
) -> Result<GroupSubscription<K, V>, Error>
where
    K: DeserializeOwned + Send + 'static,
    V: DeserializeOwned + Send + 'static,
{
    if group == RESERVED_GROUP {
        return Err(Error::Name(group.to_owned()));
    }
    let commands = &state.commands;
    let creations = commands.keyspace.shards().map(|shard| {
        commands.create_group(shard, group).send_idempotent::<String>(&commands.client)
    });
    let counts_ids = try_join_all(creations).await?;
    let (deliveries, delivered) = mpsc::channel(BUFFER_CAPACITY);
    let (acknowledge, acknowledgements) = mpsc::unbounded_channel();
    let buffered_bytes = Arc::<AtomicUsize>::default();
    let is_removed = Arc::<AtomicBool>::default();
    let task = ConsumerTask {
        name: state.name.clone(),
        decoder: state.event_decoder(),
        counters: state.counters.clone(),
        group: group.into(),
        lease: state.lease,
        deliveries: Some(deliveries),
        acknowledgements,
        buffered_bytes: buffered_bytes.clone(),
        is_removed: is_removed.clone(),
        shards: counts_ids.into_iter().map(ShardConsumer::new).collect(),
        hints: ShardHints::new(commands),
        leases_renewed: Instant::now(),
        is_unreachable: false,
    };
    tokio::spawn(task.run(state.poll_every, state.stop.subscribe()));
    let acknowledgements = acknowledge;
    let counters = state.counters.clone();
    Ok(GroupSubscription {
        deliveries: delivered,
        acknowledgements,
        buffered_bytes,
        is_removed,
        counters,
    })
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
            let (has_more, has_events) = self.poll(capacity).await;
            let mut pause = pause_after(has_more, has_events, poll_every);
            if pause.is_zero() && self.capacity(&deliveries) == 0 {
                pause = poll_every;
            }
            if self.deliveries.is_none() || pause.is_zero() {
                continue;
            }
            let poll_at = Instant::now() + pause;
            // With a long `poll_every`, leases are renewed and events given back in between.
            while tokio::select! {
                _ = stop.wait_for(|is_stopped| *is_stopped) => false,
                () = deliveries.closed() => false,
                () = sleep_until(poll_at) => false,
                () = sleep_until(self.upkeep_due_at()), if self.has_leased_events() => true,
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
        self.shards.iter_mut().for_each(ShardConsumer::return_missed);
        self.shards.iter_mut().for_each(ShardConsumer::give_back_all);
        // Sends the last acknowledgements. If this fails, the leases expire and the events are delivered again.
        self.poll(0).await;
    }

    /// Returns how many events of each shard may be read.
    fn capacity(&self, deliveries: &mpsc::Sender<EventDelivery<K, V>>) -> usize {
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
        let shard = |id: &StreamId| usize::from(id.shard);
        match acknowledgement {
            Acknowledgement::Ack(id) => self.shards[shard(&id)].ack(id),
            Acknowledgement::Nack(id) => self.shards[shard(&id)].nack(id),
            Acknowledgement::Retry(id, after, reason) => {
                let (attempts, lease) = (id.failures + 1, self.lease);
                let is_dead = self.shards[shard(&id)].retry(id, after, lease);
                if is_dead {
                    let (cache, group) = (&*self.name, &*self.group);
                    tracing::error!(
                        cache,
                        group,
                        attempts,
                        error = reason,
                        "expiration is not delivered again after too many failed attempts"
                    );
                }
            }
            Acknowledgement::Missed => {
                self.shards.iter_mut().for_each(ShardConsumer::mark_missed_received);
            }
        }
    }

    /// Polls the shards that may have events or for which there is something to send, and reads up to `capacity` events
    /// from each. Returns whether the replies announced more, and whether they contained events.
    async fn poll(&mut self, capacity: usize) -> (bool, bool) {
        self.shards.iter_mut().for_each(ShardConsumer::give_back_due);
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
                || must_renew && shard.has_leased()
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
        let (mut has_more, mut has_events) = (false, false);
        for (number, answer, local) in answers {
            match answer {
                Ok(reply) => {
                    let clock = ClockPair { server: reply.server, local };
                    has_more |= reply.has_more;
                    has_events |= !reply.entries.is_empty();
                    self.record_reply(number, reply, clock, capacity > 0);
                }
                Err(error) => {
                    self.shards[usize::from(number)].record_failed_poll();
                    failure = Some(error);
                }
            }
        }
        self.deliver_missed();
        let was_unreachable = mem::replace(&mut self.is_unreachable, failure.is_some());
        if let (Some(error), Some(deliveries), false) = (failure, &self.deliveries, was_unreachable)
        {
            // Skipped if the channel is full: the subscriber has events to read, and does not notice the outage.
            let _ = deliveries.try_send(EventDelivery::Unreachable(error));
        }
        (has_more && !self.is_unreachable, has_events)
    }

    /// Records the reply of a shard and delivers its events.
    fn record_reply(
        &mut self,
        number: u16,
        reply: ReadGroupReply,
        clock: ClockPair,
        was_read: bool,
    ) {
        let shard = &mut self.shards[usize::from(number)];
        let ReadGroupReply { counts_id, leased_in_group, missed, trimmed, .. } = reply;
        let is_shared = shard.record_reply(counts_id, leased_in_group, missed, trimmed);
        if was_read {
            // Events leased by other subscribers become available when those crash, without any hint.
            let next_check = if is_shared { self.lease / 2 } else { CHECK_EVERY };
            let next_check = next_check.min(CHECK_EVERY);
            self.hints.record_read(number, clock, reply.stream_version, reply.has_more, next_check);
        }
        for (entry, failures) in reply.entries.into_iter().zip(reply.failures) {
            self.deliver(number, entry.into(), failures, clock);
        }
        if reply.is_removed {
            self.is_removed.store(true, Relaxed);
            // The subscriber receives the buffered deliveries, and then the end of the stream.
            self.deliveries = None;
        }
    }

    /// A third of the lease after the last renewal, so that the lease survives two failed polls.
    fn renewal_due_at(&self) -> Instant {
        self.leases_renewed + self.lease / 3
    }

    /// Returns when the next poll is due that renews leases or gives events back.
    fn upkeep_due_at(&self) -> Instant {
        let retries = self.shards.iter().filter_map(ShardConsumer::next_retry);
        retries.fold(self.renewal_due_at(), Instant::min)
    }

    fn has_leased_events(&self) -> bool {
        self.shards.iter().any(ShardConsumer::has_leased)
    }

    /// Arguments in the order of `read_group.lua`.
    fn read_call(
        &self,
        shard: &ShardConsumer,
        number: u16,
        capacity: usize,
        must_renew: bool,
    ) -> Call<'_> {
        let call = self
            .decoder
            .commands
            .read_group(number)
            .arg(&*self.group)
            .arg(self.lease.as_millis().to_string())
            .arg(capacity)
            // Trimming reads the state of all groups, which is expensive, so only the periodic check does it.
            .arg(u8::from(self.hints.needs_check(number)));
        shard.add_args(call, must_renew)
    }

    fn deliver(&mut self, shard: u16, record: EventRecord, failures: u32, now: ClockPair) {
        let id = StreamId { shard, entry: record.id.clone(), failures };
        let size = record.size();
        let delivery = match self.decoder.decode(&record, now) {
            Ok(event) => EventDelivery::Event(id.clone(), event, size),
            Err(error) => EventDelivery::Undecodable(id.clone(), error, size),
        };
        let shard = &mut self.shards[usize::from(shard)];
        // Our own lease had expired, and we took the event over from ourselves: it was delivered already.
        if !shard.lease(record.id) {
            return;
        }
        // Before the delivery is sent, because the subscriber subtracts it on receipt. `Relaxed`: it is only a bound.
        self.buffered_bytes.fetch_add(size, Relaxed);
        let deliveries = self.deliveries.as_ref();
        if deliveries.is_some_and(|deliveries| deliveries.try_send(delivery).is_ok()) {
            self.counters.event();
        } else {
            // The subscription has just been dropped.
            shard.nack(id);
        }
    }

    /// Sends the number of missed events of all shards, unless the subscriber has not received the previous one.
    fn deliver_missed(&mut self) {
        let missed =
            self.shards.iter().map(ShardConsumer::unsent_missed).fold(0, u64::saturating_add);
        let is_waiting = self.shards.iter().any(ShardConsumer::has_sent_missed);
        let deliveries = self.deliveries.as_ref().filter(|_| missed > 0 && !is_waiting);
        // If the channel is full, the next poll tries again.
        if deliveries.is_some_and(|it| it.try_send(EventDelivery::Missed(missed)).is_ok()) {
            self.shards.iter_mut().for_each(ShardConsumer::mark_missed_sent);
        }
    }
}
