//! The handle of one set: each call hashes and converts before the lock, and then makes one change under it.

use std::{fmt, hash::Hash, iter, ops::RangeBounds, sync::Arc, time::Duration};

use equivalent::Equivalent;
use tokio::time::Instant;

use super::{
    builder::ExpiringSetBuilder,
    change::{Change, Unkeyed},
    members::{Members, Prehashed},
    state::SharedState,
    sweeper,
};
use crate::{
    engine::{
        coop,
        event::{Cause, Events, LosslessEvents},
    },
    sets::scores::hash_of,
};

/// A set whose members are ordered by score. The score is a time, and a member dies when its score is
/// `ttl` old.
///
/// An `ExpiringSet` is a handle: cheap to clone, and all clones are one set. A member is dead from the
/// instant `now >= score + ttl`, and from then on no call returns or counts it. Each call begins with the
/// dead, and a task on the Tokio runtime sees to them where nobody calls
/// ([`sweep_every`](ExpiringSetBuilder::sweep_every)): an idle set gives its memory back, and its events
/// come in time. The task sleeps until the next death, and where there is none it sleeps.
///
/// * A member is in the set once. To push it again moves it to its new score.
/// * Equal scores keep all their members, in the order in which they were pushed.
/// * A score in the future makes a life longer. One for which `score + ttl` overflows makes it endless.
/// * A score that is `ttl` old or older is dead at once, and refused silently: there is no event, as nothing
///   was in the set. Where the member is in the set already, it moves to its death: it leaves, with an
///   [`Expired`](Cause::Expired) event of the new deadline.
///
/// Each call is atomic against all others. Look-ups take any borrowed form of a member (`&str` for
/// `String`).
///
/// # From Redis
///
/// The two originals keep a sorted set with times as scores, and begin every call with
/// `ZREMRANGEBYSCORE key -inf now-ttl`: the functions of the article "Time Expired Sets Using Redis", and the
/// class `ExpiringPriorityQueue` of qr.
///
/// | there | here |
/// | --- | --- |
/// | `ZADD key now value`, `push(value)` | [`push`](Self::push) |
/// | `push(value, score)` | [`push_at`](Self::push_at): any time, and none of them means "now" |
/// | `push(value, score, unique=True)` | [`push_unique_at`](Self::push_unique_at) |
/// | `extend(values)` | [`extend`](Self::extend): all of them |
/// | `ZRANGE key 0 -1`, `elements()` | [`elements`](Self::elements) |
/// | `queue[i]`, `queue[i:j]` | [`elements`](Self::elements), and the slice of that; by score [`range`](Self::range) |
/// | `peek()` | [`peek`](Self::peek) |
/// | `pop()` | [`pop`](Self::pop) |
/// | `len(queue)`, `ZCARD key` | [`len`](Self::len) |
/// | `clear()`, `DEL key` | [`clear`](Self::clear) |
/// | `ZREMRANGEBYSCORE key -inf now-ttl` | nothing: it has been done |
/// | `ZREM`, `ZSCORE`, `ZRANGEBYSCORE`, `ZREMRANGEBYSCORE` | [`remove`](Self::remove), [`score`](Self::score), [`range`](Self::range), [`remove_range`](Self::remove_range) |
/// | one `key` of many | [`ExpiringSets`](crate::ExpiringSets) |
/// | any score, and no time | [`SortedSet`](crate::SortedSet) |
///
/// # Cost
///
/// One lock, one reading of the clock, O(log n), and O(m) where m members die or are returned. That is
/// amortized: a set that has doubled, or shrunk to a third, gets a new table under that lock, which takes up
/// to 100 ns a member. An awaited call takes part in Tokio's cooperative budget (once in 61 calls).
/// That is the only point at which it waits, and it comes before the call does anything: all calls are cancel
/// safe.
///
/// # Under the lock
///
/// `Eq` and `Clone` of members run under the lock, and so must not call the set; `Hash` and `Drop` do not,
/// and may. A panic in any of them leaves the set whole.
///
/// # Runtimes
///
/// A set keeps the time of the runtime it was built on, and works from others and from none, as a
/// [`Cache`](crate::Cache) does. When that runtime is gone, only the sweeper is.
///
/// # Examples
///
/// Who was here in the last minute:
///
/// ```
/// use std::time::Duration;
/// use fleeting::ExpiringSet;
/// use tokio::time::advance;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let here = ExpiringSet::new(Duration::from_secs(60));
/// here.push("ada").await;
/// here.push("bob").await;
/// advance(Duration::from_secs(40)).await;
/// here.push("ada").await;
/// assert_eq!(here.elements().await, ["bob", "ada"]);
///
/// advance(Duration::from_secs(20)).await;
/// assert_eq!(here.elements().await, ["ada"]);
/// # }
/// ```
pub struct ExpiringSet<T>(Arc<SharedState<Members<T>, T, ()>>);

impl<T> ExpiringSet<T>
where
    T: Hash + Eq + Clone + Send + Sync + 'static,
{
    /// An empty set, whose members die when their scores are `ttl` old.
    ///
    /// With a `ttl` of zero only the future is not dead at once; one that overflows lets nothing die.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime, as [`ExpiringSetBuilder::build`].
    pub fn new(ttl: Duration) -> Self {
        Self::builder(ttl).build()
    }

    /// Sets up a set.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::{Cause, ExpiringSet};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let visitors: ExpiringSet<String> = ExpiringSet::builder(Duration::from_secs(60))
    ///     .name("visitors")
    ///     .sweep_every(Duration::from_secs(1))
    ///     .publish([Cause::Expired, Cause::Removed])
    ///     .build();
    /// # drop(visitors);
    /// # }
    /// ```
    pub fn builder(ttl: Duration) -> ExpiringSetBuilder<Self> {
        ExpiringSetBuilder::new(ttl, "expiring set")
    }

    /// Moves `member` in, with the present as its score.
    #[doc(alias = "ZADD")]
    #[inline]
    pub async fn push(&self, member: T) {
        coop::proceed().await;
        self.put(member, None, false);
    }

    /// Moves `member` in, at `score`.
    pub async fn push_at(&self, member: T, score: Instant) {
        coop::proceed().await;
        self.put(member, Some(score), false);
    }

    /// Moves `member` in, at `score`, in place of all others that are at that very score. They leave as
    /// [`Replaced`](Cause::Replaced).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSet;
    /// # use tokio::time::Instant;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let set = ExpiringSet::new(Duration::from_secs(60));
    /// let noon = Instant::now();
    /// set.push_at("a first guess", noon).await;
    /// set.push_at("a second guess", noon).await;
    /// set.push_unique_at("the measured value", noon).await;
    /// assert_eq!(set.elements().await, ["the measured value"]);
    /// # }
    /// ```
    pub async fn push_unique_at(&self, member: T, score: Instant) {
        coop::proceed().await;
        self.put(member, Some(score), true);
    }

    /// Moves all of `members` in, in their order, with the present as their score; nobody sees a part of
    /// them.
    pub fn extend(&self, members: impl IntoIterator<Item = T>) -> impl Future<Output = ()> {
        // The caller's iterator may be of one thread alone, and the future is to go to any.
        let mut coming: Vec<_> = members.into_iter().map(|member| self.prehash(member)).collect();
        async move {
            coop::proceed().await;
            self.change(|members, change| {
                for member in &mut coming {
                    members.push(change.now, false, member, Unkeyed, change);
                }
            });
        }
    }

    /// The members, lowest score first.
    #[doc(alias = "ZRANGE")]
    pub async fn elements(&self) -> Vec<T> {
        self.range(..).await
    }

    /// The members with these scores, lowest first. A range that is the wrong way round has none.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSet;
    /// # use tokio::time::{Instant, advance};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let loads = ExpiringSet::new(Duration::from_secs(120));
    /// for load in 0..60 {
    ///     loads.push(load).await;
    ///     advance(Duration::from_secs(1)).await;
    /// }
    /// let last_five = Instant::now() - Duration::from_secs(5)..;
    /// assert_eq!(loads.range(last_five).await, [55, 56, 57, 58, 59]);
    /// # }
    /// ```
    #[doc(alias = "ZRANGEBYSCORE")]
    pub async fn range(&self, scores: impl RangeBounds<Instant>) -> Vec<T> {
        coop::proceed().await;
        let scores = self.0.ticks(&scores);
        let mut elements = Vec::new();
        self.change(|members, _| members.copy(members.ranks(&scores), &mut elements));
        elements
    }

    /// The member with the lowest score: the one that dies next.
    pub async fn peek(&self) -> Option<T> {
        coop::proceed().await;
        self.change(|members, _| members.first().cloned())
    }

    /// Takes the member with the lowest score out, as [`Removed`](Cause::Removed).
    #[doc(alias = "ZPOPMIN")]
    pub async fn pop(&self) -> Option<T> {
        coop::proceed().await;
        self.change(|members, change| members.pop(Unkeyed, change))
    }

    /// Takes `member` out, as [`Removed`](Cause::Removed); tells whether it was there.
    #[doc(alias = "ZREM")]
    pub async fn remove<Q>(&self, member: &Q) -> bool
    where
        Q: Hash + Equivalent<T> + ?Sized,
    {
        coop::proceed().await;
        let hash = hash_of(&self.0.hasher, member);
        self.change(|members, change| members.remove(hash, member, Unkeyed, change))
    }

    /// Takes the members with these scores out, as [`Removed`](Cause::Removed); tells how many there were.
    #[doc(alias = "ZREMRANGEBYSCORE")]
    pub async fn remove_range(&self, scores: impl RangeBounds<Instant>) -> usize {
        coop::proceed().await;
        let scores = self.0.ticks(&scores);
        self.change(|members, change| {
            let ranks = members.ranks(&scores);
            members.remove_ranks(ranks.clone(), Cause::Removed, Unkeyed, change);
            ranks.len()
        })
    }

    /// The score of `member`.
    #[doc(alias = "ZSCORE")]
    pub async fn score<Q>(&self, member: &Q) -> Option<Instant>
    where
        Q: Hash + Equivalent<T> + ?Sized,
    {
        coop::proceed().await;
        let hash = hash_of(&self.0.hasher, member);
        let score = self.change(|members, _| members.score(hash, member));
        score.map(|score| self.0.clock.instant(score))
    }

    /// Whether `member` is in the set.
    pub async fn contains<Q>(&self, member: &Q) -> bool
    where
        Q: Hash + Equivalent<T> + ?Sized,
    {
        self.score(member).await.is_some()
    }

    /// How many members live.
    #[doc(alias = "ZCARD")]
    pub async fn len(&self) -> usize {
        coop::proceed().await;
        self.change(|members, _| members.len())
    }

    /// Whether no member lives.
    pub async fn is_empty(&self) -> bool {
        self.len().await == 0
    }

    /// Takes all members out, as [`Removed`](Cause::Removed).
    #[doc(alias = "DEL")]
    pub async fn clear(&self) {
        self.remove_range(..).await;
    }

    /// A stream of what leaves from now on; the member is the key of its event. It never slows the set: a
    /// subscriber that falls behind [`event_capacity`](ExpiringSetBuilder::event_capacity) misses the oldest
    /// events, and is told how many.
    ///
    /// There is exactly one event for each departure, and those of one member come in their order.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSet;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let set = ExpiringSet::new(Duration::from_secs(60));
    /// let mut events = set.events();
    /// set.push("ada").await;
    ///
    /// let event = events.recv().await.unwrap().unwrap();
    /// assert_eq!(event.key, "ada");
    /// assert!(event.lag().unwrap() <= Duration::from_millis(100));
    /// # }
    /// ```
    pub fn events(&self) -> Events<T, ()> {
        Events::new(&self.0.publisher)
    }

    /// A stream of what leaves from now on that loses nothing while it lives: with `capacity` unread events
    /// it holds back the sweeper, never a caller. What calls let leave meanwhile waits beyond the capacity
    /// ([`overflow`](Self::overflow)).
    ///
    /// # Panics
    ///
    /// Where `capacity` is 0.
    pub fn events_lossless(&self, capacity: usize) -> LosslessEvents<T, ()> {
        LosslessEvents::new(&self.0.publisher, capacity)
    }

    /// Events beyond the capacity of the fullest lossless stream, waiting for its reader.
    pub fn overflow(&self) -> usize {
        self.0.publisher.overflow()
    }

    #[inline]
    fn put(&self, member: T, score: Option<Instant>, alone: bool) {
        // Made before the lock, and so dropped after it.
        let mut member = self.prehash(member);
        let score = score.map(|score| self.0.clock.tick_of(score));
        self.change(|members, change| {
            let score = score.unwrap_or(change.now);
            members.push(score, alone, &mut member, Unkeyed, change);
        });
    }

    #[inline]
    fn prehash(&self, member: T) -> Prehashed<T> {
        Prehashed::new(&self.0.hasher, member)
    }

    /// Calls `op` under the lock, when the dead have left.
    #[inline]
    fn change<R>(&self, op: impl FnOnce(&mut Members<T>, &mut Change<'_, T, (), T>) -> R) -> R {
        self.0.change(0, |members, change| {
            members.expire(Unkeyed, change);
            op(members, change)
        })
    }
}

impl<T> ExpiringSetBuilder<ExpiringSet<T>>
where
    T: Hash + Eq + Clone + Send + Sync + 'static,
{
    /// Makes the set and starts its sweeper on the current Tokio runtime.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime, and on one without a time driver (`enable_time`).
    pub fn build(self) -> ExpiringSet<T> {
        ExpiringSet(sweeper::start(self.options, iter::once(Members::new())))
    }
}

impl<T> Clone for ExpiringSet<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> fmt::Debug for ExpiringSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpiringSet")
            .field("name", &self.0.name())
            .field("ttl", &self.0.ttl)
            .finish_non_exhaustive()
    }
}
