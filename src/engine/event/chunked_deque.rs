//! A double-ended queue in chunks: it does not move its items when it grows, and returns memory when it shrinks.

use std::collections::VecDeque;

/// Approximate size of a chunk.
const CHUNK_BYTES: usize = 8 << 10;

/// Maximum number of items per chunk.
const MAX_CHUNK_LEN: usize = 64;

/// Number of chunk pointers for which memory is always kept.
const RETAINED_SLOTS: usize = 64;

/// A double-ended queue of chunks.
pub(super) struct ChunkedDeque<T> {
    /// No chunk is empty, and all chunks between the first and the last are full.
    chunks: VecDeque<VecDeque<T>>,
    len: usize,
    /// One empty chunk, so that a queue that stays short does not allocate repeatedly.
    spare: Option<VecDeque<T>>,
}

impl<T> ChunkedDeque<T> {
    /// Number of items per chunk, a power of two.
    const CHUNK_LEN: usize = {
        let size = if size_of::<T>() == 0 { 1 } else { size_of::<T>() };
        let fitting = CHUNK_BYTES / size;
        if fitting >= MAX_CHUNK_LEN {
            MAX_CHUNK_LEN
        } else if fitting == 0 {
            1
        } else {
            // A power of two, so that the division in `get_mut` is a shift.
            1 << fitting.ilog2()
        }
    };

    pub(super) fn new() -> Self {
        Self { chunks: VecDeque::new(), len: 0, spare: None }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn push_back(&mut self, item: T) {
        match self.chunks.back_mut() {
            Some(chunk) if chunk.len() < Self::CHUNK_LEN => chunk.push_back(item),
            _ => {
                let mut chunk = self.chunk();
                chunk.push_back(item);
                self.chunks.push_back(chunk);
            }
        }
        self.len += 1;
    }

    pub(super) fn push_front(&mut self, item: T) {
        match self.chunks.front_mut() {
            Some(chunk) if chunk.len() < Self::CHUNK_LEN => chunk.push_front(item),
            _ => {
                let mut chunk = self.chunk();
                chunk.push_front(item);
                self.chunks.push_front(chunk);
            }
        }
        self.len += 1;
    }

    #[inline]
    pub(super) fn pop_front(&mut self) -> Option<T> {
        let chunk = self.chunks.front_mut()?;
        let item = chunk.pop_front();
        self.len -= 1;
        if chunk.is_empty() {
            // A queue that alternates between empty and not empty reuses this chunk. A second spare chunk is freed.
            self.spare = self.chunks.pop_front();
            // Only at a quarter, and then by half: a length that varies around a limit must not reallocate each time.
            if self.chunks.capacity() > RETAINED_SLOTS
                && self.chunks.len() < self.chunks.capacity() / 4
            {
                self.chunks.shrink_to(self.chunks.capacity() / 2);
            }
        }
        item
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        let first = self.chunks.front()?.len();
        let (chunk, index) = match index.checked_sub(first) {
            None => (0, index),
            // All chunks but the first and the last are full, so a division finds the chunk.
            Some(behind) => (1 + behind / Self::CHUNK_LEN, behind % Self::CHUNK_LEN),
        };
        self.chunks.get_mut(chunk)?.get_mut(index)
    }

    /// Removes all items, so that the caller can drop them one by one.
    pub(super) fn into_items(self) -> impl Iterator<Item = T> {
        self.chunks.into_iter().flatten()
    }

    fn chunk(&mut self) -> VecDeque<T> {
        self.spare.take().unwrap_or_else(|| VecDeque::with_capacity(Self::CHUNK_LEN))
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn chunked_deque_behaves_like_a_vec_deque(ops in prop::collection::vec(0..7_u8, 0..2_000)) {
            let (mut chunked_deque, mut whole) = (ChunkedDeque::<[u64; 128]>::new(), VecDeque::new());
            for (item, op) in ops.into_iter().enumerate() {
                let item = [item as u64; 128];
                match op {
                    0..=2 => {
                        chunked_deque.push_back(item);
                        whole.push_back(item);
                    }
                    3 => {
                        chunked_deque.push_front(item);
                        whole.push_front(item);
                    }
                    _ => prop_assert_eq!(chunked_deque.pop_front(), whole.pop_front()),
                }
                prop_assert_eq!(chunked_deque.len(), whole.len());
            }
            for index in 0..whole.len() + 1 {
                prop_assert_eq!(chunked_deque.get_mut(index), whole.get_mut(index));
            }
            prop_assert!(chunked_deque.into_items().eq(whole));
        }
    }

    #[test]
    fn chunk_holds_as_many_items_as_fit() {
        assert_eq!(ChunkedDeque::<u64>::CHUNK_LEN, 64);
        assert_eq!(ChunkedDeque::<()>::CHUNK_LEN, 64);
        assert_eq!(ChunkedDeque::<[u64; 128]>::CHUNK_LEN, 8);
        assert_eq!(ChunkedDeque::<[u64; 100]>::CHUNK_LEN, 8);
        assert_eq!(ChunkedDeque::<[u8; 100_000]>::CHUNK_LEN, 1);
    }
}
