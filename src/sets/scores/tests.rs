//! Compares `Scores` with a sorted vector.

use proptest::{collection::vec, prelude::*};

use super::*;

/// Scores and members, in order.
type Model = Vec<(u32, u32)>;

#[derive(Clone, Debug)]
enum Op {
    /// `count` members from `first` on, with scores that rise by `step`.
    Insert {
        first: u32,
        count: u32,
        score: u32,
        step: u32,
    },
    Remove(u32),
    /// Ranks as a share of the length, in thousandths.
    Drain(usize, usize),
    /// Number of insertions, each followed by the removal of the first member.
    SteadyState(u32),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..800_u32, 1..200_u32, 0..50_u32, 0..3_u32)
            .prop_map(|(first, count, score, step)| Op::Insert { first, count, score, step }),
        3 => (0..1_000_u32).prop_map(Op::Remove),
        2 => (0..1_000_usize, 0..1_000_usize).prop_map(|(a, b)| Op::Drain(a.min(b), a.max(b))),
        2 => (1..500_u32).prop_map(Op::SteadyState),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn scores_agree_with_a_sorted_vec(ops in vec(op(), 1..40)) {
        let mut scores = Scores::new();
        let mut model = Model::new();
        let mut next = 1_000;
        for op in ops {
            match op {
                Op::Insert { first, count, score, step } => {
                    for i in 0..count {
                        insert(&mut scores, &mut model, score + i * step, first + i);
                    }
                }
                Op::Remove(member) => {
                    let rank = model.iter().position(|(_, m)| *m == member);
                    let found = scores.find(hash(member), &member).map(|(rank, _)| rank);
                    prop_assert_eq!(found, rank);
                    if let Some(rank) = rank {
                        prop_assert_eq!(scores.remove_at(rank), model.remove(rank));
                    }
                }
                Op::Drain(from, to) => {
                    let rank = |share: usize| share * model.len() / 1_000;
                    let ranks = rank(from)..rank(to);
                    let mut drained = Drained::default();
                    scores.drain(ranks.clone(), &mut drained);
                    let drained: Model = drained.into_members().collect();
                    prop_assert_eq!(drained, model.drain(ranks).collect::<Model>());
                }
                Op::SteadyState(count) => {
                    for _ in 0..count {
                        insert(&mut scores, &mut model, next, next);
                        prop_assert_eq!(scores.remove_at(0), model.remove(0));
                        next += 1;
                    }
                }
            }
            check(&scores, &model);
        }
    }
}

fn insert(scores: &mut Scores<u32, u32>, model: &mut Model, score: u32, member: u32) {
    let old = model.iter().position(|(_, m)| *m == member).map(|rank| model.remove(rank));
    let at = model.partition_point(|(s, _)| *s <= score);
    model.insert(at, (score, member));
    let mut new_member = Some(member);
    assert_eq!(scores.insert(score, hash(member), &mut new_member), old.map(|(score, _)| score));
    assert_eq!(new_member, old.map(|(_, member)| member));
}

fn check(scores: &Scores<u32, u32>, model: &Model) {
    assert_eq!(scores.len(), model.len());
    assert_eq!(scores.first().map(|(s, m)| (*s, *m)), model.first().copied());
    let mut all = Model::new();
    scores.for_each(0..scores.len(), |score, member| all.push((*score, *member)));
    assert_eq!(all, *model);
    for (rank, (score, member)) in model.iter().enumerate().step_by(7) {
        assert_eq!(scores.find(hash(*member), member), Some((rank, score)));
    }
    for member in (0..2_000).step_by(13).filter(|member| model.iter().all(|(_, m)| m != member)) {
        assert_eq!(scores.find(hash(member), &member), None);
    }
    for (from, to) in [(3, 17), (20, 20), (30, 10)] {
        let bounds = from..to;
        let from = model.partition_point(|(score, _)| *score < bounds.start);
        let to = model.partition_point(|(score, _)| *score < bounds.end).max(from);
        assert_eq!(scores.ranks(&bounds), from..to);
    }
    assert!(scores.slots.len() <= 3 * scores.len() + SLOT_SLACK + 1, "too many slots");
    assert_eq!(scores.slots.len(), scores.len() + scores.stale.len() + scores.free.len());
}

#[test]
fn draining_all_members_frees_all_memory() {
    let mut scores = Scores::new();
    for member in 0..10_000 {
        scores.insert(member, hash(member), &mut Some(member));
    }
    let mut drained = Drained::default();
    scores.drain(0..10_000, &mut drained);
    assert_eq!(drained.into_members().count(), 10_000);
    assert_eq!(
        (scores.slots.capacity(), scores.stale.capacity(), scores.free.capacity()),
        (0, 0, 0)
    );
}

/// Members with the same hash are distinguished by `Eq`.
#[test]
fn members_with_equal_hashes_are_distinguished_by_eq() {
    let mut scores = Scores::new();
    for round in 0..3_u32 {
        for member in 0..300_u32 {
            let old = scores.insert(round, 7, &mut Some(member));
            assert_eq!(old, round.checked_sub(1));
        }
    }
    for member in 0..300_u32 {
        let (rank, _) = scores.find(7, &member).expect("the member was inserted");
        assert_eq!(scores.remove_at(rank), (2, member));
        assert_eq!(scores.find(7, &member), None);
    }
}

fn hash(member: u32) -> u32 {
    member.wrapping_mul(2_654_435_761)
}
