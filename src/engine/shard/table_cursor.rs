//! Cursor of a scan over all entries, some buckets under each lock.

use super::table::WINDOW;

/// Number of buckets that a scan examines under one lock.
pub(crate) const BUCKETS_PER_LOCK: usize = 8 * WINDOW;

/// Position of a scan over all entries.
///
/// While entries keep their buckets, each entry that stays in the store is examined exactly once. If they change
/// buckets (the table grows or shrinks), the shard is scanned again from its start. So no entry is missed, but some may
/// be examined twice.
///
/// Each restart multiplies the part of the shard that is scanned under one lock by [`FACTOR_PER_RESTART`]. So a shard
/// restarts only a few times, even if other tasks rehash its table faster than the first parts are scanned.
#[derive(Clone, Copy, Default)]
pub(crate) struct TableCursor {
    pub(crate) shard: usize,
    pub(crate) next: usize,
    /// Table generation of the shard when its scan began.
    generation: Option<u32>,
    /// Number of times that the scan of the shard was started again.
    restarts: u32,
}

/// Factor by which a restart increases the part of a shard that is scanned under one lock.
const FACTOR_PER_RESTART: usize = 8;

impl TableCursor {
    /// Starts a scan at the first bucket of `shard`.
    pub(crate) fn of(shard: usize) -> Self {
        Self { shard, ..Self::default() }
    }

    /// Continues in the current shard, which is locked and has this table generation.
    pub(crate) fn resume_in(&mut self, generation: u32) {
        // Entries that changed buckets may be behind the cursor.
        if self.generation != Some(generation) {
            self.restarts += u32::from(self.generation.is_some());
            (self.generation, self.next) = (Some(generation), 0);
        }
    }

    /// Returns the factor by which the work under one lock exceeds that of a scan without restarts.
    pub(crate) fn work_factor(&self) -> usize {
        FACTOR_PER_RESTART.saturating_pow(self.restarts)
    }

    /// Returns the bucket before which a step ends that examines at most `count` of `buckets`, times the
    /// [`work_factor`](Self::work_factor).
    pub(crate) fn end_of_step(&self, count: usize, buckets: usize) -> usize {
        buckets.min(self.next.saturating_add(count.saturating_mul(self.work_factor())))
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn step_grows_with_each_restart() {
        let mut cursor = TableCursor::of(0);
        let end_in = |generation| {
            cursor.resume_in(generation);
            cursor.end_of_step(10, 1_000_000)
        };
        let (once, twice) = (10 * FACTOR_PER_RESTART, 10 * FACTOR_PER_RESTART.pow(2));
        assert_eq!([1, 1, 2, 3, 3].map(end_in), [10, 10, once, twice, twice]);
    }
}
