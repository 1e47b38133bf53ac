//! Broadcast of expirations to all [`Events`](super::Events) of this process. One task reads the streams of the shards
//! and sends into a broadcast channel. It ends with the last subscription, and the next subscription starts another.

use std::sync::{Arc, Mutex, MutexGuard};

use ::redis::{FromRedisValue, ParsingError, Value as Reply};
use futures_util::future::try_join_all;
use serde::de::DeserializeOwned;
use tokio::{
    sync::{
        broadcast::{self, Receiver, Sender},
        watch,
    },
    time::{Duration, Instant, sleep},
};

use super::{
    super::{Error, few_at_once::few_at_once},
    cache_state::{BroadcastItem, CacheState, Ring},
    commands::Commands,
    event_record::{ClockPair, EventDecoder, EventRecord, StreamEntry},
    shard_hints::{CHECK_EVERY, ShardHints, pause_after},
    stats::Counters,
};
use crate::engine::event::Lagged;

/// Maximum number of events read from a shard at once. The server executes nothing else during a script.
const BATCH: usize = 64;

/// Position in a shard's stream.
#[derive(Clone, Default)]
struct StreamPosition {
    last_id: String,
    /// Number of the last event that was read or missed. Later ones that the stream no longer has were missed.
    number: u64,
    /// Id of the counts on the server from which this number is.
    counts_id: String,
}

/// Reply of `read_stream.lua`, in its order.
struct ReadStreamReply {
    /// Time of the server.
    server: u64,
    entries: Vec<StreamEntry>,
    has_more: bool,
    stream_version: String,
    /// The position after the entries.
    position: StreamPosition,
    missed: u64,
}

impl FromRedisValue for ReadStreamReply {
    fn from_redis_value(reply: Reply) -> Result<Self, ParsingError> {
        let (server, entries, has_more, stream_version, last_id, number, counts_id, missed) =
            FromRedisValue::from_redis_value(reply)?;
        let position = StreamPosition { last_id, number, counts_id };
        Ok(Self { server, entries, has_more, stream_version, position, missed })
    }
}

struct BroadcastTask<K, V> {
    /// Name of the cache, for log messages.
    name: String,
    decoder: EventDecoder<K, V>,
    counters: Arc<Counters>,
    ring: Arc<Mutex<Ring<K, V>>>,
    sender: Sender<BroadcastItem<K, V>>,
    /// By shard.
    positions: Vec<StreamPosition>,
    hints: ShardHints,
    /// True if the last poll failed. An outage is logged once, not at each poll.
    is_unreachable: bool,
}

/// Subscribes to expirations from now on, and starts the task if it is not running. If it is, the subscriber also
/// receives earlier ones that the task has not read yet.
pub(super) async fn subscribe<K, V>(
    state: &CacheState<K, V>,
) -> Result<Receiver<BroadcastItem<K, V>>, Error>
where
    K: DeserializeOwned + Send + Sync + 'static,
    V: DeserializeOwned + Send + Sync + 'static,
{
    let join = |ring: &Ring<K, V>| Some(ring.as_ref()?.upgrade()?.subscribe());
    if let Some(receiver) = join(&lock(&state.ring)) {
        return Ok(receiver);
    }
    let positions = stream_ends(&state.commands).await?;
    let (sender, receiver) = broadcast::channel(state.event_capacity);
    let mut ring = lock(&state.ring);
    // Another subscription has started the task in the meantime.
    if let Some(receiver) = join(&ring) {
        return Ok(receiver);
    }
    *ring = Some(sender.downgrade());
    drop(ring);
    let task = BroadcastTask {
        name: state.name.clone(),
        decoder: state.event_decoder(),
        counters: state.counters.clone(),
        ring: state.ring.clone(),
        sender,
        positions,
        hints: ShardHints::new(&state.commands),
        is_unreachable: false,
    };
    tokio::spawn(task.run(state.poll_every, state.stop.subscribe()));
    Ok(receiver)
}

/// Returns the ends of the streams, after all expired entries have been moved to them.
async fn stream_ends(commands: &Commands) -> Result<Vec<StreamPosition>, Error> {
    let ends = commands.keyspace.shards().map(async |shard| {
        // Until the server has moved all of them, or the caller drops the call: their number is known to the server
        // alone, and a reply may announce more without a sign of progress.
        loop {
            let call = commands.read_stream(shard).arg(BATCH).arg("").arg(0).arg("").arg(0);
            let reply: ReadStreamReply =
                call.send_idempotent(&commands.client.for_batches()).await?;
            if !reply.has_more {
                return Ok(reply.position);
            }
        }
    });
    try_join_all(ends).await
}

impl<K, V> BroadcastTask<K, V>
where
    K: DeserializeOwned + Send + Sync + 'static,
    V: DeserializeOwned + Send + Sync + 'static,
{
    async fn run(mut self, poll_every: Duration, mut stop: watch::Receiver<bool>) {
        loop {
            let pause = tokio::select! {
                _ = stop.wait_for(|is_stopped| *is_stopped) => return self.remove_ring(),
                pause = self.poll(poll_every) => pause,
            };
            // After each poll: the server may have events forever.
            if self.stop_if_unused() {
                return;
            }
            if pause.is_zero() {
                continue;
            }
            tokio::select! {
                _ = stop.wait_for(|is_stopped| *is_stopped) => return self.remove_ring(),
                () = sleep(pause) => {}
            }
        }
    }

    /// Returns true if there are no subscribers left, and removes the channel. Under the lock, since `subscribe` may
    /// run concurrently: it either gets its receiver first, which is counted here, or finds no channel and starts a
    /// task.
    fn stop_if_unused(&self) -> bool {
        let mut ring = lock(&self.ring);
        let is_unused = self.sender.receiver_count() == 0;
        if is_unused {
            *ring = None;
        }
        is_unused
    }

    fn remove_ring(self) {
        // `self` is dropped here, with the only sender: the subscribers read the buffered events and then the end.
        *lock(&self.ring) = None;
    }

    /// Reads the shards that may have events; returns the pause before the next poll.
    async fn poll(&mut self, poll_every: Duration) -> Duration {
        let commands = &self.decoder.commands;
        let (may_read, mut failure) = self.hints.refresh(commands).await;
        let shards = commands.keyspace.shards();
        let due = shards.filter(|shard| may_read && self.hints.needs_read(*shard));
        let polls = due.map(async |shard| {
            let StreamPosition { last_id, number, counts_id } = &self.positions[usize::from(shard)];
            let call = commands.read_stream(shard).arg(BATCH);
            let call = call.arg(last_id).arg(*number).arg(counts_id);
            // Trimming reads the state of all groups, which is expensive, so only the periodic check does it.
            let call = call.arg(u8::from(self.hints.needs_check(shard)));
            let client = commands.client.for_batches();
            let answer = call.send_idempotent::<ReadStreamReply>(&client).await;
            (shard, answer, Instant::now())
        });
        let answers = few_at_once(polls).await;
        let (mut has_more, mut has_events) = (false, false);
        for (shard, answer, local) in answers {
            let reply = match answer {
                Ok(reply) => reply,
                // The position is unchanged, so that the next poll reads the same events.
                Err(error) => {
                    failure = Some(error);
                    continue;
                }
            };
            let now = ClockPair { server: reply.server, local };
            self.positions[usize::from(shard)] = reply.position;
            self.hints.record_read(shard, now, reply.stream_version, reply.has_more, CHECK_EVERY);
            has_more |= reply.has_more;
            has_events |= !reply.entries.is_empty();
            self.report_missed(reply.missed);
            for entry in reply.entries {
                self.publish(&EventRecord::from(entry), now);
            }
        }
        if let Some(error) = &failure
            && !self.is_unreachable
        {
            let error = error as &dyn std::error::Error;
            tracing::warn!(cache = self.name, error, "failed to read expirations");
        }
        self.is_unreachable = failure.is_some();
        pause_after(has_more && !self.is_unreachable, has_events, poll_every)
    }

    fn publish(&self, record: &EventRecord, now: ClockPair) {
        match self.decoder.decode(record, now) {
            Ok(event) => {
                self.counters.event();
                self.send(Ok(Arc::new(event)));
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(cache = self.name, error, "failed to decode an expiration");
                self.report_missed(1);
            }
        }
    }

    fn report_missed(&self, missed: u64) {
        if missed > 0 {
            self.counters.missed(missed);
            self.send(Err(Lagged(missed)));
        }
    }

    fn send(&self, item: BroadcastItem<K, V>) {
        // An error means that there is no subscriber left, which `stop_if_unused` handles after this poll.
        let _ = self.sender.send(item);
    }
}

fn lock<K, V>(ring: &Mutex<Ring<K, V>>) -> MutexGuard<'_, Ring<K, V>> {
    ring.lock().expect("nothing panics under this lock")
}
