//! What one lock guards: the members of an `ExpiringSet`, or some of the sets of `ExpiringSets`.

use super::change::Change;
use crate::engine::clock::Tick;

/// What one lock guards, as the locks' owner and the sweeper see it.
pub(super) trait Shard: Sized + Send + 'static {
    /// Of its events.
    type Key: Send + Sync + 'static;
    type Value: Send + Sync + 'static;
    type Member;

    /// Lets what is dead leave, at most `room`, and no more than [`SWEEP_BATCH`].
    fn sweep(&mut self, room: usize, change: &mut ChangeOf<'_, Self>) -> SweepProgress;

    /// Members, or sets.
    #[cfg(feature = "metrics")]
    fn len(&self) -> usize;

    /// No score is lower than this.
    fn lowest(&self) -> Option<Tick>;
}

/// How far the sweep of a shard has come.
pub(super) enum SweepProgress {
    Done,
    /// There is more, for the next time that the lock is taken.
    More,
    /// There is more, but a lossless subscriber is full.
    HeldBack,
}

/// How many a sweep lets leave under one lock: some 20 µs, for which callers wait.
pub(super) const SWEEP_BATCH: usize = 1_024;

pub(super) type ChangeOf<'a, S> =
    Change<'a, <S as Shard>::Key, <S as Shard>::Value, <S as Shard>::Member>;
