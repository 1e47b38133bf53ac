//! Expirations of `redis::Cache` that are lost, since the retention has passed or the server has lost its data: all of
//! them are reported.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use fleeting::redis::{Cache, Client, Error, LosslessEvents, Urls};
use futures::future::join_all;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    clock::{in_time, ms},
    patience::patience,
    servers::{Cluster, Proxy, Server, connect},
};

const HOUR: Duration = Duration::from_secs(3_600);

fn retention() -> Duration {
    ms(1_000)
}

fn cache(client: &Client, retention: Duration) -> Cache<String, u64> {
    let builder = Cache::builder(client, "c").events(retention).lease(ms(1_500));
    builder.poll_every(ms(20)).build().unwrap()
}

/// Sets each number as the value of its own key.
async fn fill(cache: &Cache<String, u64>, numbers: std::ops::Range<u64>, ttl: Duration) {
    let numbers: Vec<_> = numbers.collect();
    for chunk in numbers.chunks(500) {
        let sets = chunk.iter().map(|n| cache.set_ex(n.to_string(), *n, ttl));
        join_all(sets).await.into_iter().for_each(|set| assert!(set.is_ok(), "{set:?}"));
    }
}

/// Reads until `expected` events were delivered or missed. Returns the delivered ones and the number of the others.
async fn read_all(events: &mut LosslessEvents<String, u64>, expected: u64) -> (BTreeSet<u64>, u64) {
    let (mut delivered, mut missed) = (BTreeSet::new(), 0);
    while delivered.len() as u64 + missed < expected {
        let item = timeout(patience(), events.recv()).await;
        let item =
            item.unwrap_or_else(|_| panic!("{} delivered, {missed} missed", delivered.len()));
        match item.unwrap() {
            Ok(event) => assert!(delivered.insert(event.value), "{} twice", event.value),
            Err(Error::Missed(events)) => missed += events,
            Err(error) => panic!("{error:?}"),
        }
    }
    (delivered, missed)
}

async fn assert_accounted(
    cache: &Cache<String, u64>,
    events: &mut LosslessEvents<String, u64>,
    expected: u64,
) -> u64 {
    let before = cache.stats().missed;
    let (delivered, missed) = read_all(events, expected).await;
    assert_eq!(delivered.len() as u64 + missed, expected);
    assert_eq!(cache.stats().missed - before, missed);
    assert!(timeout(ms(300), events.recv()).await.is_err(), "nothing follows");
    missed
}

async fn assert_stalled_subscriber_receives_missed(urls: impl Urls) {
    let cache = cache(&connect(urls).await, retention());
    let mut events = cache.events_lossless("g").await.unwrap();
    fill(&cache, 0..5_000, ms(50)).await;
    sleep(3 * retention()).await;
    let missed = assert_accounted(&cache, &mut events, 5_000).await;
    assert!(missed > 1_000, "{missed}: more than this process reads ahead were lost");
    // The next events are delivered, and none is missed.
    fill(&cache, 0..100, ms(50)).await;
    assert_eq!(assert_accounted(&cache, &mut events, 100).await, 0);
}

#[tokio::test]
async fn events_lost_during_a_stall_are_reported_as_missed() {
    in_time(async || {
        let server = Server::start();
        assert_stalled_subscriber_receives_missed(server.url()).await;
    })
    .await;
}

#[tokio::test]
async fn events_lost_during_a_stall_are_reported_as_missed_in_a_cluster() {
    in_time(async || {
        let cluster = Cluster::start();
        assert_stalled_subscriber_receives_missed(cluster.urls()).await;
    })
    .await;
}

#[tokio::test]
async fn events_lost_without_a_subscriber_are_reported_as_missed_to_each_group() {
    in_time(async || {
        let server = Server::start();
        let cache = cache(&connect(server.url()).await, retention());
        // Not for the groups, which do not exist yet.
        fill(&cache, 10_000..10_500, ms(20)).await;
        sleep(retention() + ms(300)).await;
        for group in ["a", "b"] {
            drop(cache.events_lossless(group).await.unwrap());
        }
        // Some are published by the writer of the same key, others only due; then all of them expire.
        fill(&cache, 0..500, ms(20)).await;
        sleep(ms(100)).await;
        fill(&cache, 0..200, ms(20)).await;
        sleep(3 * retention()).await;
        for group in ["a", "b"] {
            let mut events = cache.events_lossless(group).await.unwrap();
            assert_eq!(assert_accounted(&cache, &mut events, 700).await, 700);
        }
        // Written again after the loss.
        fill(&cache, 0..100, ms(20)).await;
        let mut events = cache.events_lossless("a").await.unwrap();
        assert_eq!(assert_accounted(&cache, &mut events, 100).await, 0);
    })
    .await;
}

#[tokio::test]
async fn events_trimmed_while_others_are_published_are_reported_as_missed() {
    in_time(async || {
        let server = Server::start();
        let cache = cache(&connect(server.url()).await, retention());
        drop(cache.events_lossless("absent").await.unwrap());
        let mut present = cache.events_lossless("present").await.unwrap();
        let begin = Instant::now();
        let mut written = 0;
        while begin.elapsed() < 3 * retention() {
            fill(&cache, written..written + 100, ms(10)).await;
            written += 100;
            assert_eq!(read_all(&mut present, 100).await.1, 0);
        }
        let mut absent = cache.events_lossless("absent").await.unwrap();
        let (delivered, missed) = read_all(&mut absent, written).await;
        assert!(missed > 0 && !delivered.is_empty(), "{missed}, {}", delivered.len());
        // The last ones are there.
        assert!(delivered.contains(&(written - 1)) && !delivered.contains(&0));
    })
    .await;
}

#[tokio::test]
async fn events_leased_by_a_crashed_subscriber_and_lost_are_reported_as_missed() {
    in_time(async || {
        let server = Server::start();
        let (url, retained_for) = (server.url(), retention());
        let victim = std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async {
                let cache = cache(&connect(url).await, retained_for);
                let mut events = cache.events_lossless("g").await.unwrap();
                fill(&cache, 0..100, ms(20)).await;
                events.recv().await.unwrap().unwrap();
                while !format!("{events:?}").contains("unread: 99") {
                    sleep(ms(10)).await;
                }
                // As after a crash, nothing is given back.
                std::mem::forget(events);
            });
            runtime.shutdown_background();
        });
        tokio::task::spawn_blocking(|| victim.join().unwrap()).await.unwrap();
        sleep(4 * retention()).await;
        let cache = cache(&connect(server.url()).await, retention());
        let mut events = cache.events_lossless("g").await.unwrap();
        assert_eq!(assert_accounted(&cache, &mut events, 100).await, 100);
    })
    .await;
}

/// Loses the events of a group without a subscriber.
async fn lose(cache: &Cache<String, u64>, count: u64) {
    drop(cache.events_lossless("g").await.unwrap());
    fill(cache, 0..count, ms(50)).await;
    sleep(3 * retention()).await;
}

/// Waits until the number of missed events is in the process of the subscriber.
async fn until_missed_is_unread(events: &LosslessEvents<String, u64>) {
    while !format!("{events:?}").contains("unread: 1") {
        sleep(ms(10)).await;
    }
}

#[tokio::test]
async fn missed_events_of_a_dropped_subscriber_are_reported_to_the_next() {
    in_time(async || {
        let server = Server::start();
        let cache = cache(&connect(server.url()).await, retention());
        lose(&cache, 5_000).await;
        let events = cache.events_lossless("g").await.unwrap();
        until_missed_is_unread(&events).await;
        drop(events);
        // The first polls of the next one may come before the number is given back.
        sleep(ms(300)).await;
        let mut events = cache.events_lossless("g").await.unwrap();
        assert_eq!(assert_accounted(&cache, &mut events, 5_000).await, 5_000);
        // Received, so that it is not reported again.
        drop(events);
        sleep(ms(300)).await;
        let mut events = cache.events_lossless("g").await.unwrap();
        assert!(timeout(ms(2_000), events.recv()).await.is_err());
        assert_eq!(cache.stats().missed, 5_000);
    })
    .await;
}

#[tokio::test]
async fn missed_events_of_a_crashed_subscriber_are_reported_to_another() {
    in_time(async || {
        let server = Server::start();
        let (url, retained_for) = (server.url(), retention());
        let victim = std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async {
                let cache = cache(&connect(url).await, retained_for);
                lose(&cache, 100).await;
                let events = cache.events_lossless("g").await.unwrap();
                until_missed_is_unread(&events).await;
                std::mem::forget(events);
            });
            runtime.shutdown_background();
        });
        tokio::task::spawn_blocking(|| victim.join().unwrap()).await.unwrap();
        let cache = cache(&connect(server.url()).await, retention());
        let mut events = cache.events_lossless("g").await.unwrap();
        assert_eq!(assert_accounted(&cache, &mut events, 100).await, 100);
    })
    .await;
}

/// Longer than a lease, which both of them renew.
#[tokio::test]
async fn missed_events_are_reported_to_one_of_two_subscribers() {
    in_time(async || {
        let server = Server::start();
        let cache = cache(&connect(server.url()).await, retention());
        lose(&cache, 100).await;
        let mut first = cache.events_lossless("g").await.unwrap();
        until_missed_is_unread(&first).await;
        let mut second = cache.events_lossless("g").await.unwrap();
        assert!(timeout(ms(4_000), second.recv()).await.is_err());
        assert_eq!(assert_accounted(&cache, &mut first, 100).await, 100);
    })
    .await;
}

#[tokio::test]
async fn broadcast_subscriber_that_was_disconnected_for_the_retention_lags() {
    in_time(async || {
        let server = Server::start();
        let proxy = Proxy::to(server.port()).await;
        let cache = cache(&connect(server.url()).await, retention());
        let proxied = self::cache(&connect(proxy.url()).await, retention());
        let mut present = cache.events().await.unwrap();
        let mut absent = proxied.events().await.unwrap();
        proxy.close(true);
        proxy.cut();
        fill(&cache, 0..200, ms(20)).await;
        for _ in 0..200 {
            timeout(patience(), present.recv()).await.unwrap().unwrap().unwrap();
        }
        sleep(2 * retention()).await;
        proxy.close(false);
        let (mut delivered, mut missed) = (0, 0);
        while delivered + missed < 200 {
            match timeout(patience(), absent.recv()).await.unwrap().unwrap() {
                Ok(_) => delivered += 1,
                Err(lagged) => missed += lagged.0,
            }
        }
        assert_eq!((delivered, missed, proxied.stats().missed), (0, 200, 200));
        fill(&cache, 0..20, ms(20)).await;
        for _ in 0..20 {
            timeout(patience(), absent.recv()).await.unwrap().unwrap().unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn subscribers_receive_events_of_a_new_stream_with_lower_ids() {
    in_time(async || {
        let server = Server::start_with_clock();
        server.set_clock(HOUR);
        let cache = cache(&connect(server.url()).await, HOUR);
        let mut all = cache.events().await.unwrap();
        let mut group = cache.events_lossless("g").await.unwrap();
        let expire = async |n: u64| {
            cache.set("ada".into(), n).await.unwrap();
            cache.expire_now("ada").await.unwrap();
        };
        expire(0).await;
        assert_eq!(timeout(patience(), all.recv()).await.unwrap().unwrap().unwrap().value, 0);
        assert_eq!(timeout(patience(), group.recv()).await.unwrap().unwrap().unwrap().value, 0);
        group.ack().await.unwrap();
        sleep(ms(100)).await;
        for (n, lose) in
            (1..).zip([["*.expired", "*.told"], ["*.expired", "*.none"], ["*", "*.none"]])
        {
            server.set_clock(HOUR / 2 / n as u32);
            let mut plain = server.plain().await;
            for pattern in lose {
                let keys: Vec<String> =
                    redis::cmd("KEYS").arg(pattern).query_async(&mut plain).await.unwrap();
                for key in keys {
                    let () = redis::cmd("DEL").arg(key).query_async(&mut plain).await.unwrap();
                }
            }
            // Both before and after a poll has found no stream.
            if n > 1 {
                sleep(ms(100)).await;
            }
            expire(n).await;
            assert_eq!(timeout(patience(), all.recv()).await.unwrap().unwrap().unwrap().value, n);
            assert_eq!(timeout(patience(), group.recv()).await.unwrap().unwrap().unwrap().value, n);
            group.ack().await.unwrap();
            sleep(ms(100)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn broadcast_subscriber_receives_no_event_again_after_the_server_has_lost_one() {
    in_time(async || {
        let mut server = Server::start();
        let builder = Cache::<String, u64>::builder(&connect(server.url()).await, "c").events(HOUR);
        let cache = builder.poll_every(ms(20)).build().unwrap();
        let mut events = cache.events().await.unwrap();
        for n in 0..6 {
            let until = Instant::now() + patience();
            while let Err(error) = cache.set("ada".into(), n).await {
                assert!(Instant::now() < until, "{error:?}");
            }
            cache.expire_now("ada").await.unwrap();
            let event = timeout(patience(), events.recv()).await.unwrap().unwrap();
            assert_eq!(event.unwrap().value, n);
            match n {
                2 => assert!(server.ask("SAVE").starts_with("+OK")),
                3 => {
                    server.kill();
                    server.restart();
                    // The subscriber reads before the next event.
                    sleep(ms(300)).await;
                }
                _ => {}
            }
        }
        assert!(timeout(ms(200), events.recv()).await.is_err(), "nothing follows");
        assert_eq!(cache.stats().missed, 0);
    })
    .await;
}

/// The retention is shorter than the lease, so that events are trimmed from the stream while a subscriber holds them.
#[tokio::test]
async fn events_that_were_trimmed_while_a_subscriber_held_them_are_missed_if_it_is_dropped() {
    in_time(async || {
        let server = Server::start();
        let client = connect(server.url()).await;
        let builder = Cache::builder(&client, "c").events(ms(200)).lease(ms(600));
        let cache: Cache<String, u64> = builder.poll_every(ms(10)).build().unwrap();
        let mut events = cache.events_lossless("g").await.unwrap();
        fill(&cache, 0..30, ms(1)).await;
        timeout(patience(), events.recv()).await.unwrap().unwrap().unwrap();
        // All of them are read ahead. After the retention, a new subscriber trims them.
        sleep(ms(300)).await;
        let other = cache.events_lossless("h").await.unwrap();
        // Two renewals of the leases.
        sleep(ms(400)).await;
        drop((events, other));
        let mut events = cache.events_lossless("g").await.unwrap();
        // Also the first one, which was received and not acknowledged.
        let (delivered, missed) = read_all(&mut events, 30).await;
        assert_eq!(delivered.len() as u64 + missed, 30, "{delivered:?}, {missed} missed");
        sleep(ms(50)).await;
        assert_eq!(cache.stats().missed, missed);
    })
    .await;
}

/// Number of failed attempts after which an event is dead.
const MAX_ATTEMPTS: u32 = 16;

/// A group, and what has become of its events.
struct Ledger {
    cache: Cache<u64, u64>,
    random: SmallRng,
    /// The subscribers, and the event that each has received and not settled.
    subscribers: Vec<(LosslessEvents<u64, u64>, Option<u64>)>,
    written: u64,
    acked: BTreeSet<u64>,
    dead: BTreeSet<u64>,
    missed: u64,
    attempts: BTreeMap<u64, u32>,
}

impl Ledger {
    async fn new(client: &Client, seed: u64) -> Self {
        let builder = Cache::builder(client, &format!("ledger-{seed}")).shards(2);
        let builder = builder.events(ms(600)).lease(ms(400)).poll_every(ms(10));
        let mut ledger = Self {
            cache: builder.build().unwrap(),
            random: SmallRng::seed_from_u64(seed),
            subscribers: Vec::new(),
            written: 0,
            acked: BTreeSet::new(),
            dead: BTreeSet::new(),
            missed: 0,
            attempts: BTreeMap::new(),
        };
        ledger.subscribe().await;
        ledger.subscribe().await;
        ledger
    }

    async fn subscribe(&mut self) {
        self.subscribers.push((self.cache.events_lossless("g").await.unwrap(), None));
    }

    fn settled(&self) -> u64 {
        (self.acked.len() + self.dead.len()) as u64 + self.missed
    }

    async fn step(&mut self) {
        match self.random.random_range(0..20) {
            0..4 => {
                for _ in 0..self.random.random_range(1..20) {
                    let ttl = ms(self.random.random_range(1..50));
                    self.cache.set_ex(self.written, self.written, ttl).await.unwrap();
                    self.written += 1;
                }
            }
            4..15 => self.receive(false).await,
            15..17 => {
                let dropped = self.random.random_range(0..self.subscribers.len());
                drop(self.subscribers.swap_remove(dropped));
                self.subscribe().await;
            }
            _ => sleep(ms(self.random.random_range(0..1_200))).await,
        }
    }

    /// Receives an event, which acknowledges the previous one, and settles it at random; acknowledges it if it is among
    /// the `last` ones.
    async fn receive(&mut self, last: bool) {
        let at = self.random.random_range(0..self.subscribers.len());
        let (events, unsettled) = &mut self.subscribers[at];
        let received = timeout(ms(30), events.recv()).await;
        self.acked.extend(unsettled.take());
        let event = match received {
            Ok(Some(Ok(event))) => event.value,
            Ok(Some(Err(Error::Missed(events)))) => return self.missed += events,
            Ok(other) => panic!("{other:?}"),
            Err(_) => return,
        };
        assert!(!self.acked.contains(&event) && !self.dead.contains(&event), "{event} is settled");
        let how = if last { 3 } else { self.random.random_range(0..6) };
        let is_failed = if event % 10 == 0 {
            // Until it is dead, if it is not lost before.
            events.retry_in(Duration::ZERO).await.unwrap()
        } else if how == 0 {
            events.fail("no").await.unwrap()
        } else if how == 1 {
            events.retry_in(ms(self.random.random_range(0..1_000))).await.unwrap()
        } else if how < 4 {
            events.ack().await.unwrap();
            !self.acked.insert(event)
        } else {
            *unsettled = Some(event);
            false
        };
        if is_failed {
            // Dead after the last one.
            let attempts = self.attempts.entry(event).or_default();
            *attempts += 1;
            self.dead.extend((*attempts == MAX_ATTEMPTS).then_some(event));
        }
    }
}

/// Events are acknowledged, given back, held by a subscriber that is dropped, and read ahead, within their retention
/// and after it.
#[tokio::test]
async fn each_event_is_acknowledged_or_dead_or_missed_exactly_once() {
    in_time(async || {
        let server = Server::start();
        // Otherwise a stream is trimmed by a hundred events at a time.
        assert!(server.ask("CONFIG SET stream-node-max-entries 3").starts_with("+OK"));
        let client = connect(server.url()).await;
        let plays = (0..24).map(async |seed| {
            let mut ledger = Ledger::new(&client, seed).await;
            for _ in 0..60 {
                ledger.step().await;
            }
            let begin = Instant::now();
            while ledger.settled() != ledger.written && begin.elapsed() < ms(15_000) {
                for _ in 0..30 {
                    ledger.receive(true).await;
                }
                // New ones ask each shard; the present ones may wait for ten seconds.
                ledger.subscribers.clear();
                ledger.subscribe().await;
            }
            // None is counted again.
            for _ in 0..20 {
                ledger.receive(true).await;
            }
            let (acked, dead) = (ledger.acked.len() as u64, ledger.dead.len() as u64);
            let Ledger { written, missed, .. } = ledger;
            let off = (acked + dead + missed) as i64 - written as i64;
            println!("seed {seed}: {written} events, {acked} acked, {dead} dead, {missed} missed");
            (off, acked, dead, missed)
        });
        let plays = join_all(plays).await;
        let off: Vec<_> = plays.iter().map(|(off, ..)| *off).collect();
        assert_eq!(off, vec![0; plays.len()]);
        let is_each_seen = plays.iter().any(|(_, _, dead, _)| *dead > 0)
            && plays.iter().all(|(_, acked, _, missed)| *acked > 0 && *missed > 0);
        assert!(is_each_seen, "{plays:?}");
    })
    .await;
}
