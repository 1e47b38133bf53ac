//! Faults of `redis::TimeoutDict`: servers that lose their scripts or are killed, closed connections, late replies, and
//! values that other programs wrote at its keys.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use fleeting::{
    Ttl,
    redis::{Client, Error, TimeoutDict},
};
use futures::{FutureExt, future::join_all};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    clock::{in_time, ms, until_enough},
    patience::patience,
    servers::{Proxy, SMALL_ANSWERS, Server, connect},
};

const MILLI: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(3_600);

type Dict = TimeoutDict<String, u32>;

async fn client(url: String) -> Client {
    Client::builder(url).timeout(patience() / 2).connect().await.unwrap()
}

async fn dict(server: &Server) -> Dict {
    Dict::new(&client(server.url()).await, "logins").unwrap()
}

async fn fill(dict: &Dict, count: u32) {
    for batch in (0..count).collect::<Vec<_>>().chunks(500) {
        let sets = batch.iter().map(|key| dict.set(key.to_string(), *key, Duration::ZERO));
        assert!(join_all(sets).await.into_iter().all(|old| old.unwrap().is_none()));
    }
}

async fn plain(server: &Server, command: &[&str]) -> redis::Value {
    let mut cmd = redis::cmd(command[0]);
    cmd.arg(&command[1..]);
    cmd.query_async(&mut server.plain().await).await.unwrap()
}

/// Keys of the entry of "ada".
const INDEX: &str = "fleeting:dict1:{logins:2}";
const RECORD: &str = "fleeting:dict1:{logins:2}:ada";

#[tokio::test]
async fn scripts_are_sent_again_after_script_flush() {
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

/// Takes entries, and drops the call between their removal and the moment at which it would return them. `before_drop`
/// runs before the drop.
async fn drop_take(dict: &Dict, server: &Server, before_drop: impl AsyncFnOnce()) {
    let mut take = Box::pin(dict.take_expired(100));
    while !matches!(plain(server, &["DBSIZE"]).await, redis::Value::Int(0)) {
        assert!((&mut take).now_or_never().is_none());
        // The call has spawned a task that sends the next step.
        sleep(ms(50)).await;
    }
    before_drop().await;
    drop(take);
}

#[tokio::test]
async fn entries_of_a_dropped_take_come_back_once_the_server_can_be_reached() {
    let server = Server::start();
    let proxy = Proxy::to(server.port()).await;
    let client = Client::builder(proxy.url()).timeout(ms(500)).connect().await.unwrap();
    let dict = Dict::new(&client, "logins").unwrap();
    fill(&dict, 6).await;
    drop_take(&dict, &server, async || {
        proxy.close(true);
        proxy.cut();
        sleep(ms(200)).await;
    })
    .await;
    sleep(ms(1_500)).await;
    assert_eq!(plain(&server, &["DBSIZE"]).await, redis::Value::Int(0));
    proxy.close(false);
    let mut taken = BTreeSet::new();
    let all = async {
        while taken.len() < 6 {
            taken.extend(dict.take_expired(9).await.unwrap_or_default());
            sleep(ms(20)).await;
        }
    };
    timeout(patience(), all).await.expect("the entries come back");
}

#[tokio::test]
async fn dead_letter_keeps_its_reason_if_its_take_is_dropped() {
    let server = Server::start();
    let client = client(server.url()).await;
    let jobs: Dict = Dict::builder(&client, "jobs").max_attempts(1).build().unwrap();
    jobs.set("ada".into(), 1, Duration::ZERO).await.unwrap();
    jobs.next_claim(LONG).await.unwrap().fail("no address").await.unwrap();
    let reason = async || {
        let letters = jobs.dead_letters(9).await.unwrap();
        letters.first().map(|letter| letter.reason.clone())
    };
    assert_eq!(reason().await, Some(Some("no address".into())));
    let mut take = Box::pin(jobs.take_dead(9));
    assert!((&mut take).now_or_never().is_none());
    // It is leased by a task, which then gives it back.
    sleep(ms(100)).await;
    drop(take);
    let given_back = async {
        while reason().await.is_none() {
            sleep(ms(10)).await;
        }
    };
    timeout(patience(), given_back).await.expect("the letter comes back");
    assert_eq!(reason().await, Some(Some("no address".into())));
}

#[tokio::test]
async fn claimed_entry_that_remove_cannot_decode_is_due() {
    let server = Server::start();
    let client = client(server.url()).await;
    let jobs = Dict::new(&client, "jobs").unwrap();
    let other: TimeoutDict<String, String> = TimeoutDict::new(&client, "jobs").unwrap();
    jobs.set("ada".into(), 1, Duration::ZERO).await.unwrap();
    let claim = jobs.next_claim(LONG).await.unwrap();
    assert!(matches!(other.remove("ada").await, Err(Error::Decode { .. })));
    assert_eq!(jobs.ttl("ada").await.unwrap(), Ttl::Remaining(Duration::ZERO));
    assert!(!claim.ack().await.unwrap(), "the claim is void");
    assert_eq!(jobs.take_expired(9).await.unwrap(), [("ada".to_owned(), 1)]);
}

fn assert_wrong_type<T: std::fmt::Debug>(outcome: Result<T, Error>, expected: &str) {
    let error = outcome.unwrap_err();
    assert!(matches!(&error, Error::WrongType { key } if key == expected), "{error:?}");
}

#[tokio::test]
async fn value_of_another_type_is_wrong_type_error_and_is_kept() {
    for (key, type_of_other) in [(INDEX, "SET"), (RECORD, "HSET")] {
        let server = Server::start();
        let dict = dict(&server).await;
        match type_of_other {
            "SET" => plain(&server, &["SET", key, "theirs"]).await,
            _ => plain(&server, &["HSET", key, "field", "theirs"]).await,
        };
        let before = plain(&server, &["KEYS", "*"]).await;
        assert_wrong_type(dict.set("ada".into(), 1, Duration::ZERO).await, key);
        if key == RECORD {
            assert_wrong_type(dict.get("ada").await, key);
            assert_wrong_type(dict.set_timeout("ada", LONG).await, key);
            assert_wrong_type(dict.remove("ada").await, key);
            assert_wrong_type(dict.ttl("ada").await, key);
            assert_eq!(dict.take_expired(9).await.unwrap(), []);
        } else {
            plain(&server, &["SET", RECORD, "7"]).await;
            assert_wrong_type(dict.set_timeout("ada", LONG).await, key);
            assert_wrong_type(dict.remove("ada").await, key);
            assert_wrong_type(dict.ttl("ada").await, key);
            assert_wrong_type(dict.clear().await, key);
            assert_eq!(dict.get("ada").await.unwrap(), Some(7), "the error changed nothing");
            plain(&server, &["DEL", RECORD]).await;
        }
        if key == INDEX {
            assert_wrong_type(dict.len().await, key);
            assert_wrong_type(dict.take_expired(9).await, key);
            assert_wrong_type(dict.claim_expired(9, LONG).await, key);
            assert_wrong_type(dict.next_expired().await, key);
            // Entries of the other shards are returned.
            dict.set("0".into(), 7, Duration::ZERO).await.unwrap();
            assert_eq!(dict.take_expired(9).await.unwrap(), [("0".to_owned(), 7)]);
        }
        assert_eq!(plain(&server, &["KEYS", "*"]).await, before);
    }
}

#[tokio::test]
async fn record_of_another_type_does_not_block_other_entries() {
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
            // Without other due entries, the call fails and names the record.
            dict.set("alone".into(), 1, LONG).await.unwrap();
            plain(&server, &["ZADD", INDEX, "2", "ada"]).await;
            match is_claim {
                true => assert_wrong_type(dict.claim_expired(100, LONG).await, RECORD),
                false => assert_wrong_type(dict.take_expired(100).await, RECORD),
            }
            assert_eq!(dict.take_expired(100).await.unwrap(), [], "the entry is hidden");
            assert_eq!(dict.remove("alone").await.unwrap(), Some(1));
            assert_eq!(dict.len().await.unwrap(), if is_claim { 41 } else { 1 }, "the entry stays");
            dict.clear().await.unwrap();
            assert!(dict.is_empty().await.unwrap());
            let theirs = plain(&server, &["HGET", RECORD, "field"]).await;
            assert_eq!(theirs, redis::Value::BulkString(b"theirs".to_vec()));
            plain(&server, &["DEL", RECORD]).await;
        }
    })
    .await;
}

fn assert_undecodable<T: std::fmt::Debug>(outcome: Result<T, Error>, expected: &str) {
    let error = outcome.unwrap_err();
    assert!(matches!(&error, Error::Decode { key, .. } if key == expected), "{error:?}");
}

#[tokio::test]
async fn undecodable_entry_is_a_decode_error_and_not_lost() {
    in_time(async || {
        let server = Server::start();
        let dict = dict(&server).await;
        let texts: TimeoutDict<String, String> =
            TimeoutDict::new(&client(server.url()).await, "logins").unwrap();
        let others: Vec<_> = (0..40).map(|key| (key.to_string(), key)).collect();

        // A take with other entries skips it.
        fill(&dict, 20).await;
        texts.set("ada".into(), "x".into(), Duration::ZERO).await.unwrap();
        for (key, value) in &others[20..] {
            dict.set(key.clone(), *value, Duration::ZERO).await.unwrap();
        }
        assert_undecodable(dict.get("ada").await, RECORD);
        assert_undecodable(dict.remove("ada").await, RECORD);
        assert_eq!(texts.ttl("ada").await.unwrap(), Ttl::Remaining(Duration::ZERO));
        let begin = Instant::now();
        assert_eq!(dict.take_expired(100).await.unwrap(), others, "oldest first");
        let Ttl::Remaining(remaining) = texts.ttl("ada").await.unwrap() else {
            panic!("the hidden entry has a deadline")
        };
        let (minute, most) = (Duration::from_secs(60), remaining + begin.elapsed() + MILLI);
        assert!(remaining <= minute && most >= minute, "hidden for {remaining:?}");
        assert_eq!(texts.get("ada").await.unwrap().as_deref(), Some("x"));

        // Without other due entries, the call fails.
        texts.set_timeout("ada", Duration::ZERO).await.unwrap();
        assert_undecodable(dict.take_expired(100).await, RECORD);
        assert_eq!(dict.take_expired(100).await.unwrap(), [], "the entry is hidden");

        // A claim with other entries skips it.
        texts.set_timeout("ada", Duration::ZERO).await.unwrap();
        assert_undecodable(dict.claim_expired(100, ms(1)).await, RECORD);
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
        assert_undecodable(dict.next_expired().await, RECORD);
        assert_eq!(texts.remove("ada").await.unwrap().as_deref(), Some("x"));

        // `set` replaces it without an error.
        texts.set("ada".into(), "x".into(), Duration::ZERO).await.unwrap();
        assert_eq!(dict.set("ada".into(), 7, LONG).await.unwrap(), None);
        assert_eq!(dict.get("ada").await.unwrap(), Some(7));

        // A key that cannot be decoded as a number.
        dict.set_timeout("ada", Duration::ZERO).await.unwrap();
        let numbers: TimeoutDict<u32, u32> =
            TimeoutDict::new(&client(server.url()).await, "logins").unwrap();
        assert_undecodable(numbers.take_expired(9).await, RECORD);
        assert_eq!(dict.get("ada").await.unwrap(), Some(7));
    })
    .await;
}

#[tokio::test]
async fn many_undecodable_entries_do_not_block_others() {
    in_time(async || {
        let server = Server::start();
        let dict = dict(&server).await;
        let texts: TimeoutDict<String, String> =
            TimeoutDict::new(&client(server.url()).await, "logins").unwrap();
        let undecodable = async || {
            let sets =
                (0..200).map(|n| texts.set(format!("undecodable {n}"), "x".into(), Duration::ZERO));
            join_all(sets).await.into_iter().for_each(|set| drop(set.unwrap()));
        };
        undecodable().await;
        dict.set("good".into(), 1, Duration::ZERO).await.unwrap();
        let good = [("good".to_owned(), 1)];
        assert_eq!(dict.take_expired(10).await.unwrap(), good, "found by the first call");
        undecodable().await;
        dict.set("good".into(), 1, Duration::ZERO).await.unwrap();
        let claims = dict.claim_expired(10, LONG).await.unwrap();
        assert_eq!((claims.len(), claims[0].key().as_str()), (1, "good"));
        // No undecodable entry is lost.
        assert_eq!(dict.len().await.unwrap(), 201);
        assert_eq!(texts.get("undecodable 7").await.unwrap().as_deref(), Some("x"));
        // An entry that is never decoded becomes a dead letter after `max_attempts`.
        let jobs: Dict = TimeoutDict::builder(&client(server.url()).await, "logins")
            .max_attempts(2)
            .build()
            .unwrap();
        undecodable().await;
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
        assert_eq!(jobs.take_dead(10).await.unwrap(), good, "found by the first call");
        assert_eq!(jobs.len().await.unwrap(), 200);
    })
    .await;
}

#[tokio::test]
async fn hundred_entries_of_a_megabyte_are_claimed_and_taken() {
    let server = Server::start_with(&SMALL_ANSWERS);
    let client = connect(server.url()).await;
    let builder = TimeoutDict::builder(&client, "large").format(fleeting::redis::Format::Raw);
    let dict: TimeoutDict<u32, String> = builder.build().unwrap();
    let large = "x".repeat(1 << 20);
    for n in 0..120 {
        dict.set(n, large.clone(), Duration::ZERO).await.unwrap();
    }
    let claims = dict.claim_expired(20, LONG).await.unwrap();
    assert!(
        claims.iter().map(|claim| *claim.key()).eq(0..20),
        "the oldest entries, in their order"
    );
    for claim in claims {
        assert!(claim.value() == &large && claim.ack().await.unwrap());
    }
    let taken = dict.take_expired(1_000).await.unwrap();
    assert!(taken.iter().map(|entry| entry.0).eq(20..120), "all remaining entries, in their order");
    assert!(taken.iter().all(|entry| entry.1 == large));
    assert!(dict.is_empty().await.unwrap());
}

#[tokio::test]
async fn entries_of_a_late_reply_are_due_again() {
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
            // Pauses the server at a different point between the first request and the last reply.
            let (batch, ()) = tokio::join!(dict.take_expired(100), async {
                sleep(Duration::from_micros(u64::from(200 * round))).await;
                server.pause();
                sleep(ms(700)).await;
                server.resume();
            });
            let mut take = |batch: Vec<(String, u32)>| {
                for (key, _) in batch {
                    assert!(taken.insert(key.clone()), "{key} is delivered twice");
                }
            };
            match batch {
                Ok(batch) => take(batch),
                // `Connect` if the pause had lasted for a whole timeout when the confirmation was to be sent.
                Err(Error::Unanswered(_) | Error::Connect(_)) => slow += 1,
                Err(error) => panic!("{error:?}"),
            }
            let begin = Instant::now();
            loop {
                assert!(begin.elapsed() < patience(), "all entries are due again in time");
                let rest = async || match dict.is_empty().await? {
                    true => Ok(None),
                    false => dict.take_expired(100).await.map(Some),
                };
                match rest().await {
                    Ok(None) => break,
                    Ok(Some(batch)) => take(batch),
                    // A pause longer than the timeout makes calls fail until an attempt to connect has succeeded.
                    Err(Error::Connect(_)) => {}
                    Err(error) => panic!("{error:?}"),
                }
                sleep(ms(5)).await;
            }
            assert_eq!(taken.len() as u32, 20 * (round + 1), "no entry is lost");
            if slow >= 3 {
                return;
            }
        }
        panic!("no reply was late");
    })
    .await;
}

/// Deliveries observed by the workers below.
#[derive(Default)]
struct Observed {
    taken: Vec<u32>,
    claims: BTreeMap<u32, Vec<Instant>>,
    acked: BTreeMap<u32, Instant>,
    unanswered: u32,
}

impl Observed {
    /// Returns the number of entries delivered so far.
    fn delivered(&self) -> usize {
        self.taken.len() + self.claims.len()
    }
}

/// Takes or claims entries until none are left, regardless of server faults.
async fn work(dict: Dict, lease: Duration, takes: bool, observed: Arc<Mutex<Observed>>) {
    let begin = Instant::now();
    loop {
        if takes {
            match dict.take_expired(5).await {
                Ok(taken) => {
                    observed.lock().unwrap().taken.extend(taken.iter().map(|entry| entry.1))
                }
                Err(error) => note(&observed, error),
            }
        } else {
            match dict.claim_expired(20, lease).await {
                Ok(claims) => {
                    let now = Instant::now();
                    for claim in &claims {
                        let mut observed = observed.lock().unwrap();
                        observed.claims.entry(*claim.value()).or_default().push(now);
                    }
                    let acks = claims.into_iter().map(async |claim| {
                        let value = *claim.value();
                        match claim.ack().await {
                            Ok(true) => {
                                let twice =
                                    observed.lock().unwrap().acked.insert(value, Instant::now());
                                assert!(twice.is_none(), "{value} is acked twice");
                            }
                            Ok(false) => {}
                            Err(error) => note(&observed, error),
                        }
                    });
                    join_all(acks).await;
                }
                Err(error) => note(&observed, error),
            }
        }
        match dict.is_empty().await {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => note(&observed, error),
        }
        assert!(begin.elapsed() < patience(), "the worker does not finish in time");
        sleep(MILLI).await;
    }
}

fn note(observed: &Mutex<Observed>, error: Error) {
    match error {
        Error::Unanswered(_) => observed.lock().unwrap().unanswered += 1,
        Error::Connect(_) | Error::Unavailable(_) => {}
        error => panic!("{error:?}"),
    }
}

fn check_claims(observed: &Observed, count: u32, lease: Duration) {
    let claimed: BTreeSet<_> = observed.claims.keys().copied().collect();
    assert_eq!(claimed, (0..count).collect(), "no claim is lost");
    for (value, at) in &observed.claims {
        for two in at.windows(2) {
            let between = two[1] - two[0];
            // The lease begins on the server, before the client gets the reply.
            assert!(between + lease / 2 > lease, "{value} is delivered again after {between:?}");
        }
        if let Some(acked) = observed.acked.get(value) {
            assert!(at.last().unwrap() < acked, "{value} is delivered again after its ack");
        }
    }
}

#[tokio::test]
async fn killed_server_loses_no_claim() {
    in_time(async || {
        let lease = ms(2_000);
        check_claims(&work_during_kills(lease, false).await.lock().unwrap(), 2_000, lease);
    })
    .await;
}

#[tokio::test]
async fn killed_server_delivers_no_taken_entry_twice() {
    in_time(async || {
        check_taken(&work_during_kills(LONG, true).await.lock().unwrap(), 2_000);
    })
    .await;
}

/// Runs three workers on 2,000 entries while their server is killed three times.
async fn work_during_kills(lease: Duration, takes: bool) -> Arc<Mutex<Observed>> {
    let mut server = Server::durable();
    let dict = dict(&server).await;
    fill(&dict, 2_000).await;
    let observed = Arc::new(Mutex::new(Observed::default()));
    let workers: Vec<_> =
        (0..3).map(|_| tokio::spawn(work(dict.clone(), lease, takes, observed.clone()))).collect();
    for round in 1..=3 {
        while observed.lock().unwrap().delivered() < round * 400 {
            sleep(MILLI).await;
        }
        server.kill();
        assert!(
            observed.lock().unwrap().delivered() < 2_000,
            "the server was killed after all deliveries"
        );
        server.restart();
    }
    for worker in workers {
        worker.await.unwrap();
    }
    observed
}

fn check_taken(observed: &Observed, count: usize) {
    let each: BTreeSet<_> = observed.taken.iter().copied().collect();
    assert_eq!(each.len(), observed.taken.len(), "an entry was taken twice");
    // A take whose reply was lost may lose its entries: at most 5 per call, and one call per worker and fault.
    let lost = count - each.len();
    assert!(lost <= count / 4, "{lost} are lost");
}

#[tokio::test]
async fn closed_connections_lose_no_claim_and_deliver_no_taken_entry_twice() {
    in_time(async || {
        let lease = ms(1_000);
        until_enough(async || {
            let observed = work_over_closing_connections(lease, false).await;
            let observed = observed.lock().unwrap();
            check_claims(&observed, 2_000, lease);
            observed.unanswered > 0
        })
        .await;
    })
    .await;
    check_taken(&work_over_closing_connections(LONG, true).await.lock().unwrap(), 2_000);
}

/// Runs three workers on 2,000 entries while their connections are closed.
async fn work_over_closing_connections(lease: Duration, takes: bool) -> Arc<Mutex<Observed>> {
    let server = Server::start();
    fill(&dict(&server).await, 2_000).await;
    let observed = Arc::new(Mutex::new(Observed::default()));
    let mut workers = Vec::new();
    let mut proxies = Vec::new();
    for _ in 0..3 {
        let proxy = Proxy::to(server.port()).await;
        let dict = Dict::new(&client(proxy.url()).await, "logins").unwrap();
        workers.push(tokio::spawn(work(dict, lease, takes, observed.clone())));
        proxies.push(proxy);
    }
    close_connections_until_done(&proxies, workers).await;
    observed
}

/// Closes the connections repeatedly, and waits for the workers that use them.
async fn close_connections_until_done(proxies: &[Proxy], workers: Vec<JoinHandle<()>>) {
    for round in 0..60 {
        sleep((round % 7) * MILLI).await;
        proxies[round as usize % proxies.len()].cut();
    }
    for worker in workers {
        worker.await.unwrap();
    }
}

/// If a reply is lost, it is unknown until the end of the lease whether the claim has failed, but it fails at most
/// once.
#[tokio::test]
async fn closed_connections_never_exceed_max_attempts() {
    const COUNT: u32 = 150;
    in_time(async || {
        until_enough(async || {
            let server = Server::start();
            fill(&dict(&server).await, COUNT).await;
            let observed = Arc::new(Mutex::new((Attempts::new(), 0)));
            let (mut workers, mut proxies) = (Vec::new(), Vec::new());
            for seed in 0..3 {
                let proxy = Proxy::to(server.port()).await;
                let dict = Dict::builder(&client(proxy.url()).await, "logins");
                let dict = dict.max_attempts(3).backoff(ms(1), ms(2)).build().unwrap();
                workers.push(tokio::spawn(ack_or_fail_randomly(dict, seed, observed.clone())));
                proxies.push(proxy);
            }
            close_connections_until_done(&proxies, workers).await;
            let dict = dict(&server).await;
            let dead = dict.take_dead(usize::MAX).await.unwrap();
            assert!(dict.is_empty().await.unwrap(), "all other entries were acked");
            let (attempts_made, unanswered) = &*observed.lock().unwrap();
            assert!(attempts_made.values().flatten().all(|attempts| (1..=3).contains(attempts)));
            assert!(!dead.is_empty() && dead.len() < COUNT as usize);
            *unanswered > 0
        })
        .await;
    })
    .await;
}

/// Numbers of the attempts made on each entry.
type Attempts = BTreeMap<u32, BTreeSet<u32>>;

/// Claims entries and acks, fails or drops the claims, until all entries are acked or dead letters.
async fn ack_or_fail_randomly(dict: Dict, seed: u64, observed: Arc<Mutex<(Attempts, u32)>>) {
    let mut random = SmallRng::seed_from_u64(seed);
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < patience(), "the worker does not finish in time");
        for claim in dict.claim_expired(9, ms(100)).await.unwrap_or_default() {
            let first = observed
                .lock()
                .unwrap()
                .0
                .entry(*claim.value())
                .or_default()
                .insert(claim.attempts());
            assert!(first, "attempt {} of {} is made twice", claim.attempts(), claim.key());
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
                observed.lock().unwrap().1 += 1;
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

#[tokio::test]
async fn claims_end_on_a_full_server_which_refuses_new_entries() {
    let server = Server::start();
    let builder = Dict::builder(&client(server.url()).await, "logins");
    let dict = builder.backoff(MILLI, MILLI).max_attempts(3).build().unwrap();
    fill(&dict, 6).await;
    let claims = dict.claim_expired(9, LONG).await.unwrap();
    server.refuse_memory();
    for claim in claims {
        assert!(claim.extend(2 * LONG).await.unwrap());
        match &claim.key()[..] {
            "0" => assert!(claim.release().await.unwrap()),
            "1" => assert!(claim.retry_in(Duration::ZERO).await.unwrap()),
            "2" => assert!(claim.fail("busy").await.unwrap()),
            "3" => assert!(claim.ack().await.unwrap()),
            "4" => drop(claim),
            // Leased until its timeout is set.
            _ => std::mem::forget(claim),
        }
    }
    assert!(dict.set_timeout("5", Duration::ZERO).await.unwrap());
    let mut attempts = BTreeMap::new();
    while attempts.len() < 5 {
        let claim = timeout(patience(), dict.next_claim(LONG)).await.unwrap().unwrap();
        attempts.insert(*claim.value(), claim.attempts());
        std::mem::forget(claim);
    }
    assert_eq!(attempts, [(0, 1), (1, 2), (2, 2), (4, 2), (5, 2)].into());
    let full = |outcome: Result<(), Error>| {
        let error = outcome.unwrap_err();
        assert!(matches!(&error, Error::Server(error) if error.code() == Some("OOM")), "{error:?}");
    };
    full(dict.set("new".into(), 6, LONG).await.map(drop));
    full(dict.set_nx("new".into(), 6, LONG).await.map(drop));
    full(dict.set("0".into(), 6, LONG).await.map(drop));
    assert_eq!(dict.get("0").await.unwrap(), Some(0), "nothing was changed");
    assert_eq!(dict.len().await.unwrap(), 5);
}

#[tokio::test]
async fn undecodable_entry_is_not_lost_on_a_full_server() {
    let server = Server::start();
    let dict = dict(&server).await;
    let texts: TimeoutDict<String, String> =
        TimeoutDict::new(&client(server.url()).await, "logins").unwrap();
    texts.set("ada".into(), "x".into(), Duration::ZERO).await.unwrap();
    server.refuse_memory();
    assert_undecodable(dict.remove("ada").await, RECORD);
    assert_eq!(texts.get("ada").await.unwrap().as_deref(), Some("x"));
    assert_undecodable(dict.take_expired(9).await, RECORD);
    assert_eq!(texts.get("ada").await.unwrap().as_deref(), Some("x"));
    assert_eq!(dict.take_expired(9).await.unwrap(), [], "the entry is hidden");
}
