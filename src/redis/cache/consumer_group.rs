//! What brings each expiration to one subscriber of a group, at least once: a task for each
//! [`LosslessEvents`](super::LosslessEvents), which reads events off the streams (`XREADGROUP`), renews their
//! leases while they are here, and acks them.
//!
//! On the server all subscribers of a group are one consumer. A lease is how long an entry has been pending
//! there; whoever polls takes over what is pending longer (`XAUTOCLAIM`).

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
    shard_hints::{CHECK_EVERY, Watch},
    state::CacheState,
    stats::Counters,
};
use crate::engine::event::Event;

/// How many events wait in this process for their subscriber, at most.
const CAPACITY: usize = 1_024;

/// Of how many it asks at once of a shard: a script that is long keeps all others waiting.
const BATCH: usize = 64;

/// After so many bytes of events that wait, none is read ahead.
const MANY_BYTES: usize = 16 << 20;

/// What comes to the subscriber.
pub(super) enum Delivery<K, V> {
    /// With its size.
    Event(StreamId, Event<K, V>, usize),
    Undecodable(StreamId, Error, usize),
    /// The server did not answer.
    Unreachable(Error),
}

/// Where an event is on the server.
#[derive(Clone, Debug)]
pub(super) struct StreamId {
    pub(super) shard: u16,
    pub(super) entry: String,
}

/// What the subscriber answers to an event.
pub(super) enum Acknowledgement {
    /// It is done with.
    Ack(StreamId),
    /// It was never looked at: another subscriber shall have it at once.
    Nack(StreamId),
}

/// What a subscriber has of its task.
pub(super) struct Subscription<K, V> {
    pub(super) deliveries: mpsc::Receiver<Delivery<K, V>>,
    /// Without a bound, since a subscriber is dropped without awaiting.
    pub(super) acknowledgements: mpsc::UnboundedSender<Acknowledgement>,
    /// The sizes of the deliveries that wait, together.
    pub(super) waiting_bytes: Arc<AtomicUsize>,
}

struct ConsumerTask<K, V> {
    decoder: EventDecoder<K, V>,
    counters: Arc<Counters>,
    group: Arc<str>,
    lease: Duration,
    /// `None` once the subscription is to end: nothing new is taken then.
    deliveries: Option<mpsc::Sender<Delivery<K, V>>>,
    acknowledgements: mpsc::UnboundedReceiver<Acknowledgement>,
    waiting_bytes: Arc<AtomicUsize>,
    shards: Vec<ShardConsumer>,
    watch: Watch,
    leases_renewed: Instant,
    /// The server did not answer the last time. The subscriber is told once, not at each poll.
    is_unreachable: bool,
}

/// What this subscriber has of a shard, and what the server has not heard of it yet.
#[derive(Default)]
struct ShardConsumer {
    /// Ids of what is in this process and not acknowledged.
    leased: BTreeSet<String>,
    /// Ids that the next poll tells the server. They stay until it has answered, as it may not have heard them;
    /// to tell it twice changes nothing.
    acked: Vec<String>,
    nacked: Vec<String>,
}

/// What `read_group.lua` answers: the server's time, entries, whether there are more, the note of the news, and how many
/// events the group had before them.
type ReadGroupReply = (u64, Vec<StreamEntry>, bool, String, usize);

/// Joins a group, which is made where it is new.
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
    let (deliveries, delivered) = mpsc::channel(CAPACITY);
    let (acknowledge, acknowledgements) = mpsc::unbounded_channel();
    let waiting_bytes = Arc::<AtomicUsize>::default();
    let task = ConsumerTask {
        decoder: state.event_decoder(),
        counters: state.counters.clone(),
        group: group.into(),
        lease: state.lease,
        deliveries: Some(deliveries),
        acknowledgements,
        waiting_bytes: waiting_bytes.clone(),
        shards: (0..SHARDS).map(|_| ShardConsumer::default()).collect(),
        watch: Watch::new(),
        leases_renewed: Instant::now(),
        is_unreachable: false,
    };
    tokio::spawn(task.run(state.poll_every, state.stop.subscribe()));
    Ok(Subscription { deliveries: delivered, acknowledgements: acknowledge, waiting_bytes })
}

impl<K, V> ConsumerTask<K, V>
where
    K: DeserializeOwned + Send + 'static,
    V: DeserializeOwned + Send + 'static,
{
    async fn run(mut self, poll_every: Duration, mut stop: watch::Receiver<bool>) {
        while let Some(deliveries) = self.deliveries.clone() {
            // The sender of `stop` leaves with the last handle of the cache.
            let is_stopped =
                *stop.borrow() || stop.has_changed().is_err() || deliveries.is_closed();
            if is_stopped {
                // What is in the channel still comes to the subscriber, which sees the end after it.
                self.deliveries = None;
                break;
            }
            self.settle_all();
            // No more than the channel has room for, whatever the shards have: what is read is delivered, or its
            // lease would be renewed here while nobody can have it.
            let room = self.room(&deliveries);
            if self.poll(room).await && self.room(&deliveries) > 0 {
                continue;
            }
            let look_at = Instant::now() + poll_every;
            // Who looks seldom renews leases all the same.
            while tokio::select! {
                _ = stop.wait_for(|is_stopped| *is_stopped) => false,
                () = deliveries.closed() => false,
                () = sleep_until(look_at) => false,
                () = sleep_until(self.renews_at()), if self.holds_any() => true,
            } {
                self.settle_all();
                self.poll(0).await;
            }
        }
        // Leases are renewed and acks are sent for as long as somebody holds what came, however fast the acks come.
        let (mut poll_at, pause) = (Instant::now(), poll_every.min(self.lease / 3));
        loop {
            tokio::select! {
                biased;
                () = sleep_until(poll_at) => {
                    self.poll(0).await;
                    poll_at = Instant::now() + pause;
                }
                acknowledgement = self.acknowledgements.recv() => match acknowledgement {
                    Some(acknowledgement) => self.settle(acknowledgement),
                    None => break,
                },
            }
        }
        self.poll(0).await;
    }

    /// How many events of each shard may come.
    fn room(&self, deliveries: &mpsc::Sender<Delivery<K, V>>) -> usize {
        match self.waiting_bytes.load(Relaxed) {
            MANY_BYTES.. => 0,
            _ => (deliveries.capacity() / self.shards.len()).min(BATCH),
        }
    }

    /// What the subscriber has answered by now.
    fn settle_all(&mut self) {
        while let Ok(acknowledgement) = self.acknowledgements.try_recv() {
            self.settle(acknowledgement);
        }
    }

    /// Nothing is sent: the next poll tells the server of all of them.
    fn settle(&mut self, acknowledgement: Acknowledgement) {
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

    /// Asks the shards in which there is something, or of which there is something to say, and takes up to `room` events
    /// from each; whether more may be had at once.
    async fn poll(&mut self, room: usize) -> bool {
        let renews = Instant::now() >= self.renews_at();
        if renews {
            self.leases_renewed = Instant::now();
        }
        let (may_take, mut failure) = match room {
            0 => (false, None),
            _ => self.watch.look(&self.decoder.commands).await,
        };
        let polls = self.shards.iter().zip(0..).filter(|(shard, number)| {
            may_take && self.watch.is_due(*number)
                || !shard.is_in_step()
                || renews && !shard.leased.is_empty()
        });
        let client = self.decoder.commands.client.for_batches();
        let polls = polls.map(async |(shard, number)| {
            let call = self.call(shard, number, room, renews);
            // Never again without a new poll: what the lost answer held comes when its lease is over.
            let answer = call.send_once::<ReadGroupReply>(&client).await;
            (number, answer, Instant::now())
        });
        let answers = few_at_once(polls).await;
        let mut more = false;
        for (number, answer, local) in answers {
            match answer {
                Ok((server, entries, has_more, news, lent)) => {
                    let now = ClockPair { server, local };
                    let shard = &mut self.shards[usize::from(number)];
                    shard.heard();
                    more |= has_more;
                    if room > 0 {
                        // What others hold comes here when they die, and nothing tells when.
                        let is_shared = lent > shard.leased.len();
                        let again = if is_shared { self.lease / 2 } else { CHECK_EVERY };
                        self.watch.looked(number, now, news, has_more, again.min(CHECK_EVERY));
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
            // Without room it is left out: who is so far behind has seen none for long.
            let _ = deliveries.try_send(Delivery::Unreachable(error));
        }
        more && !self.is_unreachable
    }

    /// Two polls may fail before a lease is over.
    fn renews_at(&self) -> Instant {
        self.leases_renewed + self.lease / 3
    }

    fn holds_any(&self) -> bool {
        self.shards.iter().any(|shard| !shard.leased.is_empty())
    }

    /// In the order in which `read_group.lua` reads its arguments.
    fn call(&self, shard: &ShardConsumer, number: u16, room: usize, renews: bool) -> Call<'_> {
        let renewed = if renews { shard.leased.len() } else { 0 };
        let call = self
            .decoder
            .commands
            .read_group(number)
            .arg(&*self.group)
            .arg(self.lease.as_millis().to_string())
            .arg(room)
            // It reads what all groups have acked, which is not free.
            .arg(u8::from(self.watch.is_check(number)))
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
        // Where our own lease was over, it is here already.
        if !shard.leased.insert(record.id.clone()) {
            return;
        }
        self.waiting_bytes.fetch_add(size, Relaxed);
        let deliveries = self.deliveries.as_ref();
        if deliveries.is_some_and(|deliveries| deliveries.try_send(delivery).is_ok()) {
            self.counters.event();
        } else {
            // The subscription has just ended.
            shard.leased.remove(&record.id);
            shard.nacked.push(record.id);
        }
    }
}

impl ShardConsumer {
    /// The server has answered, so it knows all that it was told.
    fn heard(&mut self) {
        self.acked.clear();
        self.nacked.clear();
    }

    /// Whether the server knows all.
    fn is_in_step(&self) -> bool {
        self.acked.is_empty() && self.nacked.is_empty()
    }
}
