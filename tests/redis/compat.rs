//! `compat`: data shared with programs of the original implementations, whose commands the tests send.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fleeting::{
    Ttl,
    redis::{Client, Error, ExpiringSet, TimeoutDict},
};
use redis::aio::MultiplexedConnection;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use crate::{
    clock::{in_time, ms},
    servers::{Server, connect},
};

const MILLI: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(3_600);
const SET: &str = "timeout_dict_set";

type Fields = BTreeMap<String, String>;

fn fields(fields: &[(&str, &str)]) -> Fields {
    fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// The original class, as the commands that it sends.
struct Original(MultiplexedConnection);

impl Original {
    async fn ask<T: redis::FromRedisValue>(&mut self, command: &[&str]) -> T {
        let mut cmd = redis::cmd(command[0]);
        cmd.arg(&command[1..]);
        cmd.query_async(&mut self.0).await.unwrap()
    }

    async fn set_data(&mut self, key: &str, data: &Fields, timeout: i64) {
        let mut command = vec!["HMSET", key];
        command.extend(data.iter().flat_map(|(name, value)| [&name[..], &value[..]]));
        let () = self.ask(&command).await;
        self.set_timeout(key, timeout).await;
    }

    async fn set_timeout(&mut self, key: &str, timeout: i64) {
        let deadline = now() as i64 + timeout;
        let _: u32 = self.ask(&["ZADD", SET, &deadline.to_string(), key]).await;
    }

    async fn remove_timeout(&mut self, key: &str) {
        let _: u32 = self.ask(&["ZREM", SET, key]).await;
    }

    async fn get_data(&mut self, key: &str) -> Fields {
        self.ask(&["HGETALL", key]).await
    }

    async fn remove_data(&mut self, key: &str) {
        let _: u32 = self.ask(&["DEL", key]).await;
        self.remove_timeout(key).await;
    }

    async fn get_expired(&mut self, max_count: u32) -> Vec<Fields> {
        let (now, count) = ((now() as i64).to_string(), max_count.to_string());
        let keys: Vec<String> =
            self.ask(&["ZRANGEBYSCORE", SET, "0", &now, "LIMIT", "0", &count]).await;
        let mut data = Vec::new();
        for key in keys {
            data.push(self.get_data(&key).await);
            self.remove_data(&key).await;
        }
        data
    }
}

#[derive(Serialize, Deserialize, Debug, PartialEq)]
struct Login {
    user: String,
    from: Option<String>,
}

async fn both(server: &Server) -> (Original, Client) {
    (Original(server.plain().await), connect(server.url()).await)
}

#[tokio::test]
async fn compat_dict_reads_and_takes_entries_of_the_original() {
    in_time(async || {
        let server = Server::start();
        let (mut original, client) = both(&server).await;
        let dict: TimeoutDict<String, Fields> = TimeoutDict::compat(&client, SET);
        let (ada, bob) = (fields(&[("user", "Ada"), ("from", "::1")]), fields(&[("user", "Bob")]));
        original.set_data("login:ada", &ada, -1).await;
        original.set_data("login:bob", &bob, -2).await;
        original.set_data("login:eve", &bob, 3_600).await;
        assert_eq!(dict.get("login:ada").await.unwrap(), Some(ada.clone()));
        assert_eq!(dict.get("login:none").await.unwrap(), None);
        assert_eq!(dict.len().await.unwrap(), 3);
        assert_eq!(dict.ttl("login:ada").await.unwrap(), Ttl::Remaining(Duration::ZERO));
        let Ttl::Remaining(left) = dict.ttl("login:eve").await.unwrap() else { panic!() };
        assert!(left > LONG - 3 * LONG / 60 && left <= LONG, "{left:?}");
        let taken = dict.take_expired(100).await.unwrap();
        assert_eq!(taken, [("login:bob".to_owned(), bob.clone()), ("login:ada".to_owned(), ada)]);
        assert!(original.get_data("login:ada").await.is_empty());
        assert!(dict.set_timeout("login:eve", Duration::ZERO).await.unwrap());
        let claim = dict.next_claim(LONG).await.unwrap();
        assert_eq!(claim.value(), &bob);
        assert!(claim.ack().await.unwrap());
        assert!(original.ask::<Vec<String>>(&["KEYS", "*"]).await.is_empty(), "keys are left over");
    })
    .await;
}

#[tokio::test]
async fn original_reads_and_takes_entries_of_the_compat_dict() {
    let server = Server::start();
    let (mut original, client) = both(&server).await;
    let dict: TimeoutDict<String, Login> = TimeoutDict::compat(&client, SET);
    let login = |user: &str| Login { user: user.into(), from: None };
    dict.set("a".into(), login("Ada"), Duration::ZERO).await.unwrap();
    let before = now();
    dict.set("b".into(), login("Bob"), LONG).await.unwrap();
    let after = now();
    assert_eq!(original.get_data("a").await, fields(&[("user", "Ada")]));
    let score: f64 = original.ask(&["ZSCORE", SET, "b"]).await;
    // The original counts whole seconds.
    assert!((before + 3_599.0..=after + 3_601.0).contains(&score), "{score}");
    sleep(1_050 * MILLI).await;
    assert_eq!(original.get_expired(100).await, [fields(&[("user", "Ada")])]);
    assert_eq!(dict.get("a").await.unwrap(), None);
    // The whole value is replaced, while the original merges fields.
    let seen = Login { user: "Bob".into(), from: Some("::1".into()) };
    original.set_data("b", &fields(&[("from", "::1")]), 3_600).await;
    assert_eq!(dict.set("b".into(), login("Bea"), LONG).await.unwrap(), Some(seen));
    assert_eq!(original.get_data("b").await, fields(&[("user", "Bea")]));
    assert_eq!(dict.remove("b").await.unwrap(), Some(login("Bea")));
    assert!(original.ask::<Vec<String>>(&["KEYS", "*"]).await.is_empty());
}

#[tokio::test]
async fn remove_timeout_works_on_either_side() {
    let server = Server::start();
    let (mut original, client) = both(&server).await;
    let dict: TimeoutDict<String, Fields> = TimeoutDict::compat(&client, SET);
    let data = fields(&[("user", "Ada")]);
    original.set_data("a", &data, -1).await;
    original.remove_timeout("a").await;
    assert_eq!(dict.take_expired(9).await.unwrap(), []);
    assert_eq!((dict.get("a").await.unwrap(), dict.len().await.unwrap()), (Some(data.clone()), 0));
    assert_eq!(dict.ttl("a").await.unwrap(), Ttl::Persistent);
    assert!(!dict.remove_timeout("a").await.unwrap(), "the entry has no timeout");
    assert!(dict.set_timeout("a", Duration::ZERO).await.unwrap());
    assert!(dict.remove_timeout("a").await.unwrap());
    sleep(1_050 * MILLI).await;
    assert!(original.get_expired(9).await.is_empty());
    original.set_timeout("a", -1).await;
    assert_eq!(original.get_expired(9).await, [data]);
    assert!(!dict.contains_key("a").await.unwrap());
}

#[tokio::test]
async fn claimed_entry_is_hidden_from_the_original_whose_writes_void_the_claim() {
    in_time(async || {
        let server = Server::start();
        let (mut original, client) = both(&server).await;
        let dict: TimeoutDict<String, Fields> = TimeoutDict::compat(&client, SET);
        let (old, new) = (fields(&[("n", "1")]), fields(&[("n", "2")]));
        original.set_data("a", &old, -5).await;
        let mut claim = dict.next_claim(LONG).await.unwrap();
        assert!(original.get_expired(9).await.is_empty(), "the entry is claimed");
        let Ttl::Remaining(left) = dict.ttl("a").await.unwrap() else {
            panic!("the entry has a deadline")
        };
        assert!(left > LONG - LONG / 6 && left <= LONG, "not the end of the lease: {left:?}");
        // A dropped claim makes the entry due again after about a second, each time.
        for _ in 0..2 {
            let lent: f64 = original.ask(&["ZSCORE", SET, "a"]).await;
            assert_eq!(claim.attempts(), 1);
            drop(claim);
            sleep(ms(50)).await;
            let score: f64 = original.ask(&["ZSCORE", SET, "a"]).await;
            assert!(lent > now() + 50.0 && score < now() + 1.6, "{lent} {score}");
            claim = dict.next_claim(LONG).await.unwrap();
        }
        assert!(claim.retry_in(Duration::ZERO).await.unwrap());
        // Regardless of the number of failures.
        assert_eq!((dict.dead_len().await.unwrap(), dict.take_dead(9).await.unwrap()), (0, vec![]));
        assert!(!dict.revive("a", Duration::ZERO).await.unwrap());

        // A write of the original voids the claim.
        let claim = dict.next_claim(LONG).await.unwrap();
        original.set_data("a", &new, 30).await;
        assert!(!claim.extend(LONG).await.unwrap());
        assert!(!claim.ack().await.unwrap());
        assert_eq!(dict.get("a").await.unwrap(), Some(new.clone()));

        // So does a removal, even if the entry is set again.
        dict.set_timeout("a", Duration::ZERO).await.unwrap();
        let claim = dict.next_claim(LONG).await.unwrap();
        original.remove_data("a").await;
        assert!(!claim.extend(LONG).await.unwrap());
        original.set_data("a", &old, -1).await;
        drop(claim);
        sleep(ms(50)).await;
        assert_eq!(dict.take_expired(9).await.unwrap(), [("a".to_owned(), old)]);
    })
    .await;
}

#[tokio::test]
async fn void_claim_stays_void_after_the_later_claim_was_released() {
    in_time(async || {
        let server = Server::start();
        let (mut original, client) = both(&server).await;
        let dict: TimeoutDict<String, Fields> = TimeoutDict::compat(&client, SET);
        original.set_data("a", &fields(&[("n", "1")]), -5).await;
        let first = dict.next_claim(ms(20)).await.unwrap();
        for _ in 0..2 {
            assert!(dict.next_claim(LONG).await.unwrap().release().await.unwrap());
        }
        assert!(!first.extend(LONG).await.unwrap());
        assert!(!first.ack().await.unwrap());
        // The released entry is due at once.
        assert_eq!(dict.take_expired(9).await.unwrap().len(), 1);
    })
    .await;
}

#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(untagged)]
enum Field {
    Text(String),
    Number(f64),
}

#[tokio::test]
async fn compat_values_are_hashes_of_strings() {
    in_time(async || {
        let server = Server::start();
        let (mut original, client) = both(&server).await;
        let numbers: TimeoutDict<String, u32> = TimeoutDict::compat(&client, SET);
        let error = numbers.set("a".into(), 1, LONG).await.unwrap_err();
        assert!(matches!(error, Error::Encode(_)), "{error:?}");
        let dict: TimeoutDict<String, BTreeMap<String, u32>> = TimeoutDict::compat(&client, SET);
        for map in [BTreeMap::new(), BTreeMap::from([("n".to_owned(), 1)])] {
            let error = dict.set("a".into(), map, LONG).await.unwrap_err();
            assert!(matches!(error, Error::Encode(_)), "{error:?}");
        }
        // JSON has no NaN, and `null` would be left out like `None`.
        let scores: TimeoutDict<String, BTreeMap<String, Field>> =
            TimeoutDict::compat(&client, SET);
        let score = [
            ("name".to_owned(), Field::Text("Ada".into())),
            ("n".to_owned(), Field::Number(f64::NAN)),
        ];
        let error = scores.set("a".into(), score.into(), LONG).await.unwrap_err();
        assert!(matches!(error, Error::Encode(_)), "{error:?}");
        // An entry that cannot be decoded stays, and is due again later.
        let logins: TimeoutDict<String, Login> = TimeoutDict::compat(&client, SET);
        original.set_data("a", &fields(&[("name", "Ada")]), -2).await;
        original.set_data("b", &fields(&[("user", "Bob")]), -1).await;
        let bob = Login { user: "Bob".into(), from: None };
        assert_eq!(logins.take_expired(9).await.unwrap(), [("b".to_owned(), bob)]);
        original.set_timeout("a", -1).await;
        let error = logins.take_expired(9).await.unwrap_err();
        assert!(matches!(&error, Error::Decode { key, .. } if key == "a"), "{error:?}");
        assert_eq!(logins.take_expired(9).await.unwrap(), [], "the entry is not due again yet");
        assert_eq!(original.get_data("a").await, fields(&[("name", "Ada")]));
        // A value of another type.
        let _: u32 = original.ask(&["DEL", "a"]).await;
        let () = original.ask(&["SET", "a", "theirs"]).await;
        original.set_timeout("a", -1).await;
        let error = logins.take_expired(9).await.unwrap_err();
        assert!(matches!(&error, Error::WrongType { key } if key == "a"), "{error:?}");
        assert_eq!(logins.take_expired(9).await.unwrap(), []);
        logins.clear().await.unwrap();
        assert_eq!(original.ask::<String>(&["GET", "a"]).await, "theirs");
    })
    .await;
}

#[tokio::test]
async fn compat_key_is_any_string_except_the_name_of_the_set() {
    let server = Server::start();
    let (mut original, client) = both(&server).await;
    let dict: TimeoutDict<String, Fields> = TimeoutDict::compat(&client, SET);
    let data = fields(&[("user", "Ada")]);
    for key in ["12", "null", "\"12\"", "[1]"] {
        original.set_data(key, &data, -1).await;
        assert_eq!(dict.get(key).await.unwrap(), Some(data.clone()));
        assert_eq!(dict.take_expired(9).await.unwrap(), [(key.to_owned(), data.clone())]);
        dict.set(key.to_owned(), data.clone(), LONG).await.unwrap();
        assert_eq!(original.get_data(key).await, data);
        assert_eq!(dict.remove(key).await.unwrap(), Some(data.clone()));
    }
    // In an empty dictionary too, in which the set does not exist yet.
    for keys in [vec![], vec![SET.to_owned()]] {
        let error = dict.set(SET.into(), data.clone(), LONG).await.unwrap_err();
        assert!(matches!(error, Error::Encode(_)), "{error:?}");
        assert_eq!(original.ask::<Vec<String>>(&["KEYS", SET]).await, keys);
        original.set_data("a", &data, 3_600).await;
    }
    assert!(dict.set_timeout(SET, LONG).await.is_err());
    assert!(dict.remove(SET).await.is_err());
    assert_eq!(dict.get("a").await.unwrap(), Some(data));
}

#[tokio::test]
async fn timers_without_data_stay_and_do_not_block_entries() {
    let server = Server::start();
    let (mut original, client) = both(&server).await;
    let dict: TimeoutDict<String, Fields> = TimeoutDict::compat(&client, SET);
    let data = fields(&[("user", "Ada")]);
    for n in 0..50 {
        original.set_timeout(&format!("none {n}"), -9).await;
    }
    original.set_data("a", &data, -1).await;
    assert_eq!(dict.take_expired(1).await.unwrap(), [("a".to_owned(), data.clone())]);
    assert_eq!(original.ask::<u32>(&["ZCARD", SET]).await, 50, "timers without data are kept");
    // With data and a deadline, a timer is an entry.
    original.set_data("none 7", &data, -1).await;
    assert_eq!(dict.take_expired(9).await.unwrap(), [("none 7".to_owned(), data)]);
    assert_eq!(original.ask::<u32>(&["ZCARD", SET]).await, 49);
}

/// Sends a command as the article and `ExpiringPriorityQueue` do: in a transaction, after the removal of expired
/// members.
async fn article<T: redis::FromRedisValue>(
    server: &Server,
    key: &str,
    ttl: f64,
    command: &[&str],
) -> T {
    let mut pipe = redis::pipe();
    pipe.atomic();
    pipe.cmd("ZREMRANGEBYSCORE").arg(key).arg("-inf").arg(now() - ttl).ignore();
    pipe.cmd(command[0]).arg(&command[1..]);
    let (answer,): (T,) = pipe.query_async(&mut server.plain().await).await.unwrap();
    answer
}

#[tokio::test]
async fn compat_set_is_shared_with_the_original() {
    let server = Server::start();
    let client = connect(server.url()).await;
    let set: ExpiringSet<String> = ExpiringSet::compat(&client, "here", LONG);
    let push = async |member: &str, score: f64| {
        let command = ["ZADD", "here", &score.to_string(), &format!("\"{member}\"")];
        article::<u32>(&server, "here", 3_600.0, &command).await
    };
    let elements = async || {
        article::<Vec<String>>(&server, "here", 3_600.0, &["ZRANGE", "here", "0", "-1"]).await
    };
    push("old", now() - 3_601.0).await;
    push("a", now() - 1.0).await;
    set.push("b".into()).await.unwrap();
    push("c", now()).await;
    assert_eq!(set.elements().await.unwrap(), ["a", "b", "c"]);
    assert_eq!(elements().await, ["\"a\"", "\"b\"", "\"c\""]);
    // A member that is pushed again moves, on either side.
    push("b", now()).await;
    let before = now();
    set.push("a".into()).await.unwrap();
    let after = now();
    assert_eq!(set.elements().await.unwrap(), ["c", "b", "a"]);
    let score = article::<f64>(&server, "here", 3_600.0, &["ZSCORE", "here", "\"a\""]).await;
    assert!((before - 1.0..=after + 1.0).contains(&score), "{score}");
    // Pops on either side.
    let popped: (String, f64) = article(&server, "here", 3_600.0, &["ZPOPMIN", "here"]).await;
    assert_eq!(popped.0, "\"c\"");
    assert_eq!(set.pop().await.unwrap().as_deref(), Some("b"));
    set.extend(["x", "y", "a"].map(String::from)).await.unwrap();
    assert_eq!(elements().await, ["\"x\"", "\"y\"", "\"a\""]);
    // The key has no TTL, with which the members of the original would expire.
    let ttl: i64 = article(&server, "here", 3_600.0, &["TTL", "here"]).await;
    assert_eq!(ttl, -1);
    set.clear().await.unwrap();
    assert!(elements().await.is_empty());
}

#[tokio::test]
async fn compat_set_preserves_scores_exactly() {
    in_time(async || {
        let server = Server::start();
        let client = connect(server.url()).await;
        let set: ExpiringSet<u32> = ExpiringSet::compat(&client, "here", LONG);
        let third = now().floor() + 1.0 / 3.0;
        for (member, score) in [("1", third), ("2", third), ("3", third + 1.0)] {
            let command = ["ZADD", "here", &format!("{score}"), member];
            article::<u32>(&server, "here", 3_600.0, &command).await;
        }
        let at = set.score(&1).await.unwrap().unwrap();
        assert_eq!(set.range(at..=at).await.unwrap(), [1, 2]);
        assert!(set.range(..at).await.unwrap().is_empty());
        set.push_unique_at(4, at).await.unwrap();
        assert_eq!(set.elements().await.unwrap(), [4, 3]);
        assert_eq!(set.remove_range(at..=at).await.unwrap(), 1);
        // A score that is not a time.
        article::<u32>(&server, "here", 3_600.0, &["ZADD", "here", "1e300", "9"]).await;
        assert!(set.contains(&9).await.unwrap());
        assert_eq!(set.score(&9).await.unwrap(), None);

        // Members of the original expire on time too.
        let short: ExpiringSet<u32> = ExpiringSet::compat(&client, "short", ms(300));
        article::<u32>(
            &server,
            "short",
            ms(300).as_secs_f64(),
            &["ZADD", "short", &now().to_string(), "1"],
        )
        .await;
        short.push_at(2, SystemTime::now() + ms(200)).await.unwrap();
        assert_eq!(short.len().await.unwrap(), 2);
        sleep(ms(310)).await;
        assert_eq!(short.elements().await.unwrap(), [2]);
        sleep(ms(200)).await;
        assert!(short.is_empty().await.unwrap());
    })
    .await;
}
