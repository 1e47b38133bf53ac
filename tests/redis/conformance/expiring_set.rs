//! Members and scores of the embedded `ExpiringSet` and of `redis::ExpiringSet`.

use std::{
    fmt::Debug,
    ops::{Add, Bound, RangeBounds, Sub},
    time::{Duration, SystemTime},
};

use fleeting::redis;
use futures::{FutureExt, future::join_all};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::time::{Instant, sleep};

use super::{client, fresh};
use crate::clock::ms;

cases! {
    embedded: Embedded,
    on_redis: OnRedis => {
        member_expires_when_its_score_is_ttl_old,
        members_are_ordered_by_score_and_moved_by_a_push,
        members_with_equal_scores_are_kept_in_the_order_of_pushing,
        equal_scores_stay_ordered_after_thousands_of_pushes,
        thousand_equal_scores_keep_the_order_of_pushing,
        extend_keeps_the_order_of_its_members,
        push_of_an_expired_score_adds_nothing_and_removes_the_member,
        ttl_of_duration_max_expires_nothing,
        range_and_remove_range_select_by_score,
        pushed_members_are_scored_with_the_present,
        concurrent_pops_return_each_member_once,
        clones_share_one_set,
    }
}

type Embedded = fleeting::ExpiringSet<String>;
type OnRedis = redis::ExpiringSet<String>;

on_both! {
    /// Verbs without scores among their arguments.
    trait Verbs for Embedded, OnRedis {
        fn push(&self, member: String) -> ();
        fn elements(&self) -> Vec<String>;
        fn peek(&self) -> Option<String>;
        fn pop(&self) -> Option<String>;
        fn remove(&self, member: &str) -> bool;
        fn contains(&self, member: &str) -> bool;
        fn len(&self) -> usize;
        fn is_empty(&self) -> bool;
        fn clear(&self) -> ();
    }
}

/// All methods of an expiring set that the cases call.
trait Set: Verbs {
    /// Time of a score: Tokio's clock in memory, and the wall clock on Redis.
    type Score: Copy
        + Debug
        + PartialOrd
        + Add<Duration, Output = Self::Score>
        + Sub<Duration, Output = Self::Score>;

    async fn with_ttl(ttl: Duration) -> Self;
    fn now() -> Self::Score;
    async fn push_at(&self, member: String, score: Self::Score);
    async fn push_unique_at(&self, member: String, score: Self::Score);
    async fn extend(&self, members: impl IntoIterator<Item = String>);
    async fn range(&self, scores: impl RangeBounds<Self::Score>) -> Vec<String>;
    async fn remove_range(&self, scores: impl RangeBounds<Self::Score>) -> usize;
    async fn score(&self, member: &str) -> Option<Self::Score>;
}

/// Implements [`Set`] with scores of a type; `reply` converts the reply of a method.
macro_rules! set {
    ($type:ty, $score:ty, $reply:expr, $with_ttl:item) => {
        impl Set for $type {
            type Score = $score;

            $with_ttl

            fn now() -> $score {
                <$score>::now()
            }

            async fn push_at(&self, member: String, score: $score) {
                self.push_at(member, score).map($reply).await
            }

            async fn push_unique_at(&self, member: String, score: $score) {
                self.push_unique_at(member, score).map($reply).await
            }

            async fn extend(&self, members: impl IntoIterator<Item = String>) {
                self.extend(members).map($reply).await
            }

            async fn range(&self, scores: impl RangeBounds<$score>) -> Vec<String> {
                self.range(scores).map($reply).await
            }

            async fn remove_range(&self, scores: impl RangeBounds<$score>) -> usize {
                self.remove_range(scores).map($reply).await
            }

            async fn score(&self, member: &str) -> Option<$score> {
                self.score(member).map($reply).await
            }
        }
    };
}

set! {
    Embedded, Instant, std::convert::identity,
    async fn with_ttl(ttl: Duration) -> Self {
        // Otherwise scores in the past would precede the paused clock's start.
        tokio::time::advance(Duration::from_secs(10_000)).await;
        Self::new(ttl)
    }
}

set! {
    OnRedis, SystemTime, Result::unwrap,
    async fn with_ttl(ttl: Duration) -> Self {
        Self::new(&client().await, fresh("set"), ttl).unwrap()
    }
}

const MILLI: Duration = Duration::from_millis(1);
/// TTL, long enough that a busy machine completes the calls of a test before it ends.
fn ttl() -> Duration {
    ms(400)
}
const LONG: Duration = Duration::from_secs(600);
const NONE: [String; 0] = [];

async fn fill<S: Set>(set: &S, members: &[(&str, S::Score)]) {
    for (member, score) in members {
        set.push_at((*member).into(), *score).await;
    }
}

async fn member_expires_when_its_score_is_ttl_old<S: Set>() {
    let set = S::with_ttl(ttl()).await;
    set.push("a".into()).await;
    assert_eq!(set.elements().await, ["a"]);
    assert!(set.contains("a").await && !set.contains("b").await);
    // Scores in the past and in the future.
    fill(&set, &[("b", S::now() - ttl() / 2), ("c", S::now() + ttl())]).await;
    assert_eq!(set.elements().await, ["b", "a", "c"]);
    sleep(ttl() / 2 + MILLI).await;
    assert_eq!(set.elements().await, ["a", "c"]);
    sleep(ttl() / 2 + MILLI).await;
    assert_eq!((set.elements().await, set.len().await), (vec!["c".into()], 1));
    assert_eq!(set.peek().await.as_deref(), Some("c"));
    assert!(!set.remove("a").await);
    sleep(ttl()).await;
    assert!(set.is_empty().await);
    assert_eq!((set.pop().await, set.peek().await), (None, None));
    assert_eq!(set.remove_range(..).await, 0);
    assert_eq!(set.score("c").await, None);
}

async fn members_are_ordered_by_score_and_moved_by_a_push<S: Set>() {
    let set = S::with_ttl(LONG).await;
    let noon = S::now();
    let at = |millis: u32| noon + millis * MILLI;
    fill(&set, &[("c", at(3)), ("a", at(1)), ("b", at(2))]).await;
    assert_eq!(set.elements().await, ["a", "b", "c"]);
    fill(&set, &[("a", noon + 4 * MILLI), ("c", noon)]).await;
    assert_eq!(set.elements().await, ["c", "b", "a"]);
    set.push_at("b".into(), noon + LONG).await;
    assert_eq!(set.elements().await, ["c", "a", "b"]);
    assert_eq!(set.len().await, 3);
    assert_eq!(set.pop().await.as_deref(), Some("c"));
    assert_eq!(set.peek().await.as_deref(), Some("a"));
    assert!(set.remove("a").await);
    assert!(!set.remove("a").await);
    assert_eq!(set.elements().await, ["b"]);
    set.clear().await;
    assert!(set.is_empty().await);
}

async fn members_with_equal_scores_are_kept_in_the_order_of_pushing<S: Set>() {
    let set = S::with_ttl(LONG).await;
    let noon = S::now();
    fill(&set, &[("d", noon), ("b", noon), ("z", noon - MILLI), ("c", noon)]).await;
    fill(&set, &[("a", noon), ("y", noon + MILLI)]).await;
    assert_eq!(set.elements().await, ["z", "d", "b", "c", "a", "y"]);
    assert_eq!(set.range(noon..=noon).await, ["d", "b", "c", "a"]);
    // A repeated push moves a member behind its equals; the last one stays the last.
    fill(&set, &[("b", noon), ("b", noon), ("d", noon)]).await;
    assert_eq!(set.elements().await, ["z", "c", "a", "b", "d", "y"]);
    assert_eq!(set.score("b").await, set.score("c").await);
    set.push_unique_at("a".into(), noon).await;
    assert_eq!(set.elements().await, ["z", "a", "y"]);
    set.push_unique_at("w".into(), noon).await;
    assert_eq!(set.elements().await, ["z", "w", "y"]);
    set.push_unique_at("w".into(), noon - MILLI).await;
    assert_eq!(set.elements().await, ["w", "y"]);
}

async fn equal_scores_stay_ordered_after_thousands_of_pushes<S: Set>() {
    let set = S::with_ttl(LONG).await;
    let noon = S::now();
    let mut random = SmallRng::seed_from_u64(3);
    let mut known: Vec<u32> = (0..50).collect();
    for member in &known {
        set.push_at(member.to_string(), noon).await;
    }
    for _ in 0..6_000 {
        let member = known.remove(random.random_range(0..50));
        known.push(member);
        set.push_at(member.to_string(), noon).await;
    }
    let expected: Vec<_> = known.iter().map(ToString::to_string).collect();
    assert_eq!(set.elements().await, expected);
    assert_eq!(set.range(noon..=noon).await, expected);
}

async fn thousand_equal_scores_keep_the_order_of_pushing<S: Set>() {
    let set = S::with_ttl(LONG).await;
    let noon = S::now();
    let members: Vec<_> = (0..1_000_u32).rev().map(|member| member.to_string()).collect();
    for member in &members {
        set.push_at(member.clone(), noon).await;
    }
    assert_eq!(set.elements().await, members);
    assert_eq!(set.remove_range(noon..=noon).await, 1_000);
}

async fn extend_keeps_the_order_of_its_members<S: Set>() {
    let set = S::with_ttl(LONG).await;
    set.push("first".into()).await;
    set.extend([]).await;
    set.extend(["c", "a", "b", "c"].map(String::from)).await;
    assert_eq!(set.elements().await, ["first", "a", "b", "c"]);
    set.push("a".into()).await;
    assert_eq!(set.elements().await, ["first", "b", "c", "a"]);
    let many: Vec<_> = (0..10_000_u32).rev().map(|member| member.to_string()).collect();
    set.extend(many.clone()).await;
    set.push("last".into()).await;
    let elements = set.elements().await;
    assert_eq!(elements[..4], ["first", "b", "c", "a"]);
    assert_eq!(elements[4..10_004], many);
    assert_eq!(elements[10_004..], ["last"]);
}

async fn push_of_an_expired_score_adds_nothing_and_removes_the_member<S: Set>() {
    let set = S::with_ttl(ttl()).await;
    set.push("a".into()).await;
    let old = S::now() - ttl();
    fill(&set, &[("b", old), ("c", old - LONG)]).await;
    assert_eq!(set.elements().await, ["a"]);
    set.push_unique_at("b".into(), old).await;
    assert_eq!(set.elements().await, ["a"]);
    // A move to an expired score removes the member.
    set.push_at("a".into(), old).await;
    assert!(set.is_empty().await);

    let set = S::with_ttl(Duration::ZERO).await;
    set.push("a".into()).await;
    set.extend((0..9_000).map(|member| member.to_string())).await;
    assert!(set.is_empty().await);
    set.push_at("b".into(), S::now() + LONG).await;
    assert_eq!(set.elements().await, ["b"]);
}

async fn ttl_of_duration_max_expires_nothing<S: Set>() {
    let set = S::with_ttl(Duration::MAX).await;
    fill(&set, &[("b", S::now()), ("a", S::now() - LONG)]).await;
    assert_eq!(set.elements().await, ["a", "b"]);
}

async fn range_and_remove_range_select_by_score<S: Set>() {
    let set = S::with_ttl(LONG).await;
    let start = S::now() - Duration::from_secs(60);
    let at = |millis: u32| start + millis * MILLI;
    for millis in 0..10_u32 {
        set.push_at(millis.to_string(), at(millis)).await;
    }
    assert_eq!(set.range(at(3)..at(5)).await, ["3", "4"]);
    assert_eq!(set.range(at(3)..=at(5)).await, ["3", "4", "5"]);
    assert_eq!(set.range(..at(2)).await, ["0", "1"]);
    assert_eq!(set.range(at(8)..).await, ["8", "9"]);
    let inner = (Bound::Excluded(at(3)), Bound::Excluded(at(6)));
    assert_eq!(set.range(inner).await, ["4", "5"]);
    let reversed = (Bound::Included(at(6)), Bound::Included(at(3)));
    assert_eq!(set.range(reversed).await, NONE);
    assert_eq!(set.range(at(10)..).await, NONE);
    assert_eq!(set.remove_range(at(2)..=at(3)).await, 2);
    assert_eq!(set.remove_range(reversed).await, 0);
    assert_eq!(set.remove_range(at(8)..).await, 2);
    assert_eq!(set.elements().await, ["0", "1", "4", "5", "6", "7"]);
    assert_eq!(set.range(at(4)..=at(4)).await, ["4"]);
    assert_eq!(set.score("5").await, set.score("4").await.map(|at| at + MILLI));
    assert_eq!(set.score("9").await, None);
}

async fn pushed_members_are_scored_with_the_present<S: Set>() {
    let set = S::with_ttl(LONG).await;
    let before = S::now();
    set.push("a".into()).await;
    set.extend(["b".into(), "c".into()]).await;
    assert_eq!(set.range(before..).await, ["a", "b", "c"]);
    assert_eq!(set.range(before + Duration::from_secs(5)..).await, NONE);
    assert!(set.score("a").await.unwrap() + MILLI > before);
}

async fn concurrent_pops_return_each_member_once<S: Set>() {
    let set = S::with_ttl(LONG).await;
    set.extend((0..500).map(|member| member.to_string())).await;
    let poppers = (0..8).map(|_| async {
        let mut popped = Vec::new();
        while let Some(member) = set.pop().await {
            popped.push(member.parse::<u32>().unwrap());
        }
        popped
    });
    let mut popped: Vec<_> = join_all(poppers).await.concat();
    popped.sort();
    assert_eq!(popped, (0..500).collect::<Vec<_>>());
}

async fn clones_share_one_set<S: Set>() {
    let set = S::with_ttl(LONG).await;
    let clone = set.clone();
    for member in ["", "é\n\"", "{}", "7"] {
        clone.push(member.into()).await;
        assert!(set.contains(member).await);
        assert_eq!(set.pop().await.as_deref(), Some(member));
    }
    assert!(clone.is_empty().await);
}
