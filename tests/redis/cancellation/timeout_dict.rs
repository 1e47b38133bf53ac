//! Calls of timeout dictionaries and their claims.

use std::{collections::BTreeSet, time::Duration};

use fleeting::redis::{Claim, Client, TimeoutDict};
use futures::lock::Mutex;
use tokio::time::{sleep, timeout};

use super::{HOUR, checked, fresh, hours, until};
use crate::{
    cancel::{Effect, Parts, at_each_poll, calls, has_effect_at_polls},
    patience::patience,
    servers::{Server, connect},
};

type Dict = TimeoutDict<String, u32>;

/// Returns a dictionary with due entries, an entry with a deadline, and a dead letter.
async fn filled(client: &Client) -> Dict {
    let (name, backoff) = (fresh(), Duration::from_millis(2));
    let once = Dict::builder(client, &name).max_attempts(1).build().unwrap();
    once.set("dead".into(), 1, Duration::ZERO).await.unwrap();
    assert!(once.next_claim(HOUR).await.unwrap().fail("no reason").await.unwrap());
    assert_eq!(once.dead_len().await.unwrap(), 1);
    let dict = Dict::builder(client, name).backoff(backoff, backoff).max_attempts(5).build();
    let dict = dict.unwrap();
    for key in ["a", "b", "c"] {
        dict.set(key.into(), 1, Duration::ZERO).await.unwrap();
    }
    dict.set("later".into(), 1, HOUR).await.unwrap();
    dict
}

async fn observe(dict: &Dict) -> Parts {
    let mut parts = Parts::new();
    for key in ["a", "b", "c", "later", "new", "dead"] {
        let value = dict.get(key).await.unwrap();
        parts.insert(key.into(), format!("{value:?} {}", hours(dict.ttl(key).await.unwrap())));
    }
    parts.insert("dead letters".into(), format!("{:?}", dict.dead_letters(9).await.unwrap()));
    parts
}

#[tokio::test]
async fn cancelled_call_of_a_timeout_dict_has_its_whole_effect_or_none() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    let whole = calls! { dict: Dict;
        dict.set("a".into(), 2, HOUR), dict.set("new".into(), 2, HOUR), dict.set("dead".into(), 2, HOUR),
        dict.set_nx("new".into(), 2, HOUR), dict.set_timeout("a", HOUR), dict.remove_timeout("later"),
        dict.remove("a"), dict.remove("dead"), dict.revive("dead", HOUR),
    };
    let nothing = calls! { dict: Dict;
        dict.get("a"), dict.contains_key("a"), dict.ttl("a"), dict.len(), dict.is_empty(), dict.dead_len(),
        dict.dead_letters(9), dict.set_nx("a".into(), 2, HOUR), dict.revive("a", HOUR),
    };
    let parts = calls! { dict: Dict; dict.clear() };
    for (effect, calls) in
        [(Effect::Whole, whole), (Effect::Nothing, nothing), (Effect::SomeParts, parts)]
    {
        for (name, call) in calls {
            let call = async |dict: &Dict| checked(call(dict).await);
            has_effect_at_polls(effect, name, async || filled(&client).await, call, observe).await;
        }
    }
}

#[tokio::test]
async fn cancelled_take_or_claim_on_redis_loses_no_entry() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    // The claims of a reply are dropped with it, so their entries are due again.
    let claims = calls! { dict: Dict; dict.claim_expired(2, HOUR), dict.next_claim(HOUR) };
    let one = calls! { dict: Dict; dict.next_expired() };
    let two = calls! { dict: Dict; dict.take_expired(2) };
    let dead = calls! { dict: Dict; dict.take_dead(2) };
    for (calls, taken, taken_dead) in [(claims, 0, 0), (one, 1, 0), (two, 2, 0), (dead, 0, 1)] {
        for (name, call) in calls {
            at_each_poll(
                async || filled(&client).await,
                async |dict| call(dict).await,
                async |dict, reply, schedule| {
                    let (due, dead) = match reply {
                        Some(_) => (3 - taken, 1 - taken_dead),
                        None => (3, 1),
                    };
                    let found = Mutex::new((BTreeSet::new(), BTreeSet::new()));
                    let has_all = async || {
                        let mut found = found.lock().await;
                        found.0.extend(dict.take_expired(9).await.unwrap());
                        found.1.extend(dict.take_dead(9).await.unwrap());
                        (found.0.len(), found.1.len()) == (due, dead)
                    };
                    until(has_all, &format!("{name}, {schedule:?}: an entry is lost")).await;
                },
            )
            .await;
        }
    }
}

#[tokio::test]
async fn cancelled_wait_for_an_entry_blocks_no_later_waiter() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    let calls = calls! { dict: Dict; dict.next_expired(), dict.next_claim(HOUR) };
    for (name, call) in calls {
        at_each_poll(
            async || {
                let dict = Dict::new(&client, fresh()).unwrap();
                dict.set("later".into(), 1, HOUR).await.unwrap();
                dict
            },
            async |dict| {
                let set = async {
                    sleep(Duration::from_millis(20)).await;
                    dict.set("a".into(), 1, Duration::ZERO).await.unwrap();
                };
                checked(tokio::join!(call(dict), set).0);
            },
            async |dict, _, schedule| {
                dict.set("a".into(), 2, Duration::ZERO).await.unwrap();
                let next = timeout(patience(), dict.next_expired()).await;
                let next = next.unwrap_or_else(|_| panic!("{name}, {schedule:?}: it is blocked"));
                assert_eq!(next.unwrap().0, "a", "{name}, {schedule:?}");
            },
        )
        .await;
    }
}

type Held = (Dict, Mutex<Option<Claim<String, u32>>>);

async fn held(client: &Client, lease: Duration) -> Held {
    let dict = filled(client).await;
    let claim = dict.next_claim(lease).await.unwrap();
    (dict, Mutex::new(Some(claim)))
}

#[tokio::test]
async fn entry_is_due_again_after_a_cancelled_end_of_its_claim() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    let new = async || held(&client, Duration::from_millis(100)).await;
    for end in ["ack", "retry_in", "fail", "release"] {
        let call = async |(_, claim): &Held| {
            let claim = claim.lock().await.take().expect("called once");
            match end {
                "ack" => claim.ack().await,
                "retry_in" => claim.retry_in(Duration::ZERO).await,
                "fail" => claim.fail("no reason").await,
                _ => claim.release().await,
            }
        };
        at_each_poll(new, call, async |(dict, claim), reply, schedule| {
            drop(claim);
            assert!(reply.is_none_or(|reply| reply.unwrap()), "{end}, {schedule:?}");
            let found = Mutex::new(BTreeSet::new());
            let has_all = async || {
                let mut found = found.lock().await;
                found.extend(dict.take_expired(9).await.unwrap().into_iter().map(|(key, _)| key));
                let is_acked = end == "ack" && dict.get("a").await.unwrap().is_none();
                found.contains("a") || is_acked
            };
            until(has_all, &format!("{end}, {schedule:?}: the entry is lost")).await;
        })
        .await;
    }
}

/// A claim is identified by the end of its lease, so it must know the new one.
#[tokio::test]
async fn claim_can_be_acked_after_a_cancelled_extend() {
    let server = Server::shared();
    let client = connect(server.url()).await;
    let new = async || held(&client, HOUR).await;
    let call = async |(_, claim): &Held| {
        let claim = claim.lock().await;
        let claim = claim.as_ref().expect("it is taken by the check");
        claim.extend(2 * HOUR).await.unwrap()
    };
    at_each_poll(new, call, async |(dict, claim), reply, schedule| {
        assert!(reply.is_none_or(|is_extended| is_extended), "{schedule:?}");
        let claim = claim.into_inner().expect("it was not ended");
        let ack = timeout(patience(), claim.ack()).await.expect("the claim is not blocked");
        assert!(ack.unwrap(), "{schedule:?}: the claim is lost");
        assert_eq!(dict.get("a").await.unwrap(), None, "{schedule:?}");
    })
    .await;
}
