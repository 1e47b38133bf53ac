//! The nodes of a [`RankTree`](super::RankTree), and how they are split, merged and taken apart. A node is
//! changed only when no user's code can panic any more.

use std::{
    collections::VecDeque,
    mem::{self, needs_drop},
    ops::Range,
};

/// Items of a leaf, and children of an inner node.
pub(super) const FULL: usize = 64;

/// A node that is smaller is merged with a neighbour. Less than the half that a split leaves: else a removal
/// after each insertion would merge what was just split.
const SMALL: usize = FULL / 4;

/// What two may be together that are merged. Not a full node: the next to come would split it again.
const MERGED: usize = FULL * 3 / 4;

/// A run of items. A deque, as most items leave in the order in which they came.
pub(crate) type Leaf<K, V> = VecDeque<(K, V)>;

pub(super) enum Node<K, V> {
    Leaf(Leaf<K, V>),
    Inner(Box<Inner<K, V>>),
}

/// Children beside each other, and a separator between each two of them.
pub(super) struct Inner<K, V> {
    /// Clones of keys, so that an item may leave while its key still separates.
    pub(super) separators: Vec<K>,
    /// Items below each child. Here and not in the child: a rank is found without a look at those it passes.
    pub(super) lens: Vec<usize>,
    pub(super) nodes: Vec<Node<K, V>>,
}

impl<K, V> Node<K, V> {
    pub(super) fn size(&self) -> usize {
        match self {
            Node::Leaf(items) => items.len(),
            Node::Inner(inner) => inner.nodes.len(),
        }
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.size() >= FULL
    }

    pub(super) fn for_each(&self, from: usize, to: usize, each: &mut impl FnMut(&K, &V)) {
        match self {
            Node::Leaf(items) => {
                let to = to.min(items.len());
                items.range(from.min(to)..to).for_each(|(key, value)| each(key, value));
            }
            Node::Inner(inner) => {
                let mut start = 0;
                for (node, len) in inner.nodes.iter().zip(&inner.lens) {
                    if start >= to {
                        break;
                    }
                    if start + len > from {
                        node.for_each(from.saturating_sub(start), to - start, each);
                    }
                    start += len;
                }
            }
        }
    }

    pub(super) fn for_each_mut(&mut self, each: &mut impl FnMut(&K, &mut V)) {
        match self {
            Node::Leaf(items) => items.iter_mut().for_each(|(key, value)| each(key, value)),
            Node::Inner(inner) => inner.nodes.iter_mut().for_each(|node| node.for_each_mut(each)),
        }
    }

    /// Takes out the first item, where that leaves nothing to rebalance: so the most frequent removal goes
    /// down once, without recursion.
    #[inline]
    pub(super) fn pop_first(&mut self) -> Option<(K, V)> {
        let mut node = &*self;
        while let Node::Inner(inner) = node {
            node = inner.nodes.first()?;
        }
        // Looked at before the counts on the way are changed, as there is no way back up.
        if node.size() <= SMALL {
            return None;
        }
        let mut node = self;
        loop {
            match node {
                Node::Leaf(items) => return items.pop_front(),
                Node::Inner(inner) => {
                    inner.lens[0] -= 1;
                    node = &mut inner.nodes[0];
                }
            }
        }
    }

    pub(super) fn remove_at(&mut self, rank: usize, garbage: &mut Vec<K>) -> (K, V) {
        match self {
            Node::Leaf(items) => {
                items.remove(rank).expect("the rank is one of those that are there")
            }
            Node::Inner(inner) => {
                let (child, rank) = inner.child_at(rank);
                let removed = inner.nodes[child].remove_at(rank, garbage);
                inner.lens[child] -= 1;
                inner.rebalance(child, garbage);
                removed
            }
        }
    }

    /// Takes out some items, but not all.
    pub(super) fn drain(
        &mut self,
        from: usize,
        to: usize,
        drained: &mut Vec<Leaf<K, V>>,
        garbage: &mut Vec<K>,
    ) {
        match self {
            Node::Leaf(items) => drained.push(items.drain(from..to).collect()),
            Node::Inner(inner) => inner.drain(from, to, drained, garbage),
        }
    }

    pub(super) fn into_leaves(self, leaves: &mut Vec<Leaf<K, V>>, garbage: &mut Vec<K>) {
        match self {
            Node::Leaf(items) => leaves.push(items),
            Node::Inner(inner) => {
                inner.separators.into_iter().for_each(|separator| discard(separator, garbage));
                inner.nodes.into_iter().for_each(|node| node.into_leaves(leaves, garbage));
            }
        }
    }
}

impl<K, V> Inner<K, V> {
    pub(super) fn new() -> Self {
        Self {
            separators: Vec::with_capacity(FULL),
            lens: Vec::with_capacity(FULL),
            nodes: Vec::with_capacity(FULL),
        }
    }

    /// The child below which the item of `rank` is, and its rank there.
    #[inline]
    pub(super) fn child_at(&self, mut rank: usize) -> (usize, usize) {
        let mut child = 0;
        while rank >= self.lens[child] {
            rank -= self.lens[child];
            child += 1;
        }
        (child, rank)
    }

    /// Takes out some items, but not all.
    fn drain(
        &mut self,
        from: usize,
        to: usize,
        drained: &mut Vec<Leaf<K, V>>,
        garbage: &mut Vec<K>,
    ) {
        let (first, within) = self.child_at(from);
        let mut start = from - within;
        let mut whole = first;
        if within > 0 {
            let len = self.lens[first];
            let end = len.min(to - start);
            self.nodes[first].drain(within, end, drained, garbage);
            self.lens[first] -= end - within;
            start += len;
            whole += 1;
        }
        let mut end = whole;
        while let Some(len) = self.lens.get(end)
            && start + len <= to
        {
            start += len;
            end += 1;
        }
        for node in self.remove_children(whole..end, garbage) {
            node.into_leaves(drained, garbage);
        }
        if start < to {
            self.nodes[whole].drain(0, to - start, drained, garbage);
            self.lens[whole] -= to - start;
        }
        // The later one first, as what becomes of it moves none before it.
        for child in [whole, first] {
            if child < self.nodes.len() {
                self.rebalance(child, garbage);
            }
        }
    }

    /// Removes or merges a child that has lost items, where it has too few.
    #[inline]
    fn rebalance(&mut self, child: usize, garbage: &mut Vec<K>) {
        if self.lens[child] == 0 {
            drop(self.remove_children(child..child + 1, garbage));
        } else if self.nodes[child].size() < SMALL {
            self.merge(child, garbage);
        }
    }

    /// Merges a small child with a neighbour, where both fit.
    fn merge(&mut self, child: usize, garbage: &mut Vec<K>) {
        let fit = |left: usize| {
            let size = |child| self.nodes.get(child).map_or(FULL, Node::size);
            size(left) + size(left + 1) <= MERGED
        };
        let left = match child.checked_sub(1) {
            Some(before) if fit(before) => before,
            _ if fit(child) => child,
            _ => return,
        };
        let separator = self.separators.remove(left);
        self.lens[left] += self.lens.remove(left + 1);
        let right = self.nodes.remove(left + 1);
        match (&mut self.nodes[left], right) {
            (Node::Leaf(items), Node::Leaf(mut more)) => {
                items.append(&mut more);
                discard(separator, garbage);
            }
            (Node::Inner(inner), Node::Inner(more)) => {
                inner.separators.push(separator);
                inner.separators.extend(more.separators);
                inner.lens.extend(more.lens);
                inner.nodes.extend(more.nodes);
            }
            _ => unreachable!("all leaves are equally deep"),
        }
    }

    /// Takes out children, and the separators that they leave without a use.
    fn remove_children(&mut self, children: Range<usize>, garbage: &mut Vec<K>) -> Vec<Node<K, V>> {
        let first = children.start.saturating_sub(1);
        let separators = first..self.separators.len().min(first + children.len());
        self.separators.drain(separators).for_each(|separator| discard(separator, garbage));
        self.lens.drain(children.clone());
        self.nodes.drain(children).collect()
    }
}

impl<K: Ord + Clone, V> Inner<K, V> {
    /// The child below which `key` is, if it is anywhere.
    #[inline]
    pub(super) fn child_of(&self, key: &K) -> usize {
        match self.separators.last() {
            Some(last) if key < last => {
                self.separators.partition_point(|separator| separator <= key)
            }
            _ => self.separators.len(),
        }
    }

    /// Makes room for `key` in or beside a full child; tells in which child the room is. All that may panic
    /// is called before a node is changed.
    #[cold]
    pub(super) fn split_child(
        &mut self,
        child: usize,
        key: &K,
        is_last: bool,
        garbage: &mut Vec<K>,
    ) -> usize {
        let next = child + 1;
        let has_room = self.nodes.get(next).is_some_and(|next| !next.is_full());
        let (separator, is_right, right, len) = match &mut self.nodes[child] {
            Node::Leaf(items) if items.back().is_none_or(|(last, _)| last < key) => {
                let separator = key.clone();
                if has_room {
                    // It becomes the first of the next.
                    discard(mem::replace(&mut self.separators[child], separator), garbage);
                    return next;
                }
                (separator, true, Node::Leaf(Leaf::with_capacity(FULL)), 0)
            }
            Node::Leaf(items) => {
                let middle = FULL / 2;
                let separator = items[middle].0.clone();
                let is_right = separator <= *key;
                let mut right = Leaf::with_capacity(FULL);
                right.extend(items.drain(middle..));
                let len = right.len();
                (separator, is_right, Node::Leaf(right), len)
            }
            Node::Inner(inner) => {
                // What comes in order comes to the last of the last.
                let middle = if is_last { FULL - 1 } else { FULL / 2 };
                let is_right = inner.separators[middle - 1] <= *key;
                let mut right = Inner::new();
                right.separators.extend(inner.separators.drain(middle..));
                right.lens.extend(inner.lens.drain(middle..));
                right.nodes.extend(inner.nodes.drain(middle..));
                let len = right.lens.iter().sum();
                let separator = inner.separators.pop().expect("there was one between any two");
                (separator, is_right, Node::Inner(Box::new(right)), len)
            }
        };
        self.separators.insert(child, separator);
        self.lens[child] -= len;
        self.lens.insert(next, len);
        self.nodes.insert(next, right);
        if is_right { next } else { child }
    }
}

/// Keeps a key for whoever takes the garbage, unless its drop is nobody's code.
#[inline]
pub(super) fn discard<K>(key: K, garbage: &mut Vec<K>) {
    if needs_drop::<K>() {
        garbage.push(key);
    }
}
