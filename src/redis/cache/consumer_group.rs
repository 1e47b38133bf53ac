//! What brings each expiration to one subscriber of a group: a task for each subscription, which takes events
//! off the streams, renews their leases while they are held here, and acks them.

use std::{
    collections::BTreeSet,
    mem,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use futures_util::future::{join_all, try_join_all};
use serde::de::DeserializeOwned;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep},
};

use super::{
    super::{Error, keyspace::SHARDS, script::Call},
    state::{Counts, Moment, Reader, Shared, Told},
};
use crate::engine::event::Event;

/// How many events wait in this process for their subscriber, at most.
const CAPACITY: usize = 1_024;

/// In so many looks one trims the streams.
const TRIM_EVERY: u64 = 100;

/// What comes to the subscriber.
pub(super) enum Item<K, V> {
    Event(Place, Event<K, V>),
    /// An event that can't be read.
    Bad(Place, Error),
    /// The server did not answer.
    Away(Error),
}

/// Where an event is on the server.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) shard: u16,
    pub(super) id: String,
}

/// What the subscriber says of an event that came to it.
pub(super) enum Note {
    /// It is done with.
    Ack(Place),
    /// It was never looked at.
    GiveBack(Place),
}

/// The ends of a subscription.
pub(super) type Ends<K, V> = (mpsc::Receiver<Item<K, V>>, mpsc::UnboundedSender<Note>);

struct Group<K, V> {
    reader: Reader<K, V>,
    counts: Arc<Counts>,
    name: Arc<str>,
    lease: Duration,
    /// `None` once the subscription is to end: nothing new is taken then.
    items: Option<mpsc::Sender<Item<K, V>>>,
    notes: mpsc::UnboundedReceiver<Note>,
    shards: Vec<Shard>,
    looks: u64,
    /// When the leases were last renewed.
    renewed: Instant,
    /// Whether the server did not answer the last time.
    is_away: bool,
}

/// What is held of a shard.
struct Shard {
    /// Where to go on looking for leases that are over.
    cursor: String,
    held: BTreeSet<String>,
    acked: Vec<String>,
    given_back: Vec<String>,
}

/// The server's time, entries, whether there are more, and the cursor.
type Answer = (u64, Vec<(String, Vec<Vec<u8>>)>, bool, String);

/// Joins a group, which is made where it is new.
pub(super) async fn join<K, V>(shared: &Shared<K, V>, name: &str) -> Result<Ends<K, V>, Error>
where
    K: DeserializeOwned + Send + 'static,
    V: DeserializeOwned + Send + 'static,
{
    let store = &shared.store;
    let joins = (0..SHARDS).map(|shard| store.join(shard, name).read::<bool>(&store.client));
    try_join_all(joins).await?;
    let (items, events) = mpsc::channel(CAPACITY);
    let (notes, heard) = mpsc::unbounded_channel();
    let group = Group {
        reader: shared.reader(),
        counts: shared.counts.clone(),
        name: name.into(),
        lease: shared.lease,
        items: Some(items),
        notes: heard,
        shards: (0..SHARDS).map(|_| Shard::default()).collect(),
        looks: 0,
        renewed: Instant::now(),
        is_away: false,
    };
    tokio::spawn(group.run(shared.every, shared.stop.subscribe()));
    Ok((events, notes))
}

impl<K, V> Group<K, V>
where
    K: DeserializeOwned + Send + 'static,
    V: DeserializeOwned + Send + 'static,
{
    async fn run(mut self, every: Duration, mut stop: watch::Receiver<bool>) {
        while let Some(items) = self.items.clone() {
            let is_stopped = *stop.borrow() || stop.has_changed().is_err() || items.is_closed();
            if is_stopped {
                // What is in the channel still comes to the subscriber, which sees the end after it.
                self.items = None;
                break;
            }
            while let Ok(note) = self.notes.try_recv() {
                self.hear(note);
            }
            let room = (items.capacity() / self.shards.len()).min(64);
            if self.look(room).await && items.capacity() >= self.shards.len() {
                continue;
            }
            tokio::select! {
                _ = stop.wait_for(|is_stopped| *is_stopped) => {}
                () = items.closed() => {}
                () = sleep(every) => {}
            }
        }
        // Leases are renewed and acks are sent for as long as somebody holds what came.
        loop {
            tokio::select! {
                note = self.notes.recv() => match note {
                    Some(note) => self.hear(note),
                    None => break,
                },
                () = sleep(every) => {
                    self.look(0).await;
                }
            }
        }
        self.look(0).await;
    }

    fn hear(&mut self, note: Note) {
        let (place, is_ack) = match note {
            Note::Ack(place) => (place, true),
            Note::GiveBack(place) => (place, false),
        };
        let shard = &mut self.shards[usize::from(place.shard)];
        if shard.held.remove(&place.id) {
            let ids = if is_ack { &mut shard.acked } else { &mut shard.given_back };
            ids.push(place.id);
        }
    }

    /// Looks at all shards once, and takes up to `room` events from each; whether more may be had at once.
    async fn look(&mut self, room: usize) -> bool {
        self.looks += 1;
        let renews = self.renewed.elapsed() >= self.lease / 3;
        if renews {
            self.renewed = Instant::now();
        }
        // Nothing is taken, and nothing is to be said.
        if room == 0 && !renews && self.shards.iter().all(Shard::is_quiet) {
            return false;
        }
        let looks = self.shards.iter().zip(0..).map(async |(shard, number)| {
            let call = self.call(shard, number, room, renews);
            // Never again without a new look: what the lost answer held comes when its lease is over.
            let answer = call.change::<Answer>(&self.reader.store.client).await;
            (answer, Instant::now())
        });
        let answers = join_all(looks).await;
        let mut more = false;
        let mut failure = None;
        for (number, (answer, here)) in (0..).zip(answers) {
            match answer {
                Ok((server, entries, has_more, cursor)) => {
                    self.shards[usize::from(number)].said(cursor);
                    more |= has_more;
                    let now = Moment { server, here };
                    for entry in entries {
                        self.tell(number, Told::new(entry), now);
                    }
                }
                Err(error) => failure = Some(error),
            }
        }
        let was_away = mem::replace(&mut self.is_away, failure.is_some());
        if let (Some(error), Some(items), false) = (failure, &self.items, was_away) {
            // Without room it is left out: who is so far behind has seen none for long.
            let _ = items.try_send(Item::Away(error));
        }
        more && !self.is_away
    }

    fn call(&self, shard: &Shard, number: u16, room: usize, renews: bool) -> Call<'_> {
        let held = if renews { shard.held.len() } else { 0 };
        let call = self
            .reader
            .store
            .group(number)
            .arg(&*self.name)
            .arg(self.lease.as_millis().to_string())
            .arg(room)
            .arg(&shard.cursor)
            .arg(u8::from(self.looks.is_multiple_of(TRIM_EVERY)))
            .arg(shard.acked.len())
            .arg(shard.given_back.len())
            .arg(held)
            .arg(&shard.acked)
            .arg(&shard.given_back);
        shard.held.iter().take(held).fold(call, |call, id| call.arg(id))
    }

    fn tell(&mut self, shard: u16, told: Told, now: Moment) {
        let place = Place { shard, id: told.id.clone() };
        let item = match self.reader.event(&told, now) {
            Ok(event) => Item::Event(place, event),
            Err(error) => Item::Bad(place, error),
        };
        let shard = &mut self.shards[usize::from(shard)];
        // Where our own lease was over, it is here already.
        if !shard.held.insert(told.id.clone()) {
            return;
        }
        let sent = self.items.as_ref().map(|items| items.try_send(item));
        if matches!(sent, Some(Ok(()))) {
            self.counts.events.fetch_add(1, Relaxed);
        } else {
            // The subscription has just ended.
            shard.held.remove(&told.id);
            shard.given_back.push(told.id);
        }
    }
}

impl Shard {
    /// The server has heard all.
    fn said(&mut self, cursor: String) {
        self.cursor = cursor;
        self.acked.clear();
        self.given_back.clear();
    }

    /// Whether the server knows all.
    fn is_quiet(&self) -> bool {
        self.acked.is_empty() && self.given_back.is_empty()
    }
}

impl Default for Shard {
    fn default() -> Self {
        let cursor = "0-0".to_owned();
        Self { cursor, held: BTreeSet::new(), acked: Vec::new(), given_back: Vec::new() }
    }
}
