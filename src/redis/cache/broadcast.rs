//! What tells each expiration to all who listen in this process: one task for all of them, which reads the
//! streams of the shards and fills a ring.

use std::sync::{Arc, Mutex, MutexGuard, atomic::Ordering::Relaxed};

use futures_util::future::{join_all, try_join_all};
use serde::de::DeserializeOwned;
use tokio::{
    sync::{
        broadcast::{self, Receiver, Sender, WeakSender},
        watch,
    },
    time::{Duration, Instant, sleep},
};

use super::{
    super::{Error, keyspace::SHARDS},
    commands::Store,
    state::{Counts, Moment, Reader, Shared, Told},
};
use crate::engine::event::Event;

/// How many events are read of a shard at once.
const BATCH: usize = 64;

/// In so many looks one trims the streams.
const TRIM_EVERY: u64 = 100;

/// The ring of the task that runs.
pub(super) type Ring<K, V> = Option<WeakSender<Item<K, V>>>;

/// An event, or how many were missed before they came here.
pub(super) type Item<K, V> = Result<Arc<Event<K, V>>, u64>;

/// Up to where a shard's stream is read.
#[derive(Clone, Default)]
struct Place {
    id: String,
    /// How many had been added to the stream.
    seen: u64,
}

/// The server's time, entries, whether there are more, and the place after them; how many were missed.
type Answer = (u64, Vec<(String, Vec<Vec<u8>>)>, bool, String, u64, u64);

struct Feed<K, V> {
    reader: Reader<K, V>,
    counts: Arc<Counts>,
    ring: Arc<Mutex<Ring<K, V>>>,
    sender: Sender<Item<K, V>>,
    places: Vec<Place>,
    looks: u64,
    /// Whether the server did not answer the last time.
    is_away: bool,
}

/// What is told from now on, by the task that runs or by one that is started.
pub(super) async fn subscribe<K, V>(shared: &Shared<K, V>) -> Result<Receiver<Item<K, V>>, Error>
where
    K: DeserializeOwned + Send + Sync + 'static,
    V: DeserializeOwned + Send + Sync + 'static,
{
    // Also where a task runs: what is due by now has then been moved to the streams.
    let places = ends(&shared.store).await?;
    let mut ring = lock(&shared.ring);
    if let Some(sender) = ring.as_ref().and_then(WeakSender::upgrade) {
        return Ok(sender.subscribe());
    }
    let (sender, receiver) = broadcast::channel(shared.event_capacity);
    *ring = Some(sender.downgrade());
    drop(ring);
    let feed = Feed {
        reader: shared.reader(),
        counts: shared.counts.clone(),
        ring: shared.ring.clone(),
        sender,
        places,
        looks: 0,
        is_away: false,
    };
    tokio::spawn(feed.run(shared.every, shared.stop.subscribe()));
    Ok(receiver)
}

/// Where the streams end, once all that is due is on them.
async fn ends(store: &Store) -> Result<Vec<Place>, Error> {
    let ends = (0..SHARDS).map(async |shard| {
        loop {
            let call = store.feed(shard).arg(BATCH).arg("").arg(0).arg(0);
            let (_, _, more, id, seen, _): Answer = call.read(&store.client).await?;
            if !more {
                return Ok(Place { id, seen });
            }
        }
    });
    try_join_all(ends).await
}

impl<K, V> Feed<K, V>
where
    K: DeserializeOwned + Send + Sync + 'static,
    V: DeserializeOwned + Send + Sync + 'static,
{
    async fn run(mut self, every: Duration, mut stop: watch::Receiver<bool>) {
        loop {
            tokio::select! {
                _ = stop.wait_for(|is_stopped| *is_stopped) => return self.end(),
                more = self.look() => if more { continue },
            }
            if self.is_alone() {
                return;
            }
            tokio::select! {
                _ = stop.wait_for(|is_stopped| *is_stopped) => return self.end(),
                () = sleep(every) => {}
            }
        }
    }

    /// Whether nobody listens any more. Nobody can begin to, then.
    fn is_alone(&self) -> bool {
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

    /// Reads all shards once; whether more may be had at once.
    async fn look(&mut self) -> bool {
        self.looks += 1;
        let trims = u8::from(self.looks.is_multiple_of(TRIM_EVERY));
        let store = &self.reader.store;
        let looks = self.places.iter().zip(0..).map(async |(place, shard)| {
            let call = store.feed(shard).arg(BATCH).arg(&place.id).arg(place.seen).arg(trims);
            let answer = call.read::<Answer>(&store.client).await;
            (answer, Instant::now())
        });
        let answers = join_all(looks).await;
        let mut more = false;
        let mut failure = None;
        for (shard, (answer, here)) in answers.into_iter().enumerate() {
            let answer = match answer {
                Ok(answer) => answer,
                Err(error) => {
                    failure = Some(error);
                    continue;
                }
            };
            let (server, entries, has_more, id, seen, missed) = answer;
            self.places[shard] = Place { id, seen };
            more |= has_more;
            self.miss(missed);
            for entry in entries {
                self.tell(&Told::new(entry), Moment { server, here });
            }
        }
        if let Some(error) = &failure
            && !self.is_away
        {
            tracing::warn!(error = error as &dyn std::error::Error, "expirations can't be read");
        }
        self.is_away = failure.is_some();
        more && !self.is_away
    }

    fn tell(&self, told: &Told, now: Moment) {
        match self.reader.event(told, now) {
            Ok(event) => {
                self.counts.events.fetch_add(1, Relaxed);
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
            self.counts.missed.fetch_add(missed, Relaxed);
            self.send(Err(missed));
        }
    }

    fn send(&self, item: Item<K, V>) {
        // Nobody may listen any more, which is seen after this look.
        let _ = self.sender.send(item);
    }
}

fn lock<K, V>(ring: &Mutex<Ring<K, V>>) -> MutexGuard<'_, Ring<K, V>> {
    ring.lock().expect("nothing panics under this lock")
}
