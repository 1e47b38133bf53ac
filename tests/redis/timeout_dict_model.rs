//! The dictionary on a server beside the one in memory: whatever is done to both, both answer the same.
//!
//! A span is either over at once or not for long: so no answer depends on how long a call takes.

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
    here: TimeoutDict<String, usize>,
    there: redis::TimeoutDict<String, usize>,
    /// Claims on the same entry.
    claims: Vec<(Claim<String, usize>, redis::Claim<String, usize>)>,
    /// What was done, for who has to find out why they differ.
    log: Vec<String>,
}

impl Pair {
    async fn new(server: &Server, name: String, backoff: Duration, max_attempts: u32) -> Self {
        let here = TimeoutDict::builder().backoff(backoff, backoff).max_attempts(max_attempts);
        let there = redis::TimeoutDict::builder(&connect(server.url()).await, name);
        let there = there.backoff(backoff, backoff).max_attempts(max_attempts);
        let (here, there) = (here.build(), there.build().unwrap());
        Self { here, there, claims: Vec::new(), log: Vec::new() }
    }

    async fn step(&mut self, step: usize, random: &mut SmallRng) {
        let key = KEYS[random.random_range(0..KEYS.len())];
        let span = [NOW, LONG, Duration::MAX][random.random_range(0..3)];
        let lease = [NOW, LONG][random.random_range(0..2)];
        let Self { here, there, claims, log } = self;
        let which = random.random_range(0..24);
        let claim = match claims.len() {
            0 => None,
            len => Some(random.random_range(0..len)),
        };
        log.push(format!("{which} {key}, span {span:?}, lease {lease:?}, claim {claim:?}"));
        match (which, claim) {
            (0..4, _) => {
                let old = here.set(key.into(), step, span).await;
                assert_eq!(there.set(key.into(), step, span).await.unwrap(), old);
            }
            (4..6, _) => assert_eq!(
                here.set_timeout(key, span).await,
                there.set_timeout(key, span).await.unwrap()
            ),
            (6, _) => {
                assert_eq!(here.remove_timeout(key).await, there.remove_timeout(key).await.unwrap())
            }
            (7, _) => assert_eq!(here.remove(key).await, there.remove(key).await.unwrap()),
            (8..13, _) => {
                let (mut ours, mut theirs) = (
                    here.claim_expired(9, lease).await,
                    there.claim_expired(9, lease).await.unwrap(),
                );
                ours.sort_by_key(|claim| claim.key().clone());
                theirs.sort_by_key(|claim| claim.key().clone());
                let of_ours =
                    |c: &Claim<String, usize>| (c.key().clone(), *c.value(), c.attempts());
                let of_theirs =
                    |c: &redis::Claim<String, usize>| (c.key().clone(), *c.value(), c.attempts());
                assert_eq!(
                    ours.iter().map(of_ours).collect::<Vec<_>>(),
                    theirs.iter().map(of_theirs).collect::<Vec<_>>()
                );
                claims.extend(ours.into_iter().zip(theirs));
            }
            (13, _) => {
                let (mut ours, mut theirs) =
                    (here.take_expired(9).await, there.take_expired(9).await.unwrap());
                ours.sort();
                theirs.sort();
                assert_eq!(ours, theirs);
            }
            (14, _) => {
                let (mut ours, mut theirs) =
                    (here.take_dead(9).await, there.take_dead(9).await.unwrap());
                ours.sort();
                theirs.sort();
                assert_eq!(ours, theirs);
            }
            (15..17, _) => {
                assert_eq!(here.revive(key, span).await, there.revive(key, span).await.unwrap())
            }
            (17, Some(claim)) => {
                let (ours, theirs) = claims.swap_remove(claim);
                assert_eq!(ours.ack().await, theirs.ack().await.unwrap());
            }
            (18..20, Some(claim)) => {
                let (ours, theirs) = claims.swap_remove(claim);
                assert_eq!(ours.retry_in(span).await, theirs.retry_in(span).await.unwrap());
            }
            (20..22, Some(claim)) => {
                let (ours, theirs) = &claims[claim];
                assert_eq!(ours.extend(lease).await, theirs.extend(lease).await.unwrap());
            }
            (22, Some(claim)) => {
                drop(claims.swap_remove(claim));
                // A task tells the server.
                sleep(ms(10)).await;
            }
            (23, _) if step.is_multiple_of(50) => {
                here.clear().await;
                there.clear().await.unwrap();
            }
            _ => {}
        }
    }

    async fn check(&self) {
        let Self { here, there, .. } = self;
        assert_eq!(here.len().await, there.len().await.unwrap());
        assert_eq!(here.dead_len().await, there.dead_len().await.unwrap());
        // A rest of an hour is not the same to the microsecond.
        let class = |ttl| match ttl {
            Ttl::Remaining(left) => format!("{}", left > Duration::from_secs(60)),
            other => format!("{other:?}"),
        };
        for key in KEYS {
            assert_eq!(here.get(key).await, there.get(key).await.unwrap(), "{key}");
            let (ours, theirs) = (here.ttl(key).await, there.ttl(key).await.unwrap());
            assert_eq!(class(ours), class(theirs), "{key}");
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
async fn both_answer_the_same() {
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
