//! Nodes of a [`RankTree`](super::RankTree): splitting, merging and removing. A node is changed only after the last
//! call of user code that may panic.

use std::{
    collections::VecDeque,
    mem::{self, needs_drop},
    ops::Range,
};

/// Maximum number of items in a leaf, and of children in an inner node. Larger nodes would move more items in each
/// insertion; smaller ones would make the tree deeper, and each level is another access to memory.
pub(super) const NODE_CAPACITY: usize = 64;

/// Smaller nodes are merged with a neighbor. This is less than the half that a split leaves: otherwise a removal after
/// each insertion would undo the split.
const MERGE_BELOW: usize = NODE_CAPACITY / 4;

/// Maximum size of a merged node. Less than a full node, which the next insertion would split again.
const MAX_MERGED_SIZE: usize = NODE_CAPACITY * 3 / 4;

/// A run of items. A deque, as items are mostly removed in the order in which they were added.
pub(crate) type Leaf<K, V> = VecDeque<(K, V)>;

pub(super) enum TreeNode<K, V> {
    Leaf(Leaf<K, V>),
    Inner(Box<InnerNode<K, V>>),
}

/// Adjacent children, with a separator between each two of them.
pub(super) struct InnerNode<K, V> {
    /// Clones of keys, so that an item can be removed while its key still separates two children.
    pub(super) separators: Vec<K>,
    /// Number of items below each child. Stored here and not in the child, so that a rank is found without reading the
    /// children before it.
    pub(super) lens: Vec<usize>,
    pub(super) nodes: Vec<TreeNode<K, V>>,
}

impl<K, V> TreeNode<K, V> {
    pub(super) fn size(&self) -> usize {
        match self {
            TreeNode::Leaf(items) => items.len(),
            TreeNode::Inner(inner) => inner.nodes.len(),
        }
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.size() >= NODE_CAPACITY
    }

    pub(super) fn for_each(&self, from: usize, to: usize, each: &mut impl FnMut(&K, &V)) {
        match self {
            TreeNode::Leaf(items) => {
                let to = to.min(items.len());
                items.range(from.min(to)..to).for_each(|(key, value)| each(key, value));
            }
            TreeNode::Inner(inner) => {
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
            TreeNode::Leaf(items) => items.iter_mut().for_each(|(key, value)| each(key, value)),
            TreeNode::Inner(inner) => {
                inner.nodes.iter_mut().for_each(|node| node.for_each_mut(each))
            }
        }
    }

    /// Removes and returns the first item, unless that would require a rebalance. So the most frequent removal descends
    /// once, without recursion.
    #[inline]
    pub(super) fn pop_first(&mut self) -> Option<(K, V)> {
        let mut node = &*self;
        while let TreeNode::Inner(inner) = node {
            node = inner.nodes.first()?;
        }
        // Checked before the counts on the way are changed, as there is no way back up.
        if node.size() <= MERGE_BELOW {
            return None;
        }
        let mut node = self;
        loop {
            match node {
                TreeNode::Leaf(items) => return items.pop_front(),
                TreeNode::Inner(inner) => {
                    // In range: the walk above has found a leaf on this way.
                    inner.lens[0] -= 1;
                    node = &mut inner.nodes[0];
                }
            }
        }
    }

    pub(super) fn remove_at(&mut self, rank: usize, drop_queue: &mut Vec<K>) -> (K, V) {
        match self {
            TreeNode::Leaf(items) => {
                items.remove(rank).expect("the rank is less than the number of items")
            }
            TreeNode::Inner(inner) => {
                let (child, rank) = inner.child_at(rank);
                let removed = inner.nodes[child].remove_at(rank, drop_queue);
                inner.lens[child] -= 1;
                inner.rebalance(child, drop_queue);
                removed
            }
        }
    }

    /// Removes some of the items, but not all.
    pub(super) fn drain(
        &mut self,
        from: usize,
        to: usize,
        drained: &mut Vec<Leaf<K, V>>,
        drop_queue: &mut Vec<K>,
    ) {
        match self {
            TreeNode::Leaf(items) => drained.push(items.drain(from..to).collect()),
            TreeNode::Inner(inner) => inner.drain(from, to, drained, drop_queue),
        }
    }

    pub(super) fn into_leaves(self, leaves: &mut Vec<Leaf<K, V>>, drop_queue: &mut Vec<K>) {
        match self {
            TreeNode::Leaf(items) => leaves.push(items),
            TreeNode::Inner(inner) => {
                inner.separators.into_iter().for_each(|separator| discard(separator, drop_queue));
                inner.nodes.into_iter().for_each(|node| node.into_leaves(leaves, drop_queue));
            }
        }
    }
}

impl<K, V> InnerNode<K, V> {
    pub(super) fn new() -> Self {
        Self {
            // Allocated once: a node is split before it would grow beyond this.
            separators: Vec::with_capacity(NODE_CAPACITY),
            lens: Vec::with_capacity(NODE_CAPACITY),
            nodes: Vec::with_capacity(NODE_CAPACITY),
        }
    }

    /// Returns the child that contains the item of `rank`, and the item's rank within it.
    #[inline]
    pub(super) fn child_at(&self, mut rank: usize) -> (usize, usize) {
        let mut child = 0;
        while rank >= self.lens[child] {
            rank -= self.lens[child];
            child += 1;
        }
        (child, rank)
    }

    /// Removes some of the items, but not all.
    fn drain(
        &mut self,
        from: usize,
        to: usize,
        drained: &mut Vec<Leaf<K, V>>,
        drop_queue: &mut Vec<K>,
    ) {
        let (first, within) = self.child_at(from);
        let mut start = from - within;
        let mut first_whole = first;
        if within > 0 {
            let len = self.lens[first];
            let end = len.min(to - start);
            self.nodes[first].drain(within, end, drained, drop_queue);
            self.lens[first] -= end - within;
            start += len;
            first_whole += 1;
        }
        let mut end = first_whole;
        while let Some(len) = self.lens.get(end)
            && start + len <= to
        {
            start += len;
            end += 1;
        }
        for node in self.remove_children(first_whole..end, drop_queue) {
            node.into_leaves(drained, drop_queue);
        }
        if start < to {
            self.nodes[first_whole].drain(0, to - start, drained, drop_queue);
            self.lens[first_whole] -= to - start;
        }
        // The later child first: rebalancing it does not move the one before it.
        for child in [first_whole, first] {
            if child < self.nodes.len() {
                self.rebalance(child, drop_queue);
            }
        }
    }

    /// Removes a child that has become empty, or merges one that has become small.
    #[inline]
    fn rebalance(&mut self, child: usize, drop_queue: &mut Vec<K>) {
        if self.lens[child] == 0 {
            // Dropped here, although a lock may be held: a child without items contains nothing of the user.
            drop(self.remove_children(child..child + 1, drop_queue));
        } else if self.nodes[child].size() < MERGE_BELOW {
            self.merge(child, drop_queue);
        }
    }

    /// Merges a small child with a neighbor, if both fit into one node.
    fn merge(&mut self, child: usize, drop_queue: &mut Vec<K>) {
        let fit = |left: usize| {
            // A missing neighbor counts as full, so it never fits.
            let size = |child| self.nodes.get(child).map_or(NODE_CAPACITY, TreeNode::size);
            size(left) + size(left + 1) <= MAX_MERGED_SIZE
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
            (TreeNode::Leaf(items), TreeNode::Leaf(mut more)) => {
                items.append(&mut more);
                discard(separator, drop_queue);
            }
            (TreeNode::Inner(inner), TreeNode::Inner(more)) => {
                inner.separators.push(separator);
                inner.separators.extend(more.separators);
                inner.lens.extend(more.lens);
                inner.nodes.extend(more.nodes);
            }
            _ => unreachable!("all leaves have the same depth"),
        }
    }

    /// Removes children, and the separators that become unnecessary.
    fn remove_children(
        &mut self,
        children: Range<usize>,
        drop_queue: &mut Vec<K>,
    ) -> Vec<TreeNode<K, V>> {
        // Each child is removed with the separator before it; the first child, which has none, with the one after it.
        let first = children.start.saturating_sub(1);
        let separators = first..self.separators.len().min(first + children.len());
        self.separators.drain(separators).for_each(|separator| discard(separator, drop_queue));
        self.lens.drain(children.clone());
        self.nodes.drain(children).collect()
    }
}

impl<K: Ord + Clone, V> InnerNode<K, V> {
    /// Returns the child that contains `key`, if the key is present.
    #[inline]
    pub(super) fn child_of(&self, key: &K) -> usize {
        match self.separators.last() {
            Some(last) if key < last => {
                self.separators.partition_point(|separator| separator <= key)
            }
            _ => self.separators.len(),
        }
    }

    /// Makes room for `key` in a full child or its next neighbor, and returns the child that has it. All user code that
    /// may panic runs before a node is changed.
    #[cold]
    pub(super) fn split_child(
        &mut self,
        child: usize,
        key: &K,
        is_last: bool,
        drop_queue: &mut Vec<K>,
    ) -> usize {
        let next = child + 1;
        let next_has_room = self.nodes.get(next).is_some_and(|next| !next.is_full());
        let (separator, is_right, right, len) = match &mut self.nodes[child] {
            TreeNode::Leaf(items) if items.back().is_none_or(|(last, _)| last < key) => {
                let separator = key.clone();
                if next_has_room {
                    // The key becomes the first one of the next child.
                    discard(mem::replace(&mut self.separators[child], separator), drop_queue);
                    return next;
                }
                (separator, true, TreeNode::Leaf(Leaf::with_capacity(NODE_CAPACITY)), 0)
            }
            TreeNode::Leaf(items) => {
                let middle = NODE_CAPACITY / 2;
                let separator = items[middle].0.clone();
                // Compared before items are moved, because `Ord` may panic.
                let is_right = separator <= *key;
                let mut right = Leaf::with_capacity(NODE_CAPACITY);
                right.extend(items.drain(middle..));
                let len = right.len();
                (separator, is_right, TreeNode::Leaf(right), len)
            }
            TreeNode::Inner(inner) => {
                // Keys in ascending order are inserted into the last child of the last node, so that only one child
                // moves.
                let middle = if is_last { NODE_CAPACITY - 1 } else { NODE_CAPACITY / 2 };
                // Before children are moved, too.
                let is_right = inner.separators[middle - 1] <= *key;
                let mut right = InnerNode::new();
                right.separators.extend(inner.separators.drain(middle..));
                right.lens.extend(inner.lens.drain(middle..));
                right.nodes.extend(inner.nodes.drain(middle..));
                let len = right.lens.iter().sum();
                let separator =
                    inner.separators.pop().expect("there is a separator between any two children");
                (separator, is_right, TreeNode::Inner(Box::new(right)), len)
            }
        };
        self.separators.insert(child, separator);
        self.lens[child] -= len;
        self.lens.insert(next, len);
        self.nodes.insert(next, right);
        if is_right { next } else { child }
    }
}

/// Queues a key to be dropped after unlock, unless its type has no drop code.
#[inline]
pub(super) fn discard<K>(key: K, drop_queue: &mut Vec<K>) {
    if needs_drop::<K>() {
        drop_queue.push(key);
    }
}
