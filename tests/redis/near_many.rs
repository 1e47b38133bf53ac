//! `get_many` of a near cache: one request for all misses, and no outdated values.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use fleeting::redis::{Cache, Format};
use futures::future::join_all;
use rand::{RngExt, SeedableRng, rngs::SmallRng};

use crate::{
    near::{HOUR, calls, pair, until},
    servers::{Server, connect},
};

#[tokio::test]
async fn misses_of_get_many_are_read_by_one_script() {
    let server = Server::start();
    let (near, other) = pair(&server, "cold").await;
    let names = |from: u64, to: u64| -> Vec<String> { (from..to).map(|n| n.to_string()).collect() };
    other.set_many(names(0, 500).into_iter().zip(0..), Some(HOUR)).await.unwrap();
    let expected = |from: u64, to: u64| -> Vec<_> {
        (from..to).map(|n| Some(n).filter(|n| *n < 500)).collect()
    };
    // Loads the script into the server, so that the counts below have no `NOSCRIPT` error.
    assert_eq!(near.get_many(&names(2_000, 2_002)).await.unwrap(), [None, None]);
    let counts = async || {
        let mut counts = Vec::new();
        for command in ["evalsha", "eval", "get", "pttl"] {
            counts.push(calls(&server, command).await);
        }
        counts
    };
    let before = counts().await;
    assert_eq!(near.get_many(&names(0, 900)).await.unwrap(), expected(0, 900));
    let after = counts().await;
    let increase: Vec<u64> =
        after.iter().zip(&before).map(|(after, before)| after - before).collect();
    assert_eq!(increase, [1, 0, 900, 500]);
    // All answers are cached, including duplicate keys.
    let duplicate_keys = ["7", "x", "7", "x"];
    assert_eq!(near.get_many([duplicate_keys[0]]).await.unwrap(), [Some(7)]);
    assert_eq!(near.get_many(&names(0, 900)).await.unwrap(), expected(0, 900));
    assert_eq!(counts().await, after);
    near.get_many(duplicate_keys).await.unwrap();
    assert_eq!(calls(&server, "get").await, after[2] + 1);
    // Concurrent calls share the requests of common keys, and a dropped call does not affect the others.
    let before = calls(&server, "get").await;
    server.pause();
    let read = |from: u64, to: u64| {
        let (near, names) = (near.clone(), names(from, to));
        tokio::spawn(async move { near.get_many(&names).await.unwrap() })
    };
    let reads = [read(1_000, 2_000), read(1_500, 1_900), read(1_800, 2_900)];
    let one = {
        let near = near.clone();
        tokio::spawn(async move { near.get("1700").await.unwrap() })
    };
    tokio::task::yield_now().await;
    reads[0].abort();
    server.resume();
    let [_, second, third] = reads;
    assert_eq!(second.await.unwrap(), expected(1_500, 1_900));
    assert_eq!(third.await.unwrap(), expected(1_800, 2_900));
    assert_eq!(one.await.unwrap(), None);
    until("all answers", async || calls(&server, "get").await - before == 1_900 - 2).await;
    // Large values are read in replies of about a mebibyte.
    let client = connect(server.url()).await;
    let large: Cache<u64, Vec<u8>> =
        Cache::builder(&client, "large").near(100).format(Format::Raw).build().unwrap();
    large.set_many((0..5).map(|n| (n, vec![n as u8; 1 << 20])), None).await.unwrap();
    let before = counts().await;
    let values = large.get_many(&[4, 0, 1, 2, 3]).await.unwrap();
    let sizes = values.into_iter().flatten().map(|value| (value[0], value.len()));
    assert_eq!(sizes.collect::<Vec<_>>(), [4, 0, 1, 2, 3].map(|n| (n, 1 << 20)));
    assert_eq!(counts().await[0] - before[0], 5);
}

/// Readers of one and of many keys, and writers in this process and in another.
#[tokio::test]
async fn get_many_returns_no_version_older_than_known() {
    const KEYS: usize = 60;
    let server = Server::start();
    let (near, other) = pair(&server, "many").await;
    let keys: Vec<String> = (0..KEYS).map(|n| n.to_string()).collect();
    let known: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let see = |key: usize, value: Option<u64>, before: u64| {
        let value = value.unwrap_or(0);
        assert!(value >= before, "{key}: {value} after {before}");
        known[key].fetch_max(value, SeqCst);
    };
    let (rounds, writers_left) = (300, AtomicU64::new(6));
    let read = async |seed: u64| {
        let mut random = SmallRng::seed_from_u64(seed);
        while writers_left.load(SeqCst) > 0 {
            let sampled: Vec<usize> = (0..random.random_range(1..2 * KEYS))
                .map(|_| random.random_range(0..KEYS))
                .collect();
            let before: Vec<u64> = sampled.iter().map(|key| known[*key].load(SeqCst)).collect();
            let names = sampled.iter().map(|key| &*keys[*key]);
            let polls =
                if random.random_ratio(1, 4) { random.random_range(0..30) } else { 1 << 20 };
            tokio::select! {
                biased;
                values = near.get_many(names) => {
                    for ((key, value), before) in sampled.iter().zip(values.unwrap()).zip(before) {
                        see(*key, value, before);
                    }
                }
                () = async { for _ in 0..polls { tokio::task::yield_now().await } } => {}
            }
            let key = random.random_range(0..KEYS);
            let before = known[key].load(SeqCst);
            see(key, near.get(&keys[key]).await.unwrap(), before);
        }
    };
    let write = async |cache: &Cache<String, u64>, from: usize, is_here: bool| {
        let mut random = SmallRng::seed_from_u64(from as u64);
        for version in 1..=rounds {
            // Each key has a single writer, so that its versions increase.
            let key = 6 * random.random_range(0..KEYS / 6) + from;
            cache.set(keys[key].clone(), version).await.unwrap();
            if is_here {
                known[key].fetch_max(version, SeqCst);
            }
        }
        writers_left.fetch_sub(1, SeqCst);
    };
    let readers = join_all((0..4).map(read));
    let writers = join_all((0..6).map(|from| {
        let is_here = from % 2 == 0;
        write(if is_here { &near } else { &other }, from, is_here)
    }));
    tokio::join!(readers, writers);
    let stats = near.stats();
    assert!(stats.near_hits > 0 && stats.invalidations > 0 && stats.bypassed > 0, "{stats:?}");
}
