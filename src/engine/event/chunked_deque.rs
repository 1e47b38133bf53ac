//! A double-ended queue in chunks: it does not move its items when it grows, and returns memory when it shrinks.

use std::collections::VecDeque;

/// Approximate size of a chunk.
const PIECE_BYTES: usize = 8 << 10;

/// Maximum number of items per chunk.
const PIECE_LEN: usize = 64;

/// Number of chunk pointers for which memory is always kept.
const SPARE: usize = 64;

/// A double-ended queue of chunks.
pub(super) struct ChunkedDeque<T> {
    /// No chunk is empty, and all chunks between the first and the last are full.
    pieces: VecDeque<VecDeque<T>>,
    len: usize,
    /// One empty chunk, so that a queue that stays short does not allocate repeatedly.
    spare: Option<VecDeque<T>>,
}

impl<T> ChunkedDeque<T> {
    /// Number of items per chunk, a power of two.
    const PIECE: usize = {
        let size = if size_of::<T>() == 0 { 1 } else { size_of::<T>() };
        let fitting = PIECE_BYTES / size;
        if fitting >= PIECE_LEN {
            PIECE_LEN
        } else if fitting == 0 {
            1
        } else {
            1 << fitting.ilog2()
        }
    };

    pub(super) fn new() -> Self {
        Self { pieces: VecDeque::new(), len: 0, spare: None }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn push_back(&mut self, item: T) {
        match self.pieces.back_mut() {
            Some(piece) if piece.len() < Self::PIECE => piece.push_back(item),
            _ => {
                let mut piece = self.piece();
                piece.push_back(item);
                self.pieces.push_back(piece);
            }
        }
        self.len += 1;
    }

    pub(super) fn push_front(&mut self, item: T) {
        match self.pieces.front_mut() {
            Some(piece) if piece.len() < Self::PIECE => piece.push_front(item),
            _ => {
                let mut piece = self.piece();
                piece.push_front(item);
                self.pieces.push_front(piece);
            }
        }
        self.len += 1;
    }

    #[inline]
    pub(super) fn pop_front(&mut self) -> Option<T> {
        let piece = self.pieces.front_mut()?;
        let item = piece.pop_front();
        self.len -= 1;
        if piece.is_empty() {
            self.spare = self.pieces.pop_front();
            if self.pieces.capacity() > SPARE && self.pieces.len() < self.pieces.capacity() / 4 {
                self.pieces.shrink_to(self.pieces.capacity() / 2);
            }
        }
        item
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        let first = self.pieces.front()?.len();
        let (piece, index) = match index.checked_sub(first) {
            None => (0, index),
            Some(behind) => (1 + behind / Self::PIECE, behind % Self::PIECE),
        };
        self.pieces.get_mut(piece)?.get_mut(index)
    }

    /// Removes all items, so that the caller can drop them one by one.
    pub(super) fn into_items(self) -> impl Iterator<Item = T> {
        self.pieces.into_iter().flatten()
    }

    fn piece(&mut self) -> VecDeque<T> {
        self.spare.take().unwrap_or_else(|| VecDeque::with_capacity(Self::PIECE))
    }
}

#[cfg(test)]
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
        assert_eq!(ChunkedDeque::<u64>::PIECE, 64);
        assert_eq!(ChunkedDeque::<()>::PIECE, 64);
        assert_eq!(ChunkedDeque::<[u64; 128]>::PIECE, 8);
        assert_eq!(ChunkedDeque::<[u64; 100]>::PIECE, 8);
        assert_eq!(ChunkedDeque::<[u8; 100_000]>::PIECE, 1);
    }
}
