//! Batches of `redis::TimeoutDict`: one script reads, leases and removes many entries.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use fleeting::redis::{Format, TimeoutDict};
use futures::future::join_all;
use rand::{RngExt, SeedableRng, rngs::SmallRng};

use crate::servers::{Server, connect};

const LONG: Duration = Duration::from_secs(3_600);

#[tokio::test]
async fn entries_of_very_different_sizes_are_all_returned_oldest_first() {
    let server = Server::start();
    let builder = TimeoutDict::builder(&connect(server.url()).await, "mixed").format(Format::Raw);
    let dict: TimeoutDict<u32, String> = builder.build().unwrap();
    let value = |n: u32| match n % 97 {
        0 => String::new(),
        50 => "x".repeat(3 << 20),
        51 => "x".repeat(1 << 19),
        other => other.to_string(),
    };
    // One after the other, so that their deadlines are in this order.
    for n in 0..1_000 {
        dict.set(n, value(n), Duration::ZERO).await.unwrap();
    }
    let claims = dict.claim_expired(500, LONG).await.unwrap();
    assert!(claims.iter().map(|claim| *claim.key()).eq(0..500));
    assert!(claims.iter().all(|claim| *claim.value() == value(*claim.key())));
    let acks = join_all(claims.into_iter().map(|claim| claim.ack())).await;
    assert!(acks.into_iter().all(|ack| ack.unwrap()));
    let taken = dict.take_expired(1_000).await.unwrap();
    assert!(taken.iter().map(|(key, _)| *key).eq(500..1_000));
    assert!(taken.iter().all(|(key, text)| *text == value(*key)));
    assert!(dict.is_empty().await.unwrap());
}

#[tokio::test]
async fn missing_and_foreign_records_in_a_batch_hide_no_other_entry() {
    let server = Server::start();
    let mut plain = server.plain().await;
    let dict: TimeoutDict<String, u32> =
        TimeoutDict::new(&connect(server.url()).await, "batch").unwrap();
    for takes in [false, true] {
        for n in 0..300 {
            dict.set(n.to_string(), n, Duration::ZERO).await.unwrap();
        }
        let records: Vec<String> = redis::cmd("KEYS")
            .arg("fleeting:dict1:{batch:*}:*")
            .query_async(&mut plain)
            .await
            .unwrap();
        for record in &records {
            let n: u32 = record.rsplit(':').next().unwrap().trim_matches('"').parse().unwrap();
            let is_foreign = n.is_multiple_of(11);
            if is_foreign || n.is_multiple_of(7) {
                let () = redis::cmd("DEL").arg(record).query_async(&mut plain).await.unwrap();
            }
            if is_foreign {
                let mut push = redis::cmd("RPUSH");
                let () = push.arg(record).arg("theirs").query_async(&mut plain).await.unwrap();
            }
        }
        let expected = (0..300).filter(|n| n % 11 != 0 && n % 7 != 0);
        if takes {
            let taken = dict.take_expired(1_000).await.unwrap();
            assert!(taken.into_iter().map(|(_, n)| n).eq(expected));
        } else {
            let claims = dict.claim_expired(1_000, LONG).await.unwrap();
            assert!(claims.iter().map(|claim| *claim.value()).eq(expected));
            for claim in claims {
                assert!(claim.ack().await.unwrap());
            }
        }
        // Foreign records stay; the entries at their keys are hidden for a while.
        assert_eq!(dict.len().await.unwrap(), 28);
        assert_eq!(dict.take_expired(1_000).await.unwrap(), []);
        let flush = redis::cmd("FLUSHALL");
        let () = flush.query_async(&mut plain).await.unwrap();
    }
}

#[tokio::test]
async fn each_value_is_taken_or_replaced_exactly_once_while_others_set() {
    let server = Server::start();
    let dict: TimeoutDict<u32, u32> =
        TimeoutDict::new(&connect(server.url()).await, "race").unwrap();
    let (returned, last, is_done) = (
        Arc::new(Mutex::new(Vec::new())),
        Arc::new(AtomicU32::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let takers = (0..2).map(|_| {
        let (dict, returned, is_done) = (dict.clone(), returned.clone(), is_done.clone());
        tokio::spawn(async move {
            while !is_done.load(Relaxed) {
                let taken = dict.take_expired(100).await.unwrap();
                returned.lock().unwrap().extend(taken.into_iter().map(|(_, value)| value));
            }
        })
    });
    let takers: Vec<_> = takers.collect();
    let setters = (0..8).map(|seed| {
        let (dict, returned, last) = (dict.clone(), returned.clone(), last.clone());
        let mut random = SmallRng::seed_from_u64(seed);
        tokio::spawn(async move {
            for _ in 0..400 {
                let value = last.fetch_add(1, Relaxed);
                let old = dict.set(random.random_range(0..40), value, Duration::ZERO).await;
                returned.lock().unwrap().extend(old.unwrap());
            }
        })
    });
    for setter in join_all(setters.collect::<Vec<_>>()).await {
        setter.unwrap();
    }
    is_done.store(true, Relaxed);
    for taker in takers {
        taker.await.unwrap();
    }
    let rest = dict.take_expired(100).await.unwrap();
    let mut returned = returned.lock().unwrap();
    returned.extend(rest.into_iter().map(|(_, value)| value));
    let count = last.load(Relaxed);
    assert_eq!(returned.len(), count as usize, "each value exactly once");
    assert!(returned.iter().copied().collect::<BTreeSet<_>>().into_iter().eq(0..count));
}
