//! The timeout dictionary when the server forgets its scripts, dies, or holds what is not ours, and when
//! connections are cut.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use fleeting::{
    Ttl,
    redis::{Client, Error, TimeoutDict},
};
use futures::future::join_all;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::{task::JoinHandle, time::sleep};

use crate::{
    clock::{in_time, ms, until_enough},
    servers::{Proxy, SMALL_ANSWERS, Server},
};

const MILLI: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(60);

type Dict = TimeoutDict<String, u32>;

async fn client(url: String) -> Client {
    Client::builder(url).timeout(Duration::from_secs(10)).connect().await.unwrap()
}

async fn dict(server: &Server) -> Dict {
    Dict::new(&client(server.url()).await, "logins").unwrap()
}

async fn fill(dict: &Dict, count: u32) {
    for some in (0..count).collect::<Vec<_>>().chunks(500) {
        let sets = some.iter().map(|key| dict.set(key.to_string(), *key, Duration::ZERO));
        assert!(join_all(sets).await.into_iter().all(|old| old.unwrap().is_none()));
    }
}

async fn plain(server: &Server, command: &[&str]) -> redis::Value {
    let mut cmd = redis::cmd(command[0]);
    cmd.arg(&command[1..]);
    cmd.query_async(&mut server.plain().await).await.unwrap()
}

/// Where the entry of "ada" is.
const INDEX: &str = "fleeting:dict1:{logins:2}";
const RECORD: &str = "fleeting:dict1:{logins:2}:ada";

#[tokio::test]
async fn a_server_that_forgot_the_scripts_is_told_them_again() {
    let server = Server::start();
    let dict = dict(&server).await;
    for round in 0..2 {
        dict.set("ada".into(), round, Duration::ZERO).await.unwrap();
        plain(&server, &["SCRIPT", "FLUSH"]).await;
        assert_eq!(dict.ttl("ada").await.unwrap(), Ttl::Remaining(Duration::ZERO));
        plain(&server, &["SCRIPT", "FLUSH"]).await;
        let claim = dict.next_claim(LONG).await.unwrap();
        plain(&server, &["SCRIPT", "FLUSH"]).await;
        assert!(claim.extend(LONG).await.unwrap());
        plain(&server, &["SCRIPT", "FLUSH"]).await;
        assert!(claim.ack().await.unwrap());
    }
}

fn is_wrong<T: std::fmt::Debug>(outcome: Result<T, Error>, expected: &str) {
    let error = outcome.unwrap_err();
    assert!(matches!(&error, Error::WrongType { key } if key == expected), "{error:?}");
}

#[tokio::test]
async fn what_others_put_under_our_keys_is_an_error_and_stays() {
    for (key, type_of_other) in [(INDEX, "SET"), (RECORD, "HSET")] {
        let server = Server::start();
        let dict = dict(&server).await;
        match type_of_other {
            "SET" => plain(&server, &["SET", key, "theirs"]).await,
            _ => plain(&server, &["HSET", key, "field", "theirs"]).await,
        };
        let before = plain(&server, &["KEYS", "*"]).await;
        is_wrong(dict.set("ada".into(), 1, Duration::ZERO).await, key);
        if key == RECORD {
            is_wrong(dict.get("ada").await, key);
            is_wrong(dict.set_timeout("ada", LONG).await, key);
            is_wrong(dict.remove("ada").await, key);
            is_wrong(dict.ttl("ada").await, key);
            assert_eq!(dict.take_expired(9).await.unwrap(), []);
        } else {
            plain(&server, &["SET", RECORD, "7"]).await;
            is_wrong(dict.set_timeout("ada", LONG).await, key);
            is_wrong(dict.remove("ada").await, key);
            is_wrong(dict.ttl("ada").await, key);
            is_wrong(dict.clear().await, key);
            assert_eq!(dict.get("ada").await.unwrap(), Some(7), "nothing was changed");
            plain(&server, &["DEL", RECORD]).await;
        }
        if key == INDEX {
            is_wrong(dict.len().await, key);
            is_wrong(dict.take_expired(9).await, key);
            is_wrong(dict.claim_expired(9, LONG).await, key);
            is_wrong(dict.next_expired().await, key);
            // The other shards go on, and nothing that they gave is lost.
            dict.set("0".into(), 7, Duration::ZERO).await.unwrap();
            assert_eq!(dict.take_expired(9).await.unwrap(), [("0".to_owned(), 7)]);
        }
        assert_eq!(plain(&server, &["KEYS", "*"]).await, before);
    }
}

#[tokio::test]
async fn a_record_that_became_another_type_does_not_stand_in_the_way() {
    in_time(async || {
        let server = Server::start();
        let dict = dict(&server).await;
        for is_claim in [false, true] {
            fill(&dict, 40).await;
            dict.set_timeout("0", Duration::ZERO).await.unwrap();
            dict.set("ada".into(), 1, Duration::ZERO).await.unwrap();
            plain(&server, &["DEL", RECORD]).await;
            plain(&server, &["HSET", RECORD, "field", "theirs"]).await;
            let is_alone = dict.claim_expired(100, Duration::ZERO).await.unwrap();
            assert_eq!(is_alone.len(), 40);
            let (claims, taken) = match is_claim {
                true => (dict.claim_expired(100, LONG).await.unwrap(), vec![]),
                false => (vec![], dict.take_expired(100).await.unwrap()),
            };
            assert_eq!(claims.len() + taken.len(), 40);
            // Alone it is an error that names it.
            dict.set("alone".into(), 1, LONG).await.unwrap();
            plain(&server, &["ZADD", INDEX, "2", "ada"]).await;
            match is_claim {
                true => is_wrong(dict.claim_expired(100, LONG).await, RECORD),
                false => is_wrong(dict.take_expired(100).await, RECORD),
            }
            assert_eq!(dict.take_expired(100).await.unwrap(), [], "it is hidden");
            assert_eq!(dict.remove("alone").await.unwrap(), Some(1));
            assert_eq!(dict.len().await.unwrap(), if is_claim { 41 } else { 1 }, "it stays");
            dict.clear().await.unwrap();
            assert!(dict.is_empty().await.unwrap());
            let theirs = plain(&server, &["HGET", RECORD, "field"]).await;
            assert_eq!(theirs, redis::Value::BulkString(b"theirs".to_vec()));
            plain(&server, &["DEL", RECORD]).await;
        }
    })
    .await;
}

fn is_unread<T: std::fmt::Debug>(outcome: Result<T, Error>, expected: &str) {
    let error = outcome.unwrap_err();
    assert!(matches!(&error, Error::Decode { key, .. } if key == expected), "{error:?}");
}

#[tokio::test]
async fn what_does_not_decode_is_named_and_not_lost() {
    in_time(async || {
        let server = Server::start();
        let dict = dict(&server).await;
        let texts: TimeoutDict<String, String> =
            TimeoutDict::new(&client(server.url()).await, "logins").unwrap();
        let others: Vec<_> = (0..40).map(|key| (key.to_string(), key)).collect();

        // Taken with others.
        fill(&dict, 20).await;
        texts.set("ada".into(), "x".into(), Duration::ZERO).await.unwrap();
        for (key, value) in &others[20..] {
            dict.set(key.clone(), *value, Duration::ZERO).await.unwrap();
        }
        is_unread(dict.get("ada").await, RECORD);
        is_unread(dict.remove("ada").await, RECORD);
        assert_eq!(texts.ttl("ada").await.unwrap(), Ttl::Remaining(Duration::ZERO));
        assert_eq!(dict.take_expired(100).await.unwrap(), others, "in their order");
        let Ttl::Remaining(left) = texts.ttl("ada").await.unwrap() else {
            panic!("it has a deadline")
        };
        assert!(left > LONG - LONG / 6 && left <= LONG, "{left:?}");
        assert_eq!(texts.get("ada").await.unwrap().as_deref(), Some("x"));

        // Alone it is an error.
        texts.set_timeout("ada", Duration::ZERO).await.unwrap();
        is_unread(dict.take_expired(100).await, RECORD);
        assert_eq!(dict.take_expired(100).await.unwrap(), [], "it is hidden");

        // Claimed with others.
        texts.set_timeout("ada", Duration::ZERO).await.unwrap();
        is_unread(dict.claim_expired(100, ms(1)).await, RECORD);
        sleep(ms(10)).await;
        fill(&dict, 40).await;
        let claims = dict.claim_expired(100, ms(300)).await.unwrap();
        let claimed: Vec<_> =
            claims.iter().map(|claim| (claim.key().clone(), *claim.value())).collect();
        assert_eq!(claimed, others);
        for claim in claims {
            assert!(claim.ack().await.unwrap());
        }
        let again = texts.next_claim(LONG).await.unwrap();
        assert_eq!((again.key().as_str(), again.value().as_str()), ("ada", "x"));
        drop(again);
        sleep(ms(50)).await;
        is_unread(dict.next_expired().await, RECORD);
        assert_eq!(texts.remove("ada").await.unwrap().as_deref(), Some("x"));

        // To set replaces it, as it is.
        texts.set("ada".into(), "x".into(), Duration::ZERO).await.unwrap();
        assert_eq!(dict.set("ada".into(), 7, LONG).await.unwrap(), None);
        assert_eq!(dict.get("ada").await.unwrap(), Some(7));

        // A key that is no number.
        dict.set_timeout("ada", Duration::ZERO).await.unwrap();
        let numbers: TimeoutDict<u32, u32> =
            TimeoutDict::new(&client(server.url()).await, "logins").unwrap();
        is_unread(numbers.take_expired(9).await, "ada");
        assert_eq!(dict.get("ada").await.unwrap(), Some(7));
    })
    .await;
}

#[tokio::test]
async fn what_does_not_decode_stands_in_nobodys_way_however_many_they_are() {
    in_time(async || {
        let server = Server::start();
        let dict = dict(&server).await;
        let texts: TimeoutDict<String, String> =
            TimeoutDict::new(&client(server.url()).await, "logins").unwrap();
        let bad = async || {
            let sets = (0..200).map(|n| texts.set(format!("bad {n}"), "x".into(), Duration::ZERO));
            join_all(sets).await.into_iter().for_each(|set| drop(set.unwrap()));
        };
        bad().await;
        dict.set("good".into(), 1, Duration::ZERO).await.unwrap();
        let good = [("good".to_owned(), 1)];
        assert_eq!(dict.take_expired(10).await.unwrap(), good, "in the first call");
        bad().await;
        dict.set("good".into(), 1, Duration::ZERO).await.unwrap();
        let claims = dict.claim_expired(10, LONG).await.unwrap();
        assert_eq!((claims.len(), claims[0].key().as_str()), (1, "good"));
        // None is lost.
        assert_eq!(dict.len().await.unwrap(), 201);
        assert_eq!(texts.get("bad 7").await.unwrap().as_deref(), Some("x"));
        // What never can be read fails as often as it may.
        let jobs: Dict = TimeoutDict::builder(&client(server.url()).await, "logins")
            .max_attempts(2)
            .build()
            .unwrap();
        bad().await;
        assert!(jobs.claim_expired(10, ms(1)).await.is_err());
        sleep(ms(5)).await;
        assert!(jobs.claim_expired(10, ms(1)).await.is_err());
        sleep(ms(5)).await;
        assert_eq!(jobs.dead_len().await.unwrap(), 200);
        jobs.set("good".into(), 1, Duration::ZERO).await.unwrap();
        for _ in 0..2 {
            drop(jobs.claim_expired(9, ms(1)).await.unwrap());
            sleep(ms(1_600)).await;
        }
        assert_eq!(jobs.take_dead(10).await.unwrap(), good, "in the first call");
        assert_eq!(jobs.len().await.unwrap(), 200);
    })
    .await;
}

#[tokio::test]
async fn a_hundred_entries_of_a_megabyte_are_taken() {
    let server = Server::start_with(&SMALL_ANSWERS);
    // As a client is by default.
    let client = Client::connect(server.url()).await.unwrap();
    let builder = TimeoutDict::builder(&client, "large").format(fleeting::redis::Format::Raw);
    let dict: TimeoutDict<u32, String> = builder.build().unwrap();
    let large = "x".repeat(1 << 20);
    for n in 0..120 {
        dict.set(n, large.clone(), Duration::ZERO).await.unwrap();
    }
    let claims = dict.claim_expired(20, LONG).await.unwrap();
    assert!(claims.iter().map(|claim| *claim.key()).eq(0..20), "the oldest, in their order");
    for claim in claims {
        assert!(claim.value() == &large && claim.ack().await.unwrap());
    }
    let taken = dict.take_expired(1_000).await.unwrap();
    assert!(taken.iter().map(|entry| entry.0).eq(20..120), "all, in their order");
    assert!(taken.iter().all(|entry| entry.1 == large));
    assert!(dict.is_empty().await.unwrap());
}

#[tokio::test]
async fn what_a_slow_answer_held_comes_again() {
    in_time(async || {
        let server = Server::start();
        let client = Client::builder(server.url()).timeout(ms(300)).connect().await.unwrap();
        let dict = Dict::new(&client, "logins").unwrap();
        let mut taken = BTreeSet::new();
        let mut slow = 0;
        for round in 0..30 {
            let from = taken.len() as u32 + 1_000 * round;
            for key in from..from + 20 {
                dict.set(key.to_string(), key, Duration::ZERO).await.unwrap();
            }
            // Somewhere between the first question and the last answer.
            let (some, ()) = tokio::join!(dict.take_expired(100), async {
                sleep(Duration::from_micros(u64::from(200 * round))).await;
                server.pause();
                sleep(ms(700)).await;
                server.resume();
            });
            let mut take = |some: Vec<(String, u32)>| {
                for (key, _) in some {
                    assert!(taken.insert(key.clone()), "{key} comes twice");
                }
            };
            match some {
                Ok(some) => take(some),
                Err(Error::Unanswered(_)) => slow += 1,
                Err(error) => panic!("{error:?}"),
            }
            let begin = Instant::now();
            while !dict.is_empty().await.unwrap() {
                assert!(begin.elapsed() < LONG, "they do not come again");
                take(dict.take_expired(100).await.unwrap());
                sleep(ms(5)).await;
            }
            assert_eq!(taken.len() as u32, 20 * (round + 1), "nothing is lost");
            if slow >= 3 {
                return;
            }
        }
        panic!("no answer was slow");
    })
    .await;
}

/// What the workers below saw.
#[derive(Default)]
struct Seen {
    taken: Vec<u32>,
    claims: BTreeMap<u32, Vec<Instant>>,
    acked: BTreeMap<u32, Instant>,
    unanswered: u32,
}

impl Seen {
    /// How many entries somebody was given so far.
    fn given(&self) -> usize {
        self.taken.len() + self.claims.len()
    }
}

/// Takes and claims until all is done, whatever happens to the server.
async fn work(dict: Dict, lease: Duration, takes: bool, seen: Arc<Mutex<Seen>>) {
    let begin = Instant::now();
    loop {
        if takes {
            match dict.take_expired(5).await {
                Ok(taken) => seen.lock().unwrap().taken.extend(taken.iter().map(|entry| entry.1)),
                Err(error) => note(&seen, error),
            }
        } else {
            match dict.claim_expired(20, lease).await {
                Ok(claims) => {
                    let now = Instant::now();
                    for claim in &claims {
                        let mut seen = seen.lock().unwrap();
                        seen.claims.entry(*claim.value()).or_default().push(now);
                    }
                    let acks = claims.into_iter().map(async |claim| {
                        let value = *claim.value();
                        match claim.ack().await {
                            Ok(true) => {
                                let twice =
                                    seen.lock().unwrap().acked.insert(value, Instant::now());
                                assert!(twice.is_none(), "{value} is acked twice");
                            }
                            Ok(false) => {}
                            Err(error) => note(&seen, error),
                        }
                    });
                    join_all(acks).await;
                }
                Err(error) => note(&seen, error),
            }
        }
        match dict.is_empty().await {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => note(&seen, error),
        }
        assert!(begin.elapsed() < 2 * LONG, "it does not come to an end");
        sleep(MILLI).await;
    }
}

fn note(seen: &Mutex<Seen>, error: Error) {
    match error {
        Error::Unanswered(_) => seen.lock().unwrap().unanswered += 1,
        Error::Connect(_) | Error::Unavailable(_) => {}
        error => panic!("{error:?}"),
    }
}

fn check_claims(seen: &Seen, count: u32, lease: Duration) {
    let claimed: BTreeSet<_> = seen.claims.keys().copied().collect();
    assert_eq!(claimed, (0..count).collect(), "no claim is lost");
    for (value, at) in &seen.claims {
        for two in at.windows(2) {
            let between = two[1] - two[0];
            // The lease began before the answer came.
            assert!(between + lease / 2 > lease, "{value} comes again after {between:?}");
        }
        if let Some(acked) = seen.acked.get(value) {
            assert!(at.last().unwrap() < acked, "{value} comes again after its ack");
        }
    }
}

#[tokio::test]
async fn a_server_that_is_killed_under_load_loses_no_claim() {
    in_time(async || {
        let lease = Duration::from_secs(2);
        check_claims(&killed_under_load(lease, false).await.lock().unwrap(), 2_000, lease);
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_killed_under_load_gives_nothing_twice() {
    in_time(async || {
        check_taken(&killed_under_load(LONG, true).await.lock().unwrap(), 2_000);
    })
    .await;
}

/// What three workers saw of 2,000 entries, while their server was killed three times.
async fn killed_under_load(lease: Duration, takes: bool) -> Arc<Mutex<Seen>> {
    let mut server = Server::durable();
    let dict = dict(&server).await;
    fill(&dict, 2_000).await;
    let seen = Arc::new(Mutex::new(Seen::default()));
    let workers: Vec<_> =
        (0..3).map(|_| tokio::spawn(work(dict.clone(), lease, takes, seen.clone()))).collect();
    for round in 1..=3 {
        while seen.lock().unwrap().given() < round * 400 {
            sleep(MILLI).await;
        }
        server.kill();
        assert!(seen.lock().unwrap().given() < 2_000, "the server was killed in vain");
        server.restart();
    }
    for worker in workers {
        worker.await.unwrap();
    }
    seen
}

fn check_taken(seen: &Seen, count: usize) {
    let each: BTreeSet<_> = seen.taken.iter().copied().collect();
    assert_eq!(each.len(), seen.taken.len(), "an entry was taken twice");
    // What a call took whose answer was lost: at most 5 each, and as many calls at once as there are workers
    // and cuts.
    let lost = count - each.len();
    assert!(lost <= count / 4, "{lost} are lost");
}

#[tokio::test]
async fn connections_that_are_cut_lose_no_claim_and_give_nothing_twice() {
    let lease = Duration::from_secs(1);
    in_time(async || {
        until_enough(async || {
            let seen = cut_connections(lease, false).await;
            let seen = seen.lock().unwrap();
            check_claims(&seen, 2_000, lease);
            seen.unanswered > 0
        })
        .await;
    })
    .await;
    check_taken(&cut_connections(lease, true).await.lock().unwrap(), 2_000);
}

/// What three workers saw of 2,000 entries, while their connections were cut.
async fn cut_connections(lease: Duration, takes: bool) -> Arc<Mutex<Seen>> {
    let server = Server::start();
    fill(&dict(&server).await, 2_000).await;
    let seen = Arc::new(Mutex::new(Seen::default()));
    let mut workers = Vec::new();
    let mut proxies = Vec::new();
    for _ in 0..3 {
        let proxy = Proxy::to(server.port()).await;
        let dict = Dict::new(&client(proxy.url()).await, "logins").unwrap();
        workers.push(tokio::spawn(work(dict, lease, takes, seen.clone())));
        proxies.push(proxy);
    }
    cut_until_done(&proxies, workers).await;
    seen
}

/// Cuts them again and again, and waits for those who work through them.
async fn cut_until_done(proxies: &[Proxy], workers: Vec<JoinHandle<()>>) {
    for round in 0..60 {
        sleep((round % 7) * MILLI).await;
        proxies[round as usize % proxies.len()].cut();
    }
    for worker in workers {
        worker.await.unwrap();
    }
}

/// Nobody knows whether a claim whose answer was lost has failed until its lease is over; but it has once at most.
#[tokio::test]
async fn connections_that_are_cut_let_nothing_fail_too_often_or_for_ever() {
    const COUNT: u32 = 150;
    in_time(async || {
        until_enough(async || {
            let server = Server::start();
            fill(&dict(&server).await, COUNT).await;
            let seen = Arc::new(Mutex::new((Tries::new(), 0)));
            let (mut workers, mut proxies) = (Vec::new(), Vec::new());
            for seed in 0..3 {
                let proxy = Proxy::to(server.port()).await;
                let dict = Dict::builder(&client(proxy.url()).await, "logins");
                let dict = dict.max_attempts(3).backoff(ms(1), ms(2)).build().unwrap();
                workers.push(tokio::spawn(fail_now_and_then(dict, seed, seen.clone())));
                proxies.push(proxy);
            }
            cut_until_done(&proxies, workers).await;
            let dict = dict(&server).await;
            let dead = dict.take_dead(usize::MAX).await.unwrap();
            assert!(dict.is_empty().await.unwrap(), "all the rest was acked");
            let (tries, unanswered) = &*seen.lock().unwrap();
            assert!(tries.values().flatten().all(|attempts| (1..=3).contains(attempts)));
            assert!(!dead.is_empty() && dead.len() < COUNT as usize);
            *unanswered > 0
        })
        .await;
    })
    .await;
}

/// The attempts that were made on each.
type Tries = BTreeMap<u32, BTreeSet<u32>>;

/// Works until all is acked or dead.
async fn fail_now_and_then(dict: Dict, seed: u64, seen: Arc<Mutex<(Tries, u32)>>) {
    let mut random = SmallRng::seed_from_u64(seed);
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < 2 * LONG, "it does not come to an end");
        for claim in dict.claim_expired(9, ms(100)).await.unwrap_or_default() {
            let first =
                seen.lock().unwrap().0.entry(*claim.value()).or_default().insert(claim.attempts());
            assert!(first, "the attempt {} of {} is made twice", claim.attempts(), claim.key());
            let ended = match random.random_range(0..4) {
                0 => claim.ack().await,
                1 => claim.retry_in(MILLI).await,
                2 => claim.extend(Duration::ZERO).await,
                _ => {
                    drop(claim);
                    continue;
                }
            };
            if let Err(Error::Unanswered(_)) = ended {
                seen.lock().unwrap().1 += 1;
            }
        }
        if let (Ok(len), Ok(dead)) = (dict.len().await, dict.dead_len().await)
            && len == dead
        {
            return;
        }
        sleep(MILLI).await;
    }
}
