//! Handle of a single set. Each call hashes its member and converts its times before the lock, and then makes one
//! change under the lock.

use std::{fmt, hash::Hash, iter, ops::RangeBounds, sync::Arc, time::Duration};

use equivalent::Equivalent;
use tokio::{task::yield_now, time::Instant};

use super::{
    builder::ExpiringSetBuilder,
    change::{Change, Unkeyed},
    expiring_state::ExpiringState,
    members::{Members, Prehashed},
    sweeper,
};
use crate::{
    engine::{
        coop,
        event::{Cause, Events, LosslessEvents},
    },
    sets::scores::hash_of,
};

/// A set whose members expire: use it for the users who were online in the last minute, or the latest values of a
/// sensor.
///
/// ```
/// use std::time::Duration;
/// use fleeting::ExpiringSet;
/// use tokio::time::advance;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let online = ExpiringSet::new(Duration::from_secs(60));
/// online.push("ada").await;
/// online.push("bob").await;
/// advance(Duration::from_secs(40)).await;
/// online.push("ada").await;
/// assert_eq!(online.elements().await, ["bob", "ada"]);
///
/// advance(Duration::from_secs(20)).await;
/// assert_eq!(online.elements().await, ["ada"]);
/// # }
/// ```
///
/// Members are ordered by score. The score is a time: by default, the time at which you push the member. An
/// `ExpiringSet` is a handle to one shared set; cloning it is cheap. You can look up any borrowed form of a member
/// (`&str` for `String`). Each call is atomic with respect to all others.
///
/// # Expiry
///
/// A member expires as soon as `now >= score + ttl`. From then on no call returns or counts it. Each call first removes
/// expired members.
///
/// A background task on the Tokio runtime removes them if no call does
/// ([`sweep_every`](ExpiringSetBuilder::sweep_every)). So the memory of an idle set is released, and its events are not
/// delayed. The task sleeps until the next member expires, but sweeps no more often than `sweep_every` allows.
///
/// # Scores
///
/// * Each member is in the set once. Pushing it again moves it to its new score.
/// * Members with equal scores are all kept, in the order in which they were pushed.
/// * With a score in the future, you extend the member's lifetime. If `score + ttl` overflows, the member never
///   expires. Scores more than about 575 years ahead are equal.
/// * A push with a score that is `ttl` old or older does not add the member. If the member is in the set, such a push
///   removes it, and publishes an [`Expired`](Cause::Expired) event with the new deadline; otherwise it publishes no
///   event.
///
/// # Migrating from Redis or qr
///
/// This type replaces two recipes for Redis: the functions in the article "Time Expired Sets Using Redis", and the
/// class `ExpiringPriorityQueue` of the Python package qr. Both keep a sorted set with times as scores, and begin every
/// call with `ZREMRANGEBYSCORE key -inf now-ttl`.
///
/// | Redis, qr | `ExpiringSet` |
/// | --- | --- |
/// | `ZADD key now value`, `push(value)` | [`push`](Self::push) |
/// | `push(value, score)` | [`push_at`](Self::push_at): accepts any time; use [`push`](Self::push) for the current time |
/// | `push(value, score, unique=True)` | [`push_unique_at`](Self::push_unique_at) |
/// | `extend(values)` | [`extend`](Self::extend): pushes every value |
/// | `ZRANGE key 0 -1`, `elements()` | [`elements`](Self::elements) |
/// | `queue[i]`, `queue[i:j]` | [`elements`](Self::elements) and a slice of it; by score, [`range`](Self::range) |
/// | `peek()` | [`peek`](Self::peek) |
/// | `pop()` | [`pop`](Self::pop) |
/// | `len(queue)`, `ZCARD key` | [`len`](Self::len) |
/// | `clear()`, `DEL key` | [`clear`](Self::clear) |
/// | `ZREMRANGEBYSCORE key -inf now-ttl` | not needed: every call does it |
/// | `ZREM`, `ZSCORE`, `ZRANGEBYSCORE`, `ZREMRANGEBYSCORE` | [`remove`](Self::remove), [`score`](Self::score), [`range`](Self::range), [`remove_range`](Self::remove_range) |
/// | one `key` of many | [`ExpiringSets`](crate::ExpiringSets) |
/// | scores that are not times | [`SortedSet`](crate::SortedSet) |
///
/// # Cost
///
/// A call takes one lock and reads the clock once. It costs O(log n), plus O(m) if m members expire or are returned.
/// These costs are amortized. When a set has doubled in size, a push moves the index of all members while it holds the
/// lock, which takes about 22 ns per member. When a set has shrunk to a third, a call gives its members smaller tables,
/// which takes about 150 ns for each that is left. One in 61 awaited calls consumes a unit of Tokio's cooperative
/// budget. A call that finds more than about 1,000 expired members removes them in parts and yields in between; a
/// cancelled call may have removed some of them. A call yields only before it changes anything else, so all calls are
/// cancel safe.
///
/// # Under the lock
///
/// `Eq` and `Clone` of members run under the lock and must not call the set. `Hash` and `Drop` run outside it and may
/// call the set. A panic in any of them leaves the set consistent.
///
/// # Runtimes
///
/// A set uses the clock of the runtime on which you built it. You can use it from other runtimes and from outside a
/// runtime, as you can a [`Cache`](crate::Cache). When the runtime on which the set was built shuts down, the sweeper
/// stops and everything else still works.
pub struct ExpiringSet<T>(Arc<ExpiringState<Members<T>, T, ()>>);

impl<T> ExpiringSet<T>
where
    T: Hash + Eq + Clone + Send + Sync + 'static,
{
    /// Creates an empty set whose members expire when their scores are `ttl` old.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSet;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// // A nonce must not be used twice within five minutes.
    /// let used: ExpiringSet<String> = ExpiringSet::new(Duration::from_secs(300));
    /// used.push("6f1c".to_owned()).await;
    /// assert!(used.contains("6f1c").await);
    /// # }
    /// ```
    ///
    /// With a `ttl` of zero, only members with a score in the future are kept. If `ttl` overflows, no member expires.
    ///
    /// # Panics
    ///
    /// Panics outside of a Tokio runtime, or if the runtime has no time driver (`enable_time`).
    pub fn new(ttl: Duration) -> Self {
        Self::builder(ttl).build()
    }

    /// Returns a builder for a set.
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

    /// Adds `member` with the current time as its score, or moves it to that score.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSet;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// # use tokio::time::advance;
    /// // Each device sends a sign of life every 10 seconds.
    /// let alive = ExpiringSet::new(Duration::from_secs(30));
    /// for _beat in 0..10 {
    ///     alive.push("sensor 7").await;
    ///     advance(Duration::from_secs(10)).await;
    /// }
    /// assert!(alive.contains("sensor 7").await);
    /// advance(Duration::from_secs(20)).await;
    /// assert!(!alive.contains("sensor 7").await);
    /// # }
    /// ```
    #[doc(alias = "ZADD")]
    #[inline]
    pub async fn push(&self, member: T) {
        coop::proceed().await;
        self.put(member, None, false).await;
    }

    /// Adds `member` with this score, or moves it to that score.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSet;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// # use tokio::time::Instant;
    /// let readings = ExpiringSet::new(Duration::from_secs(60));
    /// // A reading that arrives 20 seconds late is kept for 40 seconds.
    /// let measured = Instant::now() - Duration::from_secs(20);
    /// readings.push_at("21.5 °C", measured).await;
    /// assert_eq!(readings.score("21.5 °C").await, Some(measured));
    /// # }
    /// ```
    pub async fn push_at(&self, member: T, score: Instant) {
        coop::proceed().await;
        self.put(member, Some(score), false).await;
    }

    /// Adds `member` with this score, or moves it to that score, and removes all other members that have exactly the
    /// same score, with cause [`Replaced`](Cause::Replaced).
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
        self.put(member, Some(score), true).await;
    }

    /// Adds all of `members`, in their order, with the current time as their score, or moves them to that score, as one
    /// atomic change.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSet;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let online = ExpiringSet::new(Duration::from_secs(60));
    /// online.extend(["ada", "bob", "cyd"]).await;
    /// assert_eq!(online.len().await, 3);
    /// # }
    /// ```
    pub fn extend(&self, members: impl IntoIterator<Item = T>) -> impl Future<Output = ()> {
        // The iterator is consumed before the future is created, as the iterator need not be `Send` and the future
        // should be.
        let mut new_members: Vec<_> =
            members.into_iter().map(|member| self.prehash(member)).collect();
        async move {
            coop::proceed().await;
            self.change(|members, change| {
                for member in &mut new_members {
                    members.push(change.now, false, member, Unkeyed, change);
                }
            })
            .await;
        }
    }

    /// Returns all members, lowest score first.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSet;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let recent = ExpiringSet::new(Duration::from_secs(60));
    /// recent.extend(["news", "sports", "news"]).await;
    /// assert_eq!(recent.elements().await, ["sports", "news"]);
    /// # }
    /// ```
    #[doc(alias = "ZRANGE")]
    pub async fn elements(&self) -> Vec<T> {
        self.range(..).await
    }

    /// Returns the members with scores in this range, lowest first. An inverted range contains no members.
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
        self.read(|members, expired| {
            let ranks = members.ranks(&scores);
            members.copy(ranks.start.max(expired)..ranks.end.max(expired), &mut elements);
        });
        elements
    }

    /// Returns the member with the lowest score, which is the next to expire.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSet;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let waiting = ExpiringSet::new(Duration::from_secs(600));
    /// waiting.extend(["ada", "bob"]).await;
    /// assert_eq!(waiting.peek().await, Some("ada"), "the next in line");
    /// # }
    /// ```
    pub async fn peek(&self) -> Option<T> {
        coop::proceed().await;
        self.read(|members, expired| members.at(expired).cloned())
    }

    /// Removes and returns the member with the lowest score, with cause [`Removed`](Cause::Removed).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSet;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// // Players wait up to ten minutes for an opponent.
    /// let waiting = ExpiringSet::new(Duration::from_secs(600));
    /// waiting.extend(["ada", "bob"]).await;
    /// assert_eq!(waiting.pop().await, Some("ada"));
    /// assert_eq!(waiting.pop().await, Some("bob"));
    /// assert_eq!(waiting.pop().await, None);
    /// # }
    /// ```
    #[doc(alias = "ZPOPMIN")]
    pub async fn pop(&self) -> Option<T> {
        coop::proceed().await;
        self.change(|members, change| members.pop(Unkeyed, change)).await
    }

    /// Removes `member`, with cause [`Removed`](Cause::Removed). Returns `false` if it is not in the set.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSet;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let online = ExpiringSet::new(Duration::from_secs(60));
    /// online.push("ada").await;
    /// assert!(online.remove("ada").await, "she logged out");
    /// assert!(!online.remove("ada").await);
    /// # }
    /// ```
    #[doc(alias = "ZREM")]
    pub async fn remove<Q>(&self, member: &Q) -> bool
    where
        Q: Hash + Equivalent<T> + ?Sized,
    {
        coop::proceed().await;
        let hash = hash_of(&self.0.hasher, member);
        self.change(|members, change| members.remove(hash, member, Unkeyed, change)).await
    }

    /// Removes the members with scores in this range, with cause [`Removed`](Cause::Removed), and returns their number.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSet;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// # use tokio::time::{Instant, advance};
    /// let logins = ExpiringSet::new(Duration::from_secs(3_600));
    /// logins.push("ada").await;
    /// advance(Duration::from_secs(60)).await;
    /// let password_changed = Instant::now();
    /// logins.push("bob").await;
    ///
    /// // Earlier logins are void.
    /// assert_eq!(logins.remove_range(..password_changed).await, 1);
    /// assert_eq!(logins.elements().await, ["bob"]);
    /// # }
    /// ```
    #[doc(alias = "ZREMRANGEBYSCORE")]
    pub async fn remove_range(&self, scores: impl RangeBounds<Instant>) -> usize {
        coop::proceed().await;
        let scores = self.0.ticks(&scores);
        self.change(|members, change| {
            let ranks = members.ranks(&scores);
            members.remove_ranks(ranks.clone(), Cause::Removed, Unkeyed, change);
            ranks.len()
        })
        .await
    }

    /// Returns the score of `member`, or `None` if it is not in the set.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSet;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// # use tokio::time::advance;
    /// let online = ExpiringSet::new(Duration::from_secs(60));
    /// online.push("ada").await;
    /// advance(Duration::from_secs(20)).await;
    /// let last_seen = online.score("ada").await.unwrap();
    /// assert_eq!(last_seen.elapsed(), Duration::from_secs(20));
    /// # }
    /// ```
    #[doc(alias = "ZSCORE")]
    pub async fn score<Q>(&self, member: &Q) -> Option<Instant>
    where
        Q: Hash + Equivalent<T> + ?Sized,
    {
        coop::proceed().await;
        let hash = hash_of(&self.0.hasher, member);
        let score = self.read(|members, expired| members.live_score(hash, member, expired));
        score.map(|score| self.0.clock.instant(score))
    }

    /// Returns whether `member` is in the set.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSet;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let blocked = ExpiringSet::new(Duration::from_secs(900));
    /// blocked.push("192.0.2.1").await;
    /// if blocked.contains("192.0.2.1").await {
    ///     println!("try again in a quarter of an hour");
    /// }
    /// # assert!(blocked.contains("192.0.2.1").await);
    /// # }
    /// ```
    pub async fn contains<Q>(&self, member: &Q) -> bool
    where
        Q: Hash + Equivalent<T> + ?Sized,
    {
        self.score(member).await.is_some()
    }

    /// Returns the number of live members.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSet;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let online = ExpiringSet::new(Duration::from_secs(60));
    /// online.extend(["ada", "bob", "ada"]).await;
    /// println!("{} users are online", online.len().await);
    /// # assert_eq!(online.len().await, 2);
    /// # }
    /// ```
    #[doc(alias = "ZCARD")]
    pub async fn len(&self) -> usize {
        coop::proceed().await;
        self.read(|members, expired| members.len() - expired)
    }

    /// Returns whether the set has no live members.
    pub async fn is_empty(&self) -> bool {
        self.len().await == 0
    }

    /// Removes all members, with cause [`Removed`](Cause::Removed).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSet;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let seen = ExpiringSet::new(Duration::from_secs(60));
    /// seen.extend(["a", "b"]).await;
    /// seen.clear().await;
    /// assert!(seen.is_empty().await);
    /// # }
    /// ```
    #[doc(alias = "DEL")]
    pub async fn clear(&self) {
        self.remove_range(..).await;
    }

    /// Subscribes to the removals from now on, for example to notice that a user went offline. The key of each event is
    /// the member.
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
    ///
    /// You get one event for each expiration; ask for other causes with [`publish`](ExpiringSetBuilder::publish). The
    /// events of one member are in order.
    ///
    /// The set never waits for a slow subscriber. If yours falls behind by more than
    /// [`event_capacity`](ExpiringSetBuilder::event_capacity), it misses the oldest events and receives their number.
    pub fn events(&self) -> Events<T, ()> {
        Events::new(&self.0.publisher)
    }

    /// Subscribes to the removals from now on. The stream loses no event while it exists.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSet;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let online = ExpiringSet::new(Duration::from_secs(60));
    /// let mut offline = online.events_lossless(1_000);
    /// online.extend(["ada", "bob"]).await;
    /// for _user in 0..2 {
    ///     let event = offline.recv().await.unwrap();
    ///     println!("{} went offline", event.key); // recorded for each user, regardless of their number
    /// }
    /// # }
    /// ```
    ///
    /// When `capacity` events are unread, the sweeper waits until you read some; expired members stay in memory for
    /// that time. Calls to the set never wait. The events that they cause are queued beyond the capacity
    /// ([`overflow`](Self::overflow)).
    ///
    /// # Panics
    ///
    /// Panics if `capacity` is 0.
    pub fn events_lossless(&self, capacity: usize) -> LosslessEvents<T, ()> {
        LosslessEvents::new(&self.0.publisher, capacity)
    }

    /// Returns the number of unread events by which the fullest lossless stream exceeds its capacity.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::{Cause, ExpiringSet};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let set = ExpiringSet::builder(Duration::from_secs(60)).publish([Cause::Removed]).build();
    /// let slow = set.events_lossless(1);
    /// set.extend(["a", "b", "c"]).await;
    /// set.clear().await;
    /// assert_eq!(set.overflow(), 2, "three are unread, and one has room");
    /// # }
    /// ```
    pub fn overflow(&self) -> usize {
        self.0.publisher.overflow()
    }

    #[inline]
    async fn put(&self, member: T, score: Option<Instant>, unique: bool) {
        // Declared before the lock is taken, so that it is dropped after the lock is released.
        let mut member = self.prehash(member);
        let score = score.map(|score| self.0.clock.tick_of(score));
        self.change(|members, change| {
            let score = score.unwrap_or(change.now);
            members.push(score, unique, &mut member, Unkeyed, change);
        })
        .await;
    }

    #[inline]
    fn prehash(&self, member: T) -> Prehashed<T> {
        Prehashed::new(&self.0.hasher, member)
    }

    /// Calls `op` with the members under the lock, and with the number of expired ones, which have the lowest ranks.
    /// Removes some of them before. After a mass expiration, a read must not take as long as the removal of all: the
    /// sweeper removes them in several steps.
    #[inline]
    fn read<R>(&self, op: impl FnOnce(&Members<T>, usize) -> R) -> R {
        self.0.change(0, |members, change| {
            let expired = members.expire_some(Unkeyed, change);
            op(members, expired)
        })
    }

    /// Makes a change under the lock, after all expired members were removed. They are removed in batches, and the lock
    /// is released after each, so that no caller waits for a mass expiration.
    #[inline]
    async fn change<R>(
        &self,
        op: impl FnOnce(&mut Members<T>, &mut Change<'_, T, (), T>) -> R,
    ) -> R {
        let mut op = Some(op);
        loop {
            let changed = self.0.change(0, |members, change| {
                if members.expire_some(Unkeyed, change) > 0 {
                    return None;
                }
                op.take().map(|op| op(members, change))
            });
            match changed {
                Some(outcome) => return outcome,
                None => yield_now().await,
            }
        }
    }
}

impl<T> ExpiringSetBuilder<ExpiringSet<T>>
where
    T: Hash + Eq + Clone + Send + Sync + 'static,
{
    /// Builds the set and starts its sweeper on the current Tokio runtime.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSet;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let online = ExpiringSet::builder(Duration::from_secs(60)).name("online").build();
    /// online.push("ada").await;
    /// assert_eq!(online.len().await, 1);
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Panics outside of a Tokio runtime, and on a runtime without a time driver (`enable_time`).
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
