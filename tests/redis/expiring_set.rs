//! What the docs of the expiring set on Redis promise beyond the suite that it shares with the embedded one:
//! what is on the server, faults, a cluster.

use std::{
    collections::BTreeSet,
    panic::AssertUnwindSafe,
    sync::OnceLock,
    time::{Duration, SystemTime, UNIX_EPOCH},
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
async fn a_set_is_one_sorted_set_of_times() {
    let server = Server::start();
    let set = set(&server, LONG).await;
    set.push("ada".into()).await.unwrap();
    let noon = UNIX_EPOCH + Duration::from_nanos(4_000_000_000_000_999_999);
    set.push_at("bob".into(), noon).await.unwrap();
    assert_eq!(plain::<Vec<String>>(&server, &["KEYS", "*"]).await, [KEY]);
    let members: Vec<(String, f64)> =
        plain(&server, &["ZRANGE", KEY, "0", "-1", "WITHSCORES"]).await;
    assert_eq!(members.len(), 2);
    assert_eq!((&members[0].0[..], &members[1]), ("\"ada\"", &("\"bob\"".into(), 4e12)));
    assert!((members[0].1 - now_in_millis()).abs() < 5_000.0, "{members:?}");
    assert_eq!(
        set.score("bob").await.unwrap(),
        Some(UNIX_EPOCH + Duration::from_secs(4_000_000_000))
    );
    assert!(matches!(Set::new(&client(server.url()).await, "a}", LONG), Err(Error::Name(_))));
    assert_eq!(format!("{set:?}"), "ExpiringSet { key: \"fleeting:set1:{here}\", .. }");
}

#[tokio::test]
async fn an_idle_set_leaves_with_its_last_member() {
    let server = Server::start();
    let left = async || plain::<i64>(&server, &["PTTL", KEY]).await;
    let set = set(&server, LONG).await;
    set.push("a".into()).await.unwrap();
    let first = left().await;
    assert!((590_000..=600_001).contains(&first), "{first}");
    set.push_at("b".into(), SystemTime::now() + LONG).await.unwrap();
    let future = left().await;
    assert!((1_190_000..=1_200_001).contains(&future), "{future}");
    // An older one does not bring the end nearer.
    set.push_at("c".into(), SystemTime::now() - LONG / 2).await.unwrap();
    assert!(left().await > 1_190_000);
    let endless = ExpiringSet::new(&client(server.url()).await, "here", Duration::MAX).unwrap();
    endless.push("d".to_owned()).await.unwrap();
    assert_eq!(left().await, -1);

    let short = ExpiringSet::new(&client(server.url()).await, "short", 100 * MILLI).unwrap();
    short.push(1).await.unwrap();
    sleep(100 * MILLI + 50 * MILLI).await;
    assert_eq!(plain::<u32>(&server, &["EXISTS", "fleeting:set1:{short}"]).await, 0);
}

#[tokio::test]
async fn more_equals_than_have_an_order_are_kept() {
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
async fn many_that_die_at_once_leave_in_rounds_and_are_never_seen() {
    let server = Server::start();
    let set: ExpiringSet<u32> =
        ExpiringSet::new(&client(server.url()).await, "here", LONG).unwrap();
    let dead = |n: u32| (now_in_millis() - LONG.as_secs_f64() * 1e3 - f64::from(n)).to_string();
    for some in (0..10_000).collect::<Vec<u32>>().chunks(500) {
        let mut command = vec!["ZADD".to_owned(), KEY.to_owned()];
        command.extend(some.iter().flat_map(|n| [dead(*n + 1), n.to_string()]));
        let command: Vec<_> = command.iter().map(|arg| &arg[..]).collect();
        let _: u32 = plain(&server, &command).await;
    }
    let left = async || plain::<u32>(&server, &["ZCARD", KEY]).await;
    assert_eq!(set.len().await.unwrap(), 0);
    assert_eq!(left().await, 9_000, "a thousand a call");
    assert_eq!(set.pop().await.unwrap(), None);
    assert_eq!(set.peek().await.unwrap(), None);
    assert!(set.elements().await.unwrap().is_empty());
    assert_eq!(set.score(&7).await.unwrap(), None);
    assert!(!set.remove(&7).await.unwrap());
    assert_eq!(set.remove_range(..).await.unwrap(), 0);
    set.push(10_001).await.unwrap();
    assert_eq!(left().await, 2_000);
    assert_eq!(set.elements().await.unwrap(), [10_001]);
    assert_eq!(left().await, 1_000);
    assert_eq!(set.pop().await.unwrap(), Some(10_001));
    assert_eq!(left().await, 0);

    // What is removed by a range goes in rounds, too.
    set.extend(0..2_500).await.unwrap();
    assert_eq!(set.remove_range(UNIX_EPOCH..).await.unwrap(), 2_500);
    set.extend(0..10).await.unwrap();
    set.clear().await.unwrap();
    assert!(set.is_empty().await.unwrap());
}

#[tokio::test]
async fn members_have_formats() {
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
async fn what_does_not_decode_is_named_and_stays() {
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
    // As the only member, too: so its key has an expiry again.
    assert!(numbers.pop().await.is_err());
    assert!(plain::<i64>(&server, &["PTTL", KEY]).await > 0);
    assert_eq!(set.pop().await.unwrap().as_deref(), Some("x"));
}

#[derive(Debug, Serialize)]
struct Wild(u32);

impl<'de> Deserialize<'de> for Wild {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        panic!("it can't be read");
    }
}

#[tokio::test]
async fn what_panics_when_it_is_popped_stays() {
    let server = Server::start();
    let client = client(server.url()).await;
    let wild: ExpiringSet<Wild> = ExpiringSet::new(&client, "here", LONG).unwrap();
    wild.push(Wild(7)).await.unwrap();
    for _ in 0..2 {
        assert!(AssertUnwindSafe(wild.pop()).catch_unwind().await.is_err());
        assert_eq!(wild.len().await.unwrap(), 1);
    }
}

#[tokio::test]
async fn what_others_put_under_our_key_is_an_error_and_stays() {
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
async fn a_server_that_forgot_the_scripts_is_told_them_again() {
    let server = Server::start();
    let set = set(&server, LONG).await;
    set.push("a".into()).await.unwrap();
    let () = plain(&server, &["SCRIPT", "FLUSH"]).await;
    set.push("b".into()).await.unwrap();
    assert_eq!(set.elements().await.unwrap(), ["a", "b"]);
    let () = plain(&server, &["SCRIPT", "FLUSH"]).await;
    assert_eq!(set.pop().await.unwrap().as_deref(), Some("a"));
}

/// What is pushed again by another program while it is read, which fails.
#[derive(PartialEq, Eq, serde::Serialize)]
struct Moved;

static SERVER: OnceLock<String> = OnceLock::new();

impl<'de> serde::Deserialize<'de> for Moved {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        let client = redis::Client::open(&SERVER.get().unwrap()[..]).unwrap();
        let mut plain = client.get_connection().unwrap();
        let () = redis::cmd("ZADD").arg(KEY).arg(4e12).arg("\"a\"").query(&mut plain).unwrap();
        Err(serde::de::Error::custom("it is no longer what it was"))
    }
}

#[tokio::test]
async fn what_was_pushed_again_while_it_was_popped_in_vain_stays_where_it_is() {
    let server = Server::start();
    SERVER.set(server.url()).unwrap();
    set(&server, LONG).await.push("a".into()).await.unwrap();
    let moved: ExpiringSet<Moved> =
        ExpiringSet::new(&client(server.url()).await, "here", LONG).unwrap();
    assert!(matches!(moved.pop().await, Err(Error::Decode { .. })));
    assert_eq!(plain::<f64>(&server, &["ZSCORE", KEY, "\"a\""]).await, 4e12);
}

#[tokio::test]
async fn cut_connections_pop_nothing_twice() {
    until_enough(pop_while_connections_are_cut).await;
}

/// Whether any answer was cut off.
async fn pop_while_connections_are_cut() -> bool {
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
async fn a_cluster_holds_it() {
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
