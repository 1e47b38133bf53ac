//! Model test: random operations on a Redis dictionary and an embedded one return the same results.
//!
//! All durations are either zero or an hour, so that no result depends on the duration of a call.

use std::time::Duration;

use fleeting::{Claim, TimeoutDict, Ttl, redis};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::time::sleep;

use crate::{
    clock::{in_time, ms},
    servers::{Server, connect},
};

const NOW: Duration = Duration::ZERO;
const LONG: Duration = Duration::from_secs(3_600);
const STEPS: usize = 350;
const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];

struct Pair {
    embedded: TimeoutDict<String, usize>,
    remote: redis::TimeoutDict<String, usize>,
    /// Claims on the same entry.
    claims: Vec<(Claim<String, usize>, redis::Claim<String, usize>)>,
    /// Operations so far, printed if the test fails.
    log: Vec<String>,
}

impl Pair {
    async fn new(server: &Server, name: String, backoff: Duration, max_attempts: u32) -> Self {
        let embedded = TimeoutDict::builder().backoff(backoff, backoff).max_attempts(max_attempts);
        let remote = redis::TimeoutDict::builder(&connect(server.url()).await, name);
        let remote = remote.backoff(backoff, backoff).max_attempts(max_attempts);
        let (embedded, remote) = (embedded.build(), remote.build().unwrap());
        Self { embedded, remote, claims: Vec::new(), log: Vec::new() }
    }

    async fn step(&mut self, step: usize, random: &mut SmallRng) {
        let key = KEYS[random.random_range(0..KEYS.len())];
        let span = [NOW, LONG, Duration::MAX][random.random_range(0..3)];
        let lease = [NOW, LONG][random.random_range(0..2)];
        let Self { embedded, remote, claims, log } = self;
        let which = random.random_range(0..24);
        let claim = match claims.len() {
            0 => None,
            len => Some(random.random_range(0..len)),
        };
        log.push(format!("{which} {key}, span {span:?}, lease {lease:?}, claim {claim:?}"));
        match (which, claim) {
            (0..4, _) => {
                let old = embedded.set(key.into(), step, span).await;
                assert_eq!(remote.set(key.into(), step, span).await.unwrap(), old);
            }
            (4..6, _) => assert_eq!(
                embedded.set_timeout(key, span).await,
                remote.set_timeout(key, span).await.unwrap()
            ),
            (6, _) => {
                assert_eq!(
                    embedded.remove_timeout(key).await,
                    remote.remove_timeout(key).await.unwrap()
                )
            }
            (7, _) => assert_eq!(embedded.remove(key).await, remote.remove(key).await.unwrap()),
            (8..13, _) => {
                let (mut left, mut right) = (
                    embedded.claim_expired(9, lease).await,
                    remote.claim_expired(9, lease).await.unwrap(),
                );
                left.sort_by_key(|claim| claim.key().clone());
                right.sort_by_key(|claim| claim.key().clone());
                let left_parts =
                    |c: &Claim<String, usize>| (c.key().clone(), *c.value(), c.attempts());
                let right_parts =
                    |c: &redis::Claim<String, usize>| (c.key().clone(), *c.value(), c.attempts());
                assert_eq!(
                    left.iter().map(left_parts).collect::<Vec<_>>(),
                    right.iter().map(right_parts).collect::<Vec<_>>()
                );
                claims.extend(left.into_iter().zip(right));
            }
            (13, _) => {
                let (mut left, mut right) =
                    (embedded.take_expired(9).await, remote.take_expired(9).await.unwrap());
                left.sort();
                right.sort();
                assert_eq!(left, right);
            }
            (14, _) => {
                let (mut left, mut right) =
                    (embedded.take_dead(9).await, remote.take_dead(9).await.unwrap());
                left.sort();
                right.sort();
                assert_eq!(left, right);
            }
            (15..17, _) => {
                assert_eq!(
                    embedded.revive(key, span).await,
                    remote.revive(key, span).await.unwrap()
                )
            }
            (17, Some(claim)) => {
                let (left, right) = claims.swap_remove(claim);
                assert_eq!(left.ack().await, right.ack().await.unwrap());
            }
            (18..20, Some(claim)) => {
                let (left, right) = claims.swap_remove(claim);
                assert_eq!(left.retry_in(span).await, right.retry_in(span).await.unwrap());
            }
            (20..22, Some(claim)) => {
                let (left, right) = &claims[claim];
                assert_eq!(left.extend(lease).await, right.extend(lease).await.unwrap());
            }
            (22, Some(claim)) => {
                drop(claims.swap_remove(claim));
                // Waits for the task that reports the failure to the server.
                sleep(ms(10)).await;
            }
            (23, _) if step.is_multiple_of(50) => {
                embedded.clear().await;
                remote.clear().await.unwrap();
            }
            _ => {}
        }
    }

    async fn check(&self) {
        let Self { embedded, remote, .. } = self;
        assert_eq!(embedded.len().await, remote.len().await.unwrap());
        assert_eq!(embedded.dead_len().await, remote.dead_len().await.unwrap());
        // Remaining TTLs of about an hour differ by the duration of the calls.
        let class = |ttl| match ttl {
            Ttl::Remaining(ttl) => format!("{}", ttl > Duration::from_secs(60)),
            other => format!("{other:?}"),
        };
        for key in KEYS {
            assert_eq!(embedded.get(key).await, remote.get(key).await.unwrap(), "{key}");
            let (left, right) = (embedded.ttl(key).await, remote.ttl(key).await.unwrap());
            assert_eq!(class(left), class(right), "{key}");
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("after {:#?}", &self.log[self.log.len().saturating_sub(20)..]);
        }
    }
}

#[tokio::test]
async fn redis_and_embedded_dict_return_the_same_results() {
    in_time(async || {
        let server = Server::start();
        for seed in 0..6 {
            let mut random = SmallRng::seed_from_u64(seed);
            let backoff = [NOW, LONG][seed as usize % 2];
            let max_attempts = [1, 3, u32::MAX][seed as usize % 3];
            let mut pair = Pair::new(&server, format!("dict-{seed}"), backoff, max_attempts).await;
            for step in 0..STEPS {
                pair.step(step, &mut random).await;
                if step.is_multiple_of(5) {
                    pair.check().await;
                }
            }
        }
    })
    .await;
}
