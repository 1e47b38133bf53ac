//! Ordered map with ranks: a B+ tree whose inner nodes store the number of items below each child.
//!
//! 1. Keys are unique. Items are in the leaves, in order; all leaves have the same depth.
//! 2. A separator is greater than all keys before it, and less than or equal to the first key after it.
//! 3. Only the root may be empty. After a removal, a node that is less than a quarter full is merged with a neighbor if
//!    both fit into three quarters of a node; so the depth stays logarithmic.
//! 4. Keys inserted in ascending order fill their nodes: a full node is not halved if the new item is its last.
//! 5. `Ord` and `Clone` of keys may be user code and panic. They are called before a change; a split made before the
//!    panic leaves a valid tree. Removal goes by rank and calls neither.
//! 6. Separators that are no longer needed wait in `drop_queue`, as the tree may be behind a lock.

mod node;

use std::{mem, ops::Range};

pub(crate) use self::node::Leaf;
use self::node::{InnerNode, TreeNode, discard};

pub(crate) struct RankTree<K, V> {
    root: TreeNode<K, V>,
    len: usize,
    drop_queue: Vec<K>,
}

/// Index of the child at each level, from the root. Even with two children per node, a tree of 2^32 items would not be
/// deeper than 32 levels.
type Path = [u8; 32];

impl<K, V> RankTree<K, V> {
    pub(crate) fn new() -> Self {
        Self { root: TreeNode::Leaf(Leaf::new()), len: 0, drop_queue: Vec::new() }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the item with this rank. O(log n).
    pub(crate) fn at(&self, mut rank: usize) -> Option<&(K, V)> {
        if rank >= self.len {
            return None;
        }
        let mut node = &self.root;
        loop {
            match node {
                TreeNode::Leaf(items) => return items.get(rank),
                TreeNode::Inner(inner) => {
                    let (child, within) = inner.child_at(rank);
                    (node, rank) = (&inner.nodes[child], within);
                }
            }
        }
    }

    #[inline]
    pub(crate) fn first(&self) -> Option<&(K, V)> {
        let mut node = &self.root;
        loop {
            match node {
                TreeNode::Leaf(items) => return items.front(),
                TreeNode::Inner(inner) => node = inner.nodes.first()?,
            }
        }
    }

    /// Returns the number of keys for which `before` is true; they must precede all others. O(log n).
    pub(crate) fn rank_where(&self, before: impl Fn(&K) -> bool) -> usize {
        let mut rank = 0;
        let mut node = &self.root;
        loop {
            match node {
                TreeNode::Leaf(items) => {
                    return rank + items.partition_point(|(key, _)| before(key));
                }
                TreeNode::Inner(inner) => {
                    let child = inner.separators.partition_point(&before);
                    rank += inner.lens[..child].iter().sum::<usize>();
                    node = &inner.nodes[child];
                }
            }
        }
    }

    /// Calls `each` with all items, in order.
    pub(crate) fn for_each_mut(&mut self, mut each: impl FnMut(&K, &mut V)) {
        self.root.for_each_mut(&mut each);
    }

    /// Calls `each` with the items of these ranks, in order. O(log n + m).
    pub(crate) fn for_each(&self, ranks: Range<usize>, mut each: impl FnMut(&K, &V)) {
        self.root.for_each(ranks.start, ranks.end, &mut each);
    }

    /// Removes and returns the item with this rank, which must exist. O(log n).
    #[inline]
    pub(crate) fn remove_at(&mut self, rank: usize) -> (K, V) {
        self.len -= 1;
        if rank == 0
            && let Some(first) = self.root.pop_first()
        {
            return first;
        }
        let removed = self.root.remove_at(rank, &mut self.drop_queue);
        self.lower_root();
        removed
    }

    /// Removes the items with these ranks and appends them in order, in the leaves that held them. O(log n + m).
    pub(crate) fn drain(&mut self, ranks: Range<usize>, drained: &mut Vec<Leaf<K, V>>) {
        let Range { start, end } = ranks;
        if start >= end {
            return;
        }
        if end - start == self.len {
            let root = mem::replace(&mut self.root, TreeNode::Leaf(Leaf::new()));
            root.into_leaves(drained, &mut self.drop_queue);
        } else {
            self.root.drain(start, end, drained, &mut self.drop_queue);
        }
        self.len -= end - start;
        self.lower_root();
    }

    /// Queues a key to be dropped by the caller after unlock, unless its type has no drop code.
    #[inline]
    pub(crate) fn discard(&mut self, key: K) {
        discard(key, &mut self.drop_queue);
    }

    pub(crate) fn take_drop_queue(&mut self) -> Vec<K> {
        mem::take(&mut self.drop_queue)
    }

    /// Replaces a root that has a single child by that child.
    #[inline]
    fn lower_root(&mut self) {
        while let TreeNode::Inner(inner) = &mut self.root
            && inner.nodes.len() <= 1
        {
            self.root = inner.nodes.pop().unwrap_or_else(|| TreeNode::Leaf(Leaf::new()));
        }
    }
}

impl<K: Ord + Clone, V> RankTree<K, V> {
    /// Inserts an item whose key is not present. O(log n).
    #[inline]
    pub(crate) fn insert(&mut self, key: K, value: impl FnOnce() -> V) {
        let mut path = Path::default();
        let at = self.find_insert_position(&key, &mut path);
        let mut children = path.iter();
        let mut node = &mut self.root;
        while let TreeNode::Inner(inner) = node {
            let child = children.next().map_or(0, |child| usize::from(*child));
            inner.lens[child] += 1;
            node = &mut inner.nodes[child];
        }
        if let TreeNode::Leaf(items) = node {
            match at {
                None => items.push_back((key, value())),
                Some(at) => items.insert(at, (key, value())),
            }
        }
        self.len += 1;
    }

    /// Returns the position for `key` in a leaf, with `None` for its end, and stores the way there in `path`. Splits
    /// full nodes on the way, so that the leaf has room.
    fn find_insert_position(&mut self, key: &K, path: &mut Path) -> Option<usize> {
        if self.root.is_full() {
            let mut root = InnerNode::new();
            root.lens.push(self.len);
            root.nodes.push(mem::replace(&mut self.root, TreeNode::Leaf(Leaf::new())));
            self.root = TreeNode::Inner(Box::new(root));
        }
        let mut path = path.iter_mut();
        let mut node = &mut self.root;
        let mut is_last = true;
        loop {
            match node {
                TreeNode::Inner(inner) => {
                    let mut child = inner.child_of(key);
                    is_last &= child == inner.separators.len();
                    if inner.nodes[child].is_full() {
                        child = inner.split_child(child, key, is_last, &mut self.drop_queue);
                    }
                    // A child's index fits into a `u8`: a node has at most `NODE_CAPACITY` children.
                    *path.next().expect("the tree has at most 32 levels") = child as u8;
                    node = &mut inner.nodes[child];
                }
                TreeNode::Leaf(items) => {
                    let (last, _) = items.back()?;
                    return (key < last).then(|| items.partition_point(|(k, _)| k < key));
                }
            }
        }
    }

    /// Returns the rank and the value of `key`. O(log n).
    pub(crate) fn find(&self, key: &K) -> Option<(usize, &V)> {
        let mut rank = 0;
        let mut node = &self.root;
        loop {
            match node {
                TreeNode::Leaf(items) => {
                    let at = items.binary_search_by(|(k, _)| k.cmp(key)).ok()?;
                    return Some((rank + at, &items[at].1));
                }
                TreeNode::Inner(inner) => {
                    let child = inner.child_of(key);
                    rank += inner.lens[..child].iter().sum::<usize>();
                    node = &inner.nodes[child];
                }
            }
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
