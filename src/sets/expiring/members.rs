use std::{
    borrow::Borrow,
    ops::{Range, RangeBounds},
};

use super::state::{Change, Part, Swept};
use crate::{
    engine::{
        clock::{Deadline, Tick},
        event::Cause,
    },
    sets::scores::{Cut, FEW, Scores},
};

/// How many a sweep lets leave under one lock: some 20 µs.
pub(super) const FAIR: usize = 1_024;

/// The members of one set, with times as their scores.
pub(super) struct Members<T>(Scores<Tick, T>);

/// A member on its way in. Made before the lock and dropped after it, with what it displaced.
pub(super) struct Hashed<T> {
    pub(super) hash: u32,
    pub(super) member: Option<T>,
}

/// Whose members they are, as their events tell it.
pub(super) trait Owner<T>: Copy {
    type Key;
    type Value;

    /// Makes what `count` events need. It may be somebody's code that does, and panics.
    fn prepare(self, count: usize, keys: &mut Vec<Self::Key>);

    /// Of what was prepared, and a member.
    fn event(keys: &mut Vec<Self::Key>, member: T) -> (Self::Key, Self::Value);
}

/// Of a set that has no key: the members are the keys of its events.
#[derive(Clone, Copy)]
pub(super) struct Nobody;

type ChangeOf<'a, T, O> = Change<'a, <O as Owner<T>>::Key, <O as Owner<T>>::Value, T>;

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
    pub(super) fn expire<O: Owner<T>>(&mut self, owner: O, change: &mut ChangeOf<'_, T, O>) {
        if !change.journal.wants(Cause::Expired) {
            // Mostly there is one, if any.
            for _ in 0..FEW {
                match self.lowest() {
                    Some(lowest) if change.is_dead(lowest) => {
                        self.0.cut(0..1, &mut change.left.cut)
                    }
                    _ => return,
                }
            }
        }
        let dead = self.dead(change);
        if dead > 0 {
            self.leave(0..dead, Cause::Expired, owner, change);
        }
    }

    /// Lets the members of these ranks leave.
    pub(super) fn leave<O: Owner<T>>(
        &mut self,
        ranks: Range<usize>,
        cause: Cause,
        owner: O,
        change: &mut ChangeOf<'_, T, O>,
    ) {
        let ttl = change.ttl;
        let told = change.prepare(ranks.len(), cause, owner);
        self.depart::<O>(ranks, told, |score| score.after(ttl), change);
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
    pub(super) fn pop<O: Owner<T>>(
        &mut self,
        owner: O,
        change: &mut ChangeOf<'_, T, O>,
    ) -> Option<T>
    where
        T: Clone,
    {
        let (_, member) = self.0.first()?;
        let told = change.prepare(1, Cause::Removed, owner);
        let copy = told.map(|cause| (cause, member.clone()));
        let (score, member) = self.0.remove_at(0);
        if let Some((cause, copy)) = copy {
            change.tell::<O>(cause, [(score.after(change.ttl), copy)]);
        }
        Some(member)
    }

    /// Takes out the members of these ranks, and tells of them where that was prepared.
    fn depart<O: Owner<T>>(
        &mut self,
        ranks: Range<usize>,
        told: Option<Cause>,
        deadline: impl Fn(Tick) -> Deadline,
        change: &mut ChangeOf<'_, T, O>,
    ) {
        let Some(cause) = told else {
            self.0.cut(ranks, &mut change.left.cut);
            return;
        };
        let mut cut = Cut::default();
        self.0.cut(ranks, &mut cut);
        let departed = cut.into_members().map(|(score, member)| (deadline(score), member));
        change.tell::<O>(cause, departed);
    }
}

impl<T: Eq> Members<T> {
    /// Moves `member` in, and leaves there what it displaced. Where it is to be `alone` at its score, those
    /// that are there leave.
    #[inline]
    pub(super) fn push<O: Owner<T>>(
        &mut self,
        score: Tick,
        alone: bool,
        member: &mut Hashed<T>,
        owner: O,
        change: &mut ChangeOf<'_, T, O>,
    ) {
        let Hashed { hash, member } = member;
        if change.is_dead(score) {
            self.refuse(score, *hash, member.as_ref(), owner, change);
        } else if alone {
            // Made ready before anything is changed, as that may panic.
            let others = self.0.ranks(&(score..=score)).len();
            let told = change.prepare(others, Cause::Replaced, owner);
            self.0.insert(score, *hash, member);
            // It is the last of them now.
            let Range { start, end } = self.0.ranks(&(score..=score));
            let deadline = score.after(change.ttl);
            self.depart::<O>(start..end - 1, told, |_| deadline, change);
        } else {
            self.0.insert(score, *hash, member);
        }
    }

    /// What is dead at once does not come; where it is there already, it moves to its death.
    #[cold]
    fn refuse<O: Owner<T>>(
        &mut self,
        score: Tick,
        hash: u32,
        member: Option<&T>,
        owner: O,
        change: &mut ChangeOf<'_, T, O>,
    ) {
        if let Some((rank, _)) = member.and_then(|member| self.0.find(hash, member)) {
            let told = change.prepare(1, Cause::Expired, owner);
            let deadline = score.after(change.ttl);
            self.depart::<O>(rank..rank + 1, told, |_| deadline, change);
        }
    }

    /// Lets a member leave; tells whether it was there.
    pub(super) fn remove<O: Owner<T>, Q>(
        &mut self,
        hash: u32,
        member: &Q,
        owner: O,
        change: &mut ChangeOf<'_, T, O>,
    ) -> bool
    where
        T: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let Some((rank, _)) = self.0.find(hash, member) else { return false };
        self.leave(rank..rank + 1, Cause::Removed, owner, change);
        true
    }

    pub(super) fn score<Q>(&self, hash: u32, member: &Q) -> Option<Tick>
    where
        T: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.0.find(hash, member).map(|(_, score)| *score)
    }
}

impl<T: Send + Sync + 'static> Part for Members<T> {
    type Key = T;
    type Value = ();
    type Member = T;

    fn sweep(&mut self, room: usize, change: &mut Change<'_, T, (), T>) -> Swept {
        let dead = self.dead(change);
        let leaves = dead.min(room).min(FAIR);
        self.leave(0..leaves, Cause::Expired, Nobody, change);
        match leaves {
            _ if leaves == dead => Swept::All,
            _ if leaves == room => Swept::NoRoom,
            _ => Swept::Some,
        }
    }

    fn lowest(&self) -> Option<Tick> {
        self.lowest()
    }
}

impl<T> Owner<T> for Nobody {
    type Key = T;
    type Value = ();

    #[inline]
    fn prepare(self, _: usize, _: &mut Vec<T>) {}

    #[inline]
    fn event(_: &mut Vec<T>, member: T) -> (T, ()) {
        (member, ())
    }
}
