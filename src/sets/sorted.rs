//! A sorted set of any scores: [`Scores`] behind one lock. What is the user's is hashed before the lock and
//! dropped after it.

use std::{
    fmt,
    hash::Hash,
    ops::{Bound, Range, RangeBounds},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use equivalent::Equivalent;

use crate::{
    engine::{coop, hasher::DefaultHasher, panics::drop_all},
    sets::scores::{Drained, Scores, hash_of},
};

/// A set whose members are ordered by score, as Redis' sorted sets are.
///
/// A `SortedSet` is a handle: cheap to clone, and all clones are one set. The score is of any type with an
/// order. A member is in the set once; to insert it again moves it. Equal scores keep all their members, in
/// the order in which they were inserted. A rank is the number of members that come before.
///
/// This is [`ExpiringSet`](crate::ExpiringSet) without the time: nothing dies here, and no runtime is
/// needed. Each call is atomic against all others. Look-ups take any borrowed form of a member (`&str` for
/// `String`).
///
/// # From Redis
///
/// | there | here |
/// | --- | --- |
/// | `ZADD` | [`insert`](Self::insert), [`extend`](Self::extend) |
/// | `ZSCORE`, `ZRANK` | [`score`](Self::score), [`rank`](Self::rank) |
/// | `ZRANGE` | [`ranks`](Self::ranks) |
/// | `ZRANGE BYSCORE`, `ZRANGEBYSCORE` | [`range`](Self::range) |
/// | `ZCOUNT`, `ZCARD` | [`count`](Self::count), [`len`](Self::len) |
/// | `ZREM` | [`remove`](Self::remove) |
/// | `ZREMRANGEBYSCORE`, `ZREMRANGEBYRANK` | [`remove_range`](Self::remove_range), [`remove_ranks`](Self::remove_ranks) |
/// | `ZPOPMIN`, `ZPOPMAX` | [`pop_first`](Self::pop_first), [`pop_last`](Self::pop_last) |
/// | `DEL` | [`clear`](Self::clear) |
///
/// Ranges are Rust's: `0..3` are the first three, where Redis says `0 2`. One that is empty, the wrong way
/// round or beyond the end has no members, and is no error. Redis puts members of equal scores in the order
/// of their bytes; for that, make the member a part of the score.
///
/// # Cost
///
/// One lock and O(log n), and O(m) where m members are returned or removed. That is amortized: a set that has
/// doubled, or shrunk to a third, gets a new table under that lock, which takes up to 100 ns a
/// member. An awaited call takes part in Tokio's cooperative budget (once in 61 calls). That is the only point
/// at which it waits, and it comes before the call does anything: all calls are cancel safe.
///
/// # Under the lock
///
/// `Eq` and `Clone` of members, and `Ord` and `Clone` of scores, run under the lock, and so must not call
/// the set; `Hash` and `Drop` do not, and may. A panic in any of them leaves the set whole.
///
/// # Examples
///
/// ```
/// use fleeting::SortedSet;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let points = SortedSet::new();
/// points.insert(20, "ada").await;
/// points.insert(35, "bob").await;
/// points.insert(20, "cyd").await;
/// assert_eq!(points.insert(50, "ada").await, Some(20));
///
/// assert_eq!(points.rank("ada").await, Some(2));
/// assert_eq!(points.range(20..40).await, [(20, "cyd"), (35, "bob")]);
/// assert_eq!(points.ranks(1..).await, [(35, "bob"), (50, "ada")]);
/// assert_eq!(points.pop_last().await, Some((50, "ada")));
/// # }
/// ```
pub struct SortedSet<S, T>(Arc<SharedState<S, T>>);

struct SharedState<S, T> {
    scores: Mutex<Scores<S, T>>,
    hasher: DefaultHasher,
}

impl<S, T> SortedSet<S, T>
where
    S: Ord + Clone,
    T: Hash + Eq + Clone,
{
    /// An empty set.
    pub fn new() -> Self {
        let (scores, hasher) = (Mutex::new(Scores::new()), DefaultHasher::default());
        Self(Arc::new(SharedState { scores, hasher }))
    }

    /// Moves `member` in, at `score`; returns the score that it had (Redis: `ZADD`).
    #[doc(alias = "ZADD")]
    pub async fn insert(&self, score: S, member: T) -> Option<S> {
        coop::proceed().await;
        let hash = hash_of(&self.0.hasher, &member);
        // Out here it is dropped after the lock, and so is what it displaces.
        let mut member = Some(member);
        self.change(|scores| scores.insert(score, hash, &mut member))
    }

    /// Moves all members in, in their order; nobody sees a part of them.
    pub fn extend(&self, members: impl IntoIterator<Item = (S, T)>) -> impl Future<Output = ()> {
        let hashed =
            |(score, member)| (hash_of(&self.0.hasher, &member), Some(score), Some(member));
        // The caller's iterator may be of one thread alone, and the future is to go to any.
        let mut coming: Vec<_> = members.into_iter().map(hashed).collect();
        async move {
            coop::proceed().await;
            self.change(|scores| {
                for (hash, coming, member) in &mut coming {
                    // The old score goes where the new one was: it is dropped after the lock, too.
                    if let Some(score) = coming.take() {
                        *coming = scores.insert(score, *hash, member);
                    }
                }
            });
        }
    }

    /// The score of `member` (Redis: `ZSCORE`).
    #[doc(alias = "ZSCORE")]
    pub async fn score<Q>(&self, member: &Q) -> Option<S>
    where
        Q: Hash + Equivalent<T> + ?Sized,
    {
        coop::proceed().await;
        let hash = hash_of(&self.0.hasher, member);
        self.change(|scores| scores.find(hash, member).map(|(_, score)| score.clone()))
    }

    /// How many members come before `member` (Redis: `ZRANK`).
    #[doc(alias = "ZRANK")]
    pub async fn rank<Q>(&self, member: &Q) -> Option<usize>
    where
        Q: Hash + Equivalent<T> + ?Sized,
    {
        coop::proceed().await;
        let hash = hash_of(&self.0.hasher, member);
        self.change(|scores| scores.find(hash, member).map(|(rank, _)| rank))
    }

    /// Whether `member` is in the set.
    pub async fn contains<Q>(&self, member: &Q) -> bool
    where
        Q: Hash + Equivalent<T> + ?Sized,
    {
        self.rank(member).await.is_some()
    }

    /// The member with the lowest score.
    pub async fn first(&self) -> Option<(S, T)> {
        coop::proceed().await;
        self.change(|scores| scores.first().map(cloned))
    }

    /// The member with the highest score.
    pub async fn last(&self) -> Option<(S, T)> {
        coop::proceed().await;
        self.change(|scores| scores.at(scores.len().checked_sub(1)?).map(cloned))
    }

    /// The members with these scores, lowest first (Redis: `ZRANGEBYSCORE`).
    #[doc(alias = "ZRANGEBYSCORE")]
    pub async fn range(&self, scores: impl RangeBounds<S>) -> Vec<(S, T)> {
        coop::proceed().await;
        self.copies(|all| all.ranks(&scores))
    }

    /// The members of these ranks, lowest first (Redis: `ZRANGE`).
    #[doc(alias = "ZRANGE")]
    pub async fn ranks(&self, ranks: impl RangeBounds<usize>) -> Vec<(S, T)> {
        coop::proceed().await;
        self.copies(|all| clamped(&ranks, all.len()))
    }

    /// How many members have these scores (Redis: `ZCOUNT`). O(log n).
    #[doc(alias = "ZCOUNT")]
    pub async fn count(&self, scores: impl RangeBounds<S>) -> usize {
        coop::proceed().await;
        self.change(|all| all.ranks(&scores).len())
    }

    /// Takes `member` out; returns the score that it had (Redis: `ZREM`).
    #[doc(alias = "ZREM")]
    pub async fn remove<Q>(&self, member: &Q) -> Option<S>
    where
        Q: Hash + Equivalent<T> + ?Sized,
    {
        coop::proceed().await;
        let hash = hash_of(&self.0.hasher, member);
        let removed = self.change(|scores| {
            let (rank, _) = scores.find(hash, member)?;
            Some(scores.remove_at(rank))
        });
        removed.map(|(score, _)| score)
    }

    /// Takes the members with these scores out; tells how many there were (Redis: `ZREMRANGEBYSCORE`).
    #[doc(alias = "ZREMRANGEBYSCORE")]
    pub async fn remove_range(&self, scores: impl RangeBounds<S>) -> usize {
        coop::proceed().await;
        self.drain(|all| all.ranks(&scores))
    }

    /// Takes the members of these ranks out; tells how many there were (Redis: `ZREMRANGEBYRANK`).
    #[doc(alias = "ZREMRANGEBYRANK")]
    pub async fn remove_ranks(&self, ranks: impl RangeBounds<usize>) -> usize {
        coop::proceed().await;
        self.drain(|all| clamped(&ranks, all.len()))
    }

    /// Takes the member with the lowest score out (Redis: `ZPOPMIN`).
    #[doc(alias = "ZPOPMIN")]
    pub async fn pop_first(&self) -> Option<(S, T)> {
        coop::proceed().await;
        self.change(|scores| (scores.len() > 0).then(|| scores.remove_at(0)))
    }

    /// Takes the member with the highest score out (Redis: `ZPOPMAX`).
    #[doc(alias = "ZPOPMAX")]
    pub async fn pop_last(&self) -> Option<(S, T)> {
        coop::proceed().await;
        self.change(|scores| scores.len().checked_sub(1).map(|last| scores.remove_at(last)))
    }

    /// How many members there are (Redis: `ZCARD`).
    #[doc(alias = "ZCARD")]
    pub async fn len(&self) -> usize {
        coop::proceed().await;
        self.change(|scores| scores.len())
    }

    /// Whether there are no members.
    pub async fn is_empty(&self) -> bool {
        self.len().await == 0
    }

    /// Takes all members out.
    #[doc(alias = "DEL")]
    pub async fn clear(&self) {
        self.remove_ranks(..).await;
    }

    fn copies(&self, ranks: impl FnOnce(&Scores<S, T>) -> Range<usize>) -> Vec<(S, T)> {
        let mut copies = Vec::new();
        self.change(|scores| {
            let ranks = ranks(scores);
            copies.reserve(ranks.len());
            scores.for_each(ranks, |score, member| copies.push(cloned((score, member))));
        });
        copies
    }

    fn drain(&self, ranks: impl FnOnce(&Scores<S, T>) -> Range<usize>) -> usize {
        let mut drained = Drained::default();
        let count = self.change(|scores| {
            let ranks = ranks(scores);
            scores.drain(ranks.clone(), &mut drained);
            ranks.len()
        });
        drained.drop_all();
        count
    }

    /// Calls `op` under the lock.
    fn change<R>(&self, op: impl FnOnce(&mut Scores<S, T>) -> R) -> R {
        let mut scores = lock(&self.0.scores);
        let outcome = op(&mut scores);
        // Taken after each change, so that it never grows.
        let garbage = scores.take_garbage();
        drop(scores);
        drop_all(garbage);
        outcome
    }
}

impl<S, T> Clone for SortedSet<S, T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S, T> Default for SortedSet<S, T>
where
    S: Ord + Clone,
    T: Hash + Eq + Clone,
{
    fn default() -> Self {
        Self::new()
    }
}

impl<S, T> fmt::Debug for SortedSet<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SortedSet")
            .field("len", &lock(&self.0.scores).len())
            .finish_non_exhaustive()
    }
}

fn cloned<S: Clone, T: Clone>((score, member): (&S, &T)) -> (S, T) {
    (score.clone(), member.clone())
}

/// These ranks, of those that are there.
fn clamped(ranks: &impl RangeBounds<usize>, len: usize) -> Range<usize> {
    let start = match ranks.start_bound() {
        Bound::Unbounded => 0,
        Bound::Included(&rank) => rank,
        Bound::Excluded(&rank) => rank.saturating_add(1),
    };
    let end = match ranks.end_bound() {
        Bound::Unbounded => len,
        Bound::Included(&rank) => rank.saturating_add(1),
        Bound::Excluded(&rank) => rank,
    };
    let end = end.min(len);
    start.min(end)..end
}

/// Somebody's code may have panicked under the lock; what it guards is whole all the same.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
