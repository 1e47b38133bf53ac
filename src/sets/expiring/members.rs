//! Members of one set with times as their scores; used by `ExpiringSet` and by each set of `ExpiringSets`. User code
//! (`Eq`, `Clone`) runs before anything is changed, so that a panic in it changes nothing.

use std::{
    hash::{BuildHasher, Hash},
    ops::{Range, RangeBounds},
};

use equivalent::Equivalent;

use super::{
    change::{Change, SetKey, Unkeyed},
    shard::{SWEEP_BATCH, SetShard, SweepProgress},
};
use crate::{
    engine::{
        clock::{Deadline, Tick},
        event::Cause,
    },
    sets::scores::{Drained, INLINE_DRAINED, Scores, hash_of},
};

/// Members of one set, with times as their scores.
pub(super) struct Members<T>(Scores<Tick, T>);

/// A member to be added, hashed before the lock is taken. After the push it holds the member that was displaced, which
/// is therefore dropped after unlock.
pub(super) struct Prehashed<T> {
    hash: u32,
    member: Option<T>,
}

type MemberChange<'a, T, S> = Change<'a, <S as SetKey<T>>::Key, <S as SetKey<T>>::Value, T>;

impl<T: Hash> Prehashed<T> {
    #[inline]
    pub(super) fn new(hasher: &impl BuildHasher, member: T) -> Self {
        Self { hash: hash_of(hasher, &member), member: Some(member) }
    }
}

impl<T> Members<T> {
    pub(super) fn new() -> Self {
        Self(Scores::new())
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn first(&self) -> Option<&T> {
        self.0.first().map(|(_, member)| member)
    }

    #[inline]
    pub(super) fn lowest(&self) -> Option<Tick> {
        self.0.first().map(|(score, _)| *score)
    }

    /// Returns the number of expired members.
    #[inline]
    pub(super) fn expired_count<K, V>(&self, change: &Change<'_, K, V, T>) -> usize {
        match self.lowest() {
            Some(lowest) if change.is_expired(lowest) => {
                self.0.rank_where(|s| change.is_expired(*s))
            }
            _ => 0,
        }
    }

    /// Removes expired members, at most [`SWEEP_BATCH`], and returns the number of those that are left. They have the
    /// lowest ranks. Every change begins with this, until none is left.
    #[inline]
    pub(super) fn expire_some<S: SetKey<T>>(
        &mut self,
        set_key: S,
        change: &mut MemberChange<'_, T, S>,
    ) -> usize {
        if !change.journal.has_subscriber(Cause::Expired) {
            // Usually at most one member is expired. A few are removed one by one, which needs no allocation.
            for _ in 0..INLINE_DRAINED {
                match self.lowest() {
                    Some(lowest) if change.is_expired(lowest) => {
                        self.0.drain(0..1, &mut change.drop_queue.members);
                        change.count_expired(1);
                    }
                    _ => return 0,
                }
            }
        }
        let expired = self.expired_count(change);
        let removed = expired.min(SWEEP_BATCH);
        if removed > 0 {
            self.remove_ranks(0..removed, Cause::Expired, set_key, change);
        }
        expired - removed
    }

    /// Removes the members with these ranks, with events of `cause`.
    pub(super) fn remove_ranks<S: SetKey<T>>(
        &mut self,
        ranks: Range<usize>,
        cause: Cause,
        set_key: S,
        change: &mut MemberChange<'_, T, S>,
    ) {
        let ttl = change.ttl;
        let event_cause = change.prepare_departures(ranks.len(), cause, set_key);
        if cause == Cause::Expired {
            change.count_expired(ranks.len());
        }
        self.drain::<S>(ranks, event_cause, |score| score.after(ttl), change);
    }

    pub(super) fn at(&self, rank: usize) -> Option<&T> {
        self.0.at(rank).map(|(_, member)| member)
    }

    pub(super) fn ranks(&self, scores: &impl RangeBounds<Tick>) -> Range<usize> {
        self.0.ranks(scores)
    }

    /// Appends clones of the members with these ranks.
    pub(super) fn copy(&self, ranks: Range<usize>, copies: &mut Vec<T>)
    where
        T: Clone,
    {
        copies.reserve(ranks.len());
        self.0.for_each(ranks, |_, member| copies.push(member.clone()));
    }

    /// Removes and returns the member with the lowest score.
    pub(super) fn pop<S: SetKey<T>>(
        &mut self,
        set_key: S,
        change: &mut MemberChange<'_, T, S>,
    ) -> Option<T>
    where
        T: Clone,
    {
        let (_, member) = self.0.first()?;
        let event_cause = change.prepare_departures(1, Cause::Removed, set_key);
        // Cloned before the member is removed, so that a panic in `Clone` removes nothing.
        let copy = event_cause.map(|cause| (cause, member.clone()));
        let (score, member) = self.0.remove_at(0);
        if let Some((cause, copy)) = copy {
            change.record::<S>(cause, [(score.after(change.ttl), copy)]);
        }
        Some(member)
    }

    /// Removes the members with these ranks, and records their events if `event_cause` was prepared.
    fn drain<S: SetKey<T>>(
        &mut self,
        ranks: Range<usize>,
        event_cause: Option<Cause>,
        deadline: impl Fn(Tick) -> Deadline,
        change: &mut MemberChange<'_, T, S>,
    ) {
        let Some(cause) = event_cause else {
            self.0.drain(ranks, &mut change.drop_queue.members);
            return;
        };
        let mut drained = Drained::default();
        self.0.drain(ranks, &mut drained);
        let departed = drained.into_members().map(|(score, member)| (deadline(score), member));
        change.record::<S>(cause, departed);
    }
}

impl<T: Eq> Members<T> {
    /// Adds `member`, or moves it, and leaves in its place the member that it displaced. If it is to be `unique` at its
    /// score, the other members with that score are removed.
    #[inline]
    pub(super) fn push<S: SetKey<T>>(
        &mut self,
        score: Tick,
        unique: bool,
        member: &mut Prehashed<T>,
        set_key: S,
        change: &mut MemberChange<'_, T, S>,
    ) {
        let Prehashed { hash, member } = member;
        if change.is_expired(score) {
            self.remove_expired_duplicate(score, *hash, member.as_ref(), set_key, change);
        } else if unique {
            // Prepared before anything is changed, as it may panic.
            let others = self.0.ranks(&(score..=score)).len();
            let event_cause = change.prepare_departures(others, Cause::Replaced, set_key);
            self.0.insert(score, *hash, member);
            // It is now the last member with this score, so the others directly precede it. If it had this score
            // before, there is one event fewer than prepared.
            let Range { start, end } = self.0.ranks(&(score..=score));
            let deadline = score.after(change.ttl);
            self.drain::<S>(start..end - 1, event_cause, |_| deadline, change);
        } else {
            self.0.insert(score, *hash, member);
        }
    }

    /// Handles a push that is already expired: it is not added, and if the member is already in the set, it is removed
    /// as expired with the new deadline.
    #[cold]
    fn remove_expired_duplicate<S: SetKey<T>>(
        &mut self,
        score: Tick,
        hash: u32,
        member: Option<&T>,
        set_key: S,
        change: &mut MemberChange<'_, T, S>,
    ) {
        if let Some((rank, _)) = member.and_then(|member| self.0.find(hash, member)) {
            let event_cause = change.prepare_departures(1, Cause::Expired, set_key);
            let deadline = score.after(change.ttl);
            change.count_expired(1);
            self.drain::<S>(rank..rank + 1, event_cause, |_| deadline, change);
        }
    }

    /// Removes a member. Returns `false` if it is not in the set.
    pub(super) fn remove<S: SetKey<T>, Q>(
        &mut self,
        hash: u32,
        member: &Q,
        set_key: S,
        change: &mut MemberChange<'_, T, S>,
    ) -> bool
    where
        Q: Equivalent<T> + ?Sized,
    {
        let Some((rank, _)) = self.0.find(hash, member) else { return false };
        self.remove_ranks(rank..rank + 1, Cause::Removed, set_key, change);
        true
    }

    pub(super) fn score<Q>(&self, hash: u32, member: &Q) -> Option<Tick>
    where
        Q: Equivalent<T> + ?Sized,
    {
        self.live_score(hash, member, 0)
    }

    /// Returns the score of a member, unless it is one of the `expired` first ones.
    pub(super) fn live_score<Q>(&self, hash: u32, member: &Q, expired: usize) -> Option<Tick>
    where
        Q: Equivalent<T> + ?Sized,
    {
        let (rank, score) = self.0.find(hash, member)?;
        (rank >= expired).then_some(*score)
    }
}

impl<T: Send + Sync + 'static> SetShard for Members<T> {
    type Key = T;
    type Value = ();
    type Member = T;

    #[cfg(feature = "metrics")]
    fn len(&self) -> usize {
        self.len()
    }

    fn sweep(&mut self, room: usize, change: &mut Change<'_, T, (), T>) -> SweepProgress {
        let expired = self.expired_count(change);
        let removed = expired.min(room).min(SWEEP_BATCH);
        self.remove_ranks(0..removed, Cause::Expired, Unkeyed, change);
        match removed {
            _ if removed == expired => SweepProgress::Done,
            _ if removed == room => SweepProgress::Blocked,
            _ => SweepProgress::More,
        }
    }

    fn lowest(&self) -> Option<Tick> {
        self.lowest()
    }
}
