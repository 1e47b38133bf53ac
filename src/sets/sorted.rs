//! Sorted set with scores of any ordered type: [`Scores`] behind one lock, and how ranges of ranks are cut. Members are
//! hashed before the lock is taken, and removed members and scores are dropped after it is released.

use std::{
    fmt,
    hash::Hash,
    ops::{Add, Bound, Range, RangeBounds},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use equivalent::Equivalent;

use crate::{
    engine::{coop, hasher::DefaultHasher, panics::drop_all},
    sets::scores::{Drained, Scores, hash_of},
};

/// A set whose members are ordered by score, like a sorted set of Redis: for leaderboards, priorities and counters.
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
///
/// Your scores may be of any type that is [`Ord`], such as an integer, or a [`Score`](crate::Score) for floating point
/// numbers. A `SortedSet` is a handle to one shared set; cloning it is cheap. It is an
/// [`ExpiringSet`](crate::ExpiringSet) without time: nothing expires, and you need no runtime.
///
/// # Order
///
/// Each member is in the set once. Inserting it again moves it to its new score, behind the other members that have
/// that score. Members with equal scores are all kept, in the order in which they were inserted. The rank of a member
/// is the number of members before it.
///
/// Each call is atomic with respect to all others. You can look up any borrowed form of a member (`&str` for `String`).
///
/// # Migrating from Redis
///
/// | Redis | `SortedSet` |
/// | --- | --- |
/// | `ZADD` | [`insert`](Self::insert), [`extend`](Self::extend) |
/// | `ZADD` with `NX`, `XX`, `GT`, `LT` | [`insert_if`](Self::insert_if) |
/// | `ZINCRBY` | [`increment`](Self::increment) |
/// | `ZSCORE`, `ZRANK` | [`score`](Self::score), [`rank`](Self::rank) |
/// | `ZRANGE` | [`ranks`](Self::ranks) |
/// | `ZRANGE BYSCORE`, `ZRANGEBYSCORE` | [`range`](Self::range) |
/// | `ZCOUNT`, `ZCARD` | [`count`](Self::count), [`len`](Self::len) |
/// | `ZREM` | [`remove`](Self::remove) |
/// | `ZREMRANGEBYSCORE`, `ZREMRANGEBYRANK` | [`remove_range`](Self::remove_range), [`remove_ranks`](Self::remove_ranks) |
/// | `ZPOPMIN`, `ZPOPMAX` | [`pop_first`](Self::pop_first), [`pop_last`](Self::pop_last) |
/// | `DEL` | [`clear`](Self::clear) |
///
/// Ranges are Rust ranges: `0..3` selects the first three members, which is `0 2` in Redis. A range that is empty,
/// inverted or beyond the end selects no members and is not an error. Redis orders members with equal scores by their
/// bytes; if you need that order, make the member a part of your score.
///
/// # Cost
///
/// A call takes one lock and costs O(log n), plus O(m) if m members are returned or removed. These costs are amortized.
/// When a set has doubled in size, an insert moves the index of all members while it holds the lock, which takes about
/// 22 ns per member. When a set has shrunk to a third, a removal gives its members smaller tables, which takes about
/// 150 ns for each that is left. One in 61 awaited calls consumes a unit of Tokio's cooperative budget. A call yields
/// only for this, and only before it changes anything, so all calls are cancel safe.
///
/// # Under the lock
///
/// `Eq` and `Clone` of members, and `Ord`, `Clone` and `Add` of scores, run under the lock and must not call the set.
/// `Hash` and `Drop` run outside it and may call the set. A panic in any of them leaves the set consistent.
pub struct SortedSet<S, T>(Arc<ScoresState<S, T>>);

/// The condition of [`SortedSet::insert_if`]: keep the best score of a player, or change only known members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InsertIf {
    /// The member is not in the set (Redis: `NX`).
    Absent,
    /// The member is in the set (Redis: `XX`).
    Present,
    /// The new score is greater than that of the member, or the member is not in the set (Redis: `GT`).
    Greater,
    /// The new score is less than that of the member, or the member is not in the set (Redis: `LT`).
    Less,
}

impl InsertIf {
    fn holds<S: Ord>(self, new_score: &S, old_score: Option<&S>) -> bool {
        match self {
            Self::Absent => old_score.is_none(),
            Self::Present => old_score.is_some(),
            Self::Greater => old_score.is_none_or(|old_score| new_score > old_score),
            Self::Less => old_score.is_none_or(|old_score| new_score < old_score),
        }
    }
}

struct ScoresState<S, T> {
    scores: Mutex<Scores<S, T>>,
    hasher: DefaultHasher,
}

impl<S, T> SortedSet<S, T>
where
    S: Ord + Clone,
    T: Hash + Eq + Clone,
{
    /// Creates an empty set.
    pub fn new() -> Self {
        let (scores, hasher) = (Mutex::new(Scores::new()), DefaultHasher::default());
        Self(Arc::new(ScoresState { scores, hasher }))
    }

    /// Adds `member` with this score, or moves it to that score. Returns its previous score, or `None` if it was not in
    /// the set (Redis: `ZADD`).
    ///
    /// ```
    /// # use fleeting::SortedSet;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let bids = SortedSet::new();
    /// assert_eq!(bids.insert(100, "ada").await, None);
    /// assert_eq!(bids.insert(120, "ada").await, Some(100));
    /// # }
    /// ```
    #[doc(alias = "ZADD")]
    pub async fn insert(&self, score: S, member: T) -> Option<S> {
        coop::proceed().await;
        let hash = hash_of(&self.0.hasher, &member);
        // Declared outside of the closure, so that it, or the member that it displaces, is dropped after unlock.
        let mut member = Some(member);
        self.change(|scores| scores.insert(score, hash, &mut member))
    }

    /// Adds all of `members` with their scores, in their order, or moves them to these scores, as one atomic change.
    ///
    /// ```
    /// # use fleeting::SortedSet;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let points = SortedSet::new();
    /// points.extend([(20, "ada"), (35, "bob")]).await;
    /// assert_eq!(points.len().await, 2);
    /// # }
    /// ```
    pub fn extend(&self, members: impl IntoIterator<Item = (S, T)>) -> impl Future<Output = ()> {
        let hashed =
            |(score, member)| (hash_of(&self.0.hasher, &member), Some(score), Some(member));
        // The iterator is consumed before the future is created, as the iterator need not be `Send` and the future
        // should be.
        let mut hashed_members: Vec<_> = members.into_iter().map(hashed).collect();
        async move {
            coop::proceed().await;
            self.change(|scores| {
                for (hash, score, member) in &mut hashed_members {
                    // The old score takes the place of the new one, so that it is dropped after unlock, too.
                    if let Some(new_score) = score.take() {
                        *score = scores.insert(new_score, *hash, member);
                    }
                }
            });
        }
    }

    /// Adds `member` with this score, or moves it to that score, if the `condition` holds. Returns whether it did
    /// (Redis: `ZADD` with `NX`, `XX`, `GT` or `LT`).
    ///
    /// # Examples
    ///
    /// ```
    /// use fleeting::{InsertIf, SortedSet};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let best = SortedSet::new();
    /// assert!(best.insert_if(20, "ada", InsertIf::Greater).await);
    /// assert!(!best.insert_if(10, "ada", InsertIf::Greater).await);
    /// assert_eq!(best.score("ada").await, Some(20));
    /// # }
    /// ```
    pub async fn insert_if(&self, score: S, member: T, condition: InsertIf) -> bool {
        coop::proceed().await;
        let hash = hash_of(&self.0.hasher, &member);
        // Declared outside of the closure, so that they are dropped after unlock if they are not inserted.
        let (mut score, mut member) = (Some(score), Some(member));
        let replaced = self.change(|scores| {
            let (new_score, new_member) = (score.as_ref()?, member.as_ref()?);
            let old_score = scores.find(hash, new_member).map(|(_, old_score)| old_score);
            if !condition.holds(new_score, old_score) {
                return None;
            }
            Some(scores.insert(score.take()?, hash, &mut member))
        });
        replaced.is_some()
    }

    /// Adds `by` to the score of `member`, and returns the new score, to count hits, votes or points. If `member` is
    /// not in the set, it is added with the score `by` (Redis: `ZINCRBY`).
    ///
    /// ```
    /// use fleeting::SortedSet;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let hits = SortedSet::new();
    /// assert_eq!(hits.increment(1, "/").await, 1);
    /// assert_eq!(hits.increment(1, "/").await, 2);
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if the addition does, for instance on overflow. Then nothing is changed.
    #[doc(alias = "ZINCRBY")]
    pub async fn increment(&self, by: S, member: T) -> S
    where
        S: Add<Output = S>,
    {
        coop::proceed().await;
        let hash = hash_of(&self.0.hasher, &member);
        // Both are declared outside of the closure, so that replaced values are dropped after unlock.
        let mut member = Some(member);
        let (score, _old_score) = self.change(|scores| {
            let known = member.as_ref().and_then(|member| scores.find(hash, member));
            let score = match known {
                Some((_, score)) => score.clone() + by,
                None => by,
            };
            let old_score = scores.insert(score.clone(), hash, &mut member);
            (score, old_score)
        });
        score
    }

    /// Returns the score of `member`, or `None` if it is not in the set (Redis: `ZSCORE`).
    ///
    /// ```
    /// # use fleeting::SortedSet;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let points = SortedSet::new();
    /// points.insert(20, "ada").await;
    /// assert_eq!(points.score("ada").await, Some(20));
    /// assert_eq!(points.score("bob").await, None);
    /// # }
    /// ```
    #[doc(alias = "ZSCORE")]
    pub async fn score<Q>(&self, member: &Q) -> Option<S>
    where
        Q: Hash + Equivalent<T> + ?Sized,
    {
        coop::proceed().await;
        let hash = hash_of(&self.0.hasher, member);
        self.change(|scores| scores.find(hash, member).map(|(_, score)| score.clone()))
    }

    /// Returns the number of members before `member`, or `None` if it is not in the set (Redis: `ZRANK`).
    ///
    /// ```
    /// # use std::cmp::Reverse;
    /// # use fleeting::SortedSet;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// // The most points first.
    /// let points = SortedSet::new();
    /// points.extend([(Reverse(20), "ada"), (Reverse(35), "bob")]).await;
    /// assert_eq!(points.rank("bob").await, Some(0), "bob leads");
    /// # }
    /// ```
    #[doc(alias = "ZRANK")]
    pub async fn rank<Q>(&self, member: &Q) -> Option<usize>
    where
        Q: Hash + Equivalent<T> + ?Sized,
    {
        coop::proceed().await;
        let hash = hash_of(&self.0.hasher, member);
        self.change(|scores| scores.find(hash, member).map(|(rank, _)| rank))
    }

    /// Returns whether `member` is in the set.
    ///
    /// ```
    /// # use fleeting::SortedSet;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let queue = SortedSet::new();
    /// queue.insert(1, "ada").await;
    /// assert!(queue.contains("ada").await);
    /// # }
    /// ```
    pub async fn contains<Q>(&self, member: &Q) -> bool
    where
        Q: Hash + Equivalent<T> + ?Sized,
    {
        self.rank(member).await.is_some()
    }

    /// Returns the member with the lowest score, and that score; `None` if the set is empty.
    ///
    /// ```
    /// # use fleeting::SortedSet;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let prices = SortedSet::new();
    /// prices.extend([(299, "train"), (89, "bus")]).await;
    /// assert_eq!(prices.first().await, Some((89, "bus")), "the cheapest");
    /// # }
    /// ```
    pub async fn first(&self) -> Option<(S, T)> {
        coop::proceed().await;
        self.change(|scores| scores.first().map(cloned))
    }

    /// Returns the member with the highest score, and that score; `None` if the set is empty.
    ///
    /// ```
    /// # use fleeting::SortedSet;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let bids = SortedSet::new();
    /// bids.extend([(100, "ada"), (120, "bob")]).await;
    /// assert_eq!(bids.last().await, Some((120, "bob")), "the highest");
    /// # }
    /// ```
    pub async fn last(&self) -> Option<(S, T)> {
        coop::proceed().await;
        self.change(|scores| scores.at(scores.len().checked_sub(1)?).map(cloned))
    }

    /// Returns the members with scores in this range, and their scores, lowest first (Redis: `ZRANGEBYSCORE`).
    ///
    /// ```
    /// # use fleeting::SortedSet;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let prices = SortedSet::new();
    /// prices.extend([(15, "pen"), (40, "book"), (900, "desk")]).await;
    /// assert_eq!(prices.range(..=50).await, [(15, "pen"), (40, "book")]);
    /// # }
    /// ```
    #[doc(alias = "ZRANGEBYSCORE")]
    pub async fn range(&self, scores: impl RangeBounds<S>) -> Vec<(S, T)> {
        coop::proceed().await;
        self.clone_members(|all| all.ranks(&scores))
    }

    /// Returns the members with these ranks, and their scores, lowest first (Redis: `ZRANGE`).
    ///
    /// ```
    /// # use std::cmp::Reverse;
    /// # use fleeting::SortedSet;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let points = SortedSet::new();
    /// points.extend([(Reverse(20), "ada"), (Reverse(35), "bob"), (Reverse(5), "cyd")]).await;
    /// for (Reverse(points), player) in points.ranks(..10).await {
    ///     println!("{player}: {points}"); // the ten best
    /// }
    /// # assert_eq!(points.ranks(..1).await, [(Reverse(35), "bob")]);
    /// # }
    /// ```
    #[doc(alias = "ZRANGE")]
    pub async fn ranks(&self, ranks: impl RangeBounds<usize>) -> Vec<(S, T)> {
        coop::proceed().await;
        self.clone_members(|all| clamped(&ranks, all.len()))
    }

    /// Returns the number of members with scores in this range (Redis: `ZCOUNT`). O(log n).
    ///
    /// ```
    /// # use fleeting::SortedSet;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let ages = SortedSet::new();
    /// ages.extend([(17, "ada"), (18, "bob"), (64, "cyd")]).await;
    /// assert_eq!(ages.count(18..).await, 2);
    /// # }
    /// ```
    #[doc(alias = "ZCOUNT")]
    pub async fn count(&self, scores: impl RangeBounds<S>) -> usize {
        coop::proceed().await;
        self.change(|all| all.ranks(&scores).len())
    }

    /// Removes `member` and returns its score, or `None` if it is not in the set (Redis: `ZREM`).
    ///
    /// ```
    /// # use fleeting::SortedSet;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let points = SortedSet::new();
    /// points.insert(20, "ada").await;
    /// assert_eq!(points.remove("ada").await, Some(20));
    /// assert_eq!(points.remove("ada").await, None);
    /// # }
    /// ```
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

    /// Removes the members with scores in this range and returns their number (Redis: `ZREMRANGEBYSCORE`).
    ///
    /// ```
    /// # use fleeting::SortedSet;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// // Messages by number: up to 7 is read.
    /// let unread = SortedSet::new();
    /// unread.extend([(6, "hello"), (7, "lunch?"), (8, "ok")]).await;
    /// assert_eq!(unread.remove_range(..=7).await, 2);
    /// # }
    /// ```
    #[doc(alias = "ZREMRANGEBYSCORE")]
    pub async fn remove_range(&self, scores: impl RangeBounds<S>) -> usize {
        coop::proceed().await;
        self.drain(|all| all.ranks(&scores))
    }

    /// Removes the members with these ranks and returns their number (Redis: `ZREMRANGEBYRANK`).
    ///
    /// ```
    /// # use std::cmp::Reverse;
    /// # use fleeting::SortedSet;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let points = SortedSet::new();
    /// points.extend([(Reverse(20), "ada"), (Reverse(35), "bob"), (Reverse(5), "cyd")]).await;
    /// // Only the two best stay.
    /// assert_eq!(points.remove_ranks(2..).await, 1);
    /// assert!(!points.contains("cyd").await);
    /// # }
    /// ```
    #[doc(alias = "ZREMRANGEBYRANK")]
    pub async fn remove_ranks(&self, ranks: impl RangeBounds<usize>) -> usize {
        coop::proceed().await;
        self.drain(|all| clamped(&ranks, all.len()))
    }

    /// Removes and returns the member with the lowest score, and that score (Redis: `ZPOPMIN`).
    ///
    /// ```
    /// # use fleeting::SortedSet;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// // Jobs by priority: 1 is the most urgent.
    /// let jobs = SortedSet::new();
    /// jobs.extend([(3, "clean up"), (1, "answer")]).await;
    /// while let Some((priority, job)) = jobs.pop_first().await {
    ///     println!("{priority}: {job}");
    /// }
    /// # assert!(jobs.is_empty().await);
    /// # }
    /// ```
    #[doc(alias = "ZPOPMIN")]
    pub async fn pop_first(&self) -> Option<(S, T)> {
        coop::proceed().await;
        self.change(|scores| (scores.len() > 0).then(|| scores.remove_at(0)))
    }

    /// Removes and returns the member with the highest score, and that score (Redis: `ZPOPMAX`).
    ///
    /// ```
    /// # use fleeting::SortedSet;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let bids = SortedSet::new();
    /// bids.extend([(100, "ada"), (120, "bob")]).await;
    /// assert_eq!(bids.pop_last().await, Some((120, "bob")));
    /// # }
    /// ```
    #[doc(alias = "ZPOPMAX")]
    pub async fn pop_last(&self) -> Option<(S, T)> {
        coop::proceed().await;
        self.change(|scores| scores.len().checked_sub(1).map(|last| scores.remove_at(last)))
    }

    /// Returns the number of members (Redis: `ZCARD`).
    ///
    /// ```
    /// # use fleeting::SortedSet;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let players = SortedSet::new();
    /// players.extend([(20, "ada"), (35, "bob")]).await;
    /// println!("{} players", players.len().await);
    /// # assert_eq!(players.len().await, 2);
    /// # }
    /// ```
    #[doc(alias = "ZCARD")]
    pub async fn len(&self) -> usize {
        coop::proceed().await;
        self.change(|scores| scores.len())
    }

    /// Returns whether the set is empty.
    pub async fn is_empty(&self) -> bool {
        self.len().await == 0
    }

    /// Removes all members.
    ///
    /// ```
    /// # use fleeting::SortedSet;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let points = SortedSet::new();
    /// points.insert(20, "ada").await;
    /// points.clear().await; // a new round
    /// assert!(points.is_empty().await);
    /// # }
    /// ```
    #[doc(alias = "DEL")]
    pub async fn clear(&self) {
        self.remove_ranks(..).await;
    }

    fn clone_members(&self, ranks: impl FnOnce(&Scores<S, T>) -> Range<usize>) -> Vec<(S, T)> {
        let mut clones = Vec::new();
        self.change(|scores| {
            let ranks = ranks(scores);
            clones.reserve(ranks.len());
            scores.for_each(ranks, |score, member| clones.push(cloned((score, member))));
        });
        clones
    }

    fn drain(&self, ranks: impl FnOnce(&Scores<S, T>) -> Range<usize>) -> usize {
        let mut drained = Drained::default();
        let count = self.change(|scores| {
            let ranks = ranks(scores);
            scores.drain(ranks.clone(), &mut drained);
            ranks.len()
        });
        // After unlock: `Drop` of members and scores is user code.
        drained.drop_all();
        count
    }

    /// Calls `op` under the lock.
    fn change<R>(&self, op: impl FnOnce(&mut Scores<S, T>) -> R) -> R {
        let mut scores = lock(&self.0.scores);
        let outcome = op(&mut scores);
        // Taken after each change, so that it does not accumulate, and dropped after unlock, as `Drop` of scores is
        // user code.
        let drop_queue = scores.take_drop_queue();
        drop(scores);
        drop_all(drop_queue);
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

/// Limits `ranks` to the `len` existing ones.
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

/// Ignores poisoning: user code may have panicked under the lock, but it runs only when the data is consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
