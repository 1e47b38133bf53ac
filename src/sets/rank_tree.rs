//! An ordered sequence that knows ranks: a B+ tree whose nodes know how many items are below them.
//!
//! 1. Keys are unique. Items are in leaves, in order; all leaves are equally deep.
//! 2. A separator is greater than all keys before it, and at most the least key after it.
//! 3. No node but the root is empty. After a removal, a node of less than a quarter is merged with a neighbour
//!    where both fit into three quarters of one; so the depth stays logarithmic.
//! 4. What comes in order fills its nodes: a full one is not halved where the new item is its last.
//! 5. `Ord` and `Clone` of keys may be somebody's code, and panic. They are called before a change; a
//!    split that was made by then is whole by itself. Taking out, which goes by rank, calls neither.
//! 6. Separators that are of no more use wait in `garbage`, as the sequence may be behind a lock.

mod node;

use std::{mem, ops::Range};

pub(crate) use self::node::Leaf;
use self::node::{Inner, Node, discard};

pub(crate) struct RankTree<K, V> {
    root: Node<K, V>,
    len: usize,
    garbage: Vec<K>,
}

/// Which child to take, from the root on. Nodes of two would make a tree of 2^32 items no deeper.
type Path = [u8; 32];

impl<K, V> RankTree<K, V> {
    pub(crate) fn new() -> Self {
        Self { root: Node::Leaf(Leaf::new()), len: 0, garbage: Vec::new() }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The item before which `rank` others are. O(log n).
    pub(crate) fn at(&self, mut rank: usize) -> Option<&(K, V)> {
        if rank >= self.len {
            return None;
        }
        let mut node = &self.root;
        loop {
            match node {
                Node::Leaf(items) => return items.get(rank),
                Node::Inner(inner) => {
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
                Node::Leaf(items) => return items.front(),
                Node::Inner(inner) => node = inner.nodes.first()?,
            }
        }
    }

    /// How many keys are `before` something; they must come before all others. O(log n).
    pub(crate) fn rank_where(&self, before: impl Fn(&K) -> bool) -> usize {
        let mut rank = 0;
        let mut node = &self.root;
        loop {
            match node {
                Node::Leaf(items) => return rank + items.partition_point(|(key, _)| before(key)),
                Node::Inner(inner) => {
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

    /// Takes out the item of a rank, which must be there. O(log n).
    #[inline]
    pub(crate) fn remove_at(&mut self, rank: usize) -> (K, V) {
        self.len -= 1;
        if rank == 0
            && let Some(first) = self.root.pop_first()
        {
            return first;
        }
        let removed = self.root.remove_at(rank, &mut self.garbage);
        self.lower_root();
        removed
    }

    /// Takes out the items of these ranks, in order, as the leaves in which they are. O(log n + m).
    pub(crate) fn drain(&mut self, ranks: Range<usize>, drained: &mut Vec<Leaf<K, V>>) {
        let Range { start, end } = ranks;
        if start >= end {
            return;
        }
        if end - start == self.len {
            let root = mem::replace(&mut self.root, Node::Leaf(Leaf::new()));
            root.into_leaves(drained, &mut self.garbage);
        } else {
            self.root.drain(start, end, drained, &mut self.garbage);
        }
        self.len -= end - start;
        self.lower_root();
    }

    /// Keeps a key for whoever takes the garbage, unless its drop is nobody's code.
    #[inline]
    pub(crate) fn discard(&mut self, key: K) {
        discard(key, &mut self.garbage);
    }

    pub(crate) fn take_garbage(&mut self) -> Vec<K> {
        mem::take(&mut self.garbage)
    }

    /// A root with one child gives way to it.
    #[inline]
    fn lower_root(&mut self) {
        while let Node::Inner(inner) = &mut self.root
            && inner.nodes.len() <= 1
        {
            self.root = inner.nodes.pop().unwrap_or_else(|| Node::Leaf(Leaf::new()));
        }
    }
}

impl<K: Ord + Clone, V> RankTree<K, V> {
    /// Puts in an item whose key is not there yet. O(log n).
    #[inline]
    pub(crate) fn insert(&mut self, key: K, value: impl FnOnce() -> V) {
        let mut path = Path::default();
        let at = self.make_room(&key, &mut path);
        let mut children = path.iter();
        let mut node = &mut self.root;
        while let Node::Inner(inner) = node {
            let child = children.next().map_or(0, |child| usize::from(*child));
            inner.lens[child] += 1;
            node = &mut inner.nodes[child];
        }
        if let Node::Leaf(items) = node {
            match at {
                None => items.push_back((key, value())),
                Some(at) => items.insert(at, (key, value())),
            }
        }
        self.len += 1;
    }

    /// Where in a leaf that is not full an item of `key` is to be put, `None` for its end; and the way there.
    fn make_room(&mut self, key: &K, path: &mut Path) -> Option<usize> {
        if self.root.is_full() {
            let mut root = Inner::new();
            root.lens.push(self.len);
            root.nodes.push(mem::replace(&mut self.root, Node::Leaf(Leaf::new())));
            self.root = Node::Inner(Box::new(root));
        }
        let mut path = path.iter_mut();
        let mut node = &mut self.root;
        let mut is_last = true;
        loop {
            match node {
                Node::Inner(inner) => {
                    let mut child = inner.child_of(key);
                    is_last &= child == inner.separators.len();
                    if inner.nodes[child].is_full() {
                        child = inner.split_child(child, key, is_last, &mut self.garbage);
                    }
                    *path.next().expect("the tree is not so deep") = child as u8;
                    node = &mut inner.nodes[child];
                }
                Node::Leaf(items) => {
                    let (last, _) = items.back()?;
                    return (key < last).then(|| items.partition_point(|(k, _)| k < key));
                }
            }
        }
    }

    /// The item of `key`, and how many are before it. O(log n).
    pub(crate) fn find(&self, key: &K) -> Option<(usize, &V)> {
        let mut rank = 0;
        let mut node = &self.root;
        loop {
            match node {
                Node::Leaf(items) => {
                    let at = items.binary_search_by(|(k, _)| k.cmp(key)).ok()?;
                    return Some((rank + at, &items[at].1));
                }
                Node::Inner(inner) => {
                    let child = inner.child_of(key);
                    rank += inner.lens[..child].iter().sum::<usize>();
                    node = &inner.nodes[child];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
