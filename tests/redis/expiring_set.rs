//! Promises of `redis::ExpiringSet` beyond the suite shared with the embedded type: data on the server, faults, and a
//! cluster.

use std::{
    collections::BTreeSet,
    panic::AssertUnwindSafe,
    sync::OnceLock,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use fleeting::redis::{Client, Error, ExpiringSet, Format};
use futures::FutureExt;
use serde::{Deserialize, Deserializer, Serialize};
use tokio::time::sleep;

use crate::{
    clock::until_enough,
    servers::{Cluster, Proxy, Server, connect},
};

const MILLI: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(600);
const KEY: &str = "fleeting:set1:{here}";

type Set = ExpiringSet<String>;

async fn client(url: String) -> Client {
    connect(url).await
}

async fn set(server: &Server, ttl: Duration) -> Set {
    ExpiringSet::new(&client(server.url()).await, "here", ttl).unwrap()
}

async fn plain<T: redis::FromRedisValue>(server: &Server, command: &[&str]) -> T {
    let mut cmd = redis::cmd(command[0]);
    cmd.arg(&command[1..]);
    cmd.query_async(&mut server.plain().await).await.unwrap()
}

fn now_in_millis() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64() * 1e3
}

#[tokio::test]
async fn set_is_stored_as_one_sorted_set_of_milliseconds() {
    let server = Server::start();
    let set = set(&server, LONG).await;
    let before = now_in_millis();
    set.push("ada".into()).await.unwrap();
    let after = now_in_millis();
    let noon = UNIX_EPOCH + Duration::from_nanos(4_000_000_000_000_999_999);
    set.push_at("bob".into(), noon).await.unwrap();
    assert_eq!(plain::<Vec<String>>(&server, &["KEYS", "*"]).await, [KEY]);
    let members: Vec<(String, f64)> =
        plain(&server, &["ZRANGE", KEY, "0", "-1", "WITHSCORES"]).await;
    assert_eq!(members.len(), 2);
    assert_eq!((&members[0].0[..], &members[1]), ("\"ada\"", &("\"bob\"".into(), 4e12)));
    assert!((before - 1.0..=after + 1.0).contains(&members[0].1), "{members:?}");
    assert_eq!(
        set.score("bob").await.unwrap(),
        Some(UNIX_EPOCH + Duration::from_secs(4_000_000_000))
    );
    assert!(matches!(Set::new(&client(server.url()).await, "a}", LONG), Err(Error::Name(_))));
    assert_eq!(format!("{set:?}"), "ExpiringSet { key: \"fleeting:set1:{here}\", .. }");
}

#[tokio::test]
async fn key_of_an_idle_set_expires_with_its_last_member() {
    let server = Server::start();
    let remaining = async || plain::<i64>(&server, &["PTTL", KEY]).await;
    let set = set(&server, LONG).await;
    let begin = Instant::now();
    let late = || begin.elapsed().as_millis() as i64 + 1;
    set.push("a".into()).await.unwrap();
    let first = remaining().await;
    assert!((600_000 - late()..=600_001).contains(&first), "{first}");
    set.push_at("b".into(), SystemTime::now() + LONG).await.unwrap();
    let future = remaining().await;
    assert!((1_200_000 - late()..=1_200_001).contains(&future), "{future}");
    // A member with an older score does not shorten the expiry of the key.
    set.push_at("c".into(), SystemTime::now() - LONG / 2).await.unwrap();
    assert!(remaining().await >= 1_200_000 - late());
    let endless = ExpiringSet::new(&client(server.url()).await, "here", Duration::MAX).unwrap();
    endless.push("d".to_owned()).await.unwrap();
    assert_eq!(remaining().await, -1);

    let short = ExpiringSet::new(&client(server.url()).await, "short", 100 * MILLI).unwrap();
    short.push(1).await.unwrap();
    sleep(100 * MILLI + 50 * MILLI).await;
    assert_eq!(plain::<u32>(&server, &["EXISTS", "fleeting:set1:{short}"]).await, 0);
}

#[tokio::test]
async fn members_with_equal_scores_are_kept_beyond_the_ordered_ones() {
    let server = Server::start();
    let set: ExpiringSet<u32> =
        ExpiringSet::new(&client(server.url()).await, "here", LONG).unwrap();
    let noon = SystemTime::now();
    for member in (0..3_000).rev() {
        set.push_at(member, noon).await.unwrap();
    }
    let elements = set.elements().await.unwrap();
    assert!(elements[..1_024].iter().copied().eq((1_976..3_000).rev()), "{elements:?}");
    assert_eq!(elements.iter().copied().collect::<BTreeSet<_>>(), (0..3_000).collect());
    assert_eq!(set.range(noon..=noon).await.unwrap().len(), 3_000);
    assert!(set.range(noon + MILLI..).await.unwrap().is_empty());
    set.push_unique_at(7, noon).await.unwrap();
    assert_eq!(set.elements().await.unwrap(), [7]);
}

#[tokio::test]
async fn expired_members_are_removed_in_batches_and_never_returned() {
    let server = Server::start();
    let set: ExpiringSet<u32> =
        ExpiringSet::new(&client(server.url()).await, "here", LONG).unwrap();
    let expired_score =
        |n: u32| (now_in_millis() - LONG.as_secs_f64() * 1e3 - f64::from(n)).to_string();
    for batch in (0..10_000).collect::<Vec<u32>>().chunks(500) {
        let mut command = vec!["ZADD".to_owned(), KEY.to_owned()];
        command.extend(batch.iter().flat_map(|n| [expired_score(*n + 1), n.to_string()]));
        let command: Vec<_> = command.iter().map(|arg| &arg[..]).collect();
        let _: u32 = plain(&server, &command).await;
    }
    let remaining = async || plain::<u32>(&server, &["ZCARD", KEY]).await;
    assert_eq!(set.len().await.unwrap(), 0);
    assert_eq!(remaining().await, 9_000, "each call removes a thousand expired members");
    assert_eq!(set.pop().await.unwrap(), None);
    assert_eq!(set.peek().await.unwrap(), None);
    assert!(set.elements().await.unwrap().is_empty());
    assert_eq!(set.score(&7).await.unwrap(), None);
    assert!(!set.remove(&7).await.unwrap());
    assert_eq!(set.remove_range(..).await.unwrap(), 0);
    set.push(10_001).await.unwrap();
    assert_eq!(remaining().await, 2_000);
    assert_eq!(set.elements().await.unwrap(), [10_001]);
    assert_eq!(remaining().await, 1_000);
    assert_eq!(set.pop().await.unwrap(), Some(10_001));
    assert_eq!(remaining().await, 0);

    // `remove_range` removes members in batches, too.
    set.extend(0..2_500).await.unwrap();
    assert_eq!(set.remove_range(UNIX_EPOCH..).await.unwrap(), 2_500);
    set.extend(0..10).await.unwrap();
    set.clear().await.unwrap();
    assert!(set.is_empty().await.unwrap());
}

#[tokio::test]
async fn members_are_encoded_in_the_chosen_format() {
    let server = Server::start();
    let client = client(server.url()).await;
    let raw: ExpiringSet<Vec<u8>> =
        ExpiringSet::builder(&client, "here", LONG).format(Format::Raw).build().unwrap();
    raw.push(vec![0, 255]).await.unwrap();
    raw.push(vec![]).await.unwrap();
    assert_eq!(raw.pop().await.unwrap(), Some(vec![0, 255]));
    assert_eq!(plain::<Vec<Vec<u8>>>(&server, &["ZRANGE", KEY, "0", "-1"]).await, [vec![0_u8; 0]]);
    assert!(raw.remove(&vec![]).await.unwrap());
    let packed: ExpiringSet<(u8, f32)> =
        ExpiringSet::builder(&client, "here", LONG).format(Format::MessagePack).build().unwrap();
    packed.extend([(1, 0.5), (2, 1.5)]).await.unwrap();
    assert_eq!(packed.elements().await.unwrap(), [(1, 0.5), (2, 1.5)]);
}

#[tokio::test]
async fn undecodable_member_is_an_error_and_stays() {
    let server = Server::start();
    let set = set(&server, LONG).await;
    let numbers: ExpiringSet<u32> =
        ExpiringSet::new(&client(server.url()).await, "here", LONG).unwrap();
    numbers.push(7).await.unwrap();
    set.push("x".into()).await.unwrap();
    let score: String = plain(&server, &["ZSCORE", KEY, "7"]).await;
    for outcome in [
        set.elements().await.map(|_| ()),
        set.peek().await.map(|_| ()),
        set.pop().await.map(|_| ()),
        set.range(..).await.map(|_| ()),
    ] {
        let error = outcome.unwrap_err();
        assert!(matches!(&error, Error::Decode { key, .. } if key == KEY), "{error:?}");
    }
    assert_eq!(plain::<String>(&server, &["ZSCORE", KEY, "7"]).await, score);
    assert_eq!(set.len().await.unwrap(), 2);
    assert_eq!(numbers.pop().await.unwrap(), Some(7));
    // The same for the only member, whose key gets its expiry again.
    assert!(numbers.pop().await.is_err());
    assert!(plain::<i64>(&server, &["PTTL", KEY]).await > 0);
    assert_eq!(set.pop().await.unwrap().as_deref(), Some("x"));
}

#[derive(Debug, Serialize)]
struct PanicsOnRead(u32);

impl<'de> Deserialize<'de> for PanicsOnRead {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        panic!("expected panic of the deserializer");
    }
}

#[tokio::test]
async fn member_whose_deserialize_panics_in_pop_stays() {
    let server = Server::start();
    let client = client(server.url()).await;
    let panicking: ExpiringSet<PanicsOnRead> = ExpiringSet::new(&client, "here", LONG).unwrap();
    panicking.push(PanicsOnRead(7)).await.unwrap();
    for _ in 0..2 {
        assert!(AssertUnwindSafe(panicking.pop()).catch_unwind().await.is_err());
        assert_eq!(panicking.len().await.unwrap(), 1);
    }
}

#[tokio::test]
async fn value_of_another_type_is_wrong_type_error_and_is_kept() {
    let server = Server::start();
    let set = set(&server, LONG).await;
    let () = plain(&server, &["SET", KEY, "theirs"]).await;
    let noon = SystemTime::now();
    for outcome in [
        set.push("a".into()).await,
        set.push_at("a".into(), noon).await,
        set.push_unique_at("a".into(), noon).await,
        set.extend(["a".to_owned()]).await,
        set.clear().await,
        set.elements().await.map(|_| ()),
        set.peek().await.map(|_| ()),
        set.pop().await.map(|_| ()),
        set.remove("a").await.map(|_| ()),
        set.remove_range(..).await.map(|_| ()),
        set.score("a").await.map(|_| ()),
        set.len().await.map(|_| ()),
    ] {
        let error = outcome.unwrap_err();
        assert!(matches!(&error, Error::WrongType { key } if key == KEY), "{error:?}");
    }
    assert_eq!(plain::<String>(&server, &["GET", KEY]).await, "theirs");
}

#[tokio::test]
async fn scripts_are_sent_again_after_script_flush() {
    let server = Server::start();
    let set = set(&server, LONG).await;
    set.push("a".into()).await.unwrap();
    let () = plain(&server, &["SCRIPT", "FLUSH"]).await;
    set.push("b".into()).await.unwrap();
    assert_eq!(set.elements().await.unwrap(), ["a", "b"]);
    let () = plain(&server, &["SCRIPT", "FLUSH"]).await;
    assert_eq!(set.pop().await.unwrap().as_deref(), Some("a"));
}

/// A member that another client pushes again while it is decoded, and that then fails to decode.
#[derive(PartialEq, Eq, serde::Serialize)]
struct PushedOnRead;

static SERVER: OnceLock<String> = OnceLock::new();

impl<'de> serde::Deserialize<'de> for PushedOnRead {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        let client = redis::Client::open(&SERVER.get().unwrap()[..]).unwrap();
        let mut plain = client.get_connection().unwrap();
        let () = redis::cmd("ZADD").arg(KEY).arg(4e12).arg("\"a\"").query(&mut plain).unwrap();
        Err(serde::de::Error::custom("expected error of the deserializer"))
    }
}

#[tokio::test]
async fn undecodable_popped_member_keeps_the_score_of_a_concurrent_push() {
    let server = Server::start();
    SERVER.set(server.url()).unwrap();
    set(&server, LONG).await.push("a".into()).await.unwrap();
    let pushed: ExpiringSet<PushedOnRead> =
        ExpiringSet::new(&client(server.url()).await, "here", LONG).unwrap();
    assert!(matches!(pushed.pop().await, Err(Error::Decode { .. })));
    assert_eq!(plain::<f64>(&server, &["ZSCORE", KEY, "\"a\""]).await, 4e12);
}

#[tokio::test]
async fn pop_over_closed_connections_returns_no_member_twice() {
    until_enough(pop_while_connections_are_closed).await;
}

/// Returns true if a reply was lost.
async fn pop_while_connections_are_closed() -> bool {
    let server = Server::start();
    set(&server, LONG).await.extend((0..1_000).map(|member| member.to_string())).await.unwrap();
    let proxy = Proxy::to(server.port()).await;
    let set: Set = ExpiringSet::new(&client(proxy.url()).await, "here", LONG).unwrap();
    let cutter = async {
        for round in 0..40 {
            sleep((round % 5) * MILLI).await;
            proxy.cut();
        }
    };
    let popper = async {
        let (mut popped, mut unanswered) = (Vec::new(), 0);
        loop {
            match set.pop().await {
                Ok(Some(member)) => popped.push(member),
                Ok(None) => return (popped, unanswered),
                Err(Error::Unanswered(_)) => unanswered += 1,
                Err(error) => panic!("{error:?}"),
            }
        }
    };
    let ((popped, unanswered), ()) = tokio::join!(popper, cutter);
    let each: BTreeSet<_> = popped.iter().collect();
    assert_eq!(each.len(), popped.len(), "a member was popped twice");
    assert!(popped.len() + unanswered >= 1_000, "{} and {unanswered}", popped.len());
    unanswered > 0
}

#[tokio::test]
async fn set_works_in_a_cluster() {
    let cluster = Cluster::start();
    let client = connect(cluster.urls()).await;
    for name in ["a", "b", "c", "d"] {
        let set: Set = ExpiringSet::new(&client, name, LONG).unwrap();
        set.extend(["x".into(), "y".into()]).await.unwrap();
        set.push("x".into()).await.unwrap();
        assert_eq!(set.elements().await.unwrap(), ["y", "x"]);
        assert_eq!(set.pop().await.unwrap().as_deref(), Some("y"));
        assert!(set.remove("x").await.unwrap());
        assert!(set.is_empty().await.unwrap());
    }
}

#[tokio::test]
async fn undecodable_member_is_not_lost_on_a_full_server() {
    let server = Server::start();
    let set = set(&server, LONG).await;
    let numbers: ExpiringSet<u32> =
        ExpiringSet::new(&client(server.url()).await, "here", LONG).unwrap();
    set.push("x".into()).await.unwrap();
    server.refuse_memory();
    let error = numbers.pop().await.unwrap_err();
    assert!(matches!(&error, Error::Decode { .. }), "{error:?}");
    assert!(matches!(set.push("y".into()).await, Err(Error::Server(_))));
    assert_eq!(set.elements().await.unwrap(), ["x"]);
}
