//! Number of commands that waiters of a `redis::TimeoutDict` send, and the delay of what they find.

use std::time::{Duration, Instant};

use fleeting::redis::TimeoutDict;
use tokio::time::{sleep, timeout};

use crate::{
    clock::{in_time, ms},
    patience::patience,
    servers::{Cluster, Server, connect},
};

const LONG: Duration = Duration::from_secs(3_600);

type Dict = TimeoutDict<String, u32>;

async fn dict(server: &Server) -> Dict {
    Dict::new(&connect(server.url()).await, "jobs").unwrap()
}

/// Number of calls of all commands, also of those in scripts, and of scripts, since the last call.
async fn take_counts(server: &Server) -> (u64, u64) {
    take_counts_without(server, &[]).await
}

/// Number of calls of commands, and of scripts, since the last call. The commands are those of an idle waiter, which
/// sends no scripts: without the scripts that count the entries for the metrics, and the commands in them.
async fn take_idle_counts(server: &Server) -> (u64, u64) {
    let (all, scripts) = take_counts_without(server, &["time", "zcard", "zcount", "hlen"]).await;
    (all - scripts, scripts)
}

async fn take_counts_without(server: &Server, others: &[&str]) -> (u64, u64) {
    let mut plain = server.plain().await;
    let stats: String =
        redis::cmd("INFO").arg("commandstats").query_async(&mut plain).await.unwrap();
    let () = redis::cmd("CONFIG").arg("RESETSTAT").query_async(&mut plain).await.unwrap();
    let (mut all, mut scripts) = (0, 0);
    for line in stats.lines() {
        let Some((name, stats)) =
            line.strip_prefix("cmdstat_").and_then(|line| line.split_once(':'))
        else {
            continue;
        };
        let calls: u64 = stats.split(['=', ',']).nth(1).unwrap().parse().unwrap();
        // Those of this function.
        let own = ["info", "config", "hello", "client"];
        if own.iter().any(|own| name.starts_with(own)) || others.contains(&name) {
            continue;
        }
        all += calls;
        scripts += if name.starts_with("eval") { calls } else { 0 };
    }
    (all, scripts)
}

#[tokio::test]
async fn worker_with_a_backlog_sends_two_scripts_per_job_and_gets_the_oldest_first() {
    let server = Server::start();
    let dict = dict(&server).await;
    for key in 0..300_u32 {
        dict.set(key.to_string(), key, Duration::ZERO).await.unwrap();
    }
    take_counts(&server).await;
    for key in 0..300 {
        let job = dict.next_claim(LONG).await.unwrap();
        assert_eq!(*job.value(), key, "oldest first");
        assert!(job.ack().await.unwrap());
    }
    let (_, scripts) = take_counts(&server).await;
    assert!((600..=4 * 300).contains(&scripts), "{scripts} scripts for 300 jobs");

    // A worker that queues another job after each.
    for key in 0..50_u32 {
        dict.set(key.to_string(), key, Duration::ZERO).await.unwrap();
    }
    take_counts(&server).await;
    for _ in 0..50 {
        let job = dict.next_claim(LONG).await.unwrap();
        dict.set(format!("after {}", job.key()), 0, Duration::ZERO).await.unwrap();
        assert!(job.ack().await.unwrap());
    }
    let (_, scripts) = take_counts(&server).await;
    assert!(scripts <= 4 * 50, "{scripts} scripts for 50 jobs");
}

#[tokio::test]
async fn slow_worker_with_a_backlog_sends_at_most_four_scripts_per_job() {
    let server = Server::start();
    let client = connect(server.url()).await;
    // Its deadlines were read too long ago before each job.
    let dict: Dict = TimeoutDict::builder(&client, "jobs").ask_every(ms(1)).build().unwrap();
    let start = Instant::now();
    for key in 0..60_u32 {
        dict.set(key.to_string(), key, Duration::ZERO).await.unwrap();
    }
    take_counts(&server).await;
    for key in 0..40 {
        sleep(ms(3)).await;
        let job = dict.next_claim(LONG).await.unwrap();
        assert_eq!(*job.value(), key);
        assert!(job.ack().await.unwrap());
    }
    let (all, scripts) = take_counts(&server).await;
    assert!(scripts <= 4 * 40, "{scripts} scripts for 40 jobs");
    // Each measurement for the metrics sends a script of at most six commands to each of 16 shards, every ten seconds.
    let measurements = 1 + start.elapsed().as_secs() / 10;
    let all = all.saturating_sub(measurements * 16 * 6);
    assert!(all <= 20 * 40, "{all} commands for 40 jobs");
}

#[tokio::test]
async fn idle_worker_sends_at_most_ten_commands_per_second() {
    in_time(async || {
        let server = Server::start();
        for entries in [0, 100_u32] {
            let dict = dict(&server).await;
            for key in 0..entries {
                dict.set(key.to_string(), key, LONG + ms(1_000) * key).await.unwrap();
            }
            let waits = dict.clone();
            let waiter = tokio::spawn(async move { waits.next_claim(LONG).await });
            sleep(ms(500)).await;
            take_counts(&server).await;
            let start = Instant::now();
            sleep(ms(6_100)).await;
            let (commands, scripts) = take_idle_counts(&server).await;
            let seconds = start.elapsed().as_secs_f64();
            assert!(commands > 0, "it asks the server");
            assert!(
                (commands as f64) <= 10.0 * seconds,
                "{commands} commands in {seconds} s with {entries} entries"
            );
            // A script per shard and ten seconds counts the entries for the metrics, and no other is sent.
            assert!((scripts as f64) <= 16.0 * (1.0 + seconds / 10.0), "{scripts} scripts");
            waiter.abort();
        }
    })
    .await;
}

#[tokio::test]
async fn entry_of_another_process_is_found_within_ask_every() {
    in_time(async || {
        let server = Server::start();
        let (waits, sets) = (dict(&server).await, dict(&server).await);
        sets.set("late".into(), 1, LONG).await.unwrap();
        let waiter = tokio::spawn(async move {
            let first = waits.next_expired().await.unwrap();
            (first, waits.next_expired().await.unwrap())
        });
        sleep(ms(500)).await;
        let start = Instant::now();
        sets.set("soon".into(), 2, ms(1)).await.unwrap();
        sets.set("later".into(), 3, ms(300)).await.unwrap();
        let found = timeout(patience(), waiter).await.expect("the entries are found").unwrap();
        assert_eq!(found, (("soon".to_owned(), 2), ("later".to_owned(), 3)));
        assert!(start.elapsed() < ms(2_700), "{:?}", start.elapsed());
    })
    .await;
}

#[tokio::test]
async fn change_through_the_same_handle_wakes_a_waiter() {
    in_time(async || {
        let server = Server::start();
        let client = connect(server.url()).await;
        let dict: Dict =
            TimeoutDict::builder(&client, "jobs").ask_every(LONG).max_attempts(2).build().unwrap();
        dict.set("a".into(), 1, LONG).await.unwrap();
        for change in 0..6 {
            let waits = dict.clone();
            let waiter = tokio::spawn(async move { waits.next_claim(LONG).await.unwrap() });
            sleep(ms(100)).await;
            let held = match change {
                0 => dict.set("a".into(), 1, Duration::ZERO).await.is_err(),
                1 => dict.set_timeout("a", Duration::ZERO).await.unwrap(),
                2 => dict.set_nx("b".into(), 1, Duration::ZERO).await.unwrap(),
                3 => dict.set("a".into(), 1, ms(200)).await.is_err(),
                4 => dict.revive("a", Duration::ZERO).await.unwrap(),
                _ => dict.set_timeout("a", ms(100)).await.unwrap(),
            };
            let start = Instant::now();
            let claim = waiter.await.unwrap();
            assert!(start.elapsed() < ms(1_000), "{change} {held}: {:?}", start.elapsed());
            match change {
                1 => assert!(claim.retry_in(LONG).await.unwrap()),
                2 => assert!(claim.ack().await.unwrap()),
                // Makes it a dead letter.
                3 => {
                    assert!(claim.retry_in(Duration::ZERO).await.unwrap());
                    assert!(dict.next_claim(LONG).await.unwrap().fail("full").await.unwrap());
                }
                _ => assert!(claim.retry_in(LONG).await.unwrap()),
            }
        }
    })
    .await;
}

#[tokio::test]
async fn entry_of_an_ended_lease_is_found_when_it_ends() {
    in_time(async || {
        let server = Server::start();
        let client = connect(server.url()).await;
        let dict: Dict = TimeoutDict::builder(&client, "jobs").ask_every(LONG).build().unwrap();
        dict.set("a".into(), 1, Duration::ZERO).await.unwrap();
        let start = Instant::now();
        std::mem::forget(dict.next_claim(ms(300)).await.unwrap());
        assert_eq!(dict.next_claim(LONG).await.unwrap().attempts(), 2);
        assert!(start.elapsed() >= ms(300) && start.elapsed() < ms(1_500), "{:?}", start.elapsed());
    })
    .await;
}

#[tokio::test]
async fn worker_loop_works_in_a_cluster() {
    let cluster = Cluster::start();
    let dict = Dict::new(&connect(cluster.urls()).await, "jobs").unwrap();
    for key in 0..100_u32 {
        dict.set(key.to_string(), key, Duration::ZERO).await.unwrap();
    }
    for key in 0..100 {
        let job = dict.next_claim(LONG).await.unwrap();
        assert_eq!(*job.value(), key);
        assert!(job.ack().await.unwrap());
    }
    dict.set("late".into(), 7, ms(300)).await.unwrap();
    assert_eq!(dict.next_expired().await.unwrap(), ("late".to_owned(), 7));
}
