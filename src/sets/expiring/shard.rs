//! Data guarded by one lock, and how much of it a sweep removes under that lock: the members of an `ExpiringSet`, or
//! some of the sets of `ExpiringSets`.

use super::change::Change;
use crate::engine::clock::Tick;

/// Maximum number of members that a sweep removes under one lock. It takes about 20 µs, for which callers wait.
pub(super) const SWEEP_BATCH: usize = 1_024;

/// Data guarded by one lock, as used by the shared state and the sweeper.
pub(super) trait SetShard: Sized + Send + 'static {
    /// Key type of its events.
    type Key: Send + Sync + 'static;
    type Value: Send + Sync + 'static;
    type Member;

    /// Removes expired members: at most `room`, and no more than [`SWEEP_BATCH`].
    fn sweep(&mut self, room: usize, change: &mut ChangeOf<'_, Self>) -> SweepProgress;

    /// Returns the number of members, or of sets.
    #[cfg(feature = "metrics")]
    fn len(&self) -> usize;

    /// Returns a lower bound on the scores.
    fn lowest(&self) -> Option<Tick>;
}

/// Result of one sweep step in a shard.
pub(super) enum SweepProgress {
    Done,
    /// More members are expired; they are left for the next time that the lock is taken.
    More,
    /// More members are expired, but a lossless subscriber is full.
    Blocked,
}

pub(super) type ChangeOf<'a, S> =
    Change<'a, <S as SetShard>::Key, <S as SetShard>::Value, <S as SetShard>::Member>;
