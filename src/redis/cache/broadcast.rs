//! What tells each expiration to all [`Events`](super::Events) of this process: one task for all of them, which
//! reads the streams of the shards and fills a ring. It ends with the last of them, and begins with the next.

use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::future::try_join_all;
use serde::de::DeserializeOwned;
use tokio::{
    sync::{
        broadcast::{self, Receiver, Sender, WeakSender},
        watch,
    },
    time::{Duration, Instant, sleep},
};

use super::{
    super::{
        Error,
        keyspace::{SHARDS, few_at_once},
    },
    commands::Commands,
    event_record::{ClockPair, EventDecoder, EventRecord, StreamEntry},
    shard_hints::{CHECK_EVERY, Watch},
    state::{BroadcastItem, CacheState, Ring},
    stats::Counters,
};
use crate::engine::event::Lagged;

/// How many events are read of a shard at once.
const BATCH: usize = 64;

/// Up to where a shard's stream is read.
#[derive(Clone, Default)]
struct StreamPosition {
    last_id: String,
    /// How many had been added to the stream by then: what the stream says more of, and has not, is missed.
    added: u64,
}

/// What `read_stream.lua` answers: the server's time, entries, whether there are more, the note of the news, the
/// position after them, and how many were missed.
type ReadStreamReply = (u64, Vec<StreamEntry>, bool, String, String, u64, u64);

struct BroadcastTask<K, V> {
    decoder: EventDecoder<K, V>,
    counters: Arc<Counters>,
    ring: Arc<Mutex<Ring<K, V>>>,
    sender: Sender<BroadcastItem<K, V>>,
    /// For each shard.
    positions: Vec<StreamPosition>,
    watch: Watch,
    /// The server did not answer the last time. It is logged once, not at each poll.
    is_unreachable: bool,
}

/// What is told from now on, by the task that runs or by one that is started.
pub(super) async fn subscribe<K, V>(
    state: &CacheState<K, V>,
) -> Result<Receiver<BroadcastItem<K, V>>, Error>
where
    K: DeserializeOwned + Send + Sync + 'static,
    V: DeserializeOwned + Send + Sync + 'static,
{
    // Also where a task runs: what is due by now has then been moved to the streams, so that a subscriber is not
    // told what expired before it came.
    let positions = ends_of_streams(&state.commands).await?;
    let mut ring = lock(&state.ring);
    if let Some(sender) = ring.as_ref().and_then(WeakSender::upgrade) {
        return Ok(sender.subscribe());
    }
    let (sender, receiver) = broadcast::channel(state.event_capacity);
    *ring = Some(sender.downgrade());
    drop(ring);
    let task = BroadcastTask {
        decoder: state.event_decoder(),
        counters: state.counters.clone(),
        ring: state.ring.clone(),
        sender,
        positions,
        watch: Watch::new(),
        is_unreachable: false,
    };
    tokio::spawn(task.run(state.poll_every, state.stop.subscribe()));
    Ok(receiver)
}

/// Where the streams end, once all that is due is on them.
async fn ends_of_streams(commands: &Commands) -> Result<Vec<StreamPosition>, Error> {
    let ends = (0..SHARDS).map(async |shard| {
        loop {
            let call = commands.read_stream(shard).arg(BATCH).arg("").arg(0).arg(0);
            let (_, _, more, _, last_id, added, _): ReadStreamReply =
                call.send_idempotent(&commands.client.for_batches()).await?;
            if !more {
                return Ok(StreamPosition { last_id, added });
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
            tokio::select! {
                _ = stop.wait_for(|is_stopped| *is_stopped) => return self.end(),
                more = self.poll() => if more { continue },
            }
            if self.ends_alone() {
                return;
            }
            tokio::select! {
                _ = stop.wait_for(|is_stopped| *is_stopped) => return self.end(),
                () = sleep(poll_every) => {}
            }
        }
    }

    /// Whether nobody listens any more. Under the lock, since `subscribe` may be about to: either it comes first
    /// and is counted here, or it finds no ring and starts another task.
    fn ends_alone(&self) -> bool {
        let mut ring = lock(&self.ring);
        let is_alone = self.sender.receiver_count() == 0;
        if is_alone {
            *ring = None;
        }
        is_alone
    }

    fn end(self) {
        *lock(&self.ring) = None;
    }

    /// Reads the shards in which there is something; whether more may be had at once.
    async fn poll(&mut self) -> bool {
        let commands = &self.decoder.commands;
        let (may_read, mut failure) = self.watch.look(commands).await;
        let due = (0..SHARDS).filter(|shard| may_read && self.watch.is_due(*shard));
        let polls = due.map(async |shard| {
            let StreamPosition { last_id, added } = &self.positions[usize::from(shard)];
            let call = commands.read_stream(shard).arg(BATCH).arg(last_id).arg(*added);
            // It reads what all groups have acked, which is not free.
            let call = call.arg(u8::from(self.watch.is_check(shard)));
            let client = commands.client.for_batches();
            let answer = call.send_idempotent::<ReadStreamReply>(&client).await;
            (shard, answer, Instant::now())
        });
        let answers = few_at_once(polls).await;
        let mut more = false;
        for (shard, answer, local) in answers {
            let answer = match answer {
                Ok(answer) => answer,
                // The position stays: the next poll reads what this one would have.
                Err(error) => {
                    failure = Some(error);
                    continue;
                }
            };
            let (server, entries, has_more, news, last_id, added, missed) = answer;
            let now = ClockPair { server, local };
            self.positions[usize::from(shard)] = StreamPosition { last_id, added };
            self.watch.looked(shard, now, news, has_more, CHECK_EVERY);
            more |= has_more;
            self.miss(missed);
            for entry in entries {
                self.tell(&EventRecord::from(entry), now);
            }
        }
        if let Some(error) = &failure
            && !self.is_unreachable
        {
            tracing::warn!(error = error as &dyn std::error::Error, "expirations can't be read");
        }
        self.is_unreachable = failure.is_some();
        more && !self.is_unreachable
    }

    fn tell(&self, record: &EventRecord, now: ClockPair) {
        match self.decoder.decode(record, now) {
            Ok(event) => {
                self.counters.event();
                self.send(Ok(Arc::new(event)));
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "an expiration can't be decoded");
                self.miss(1);
            }
        }
    }

    fn miss(&self, missed: u64) {
        if missed > 0 {
            self.counters.missed(missed);
            self.send(Err(Lagged(missed)));
        }
    }

    fn send(&self, item: BroadcastItem<K, V>) {
        // Nobody may listen any more, which is seen after this poll.
        let _ = self.sender.send(item);
    }
}

fn lock<K, V>(ring: &Mutex<Ring<K, V>>) -> MutexGuard<'_, Ring<K, V>> {
    ring.lock().expect("nothing panics under this lock")
}
