//! Compares the tree with a sorted vector, and checks its shape after each change.

use std::ops::Range;

use proptest::{collection::vec, prelude::*};

use super::{node::NODE_CAPACITY, *};

/// Keys and values, in key order.
type Model = Vec<(u32, u32)>;

#[derive(Clone, Debug)]
enum Op {
    /// First key, number of keys, and their order.
    Insert(u32, u32, Pattern),
    /// Ranks as a share of the length, in thousandths.
    RemoveAt(usize),
    Drain(usize, usize),
    PopFirst(usize),
    LookUp(usize, usize),
    Change,
}

#[derive(Clone, Copy, Debug)]
enum Pattern {
    InOrder,
    Reversed,
    Scattered,
}

fn op() -> impl Strategy<Value = Op> {
    use Pattern::*;
    let pattern = prop_oneof![Just(InOrder), Just(Reversed), Just(Scattered)];
    let share = || 0..1_000_usize;
    prop_oneof![
        4 => (0..100_000_u32, 1..600_u32, pattern).prop_map(|(k, n, p)| Op::Insert(k, n, p)),
        3 => share().prop_map(Op::RemoveAt),
        3 => (share(), share()).prop_map(|(a, b)| Op::Drain(a.min(b), a.max(b))),
        1 => (1..300_usize).prop_map(Op::PopFirst),
        2 => (share(), share()).prop_map(|(a, b)| Op::LookUp(a.min(b), a.max(b))),
        1 => Just(Op::Change),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rank_tree_agrees_with_a_sorted_vec(ops in vec(op(), 1..30)) {
        let mut tree = RankTree::new();
        let mut model = Model::new();
        for op in ops {
            run(op, &mut tree, &mut model);
            check(&tree);
            prop_assert_eq!(tree.len(), model.len());
        }
        prop_assert_eq!(all(&tree), model);
    }
}

fn run(op: Op, tree: &mut RankTree<u32, u32>, model: &mut Model) {
    let len = model.len();
    let rank = |share: usize| share * len / 1_000;
    match op {
        Op::Insert(first, count, pattern) => {
            for i in 0..count {
                let key = match pattern {
                    Pattern::InOrder => first + i,
                    Pattern::Reversed => first + count - i,
                    Pattern::Scattered => first + i.wrapping_mul(2_654_435_761) % 10_007,
                };
                if let Err(at) = model.binary_search_by_key(&key, |(key, _)| *key) {
                    model.insert(at, (key, i));
                    tree.insert(key, || i);
                }
            }
        }
        Op::RemoveAt(share) if len > 0 => {
            assert_eq!(tree.remove_at(rank(share)), model.remove(rank(share)));
        }
        Op::RemoveAt(_) => {}
        Op::Drain(from, to) => {
            let ranks = rank(from)..rank(to);
            let mut drained = Vec::new();
            tree.drain(ranks.clone(), &mut drained);
            assert!(drained.iter().all(|leaf| !leaf.is_empty()), "an empty leaf was drained");
            let drained: Model = drained.into_iter().flatten().collect();
            assert_eq!(drained, model.drain(ranks).collect::<Model>());
        }
        Op::PopFirst(count) => {
            for _ in 0..count.min(len) {
                assert_eq!(tree.first(), model.first());
                assert_eq!(tree.remove_at(0), model.remove(0));
            }
        }
        Op::LookUp(from, to) => check_lookups(tree, model, rank(from)..rank(to)),
        Op::Change => {
            tree.for_each_mut(|key, value| *value ^= key);
            model.iter_mut().for_each(|(key, value)| *value ^= *key);
        }
    }
}

fn check_lookups(tree: &RankTree<u32, u32>, model: &Model, ranks: Range<usize>) {
    assert_eq!(tree.first(), model.first());
    assert_eq!(tree.at(model.len()), None);
    for rank in [ranks.start, ranks.end, model.len() / 2] {
        assert_eq!(tree.at(rank), model.get(rank));
        let Some(&(key, value)) = model.get(rank) else { continue };
        assert_eq!(tree.find(&key), Some((rank, &value)));
        assert_eq!(tree.rank_where(|k| *k < key), rank);
        assert_eq!(tree.rank_where(|k| *k <= key), rank + 1);
        let exists = model.binary_search_by_key(&(key + 1), |(key, _)| *key).is_ok();
        assert_eq!(tree.find(&(key + 1)).is_some(), exists);
    }
    let mut seen = Model::new();
    tree.for_each(ranks.clone(), |key, value| seen.push((*key, *value)));
    assert_eq!(seen, model[ranks]);
}

#[test]
fn keys_inserted_in_order_fill_their_nodes() {
    let mut tree = RankTree::new();
    (0..100_000_u32).for_each(|key| tree.insert(key, || ()));
    let shape = check(&tree);
    assert_eq!(shape, Shape { depth: 2, leaves: 100_000_usize.div_ceil(NODE_CAPACITY) });
}

#[test]
fn removing_all_items_leaves_a_single_leaf() {
    let mut tree = RankTree::new();
    (0..100_000_u32).for_each(|key| tree.insert(key.reverse_bits(), || ()));
    while tree.len() > 0 {
        tree.remove_at(tree.len() / 2);
        if tree.len().is_multiple_of(997) {
            check(&tree);
        }
    }
    assert_eq!(check(&tree), Shape { depth: 0, leaves: 1 });
}

/// A separator may remain after its item is removed; it is dropped when its owner takes the drop queue.
#[test]
fn separators_with_drop_code_wait_in_the_drop_queue() {
    let key = |number: u32| Box::new(number);
    let mut tree = RankTree::new();
    (0..10_000).for_each(|number| tree.insert(key(number), || ()));
    assert!(tree.take_drop_queue().is_empty());
    let mut drained = Vec::new();
    tree.drain(0..5_000, &mut drained);
    tree.drain(0..5_000, &mut drained);
    let drop_queue = tree.take_drop_queue();
    assert_eq!(
        drop_queue.len(),
        10_000_usize.div_ceil(NODE_CAPACITY) - 1,
        "one separator between each two leaves"
    );
    assert!(tree.take_drop_queue().is_empty());
}

/// A key that panics in a comparison or clone once `CALLS_LEFT` calls are used up.
#[derive(Debug, PartialEq, Eq)]
struct PanickingKey(u32);

thread_local! {
    static CALLS_LEFT: std::cell::Cell<u32> = const { std::cell::Cell::new(u32::MAX) };
}

fn count_down() {
    CALLS_LEFT.set(CALLS_LEFT.get() - 1);
    assert!(CALLS_LEFT.get() > 0, "the panic of this test");
}

impl PartialOrd for PanickingKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PanickingKey {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        count_down();
        self.0.cmp(&other.0)
    }
}

impl Clone for PanickingKey {
    fn clone(&self) -> Self {
        count_down();
        Self(self.0)
    }
}

#[test]
fn tree_stays_valid_if_a_key_panics() {
    for calls in 1..40 {
        let mut tree = RankTree::new();
        let mut expected = Vec::new();
        for i in 0..3_000_u32 {
            let key = i.wrapping_mul(2_654_435_761);
            CALLS_LEFT.set(if i % 3 == 0 { calls } else { u32::MAX });
            let insert = || tree.insert(PanickingKey(key), || i);
            let inserted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(insert)).is_ok();
            CALLS_LEFT.set(u32::MAX);
            if inserted {
                expected.push((key, i));
            }
        }
        expected.sort_unstable();
        assert!(expected.len() >= 2_000);
        let mut seen = Vec::new();
        tree.for_each(0..tree.len(), |key, value| seen.push((key.0, *value)));
        assert_eq!(seen, expected);
        for (rank, (key, value)) in expected.iter().enumerate() {
            assert_eq!(tree.find(&PanickingKey(*key)), Some((rank, value)));
        }
        while tree.len() > 0 {
            let rank = tree.len() * 2 / 3;
            assert_eq!(tree.remove_at(rank).1, expected.remove(rank).1);
        }
    }
}

fn all(tree: &RankTree<u32, u32>) -> Model {
    let mut all = Model::new();
    tree.for_each(0..tree.len(), |key, value| all.push((*key, *value)));
    all
}

#[derive(Debug, PartialEq)]
struct Shape {
    depth: usize,
    leaves: usize,
}

/// Checks the invariants of the module docs in all nodes.
fn check<V>(tree: &RankTree<u32, V>) -> Shape {
    let mut leaves = 0;
    let (depth, len) = walk(&tree.root, None, None, &mut leaves);
    assert_eq!(len, tree.len());
    assert!(leaves <= 2 + len / 8, "too many leaves for {len} items: {leaves}");
    assert!(depth <= 6, "too many levels for {len} items: {depth}");
    Shape { depth, leaves }
}

/// Returns the depth below a node and its number of items, all of which are in `from..to`.
fn walk<V>(
    node: &TreeNode<u32, V>,
    from: Option<u32>,
    to: Option<u32>,
    leaves: &mut usize,
) -> (usize, usize) {
    assert!(node.size() <= NODE_CAPACITY, "a node is too large");
    match node {
        TreeNode::Leaf(items) => {
            *leaves += 1;
            assert!(items.iter().is_sorted_by(|(a, _), (b, _)| a < b));
            let fits =
                |key: u32| from.is_none_or(|from| from <= key) && to.is_none_or(|to| key < to);
            assert!(
                items.iter().all(|(key, _)| fits(*key)),
                "an item is on the wrong side of a separator"
            );
            (0, items.len())
        }
        TreeNode::Inner(inner) => {
            assert_eq!(inner.nodes.len(), inner.separators.len() + 1);
            assert_eq!(inner.nodes.len(), inner.lens.len());
            let separators = inner.separators.iter().copied().map(Some);
            let from = std::iter::once(from).chain(separators.clone());
            let to = separators.chain([to]);
            let below: Vec<(usize, usize)> = inner
                .nodes
                .iter()
                .zip(from.zip(to))
                .map(|(node, (from, to))| walk(node, from, to, leaves))
                .collect();
            assert!(below.iter().all(|(depth, _)| *depth == below[0].0), "leaves differ in depth");
            assert!(
                below
                    .iter()
                    .zip(&inner.lens)
                    .all(|((_, len), recorded)| len == recorded && *len > 0)
            );
            (below[0].0 + 1, below.iter().map(|(_, len)| len).sum())
        }
    }
}
