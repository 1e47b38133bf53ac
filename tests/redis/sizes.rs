//! Large values and many callers on shared connections.

use std::time::{Duration, Instant};

use fleeting::{
    Ttl,
    redis::{Cache, Client, Error, ExpiringSet, Format},
};
use futures::future::join_all;
use tokio::time::{sleep, timeout};

use crate::{
    clock::{in_time, ms, per_second},
    patience::patience,
    servers::{Proxy, Server, connect},
};

const MIB: usize = 1 << 20;

fn bytes(client: &Client) -> Cache<String, Vec<u8>> {
    Cache::builder(client, "c").format(Format::Raw).build().unwrap()
}

#[tokio::test]
async fn maximum_is_that_of_keys_and_values_and_not_of_scripts() {
    let minute = Duration::from_secs(60);
    let server = Server::start();
    let client = Client::builder(server.url()).timeout(patience()).max_value_bytes(100);
    let client = client.connect().await.unwrap();
    let cache: Cache<String, u64> =
        Cache::builder(&client, "c").lease(60 * minute).build().unwrap();
    // The server has none of the scripts yet.
    cache.set_ex("a".into(), 1, minute).await.unwrap();
    cache.set_tagged("b".into(), 2, minute, ["t"]).await.unwrap();
    cache.set_many([("c".into(), 3), ("d".into(), 4)], Some(minute)).await.unwrap();
    assert!(cache.expire("a", 2 * minute).await.unwrap());
    assert!(matches!(cache.ttl("a").await.unwrap(), Ttl::Remaining(ttl) if ttl > minute));
    cache.remove_tag("t").await.unwrap();
    assert_eq!(cache.get("b").await.unwrap(), None);
    assert_eq!(cache.remove("c").await.unwrap(), Some(3));
    let failed = cache.get_or_try_set_with("e", minute, async || Err::<u64, _>("no")).await;
    assert_eq!(*failed.unwrap().unwrap_err(), "no");
    // The lease of the failed load was released.
    let loaded = timeout(patience(), cache.get_or_set_with("e", minute, async || 5)).await;
    assert_eq!(loaded.expect("no load holds the lease").unwrap(), 5);
    cache.clear().await.unwrap();
    assert_eq!(cache.len().await.unwrap(), 0);
    let refused = cache.set("k".repeat(200), 1).await;
    assert!(matches!(refused, Err(Error::TooLarge { max: 100, .. })), "{refused:?}");
}

#[tokio::test]
async fn value_above_the_maximum_is_refused_without_harm_to_other_calls() {
    let server = Server::start_with(&["--proto-max-bulk-len", "1mb"]);
    let builder = Client::builder(server.url()).timeout(patience()).max_value_bytes(MIB);
    let cache = bytes(&builder.connect().await.unwrap());
    let calls = (0..300).map(async |n: usize| {
        let len = if n == 150 { MIB + 1 } else { 10 };
        cache.set(n.to_string(), vec![0; len]).await
    });
    for (n, answer) in join_all(calls).await.into_iter().enumerate() {
        match answer {
            Err(Error::TooLarge { bytes, max }) => {
                assert_eq!((n, bytes, max), (150, MIB + 1, MIB));
            }
            answer => assert_eq!(answer.unwrap(), None),
        }
    }
    assert_eq!(cache.get("150").await.unwrap(), None);
    cache.set("150".into(), vec![0; MIB]).await.unwrap();
    let error = cache.set_many([("a".to_owned(), vec![0; 2 * MIB])], None).await.unwrap_err();
    assert!(!error.is_temporary());
    assert_eq!(
        error.to_string(),
        "a key or value of 2097152 bytes is longer than the maximum of 1048576; \
         store smaller values, or raise `ClientBuilder::max_value_bytes`"
    );
}

#[tokio::test]
async fn reply_above_the_maximum_is_refused_without_harm_to_later_calls() {
    let server = Server::start();
    let builder = Client::builder(server.url()).timeout(patience());
    let client = builder.max_reply_bytes(2 * MIB + (64 << 10)).connect().await.unwrap();
    let cache = bytes(&client);
    let keys: Vec<_> = (0..20).map(|n| n.to_string()).collect();
    let entries = keys.iter().map(|key| (key.clone(), key.as_bytes().repeat(MIB / 2)));
    cache.set_many(entries, None).await.unwrap();
    // In several replies.
    assert!(cache.get_many(&keys).await.unwrap().iter().all(Option::is_some));
    cache.set("large".into(), vec![7; 3 * MIB]).await.unwrap();
    let set: ExpiringSet<u64> = ExpiringSet::new(&client, "s", Duration::from_secs(600)).unwrap();
    set.extend(0..50_000).await.unwrap();
    for _ in 0..3 {
        for error in [cache.get("large").await.unwrap_err(), set.elements().await.unwrap_err()] {
            let text = format!("{error:?}");
            assert!(matches!(error, Error::Server(_)) && !error.is_temporary(), "{text}");
            assert!(text.contains("max_reply_bytes"), "{text}");
        }
        assert_eq!(cache.get("7").await.unwrap().unwrap().len(), MIB / 2);
        assert_eq!(set.len().await.unwrap(), 50_000);
    }
}

#[tokio::test]
async fn large_values_do_not_delay_small_calls() {
    in_time(async || {
        let server = Server::start();
        let proxy = Proxy::to(server.port()).await;
        let builder = Client::builder(proxy.url()).timeout(patience());
        let cache = bytes(&builder.connect().await.unwrap());
        cache.set("large".into(), vec![7; 4 * MIB]).await.unwrap();
        cache.set("small".into(), vec![7]).await.unwrap();
        // Calls about the value whose replies are small.
        assert!(cache.expire("large", 60 * patience()).await.unwrap());
        assert!(cache.contains_key("large").await.unwrap());
        proxy.slow_down(per_second(2 * MIB as u64));
        let reader = cache.clone();
        let large = tokio::spawn(async move {
            let begin = Instant::now();
            (reader.get("large").await.unwrap().unwrap().len(), begin.elapsed())
        });
        sleep(ms(100)).await;
        let mut slowest = Duration::ZERO;
        for _ in 0..10 {
            let begin = Instant::now();
            assert_eq!(cache.get("small").await.unwrap(), Some(vec![7]));
            slowest = slowest.max(begin.elapsed());
            sleep(ms(50)).await;
        }
        assert!(!large.is_finished(), "the large value is still on its way");
        assert!(slowest < ms(300), "{slowest:?}");
        let (len, passed) = large.await.unwrap();
        assert!(len == 4 * MIB && passed > ms(1_000), "{len} {passed:?}");
        // A value that became small is read with the others again.
        cache.set("large".into(), vec![1]).await.unwrap();
        assert_eq!(cache.get("large").await.unwrap(), Some(vec![1]));
    })
    .await;
}

#[tokio::test]
async fn large_values_are_transferred_by_no_runtime_of_a_caller() {
    in_time(async || {
        let server = Server::start();
        let url = server.url();
        let connect_elsewhere = move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let cache = runtime.block_on(async {
                let cache = bytes(&connect(url).await);
                cache.set("large".into(), vec![7; 2 * MIB]).await.unwrap();
                cache
            });
            (cache, runtime)
        };
        let (cache, not_driven) = std::thread::spawn(connect_elsewhere).join().unwrap();
        let begin = Instant::now();
        assert_eq!(cache.get("large").await.unwrap().unwrap().len(), 2 * MIB);
        assert!(begin.elapsed() < ms(300), "{:?}", begin.elapsed());
        not_driven.shutdown_background();
        cache.set("large".into(), vec![8; 2 * MIB]).await.unwrap();
        assert_eq!(cache.get("large").await.unwrap(), Some(vec![8; 2 * MIB]));
    })
    .await;
}

#[tokio::test]
async fn empty_value_is_a_live_value() {
    let server = Server::start();
    let cache = bytes(&connect(server.url()).await);
    assert!(!cache.contains_key("a").await.unwrap());
    assert!(cache.set_nx("a".into(), Vec::new(), None).await.unwrap());
    assert!(cache.contains_key("a").await.unwrap());
    assert_eq!(cache.ttl("a").await.unwrap(), Ttl::Persistent);
    assert!(!cache.set_nx("a".into(), vec![1], None).await.unwrap());
    assert_eq!(cache.get("a").await.unwrap(), Some(Vec::new()));
}

#[tokio::test]
async fn reply_that_takes_long_to_transfer_is_not_silence() {
    in_time(async || {
        let server = Server::start();
        let proxy = Proxy::to(server.port()).await;
        let value = vec![7; 3 * MIB];
        bytes(&connect(server.url()).await).set("a".into(), value.clone()).await.unwrap();
        for protocol in ["", "?protocol=2"] {
            let url = format!("{}{protocol}", proxy.url());
            let client = Client::builder(url).timeout(ms(20_000)).connect().await.unwrap();
            proxy.slow_down(per_second(MIB as u64));
            let (begin, made) = (Instant::now(), proxy.made());
            assert_eq!(bytes(&client).get("a").await.unwrap(), Some(value.clone()));
            let passed = begin.elapsed();
            assert!(passed > ms(2_000) && passed < ms(4_500), "{passed:?}");
            assert_eq!(proxy.made(), made, "no other connection was made");
            proxy.slow_down(0);
        }
    })
    .await;
}

#[tokio::test]
async fn first_write_after_an_idle_connection_ended_succeeds() {
    in_time(async || {
        let server = Server::start();
        let proxy = Proxy::to(server.port()).await;
        for protocol in ["?protocol=3", "?protocol=2"] {
            let url = format!("{}{protocol}", proxy.url());
            let client = connect(url).await;
            let cache: Cache<String, u64> = Cache::new(&client, "c").unwrap();
            for n in 0..3 {
                cache.set("a".into(), n).await.unwrap();
                proxy.cut();
                sleep(ms(100)).await;
                cache.set("a".into(), n).await.unwrap();
            }
        }
    })
    .await;
}

#[tokio::test]
async fn ten_thousand_callers_at_once_get_no_unanswered_error() {
    in_time(async || {
        let server = Server::start();
        // The default timeout.
        let builder = Client::builder(server.url()).timeout(ms(1_000));
        let cache: Cache<String, u64> = Cache::new(&builder.connect().await.unwrap(), "c").unwrap();
        let calls = (0..10_000).map(|n| {
            let cache = cache.clone();
            tokio::spawn(async move { cache.set(n.to_string(), n).await })
        });
        for call in join_all(calls.collect::<Vec<_>>()).await {
            let answer = call.unwrap();
            // On a busy machine, some may not be sent before the timeout.
            assert!(matches!(answer, Ok(_) | Err(Error::Unavailable(_))), "{answer:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn calls_above_the_bound_in_flight_are_not_sent() {
    in_time(async || {
        let server = Server::start();
        let builder = Client::builder(server.url()).timeout(ms(300));
        let cache: Cache<String, u64> = Cache::new(&builder.connect().await.unwrap(), "c").unwrap();
        cache.set("a".into(), 1).await.unwrap();
        server.pause();
        let answers = join_all((0..3_000).map(|n| cache.set(n.to_string(), n))).await;
        server.resume();
        let is_unanswered = |answer: &&Result<_, _>| matches!(answer, Err(Error::Unanswered(_)));
        let unanswered = answers.iter().filter(is_unanswered).count();
        // Those in flight, and those that were sent when the first had given up: the more, the longer it takes to begin
        // all calls.
        assert!((1..3_000).contains(&unanswered), "{unanswered}");
        let unsent = answers.iter().find(|answer| !is_unanswered(answer)).unwrap();
        assert!(unsent.as_ref().is_err_and(Error::is_temporary), "{unsent:?}");
        // Those that were not sent were not executed.
        let begin = Instant::now();
        let len = loop {
            match cache.len().await {
                Ok(len) => break len,
                Err(error) => assert!(begin.elapsed() < patience(), "{error}"),
            }
        };
        assert!(len <= unanswered + 1, "{len}");
    })
    .await;
}
