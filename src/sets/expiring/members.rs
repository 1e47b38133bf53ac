//! The members of one set, with times as their scores: what an `ExpiringSet` is, and each of `ExpiringSets`.
//! The user's code (`Eq`, `Clone`) runs before anything is changed, so that a panic of it changes nothing.

use std::{
    hash::{BuildHasher, Hash},
    ops::{Range, RangeBounds},
};

use equivalent::Equivalent;

use super::{
    change::{Change, SetKey, Unkeyed},
    shard::{SWEEP_BATCH, Shard, SweepProgress},
};
use crate::{
    engine::{
        clock::{Deadline, Tick},
        event::Cause,
    },
    sets::scores::{Drained, FEW, Scores, hash_of},
};

/// The members of one set, with times as their scores.
pub(super) struct Members<T>(Scores<Tick, T>);

/// A member on its way in, hashed before the lock. Pushed, it leaves here what it displaced, which is so
/// dropped after the lock.
pub(super) struct Prehashed<T> {
    hash: u32,
    member: Option<T>,
}

type ChangeOf<'a, T, S> = Change<'a, <S as SetKey<T>>::Key, <S as SetKey<T>>::Value, T>;

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

    /// How many are dead.
    #[inline]
    pub(super) fn dead<K, V>(&self, change: &Change<'_, K, V, T>) -> usize {
        match self.lowest() {
            Some(lowest) if change.is_dead(lowest) => self.0.rank_where(|s| change.is_dead(*s)),
            _ => 0,
        }
    }

    /// Lets all leave that are dead: what every operation begins with.
    #[inline]
    pub(super) fn expire<S: SetKey<T>>(&mut self, set_key: S, change: &mut ChangeOf<'_, T, S>) {
        if !change.journal.has_subscriber(Cause::Expired) {
            // Mostly there is one, if any. Few that are taken one by one need no memory to go to.
            for _ in 0..FEW {
                match self.lowest() {
                    Some(lowest) if change.is_dead(lowest) => {
                        self.0.drain(0..1, &mut change.garbage.members);
                        change.count_expired(1);
                    }
                    _ => return,
                }
            }
        }
        let dead = self.dead(change);
        if dead > 0 {
            self.remove_ranks(0..dead, Cause::Expired, set_key, change);
        }
    }

    /// Takes out the members of these ranks, with events of `cause`.
    pub(super) fn remove_ranks<S: SetKey<T>>(
        &mut self,
        ranks: Range<usize>,
        cause: Cause,
        set_key: S,
        change: &mut ChangeOf<'_, T, S>,
    ) {
        let ttl = change.ttl;
        let wanted = change.prepare(ranks.len(), cause, set_key);
        if cause == Cause::Expired {
            change.count_expired(ranks.len());
        }
        self.drain::<S>(ranks, wanted, |score| score.after(ttl), change);
    }

    pub(super) fn ranks(&self, scores: &impl RangeBounds<Tick>) -> Range<usize> {
        self.0.ranks(scores)
    }

    /// Adds clones of the members of these ranks.
    pub(super) fn copy(&self, ranks: Range<usize>, copies: &mut Vec<T>)
    where
        T: Clone,
    {
        copies.reserve(ranks.len());
        self.0.for_each(ranks, |_, member| copies.push(member.clone()));
    }

    /// Takes out the first.
    pub(super) fn pop<S: SetKey<T>>(
        &mut self,
        set_key: S,
        change: &mut ChangeOf<'_, T, S>,
    ) -> Option<T>
    where
        T: Clone,
    {
        let (_, member) = self.0.first()?;
        let wanted = change.prepare(1, Cause::Removed, set_key);
        // Cloned while it is still in the set: a panic takes nothing out.
        let copy = wanted.map(|cause| (cause, member.clone()));
        let (score, member) = self.0.remove_at(0);
        if let Some((cause, copy)) = copy {
            change.record::<S>(cause, [(score.after(change.ttl), copy)]);
        }
        Some(member)
    }

    /// Takes out the members of these ranks, and records events of them where that was prepared.
    fn drain<S: SetKey<T>>(
        &mut self,
        ranks: Range<usize>,
        wanted: Option<Cause>,
        deadline: impl Fn(Tick) -> Deadline,
        change: &mut ChangeOf<'_, T, S>,
    ) {
        let Some(cause) = wanted else {
            self.0.drain(ranks, &mut change.garbage.members);
            return;
        };
        let mut drained = Drained::default();
        self.0.drain(ranks, &mut drained);
        let departed = drained.into_members().map(|(score, member)| (deadline(score), member));
        change.record::<S>(cause, departed);
    }
}

impl<T: Eq> Members<T> {
    /// Moves `member` in, and leaves there what it displaced. Where it is to be `alone` at its score, those
    /// that are there leave.
    #[inline]
    pub(super) fn push<S: SetKey<T>>(
        &mut self,
        score: Tick,
        alone: bool,
        member: &mut Prehashed<T>,
        set_key: S,
        change: &mut ChangeOf<'_, T, S>,
    ) {
        let Prehashed { hash, member } = member;
        if change.is_dead(score) {
            self.refuse(score, *hash, member.as_ref(), set_key, change);
        } else if alone {
            // Made ready before anything is changed, as that may panic.
            let others = self.0.ranks(&(score..=score)).len();
            let wanted = change.prepare(others, Cause::Replaced, set_key);
            self.0.insert(score, *hash, member);
            // It is the last of its score now, so the others are all before it. It may have been one of them
            // itself: then there is one event less than was prepared for.
            let Range { start, end } = self.0.ranks(&(score..=score));
            let deadline = score.after(change.ttl);
            self.drain::<S>(start..end - 1, wanted, |_| deadline, change);
        } else {
            self.0.insert(score, *hash, member);
        }
    }

    /// What is dead at once does not come; where it is there already, it moves to its death.
    #[cold]
    fn refuse<S: SetKey<T>>(
        &mut self,
        score: Tick,
        hash: u32,
        member: Option<&T>,
        set_key: S,
        change: &mut ChangeOf<'_, T, S>,
    ) {
        if let Some((rank, _)) = member.and_then(|member| self.0.find(hash, member)) {
            let wanted = change.prepare(1, Cause::Expired, set_key);
            let deadline = score.after(change.ttl);
            change.count_expired(1);
            self.drain::<S>(rank..rank + 1, wanted, |_| deadline, change);
        }
    }

    /// Takes a member out; tells whether it was there.
    pub(super) fn remove<S: SetKey<T>, Q>(
        &mut self,
        hash: u32,
        member: &Q,
        set_key: S,
        change: &mut ChangeOf<'_, T, S>,
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
        self.0.find(hash, member).map(|(_, score)| *score)
    }
}

impl<T: Send + Sync + 'static> Shard for Members<T> {
    type Key = T;
    type Value = ();
    type Member = T;

    #[cfg(feature = "metrics")]
    fn len(&self) -> usize {
        self.len()
    }

    fn sweep(&mut self, room: usize, change: &mut Change<'_, T, (), T>) -> SweepProgress {
        let dead = self.dead(change);
        let leaves = dead.min(room).min(SWEEP_BATCH);
        self.remove_ranks(0..leaves, Cause::Expired, Unkeyed, change);
        match leaves {
            _ if leaves == dead => SweepProgress::Done,
            _ if leaves == room => SweepProgress::HeldBack,
            _ => SweepProgress::More,
        }
    }

    fn lowest(&self) -> Option<Tick> {
        self.lowest()
    }
}
