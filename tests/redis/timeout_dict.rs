//! Promises of `redis::TimeoutDict` beyond the suite shared with the embedded type: data on the server, several
//! processes, cancelled calls, and a cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command},
    time::{Duration, Instant},
};

use fleeting::{
    Ttl,
    redis::{Error, Format, TimeoutDict},
};
use futures::future::join_all;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::time::{sleep, timeout};

use crate::{
    clock::{in_time, ms},
    patience::patience,
    servers::{Cluster, Server, connect},
};

const MILLI: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(3_600);

type Dict = TimeoutDict<String, u32>;

async fn dict(server: &Server) -> Dict {
    let client = connect(server.url()).await;
    Dict::new(&client, "logins").unwrap()
}

async fn fill(dict: &Dict, count: u32) {
    for batch in (0..count).collect::<Vec<_>>().chunks(500) {
        let sets = batch.iter().map(|key| dict.set(key.to_string(), *key, Duration::ZERO));
        assert!(join_all(sets).await.into_iter().all(|old| old.unwrap().is_none()));
    }
}

async fn keys_on(server: &Server) -> Vec<String> {
    let mut keys: Vec<String> =
        redis::cmd("KEYS").arg("*").query_async(&mut server.plain().await).await.unwrap();
    keys.sort();
    keys
}

#[tokio::test]
async fn entry_is_stored_as_a_string_and_its_deadline_as_a_score() {
    let server = Server::start();
    let mut plain = server.plain().await;
    let dict = dict(&server).await;
    let seconds = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.unwrap().as_secs_f64()
    };
    let now = seconds();
    dict.set("ada".into(), 42, LONG).await.unwrap();
    let after = seconds();
    // The CRC16 of "ada" ends in 2.
    assert_eq!(
        keys_on(&server).await,
        ["fleeting:dict1:{logins:2}", "fleeting:dict1:{logins:2}:ada"]
    );
    let get = redis::cmd("GET").arg("fleeting:dict1:{logins:2}:ada").to_owned();
    assert_eq!(get.query_async::<String>(&mut plain).await.unwrap(), "42");
    let mut zscore = redis::cmd("ZSCORE");
    zscore.arg("fleeting:dict1:{logins:2}").arg("ada");
    let score: f64 = zscore.query_async(&mut plain).await.unwrap();
    let (score, ttl) = (score / 1e6, LONG.as_secs_f64());
    assert!((now + ttl - 0.1..=after + ttl + 0.1).contains(&score), "{score}");
    for (ttl, is_persistent) in [
        (Duration::MAX, true),
        (Duration::from_secs(285 * 366 * 86_400), true),
        (Duration::from_secs(200 * 365 * 86_400), false),
    ] {
        dict.set_timeout("ada", ttl).await.unwrap();
        let score: String = zscore.query_async(&mut plain).await.unwrap();
        assert_eq!(score == "inf", is_persistent, "{score}");
    }
    // No key has a Redis expiry.
    for key in keys_on(&server).await {
        let ttl: i64 = redis::cmd("TTL").arg(&key).query_async(&mut plain).await.unwrap();
        assert_eq!(ttl, -1, "{key}");
    }
    dict.set_timeout("ada", Duration::ZERO).await.unwrap();
    let claim = dict.next_claim(LONG).await.unwrap();
    let score: f64 = zscore.query_async(&mut plain).await.unwrap();
    assert!(score % 2.0 == 1.0 && score / 1e6 - now > 50.0, "{score}");
    assert!(claim.ack().await.unwrap());
    assert_eq!(keys_on(&server).await, [""; 0], "no key remains");
}

#[tokio::test]
async fn values_use_the_chosen_format_and_keys_any_type() {
    in_time(async || {
        let server = Server::start();
        let mut plain = server.plain().await;
        let client = connect(server.url()).await;
        let raw: TimeoutDict<(u32, String), Vec<u8>> =
            TimeoutDict::builder(&client, "raw").format(Format::Raw).build().unwrap();
        let key = (7, "a".to_owned());
        raw.set(key.clone(), vec![0, 255, 13], Duration::ZERO).await.unwrap();
        let records: Vec<String> =
            redis::cmd("KEYS").arg("*:\\[*").query_async(&mut plain).await.unwrap();
        let bytes: Vec<u8> = redis::cmd("GET").arg(&records).query_async(&mut plain).await.unwrap();
        assert_eq!(bytes, [0, 255, 13]);
        assert!(records[0].ends_with(":[7,\"a\"]"), "{records:?}");
        assert_eq!(raw.get(&key).await.unwrap(), Some(vec![0, 255, 13]));
        assert_eq!(raw.take_expired(9).await.unwrap(), [(key, vec![0, 255, 13])]);

        let empty: TimeoutDict<String, String> =
            TimeoutDict::builder(&client, "empty").format(Format::Raw).build().unwrap();
        empty.set(String::new(), String::new(), Duration::ZERO).await.unwrap();
        assert!(empty.contains_key("").await.unwrap());
        assert!(empty.set_timeout("", Duration::ZERO).await.unwrap());
        let claims = empty.claim_expired(9, LONG).await.unwrap();
        assert_eq!((&claims[0].key()[..], &claims[0].value()[..]), ("", ""));
        drop(claims);
        assert_eq!(empty.next_expired().await.unwrap(), (String::new(), String::new()));

        let packed: TimeoutDict<u64, BTreeMap<String, f64>> =
            TimeoutDict::builder(&client, "packed").format(Format::MessagePack).build().unwrap();
        let value = BTreeMap::from([("x".to_owned(), 0.5)]);
        packed.set(u64::MAX, value.clone(), Duration::ZERO).await.unwrap();
        assert_eq!(packed.next_expired().await.unwrap(), (u64::MAX, value));
        assert!(matches!(Dict::new(&client, "a{b}"), Err(Error::Name(name)) if name == "a{b}"));
    })
    .await;
}

#[tokio::test]
async fn deadline_without_a_record_is_not_an_entry() {
    let server = Server::start();
    let dict = dict(&server).await;
    fill(&dict, 40).await;
    let records = keys_on(&server).await.into_iter().filter(|key| key.contains("}:"));
    for record in records.filter(|key| !key.ends_with(":\"7\"")) {
        let _: u32 =
            redis::cmd("DEL").arg(record).query_async(&mut server.plain().await).await.unwrap();
    }
    assert_eq!(dict.take_expired(100).await.unwrap(), [("7".to_owned(), 7)]);
    assert_eq!(keys_on(&server).await, [""; 0]);
}

#[tokio::test]
async fn entries_of_a_cancelled_call_are_returned() {
    in_time(async || {
        let seed = 11;
        let mut random = SmallRng::seed_from_u64(seed);
        let server = Server::start();
        let dict = dict(&server).await;
        fill(&dict, 300).await;
        let mut got = Vec::new();
        let mut cancelled = 0;
        for round in 0..300 {
            let patience = Duration::from_micros(random.random_range(0..3_000));
            let calls = match round % 4 {
                0 => timeout(patience, dict.take_expired(3)).await.map(Result::unwrap),
                1 => timeout(patience, dict.next_expired()).await.map(|entry| vec![entry.unwrap()]),
                2 => timeout(patience, dict.claim_expired(3, LONG)).await.map(|claims| {
                    drop(claims);
                    vec![]
                }),
                _ => timeout(patience, dict.next_claim(LONG)).await.map(|claim| {
                    drop(claim);
                    vec![]
                }),
            };
            match calls {
                Ok(entries) => got.extend(entries),
                Err(_) => cancelled += 1,
            }
            if dict.len().await.unwrap() < 20 {
                break;
            }
        }
        assert!(cancelled > 20, "{cancelled} with seed {seed}");
        let until = Instant::now() + patience();
        while got.len() < 300 && Instant::now() < until {
            got.extend(dict.take_expired(usize::MAX).await.unwrap());
        }
        sleep(ms(50)).await;
        got.extend(dict.take_expired(usize::MAX).await.unwrap());
        got.sort_by_key(|(_, value)| *value);
        let values: Vec<_> = got.into_iter().map(|(_, value)| value).collect();
        assert_eq!(values, (0..300).collect::<Vec<_>>(), "seed {seed}");
    })
    .await;
}

#[test]
#[should_panic(expected = "ask_every must be longer than zero, got 0ns")]
fn ask_every_of_zero_panics() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = Server::start();
    let client = runtime.block_on(connect(server.url()));
    let _ = Dict::builder(&client, "a").ask_every(Duration::ZERO);
}

#[tokio::test]
async fn claim_dropped_outside_the_runtime_is_returned() {
    let server = Server::start();
    let dict = dict(&server).await;
    fill(&dict, 1).await;
    // A lease longer than the patience, so that only the drop can return the claim.
    let claim = dict.next_claim(60 * LONG).await.unwrap();
    std::thread::spawn(move || drop(claim)).join().unwrap();
    let again = timeout(patience(), dict.next_claim(LONG))
        .await
        .expect("the claim is returned in time")
        .unwrap();
    assert_eq!(again.key(), "0");
}

/// A process of the release without reasons runs next to this one: its scripts do not know `.reasons`.
#[tokio::test]
async fn entry_set_by_the_previous_release_has_no_reason() {
    let server = Server::start();
    let mut plain = server.plain().await;
    let client = connect(server.url()).await;
    let dict: Dict = TimeoutDict::builder(&client, "logins").max_attempts(3).build().unwrap();
    let index = "fleeting:dict1:{logins:2}";
    let mut set_by_previous_release = async |value: u32| {
        let mut set = redis::pipe();
        set.cmd("HDEL").arg(format!("{index}.failed")).arg("ada");
        set.cmd("ZREM").arg(format!("{index}.dead")).arg("ada");
        set.cmd("ZADD").arg(index).arg(2).arg("ada");
        set.cmd("SET").arg(format!("{index}:ada")).arg(value);
        let _: redis::Value = set.query_async(&mut plain).await.unwrap();
    };
    set_by_previous_release(1).await;
    assert!(dict.next_claim(LONG).await.unwrap().fail("full").await.unwrap());
    set_by_previous_release(2).await;
    for attempt in 1..=3 {
        let claim = dict.next_claim(LONG).await.unwrap();
        assert_eq!((*claim.value(), claim.attempts()), (2, attempt));
        claim.retry_in(Duration::ZERO).await.unwrap();
    }
    let letters = dict.dead_letters(9).await.unwrap();
    assert_eq!((letters.len(), letters[0].attempts, &letters[0].reason), (1, 3, &None));
    // A dead letter of the previous release, whose failures were counted there.
    let mut dead = redis::pipe();
    dead.cmd("ZADD").arg(index).arg("+inf").arg("ada");
    dead.cmd("ZADD").arg(format!("{index}.dead")).arg(2).arg("ada");
    dead.cmd("HSET").arg(format!("{index}.failed")).arg("ada").arg(4);
    dead.cmd("DEL").arg(format!("{index}.reasons"));
    let _: redis::Value = dead.query_async(&mut server.plain().await).await.unwrap();
    let letters = dict.dead_letters(9).await.unwrap();
    assert_eq!((letters.len(), letters[0].attempts, &letters[0].reason), (1, 5, &None));
    assert_eq!(dict.take_dead(9).await.unwrap(), [("ada".to_owned(), 2)]);
    assert_eq!(keys_on(&server).await, [""; 0], "no key remains");
}

#[tokio::test]
async fn failures_of_a_client_with_a_higher_bound_are_all_counted() {
    let server = Server::start();
    let client = connect(server.url()).await;
    let dict = |most| TimeoutDict::builder(&client, "logins").max_attempts(most).build().unwrap();
    let (patient, strict): (Dict, Dict) = (dict(9), dict(2));
    patient.set("ada".into(), 1, Duration::ZERO).await.unwrap();
    for _ in 0..3 {
        let claim = patient.next_claim(LONG).await.unwrap();
        claim.retry_in(Duration::ZERO).await.unwrap();
        sleep(MILLI).await;
    }
    assert!(strict.claim_expired(9, LONG).await.unwrap().is_empty());
    sleep(MILLI).await;
    assert_eq!(strict.dead_letters(9).await.unwrap()[0].attempts, 3);
}

#[tokio::test]
async fn dead_letter_that_cannot_be_decoded_does_not_hide_the_others() {
    let server = Server::start();
    let client = connect(server.url()).await;
    let texts: TimeoutDict<String, String> =
        TimeoutDict::builder(&client, "logins").max_attempts(1).build().unwrap();
    texts.set("bad".into(), "no number".into(), Duration::ZERO).await.unwrap();
    texts.next_claim(LONG).await.unwrap().fail("first").await.unwrap();
    let numbers: Dict = TimeoutDict::builder(&client, "logins").max_attempts(1).build().unwrap();
    assert!(matches!(numbers.dead_letters(9).await, Err(Error::Decode { .. })));
    numbers.set("good".into(), 7, Duration::ZERO).await.unwrap();
    numbers.next_claim(LONG).await.unwrap().fail("second").await.unwrap();
    let letters = numbers.dead_letters(9).await.unwrap();
    assert_eq!((letters.len(), &letters[0].key[..], letters[0].value), (1, "good", 7));
    assert_eq!(texts.dead_len().await.unwrap(), 2);
}

#[tokio::test]
async fn timeout_dict_works_in_a_cluster() {
    let cluster = Cluster::start();
    let client = connect(cluster.urls()).await;
    let dict = Dict::new(&client, "logins").unwrap();
    for key in 0..200_u32 {
        dict.set(key.to_string(), key, Duration::ZERO).await.unwrap();
    }
    assert_eq!(dict.len().await.unwrap(), 200);
    assert_eq!(dict.ttl("7").await.unwrap(), Ttl::Remaining(Duration::ZERO));
    // All nodes run on this machine and share its clock, so that the order holds across nodes.
    let taken: Vec<_> =
        dict.take_expired(100).await.unwrap().into_iter().map(|(_, value)| value).collect();
    assert_eq!(taken, (0..100).collect::<Vec<_>>());
    let claims = dict.claim_expired(60, LONG).await.unwrap();
    let acks = join_all(claims.into_iter().map(|claim| claim.ack())).await;
    assert!(acks.len() == 60 && acks.into_iter().all(|ack| ack.unwrap()));
    assert_eq!(dict.next_expired().await.unwrap(), ("160".to_owned(), 160));
    assert_eq!(dict.remove("170").await.unwrap(), Some(170));
    assert!(!dict.set_nx("171".into(), 1, LONG).await.unwrap());
    let strict: Dict = TimeoutDict::builder(&client, "logins").max_attempts(1).build().unwrap();
    for claim in strict.claim_expired(20, LONG).await.unwrap() {
        match *claim.value() % 2 {
            0 => assert!(claim.release().await.unwrap()),
            _ => assert!(claim.fail("odd").await.unwrap()),
        }
    }
    let letters = dict.dead_letters(9).await.unwrap();
    let values: Vec<_> = letters.iter().map(|letter| letter.value).collect();
    assert_eq!(values, (0..9).map(|n| 161 + 2 * n).collect::<Vec<_>>());
    assert!(letters.iter().all(|letter| letter.reason.as_deref() == Some("odd")));
    dict.clear().await.unwrap();
    assert!(dict.is_empty().await.unwrap());
}

/// Starts a process that runs [`taker_process_runs_when_started_by_another_test`].
fn start_taker_process(mode: &str, server: &Server, file: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "timeout_dict::taker_process_runs_when_started_by_another_test",
            "--nocapture",
        ])
        .env("FLEETING_TAKER", mode)
        .env("FLEETING_TAKER_URL", server.url())
        .env("FLEETING_TAKER_FILE", file)
        .env("FLEETING_TAKER_LEASE", ms(1_000).as_millis().to_string())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("the test executable starts")
}

/// Body of a taker process, which does nothing in a normal test run. It logs due entries until none are left: `take`s
/// them, `claim`s them, or `die`s while it holds claims.
#[tokio::test]
async fn taker_process_runs_when_started_by_another_test() {
    let Ok(mode) = std::env::var("FLEETING_TAKER") else { return };
    let url = std::env::var("FLEETING_TAKER_URL").unwrap();
    let path = std::env::var("FLEETING_TAKER_FILE").unwrap();
    let (path, mut logged) = (Path::new(&path), 0);
    let lease: u64 = std::env::var("FLEETING_TAKER_LEASE").unwrap().parse().unwrap();
    let lease = Duration::from_millis(lease);
    let dict = Dict::new(&connect(url).await, "logins").unwrap();
    let mut file = fs::File::create(path).unwrap();
    // Starts with the other processes, so that each takes some of the entries.
    while fs::read_dir(path.parent().unwrap()).unwrap().count() < 4 {
        sleep(MILLI).await;
    }
    while !dict.is_empty().await.unwrap() {
        if mode == "take" {
            let mut logged_keys = String::new();
            for (key, _) in dict.take_expired(100).await.unwrap() {
                logged_keys += &format!("{key}\n");
            }
            file.write_all(logged_keys.as_bytes()).unwrap();
        } else {
            let claims = dict.claim_expired(50, lease).await.unwrap();
            if claims.is_empty() {
                sleep(20 * MILLI).await;
            }
            for claim in claims {
                // The work precedes the ack, so that a crash in between repeats it.
                file.write_all(format!("{}\n", claim.key()).as_bytes()).unwrap();
                logged += 1;
                if mode == "die" && logged == 60 {
                    // Kills itself while it holds claims that it has not logged yet.
                    let id = std::process::id().to_string();
                    Command::new("kill").args(["-KILL", &id]).status().unwrap();
                }
                assert!(claim.ack().await.unwrap());
            }
        }
    }
}

fn logged_keys(file: &Path) -> Vec<u32> {
    let logged_keys = fs::read_to_string(file).unwrap();
    logged_keys.lines().map(|key| key.parse().unwrap()).collect()
}

#[tokio::test]
async fn take_expired_in_four_processes_returns_each_entry_once() {
    let server = Server::start();
    fill(&dict(&server).await, 20_000).await;
    let folder = tempfile::tempdir().unwrap();
    let files: Vec<_> = (0..4).map(|id| folder.path().join(id.to_string())).collect();
    let takers: Vec<_> =
        files.iter().map(|file| start_taker_process("take", &server, file)).collect();
    for mut taker in takers {
        assert!(taker.wait().unwrap().success());
    }
    let logged_keys: Vec<_> = files.iter().map(|file| logged_keys(file)).collect();
    assert!(
        logged_keys.iter().filter(|logged_keys| !logged_keys.is_empty()).count() > 1,
        "more than one process took entries"
    );
    let mut logged_keys = logged_keys.concat();
    logged_keys.sort();
    assert_eq!(logged_keys, (0..20_000).collect::<Vec<_>>());
}

#[tokio::test]
async fn claims_of_a_killed_process_are_delivered_again() {
    in_time(async || {
        let server = Server::start();
        let dict = dict(&server).await;
        fill(&dict, 20_000).await;
        let folder = tempfile::tempdir().unwrap();
        let files: Vec<_> = (0..4).map(|id| folder.path().join(id.to_string())).collect();
        let start = |(id, file): (usize, &PathBuf)| {
            start_taker_process(if id == 0 { "die" } else { "claim" }, &server, file)
        };
        let mut takers: Vec<_> = files.iter().enumerate().map(start).collect();
        assert!(!takers[0].wait().unwrap().success(), "the first process was killed");
        assert!(
            dict.len().await.unwrap() > 0,
            "entries were left when the first process was killed"
        );
        for taker in &mut takers[1..] {
            assert!(taker.wait().unwrap().success());
        }
        assert_eq!(logged_keys(&files[0]).len(), 60);
        let all: Vec<_> = files.iter().flat_map(|file| logged_keys(file)).collect();
        let each: BTreeSet<_> = all.iter().copied().collect();
        assert_eq!(each, (0..20_000).collect());
        // At most one entry is repeated: the killed process had logged it, but not acked it.
        assert!(all.len() <= 20_001, "{}", all.len());
    })
    .await;
}
