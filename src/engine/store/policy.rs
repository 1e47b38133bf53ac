//! Who is worth keeping. (To be exchanged.)

use crate::engine::sync::atomic::{AtomicU8, Ordering::Relaxed};

pub(super) struct Policy {
    words: Words,
    cursor: usize,
}

pub(super) type Words = Box<[AtomicU8]>;

pub(super) enum Look {
    Empty,
    Dead,
    Live,
}

impl Policy {
    pub(super) fn new(seed: u64) -> Self {
        Self { words: Box::new([]), cursor: seed as usize }
    }

    #[inline]
    pub(super) fn touch(&self, bucket: usize) {
        let word = &self.words[bucket];
        let count = word.load(Relaxed);
        if count < 3 {
            word.store(count + 1, Relaxed);
        }
    }

    pub(super) fn resize(&mut self, buckets: usize) -> Words {
        let words = (0..buckets).map(|_| AtomicU8::new(0)).collect();
        std::mem::replace(&mut self.words, words)
    }

    pub(super) fn relocate(&mut self, old: &Words, from: usize, to: usize) {
        *self.words[to].get_mut() = old[from].load(Relaxed);
    }

    pub(super) fn inserted(&mut self, bucket: usize, _hash: u64, _len: usize) {
        *self.words[bucket].get_mut() = 0;
    }

    pub(super) fn left(&mut self, bucket: usize) {
        *self.words[bucket].get_mut() = 0;
    }

    pub(super) fn victim(
        &mut self,
        buckets: usize,
        spared: Option<usize>,
        mut look: impl FnMut(usize) -> Look,
    ) -> Option<usize> {
        let mut best: Option<(usize, u8)> = None;
        let mut seen = 0;
        for step in 0..buckets {
            let bucket = (self.cursor + step) % buckets;
            if Some(bucket) == spared {
                continue;
            }
            match look(bucket) {
                Look::Empty => continue,
                Look::Dead => return Some(bucket),
                Look::Live => {}
            }
            let count = *self.words[bucket].get_mut();
            if best.is_none_or(|(_, least)| count < least) {
                best = Some((bucket, count));
            }
            *self.words[bucket].get_mut() = count.saturating_sub(1);
            seen += 1;
            if seen == 16 {
                break;
            }
        }
        self.cursor = best?.0 + 1;
        best.map(|(bucket, _)| bucket)
    }

    pub(super) fn evicted(&mut self, bucket: usize, _hash: u64, _len: usize) {
        self.left(bucket);
    }

    pub(super) fn was_evicted_lately(&self, _hash: u64) -> bool {
        false
    }
}
