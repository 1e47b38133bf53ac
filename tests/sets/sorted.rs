//! `SortedSet`, compared with a simple list as a model, and the promises of its docs.

use std::{
    cmp::Ordering,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex},
};

use fleeting::{InsertIf, Score, SortedSet};
use futures::FutureExt;
use proptest::{collection::vec, prelude::*};

use crate::fuse::{FUSE, burn};

/// Scores and members, in order.
type Model = Vec<(u32, String)>;

#[derive(Clone, Debug)]
enum Op {
    Insert(u32, u32),
    Extend(Vec<(u32, u32)>),
    Remove(u32),
    RemoveRange(u32, u32),
    RemoveRanks(usize, usize),
    PopFirst,
    PopLast,
    Clear,
    LookUp(u32, u32),
}

/// Few members and few scores, so that operations collide.
fn op() -> impl Strategy<Value = Op> {
    let (member, score) = (|| 0..60_u32, || 0..20_u32);
    prop_oneof![
        8 => (score(), member()).prop_map(|(s, m)| Op::Insert(s, m)),
        2 => vec((score(), member()), 0..100).prop_map(Op::Extend),
        4 => member().prop_map(Op::Remove),
        1 => (score(), score()).prop_map(|(a, b)| Op::RemoveRange(a, b)),
        1 => (0..40_usize, 0..40_usize).prop_map(|(a, b)| Op::RemoveRanks(a, b)),
        2 => Just(Op::PopFirst),
        2 => Just(Op::PopLast),
        1 => Just(Op::Clear),
        4 => (score(), score()).prop_map(|(a, b)| Op::LookUp(a, b)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sorted_set_agrees_with_the_model(ops in vec(op(), 1..60)) {
        let set = SortedSet::new();
        let mut model = Model::new();
        for op in ops {
            run(op, &set, &mut model).now_or_never().expect("no call waits");
        }
    }
}

async fn run(op: Op, set: &SortedSet<u32, String>, model: &mut Model) {
    let name = |member: u32| format!("member {member}");
    let within = |from: u32, to: u32| {
        let from = model.partition_point(|(score, _)| *score < from);
        from..model.partition_point(|(score, _)| *score < to).max(from)
    };
    match op {
        Op::Insert(score, member) => {
            assert_eq!(set.insert(score, name(member)).await, insert(model, score, name(member)));
        }
        Op::Extend(members) => {
            set.extend(members.iter().map(|(score, member)| (*score, name(*member)))).await;
            for (score, member) in members {
                insert(model, score, name(member));
            }
        }
        Op::Remove(member) => {
            let member = name(member);
            assert_eq!(set.remove(member.as_str()).await, take(model, &member));
        }
        Op::RemoveRange(from, to) => {
            let removed = model.drain(within(from, to)).count();
            assert_eq!(set.remove_range(from..to).await, removed);
        }
        Op::RemoveRanks(from, to) => {
            let end = to.min(model.len());
            let removed = model.drain(from.min(end)..end).count();
            assert_eq!(set.remove_ranks(from..to).await, removed);
        }
        Op::PopFirst => {
            let first = (!model.is_empty()).then(|| model.remove(0));
            assert_eq!(set.first().await, first);
            assert_eq!(set.pop_first().await, first);
        }
        Op::PopLast => {
            let last = model.pop();
            assert_eq!(set.last().await, last);
            assert_eq!(set.pop_last().await, last);
        }
        Op::Clear => {
            set.clear().await;
            model.clear();
        }
        Op::LookUp(from, to) => {
            assert_eq!(set.range(from..to).await, model[within(from, to)]);
            assert_eq!(set.range(from..=to).await, model[within(from, to + 1)]);
            assert_eq!(set.count(from..to).await, within(from, to).len());
            let (from, to) = (from as usize, (to as usize).min(model.len()));
            assert_eq!(set.ranks(from..to).await, model[from.min(to)..to]);
            for member in 0..60 {
                let rank = model.iter().position(|(_, m)| *m == name(member));
                assert_eq!(set.rank(&name(member)).await, rank);
                assert_eq!(set.contains(&name(member)).await, rank.is_some());
                let score = rank.map(|rank| model[rank].0);
                assert_eq!(set.score(&name(member)).await, score);
            }
        }
    }
    assert_eq!(set.range(..).await, *model);
    assert_eq!((set.len().await, set.is_empty().await), (model.len(), model.is_empty()));
}

fn insert(model: &mut Model, score: u32, member: String) -> Option<u32> {
    let old = take(model, &member);
    let at = model.partition_point(|(s, _)| *s <= score);
    model.insert(at, (score, member));
    old
}

fn take(model: &mut Model, member: &str) -> Option<u32> {
    let rank = model.iter().position(|(_, m)| m == member)?;
    Some(model.remove(rank).0)
}

#[tokio::test]
async fn ranges_are_clamped_and_inverted_ranges_are_empty() {
    let set = SortedSet::default();
    set.extend((0..10).map(|n| (n, n))).await;
    #[allow(clippy::reversed_empty_ranges)]
    let backwards = (7..3, 7..3);
    assert!(set.range(backwards.0.clone()).await.is_empty());
    assert!(set.ranks(backwards.1.clone()).await.is_empty());
    assert_eq!(set.remove_range(backwards.0).await + set.remove_ranks(backwards.1).await, 0);
    assert_eq!(set.ranks(8..100).await, [(8, 8), (9, 9)]);
    assert_eq!(set.ranks(..=usize::MAX).await.len(), 10);
    assert!(set.ranks(usize::MAX..).await.is_empty());
    assert_eq!(set.remove_ranks(..).await, 10);
    assert_eq!((set.first().await, set.last().await, set.pop_last().await), (None, None, None));
}

#[tokio::test]
async fn cloned_handles_share_one_set() {
    let set: SortedSet<float_score::Score, &str> = SortedSet::new();
    let other = set.clone();
    set.insert(float_score::Score(0.5), "half").await;
    assert_eq!(other.len().await, 1);
    assert!(format!("{other:?}").contains("len: 1"), "{other:?}");
}

/// A score type with a total order over floats, as the docs promise any ordered type.
mod float_score {
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Score(pub(crate) f64);

    impl Ord for Score {
        fn cmp(&self, other: &Self) -> std::cmp::Ordering {
            self.0.total_cmp(&other.0)
        }
    }

    impl PartialOrd for Score {
        fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
            Some(self.cmp(other))
        }
    }

    impl PartialEq for Score {
        fn eq(&self, other: &Self) -> bool {
            self.cmp(other).is_eq()
        }
    }

    impl Eq for Score {}
}

/// A task that only calls the set must not starve other tasks.
#[tokio::test]
async fn calls_take_part_in_the_cooperative_budget() {
    let set = SortedSet::new();
    set.insert(1, 1).await;
    let calls = tokio::spawn(async move {
        loop {
            set.len().await;
        }
    });
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    calls.abort();
    assert!(calls.await.unwrap_err().is_cancelled());
}

/// A score and a member that panic when the fuse has burnt down.
#[derive(Debug)]
struct Panicking(u32);

impl Clone for Panicking {
    fn clone(&self) -> Self {
        burn();
        Self(self.0)
    }
}

impl PartialEq for Panicking {
    fn eq(&self, other: &Self) -> bool {
        burn();
        self.0 == other.0
    }
}

impl Eq for Panicking {}

impl std::hash::Hash for Panicking {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        burn();
        self.0.hash(state);
    }
}

impl Ord for Panicking {
    fn cmp(&self, other: &Self) -> Ordering {
        burn();
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for Panicking {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Every call, with a panic at each of its comparisons and clones: the call has taken effect completely or
/// not at all.
#[test]
fn panic_in_user_code_keeps_the_set_consistent() {
    let mut panics = 0;
    for call in 0..12 {
        for fuse in 1..60 {
            let set = SortedSet::new();
            // As many as a node holds, so that some calls split it.
            let fill = async {
                for n in 0..64 {
                    set.insert(Panicking(2 * n), Panicking(n)).await;
                }
            };
            fill.now_or_never().unwrap();
            FUSE.set(fuse);
            let outcome =
                AssertUnwindSafe(call_method(&set, call)).catch_unwind().now_or_never().unwrap();
            FUSE.set(0);
            panics += u32::from(outcome.is_err());
            check(&set, outcome.is_err()).now_or_never().unwrap();
        }
    }
    assert!(panics > 100, "only {panics} calls panicked");
}

#[allow(clippy::drop_non_drop)] // The return value does not matter here.
async fn call_method(set: &SortedSet<Panicking, Panicking>, call: u32) {
    match call {
        0 => drop(set.insert(Panicking(33), Panicking(1_000)).await),
        1 => drop(set.insert(Panicking(33), Panicking(5)).await),
        2 => drop(set.insert(Panicking(1), Panicking(60)).await),
        3 => drop(set.remove(&Panicking(20)).await),
        4 => drop(set.remove_range(Panicking(10)..Panicking(20)).await),
        5 => drop(set.pop_first().await),
        6 => drop(set.range(Panicking(5)..).await),
        7 => drop(set.rank(&Panicking(9)).await),
        8 => drop(set.last().await),
        9 => drop(set.remove_ranks(3..9).await),
        10 => drop(set.insert(Panicking(1_000), Panicking(1_000)).await),
        _ => drop(set.score(&Panicking(9)).await),
    }
}

async fn check(set: &SortedSet<Panicking, Panicking>, panicked: bool) {
    let members = set.range(..).await;
    assert!(members.is_sorted_by(|(a, _), (b, _)| a <= b));
    if panicked {
        let untouched = (0..64).map(|n| (2 * n, n));
        assert!(
            members.iter().map(|(s, m)| (s.0, m.0)).eq(untouched),
            "the call took effect partially"
        );
    }
    for (rank, (score, member)) in members.iter().enumerate() {
        assert_eq!(set.rank(member).await, Some(rank));
        assert_eq!(set.insert(score.clone(), member.clone()).await.as_ref(), Some(score));
    }
    assert_eq!(set.remove_range(..).await, members.len());
    assert!(set.is_empty().await);
}

/// Scores and members that call their set when they are dropped.
#[derive(Clone)]
struct ReentrantDrop(u32, SharedSet);

type SharedSet = Arc<Mutex<Option<SortedSet<ReentrantDrop, ReentrantDrop>>>>;

impl Drop for ReentrantDrop {
    fn drop(&mut self) {
        let shared_set = self.1.lock().map(|shared_set| shared_set.clone());
        if let Ok(Some(set)) = shared_set {
            set.len().now_or_never().expect("the set is locked during a drop");
        }
    }
}

impl PartialEq for ReentrantDrop {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for ReentrantDrop {}

impl std::hash::Hash for ReentrantDrop {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Ord for ReentrantDrop {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for ReentrantDrop {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[test]
fn drop_of_members_and_scores_may_call_the_set() {
    // Taking the lock twice would block forever; this thread is the watchdog.
    let (done, watch) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let shared_set = SharedSet::default();
        let set = SortedSet::new();
        *shared_set.lock().unwrap() = Some(set.clone());
        let new = |n: u32| ReentrantDrop(n, shared_set.clone());
        let work = async {
            for n in 0..500 {
                set.insert(new(n), new(n)).await;
                set.insert(new(n + 1), new(n)).await;
            }
            set.remove_ranks(100..350).await;
            set.remove(&new(3)).await;
            set.pop_first().await;
            set.pop_last().await;
            set.remove_range(new(50)..new(90)).await;
            for n in 0..500 {
                set.remove(&new(n)).await;
            }
            set.extend((0..500).map(|n| (new(n), new(n)))).await;
            set.clear().await;
        };
        work.now_or_never().unwrap();
        shared_set.lock().unwrap().take();
        done.send(()).unwrap();
    });
    watch.recv_timeout(crate::patience::patience()).expect("the set is deadlocked");
}

#[tokio::test]
async fn concurrent_increments_lose_no_update() {
    let set = SortedSet::new();
    let increment = |_| {
        let set = set.clone();
        tokio::spawn(async move {
            for _ in 0..1_000 {
                set.increment(1_u64, "hits").await;
                set.insert_if(7, "seven", InsertIf::Greater).await;
            }
        })
    };
    for task in (0..8).map(increment).collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(set.ranks(..).await, [(7, "seven"), (8_000, "hits")]);
}

#[tokio::test]
async fn increment_moves_the_member_in_the_order_and_adds_a_missing_one() {
    let set = SortedSet::new();
    set.extend([(1, "a"), (2, "b"), (3, "c")]).await;
    assert_eq!(set.increment(1, "a").await, 2);
    assert_eq!(set.ranks(..).await, [(2, "b"), (2, "a"), (3, "c")]);
    assert_eq!(set.increment(-9, "c").await, -6);
    assert_eq!(set.increment(4, "d").await, 4);
    assert_eq!(set.ranks(..).await, [(-6, "c"), (2, "b"), (2, "a"), (4, "d")]);
}

#[tokio::test]
async fn insert_if_changes_the_score_only_if_its_condition_holds() {
    for (condition, absent, lower, equal, higher) in [
        (InsertIf::Absent, true, false, false, false),
        (InsertIf::Present, false, true, true, true),
        (InsertIf::Greater, true, false, false, true),
        (InsertIf::Less, true, true, false, false),
    ] {
        for (score, expected) in [(1, lower), (2, equal), (3, higher)] {
            let set = SortedSet::new();
            set.insert(2, "x").await;
            assert_eq!(set.insert_if(score, "x", condition).await, expected, "{condition:?}");
            let new_score = if expected { score } else { 2 };
            assert_eq!(set.ranks(..).await, [(new_score, "x")], "{condition:?}");
        }
        let set = SortedSet::new();
        assert_eq!(set.insert_if(2, "x", condition).await, absent, "{condition:?}");
        assert_eq!(set.len().await, usize::from(absent), "{condition:?}");
    }
}

#[tokio::test]
async fn overflow_of_an_increment_panics_and_changes_nothing() {
    let set = SortedSet::new();
    set.insert(Score::MAX, "x").await;
    let other = set.clone();
    let task = tokio::spawn(async move { other.increment(Score::MIN, "x").await });
    assert!(task.await.unwrap_err().is_panic());
    assert_eq!(set.ranks(..).await, [(Score::MAX, "x")]);
    assert_eq!(set.increment(Score::MAX, "x").await, Score::MAX);
}

#[test]
fn score_has_a_total_order_and_refuses_nan() {
    let score = |number| Score::try_from(number).unwrap();
    let ordered = [f64::NEG_INFINITY, f64::MIN, -1.5, -f64::MIN_POSITIVE, 0.0, 5e-324, 1.5, 1e300];
    let mut scores: Vec<_> = ordered.iter().rev().copied().map(score).collect();
    scores.sort_unstable();
    assert_eq!(scores.iter().map(|score| score.get()).collect::<Vec<_>>(), ordered);
    assert_eq!(score(f64::NEG_INFINITY), Score::MIN);
    assert_eq!(score(f64::INFINITY), Score::MAX);
    // One member, not two scores that look the same.
    assert_eq!(score(-0.0).cmp(&score(0.0)), std::cmp::Ordering::Equal);
    assert_eq!((score(-0.0) + score(-0.0)).get().to_bits(), 0);
    assert_eq!(Score::from(3_u32), score(3.0));
    for nan in [f64::NAN, -f64::NAN] {
        assert_eq!(Score::try_from(nan).unwrap_err().to_string(), "NaN cannot be a score");
    }
}
