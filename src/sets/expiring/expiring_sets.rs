//! Handle of keyed sets: finds the shard of a key, and otherwise works like the handle of a single set.

use std::{
    fmt,
    hash::{BuildHasher, Hash},
    iter,
    ops::RangeBounds,
    sync::Arc,
    time::Duration,
};

use equivalent::Equivalent;
use smallvec::SmallVec;
use tokio::{task::yield_now, time::Instant};

use super::{
    builder::ExpiringSetBuilder,
    change::Change,
    expiring_state::ExpiringState,
    members::{Members, Prehashed},
    sets_by_key::{KeyedMembers, MoreExpired},
    sweeper,
};
use crate::{
    engine::{
        coop,
        event::{Cause, Events, LosslessEvents},
        shards::checked_shards,
    },
    sets::scores::hash_of,
};

/// One [`ExpiringSet`](crate::ExpiringSet) per key, such as the readers of each page or the devices of each user.
///
/// ```
/// use std::time::Duration;
/// use fleeting::ExpiringSets;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let readers: ExpiringSets<String, u32> = ExpiringSets::new(Duration::from_secs(300));
/// readers.push("news".into(), 7).await;
/// tokio::time::advance(Duration::from_secs(200)).await;
/// readers.push("news".into(), 8).await;
/// assert_eq!(readers.len("news").await, 2);
///
/// tokio::time::advance(Duration::from_secs(100)).await;
/// assert_eq!(readers.elements("news").await, [8]);
///
/// tokio::time::advance(Duration::from_secs(200)).await;
/// assert_eq!(readers.keys().await, Vec::<String>::new());
/// # }
/// ```
///
/// All sets have the same TTL and one shared sweeper. You need not create a set: it begins with its first member and is
/// dropped with its last. An `ExpiringSets` is a handle to shared sets; cloning it is cheap.
///
/// Each set behaves as an [`ExpiringSet`](crate::ExpiringSet): a call first removes the expired members of its own set,
/// and the sweeper removes those of the other sets. In an event, the key is the key of the set and the value is the
/// member.
///
/// # Cost
///
/// The sets are divided into shards, each with its own lock. Your call costs as much as on a single set of that size,
/// plus the lookup of its key. The sweeper keeps the sets in the order of their next expiry. It examines only the sets
/// with expired members, at O(log n) each for n sets in a shard.
///
/// # Under the lock
///
/// `Eq` and `Clone` of keys and members run while a shard is locked and must not call the sets. `Hash` and `Drop` run
/// outside the lock and may call the sets. A panic in any of them leaves the sets consistent.
pub struct ExpiringSets<K, T>(Arc<ExpiringState<KeyedMembers<K, T>, K, T>>);

impl<K, T> ExpiringSets<K, T>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: Hash + Eq + Clone + Send + Sync + 'static,
{
    /// Creates an empty collection of sets whose members expire when their scores are `ttl` old. See
    /// [`ExpiringSet::new`](crate::ExpiringSet::new) for a `ttl` of zero and one that overflows.
    ///
    /// # Panics
    ///
    /// Panics outside of a Tokio runtime, or if the runtime has no time driver (`enable_time`).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSets;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// // The last failed logins of each user.
    /// let failures: ExpiringSets<String, u64> = ExpiringSets::new(Duration::from_secs(900));
    /// failures.push("ada".to_owned(), 1).await;
    /// assert_eq!(failures.len("ada").await, 1);
    /// # }
    /// ```
    pub fn new(ttl: Duration) -> Self {
        Self::builder(ttl).build()
    }

    /// Returns a builder, as [`ExpiringSet::builder`](crate::ExpiringSet::builder) does, for settings of your own.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSets;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let typing: ExpiringSets<u64, String> = ExpiringSets::builder(Duration::from_secs(5))
    ///     .name("typing")
    ///     .sweep_every(Duration::from_millis(500))
    ///     .build();
    /// # }
    /// ```
    pub fn builder(ttl: Duration) -> ExpiringSetBuilder<Self> {
        ExpiringSetBuilder::new(ttl, "expiring sets")
    }

    /// Adds `member` to the set of `key` with the current time as its score, or moves it to that score.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSets;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// # use tokio::time::advance;
    /// let typing = ExpiringSets::new(Duration::from_secs(5));
    /// typing.push("room 1", "ada").await;
    /// assert_eq!(typing.elements("room 1").await, ["ada"]);
    /// advance(Duration::from_secs(5)).await;
    /// assert!(typing.is_empty("room 1").await);
    /// # }
    /// ```
    pub async fn push(&self, key: K, member: T) {
        coop::proceed().await;
        self.put(key, [member], None, false).await;
    }

    /// Adds `member` to the set of `key` with this score, or moves it to that score.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSets;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// # use tokio::time::Instant;
    /// let readings = ExpiringSets::new(Duration::from_secs(60));
    /// let measured = Instant::now() - Duration::from_secs(20);
    /// readings.push_at("sensor 7", 215, measured).await;
    /// assert_eq!(readings.score("sensor 7", &215).await, Some(measured));
    /// # }
    /// ```
    pub async fn push_at(&self, key: K, member: T, score: Instant) {
        coop::proceed().await;
        self.put(key, [member], Some(score), false).await;
    }

    /// Adds `member` to the set of `key` with this score, or moves it to that score, and removes all other members of
    /// the set that have exactly the same score, with cause [`Replaced`](Cause::Replaced).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSets;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// # use tokio::time::Instant;
    /// let readings = ExpiringSets::new(Duration::from_secs(60));
    /// let noon = Instant::now();
    /// readings.push_at("sensor 7", "an estimate", noon).await;
    /// readings.push_unique_at("sensor 7", "the measured value", noon).await;
    /// assert_eq!(readings.elements("sensor 7").await, ["the measured value"]);
    /// # }
    /// ```
    pub async fn push_unique_at(&self, key: K, member: T, score: Instant) {
        coop::proceed().await;
        self.put(key, [member], Some(score), true).await;
    }

    /// Adds all of `members` to the set of `key`, in their order, with the current time as their score, or moves them
    /// to that score, as one atomic change.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSets;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let devices = ExpiringSets::new(Duration::from_secs(60));
    /// devices.extend("ada", ["phone", "laptop"]).await;
    /// assert_eq!(devices.len("ada").await, 2);
    /// # }
    /// ```
    pub fn extend(&self, key: K, members: impl IntoIterator<Item = T>) -> impl Future<Output = ()> {
        // The iterator is consumed before the future is created, as the iterator need not be `Send` and the future
        // should be.
        let members: Vec<_> = members.into_iter().collect();
        async move {
            coop::proceed().await;
            self.put(key, members, None, false).await;
        }
    }

    /// Returns the members of the set of `key`, lowest score first.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSets;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let viewed = ExpiringSets::new(Duration::from_secs(3_600));
    /// viewed.push("ada", "book 1").await;
    /// viewed.push("ada", "book 2").await;
    /// assert_eq!(viewed.elements("ada").await, ["book 1", "book 2"]);
    /// assert!(viewed.elements("bob").await.is_empty());
    /// # }
    /// ```
    pub async fn elements<Q>(&self, key: &Q) -> Vec<T>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.range(key, ..).await
    }

    /// Returns the members of the set of `key` with scores in this range, lowest first.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSets;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// # use tokio::time::{Instant, advance};
    /// let viewed = ExpiringSets::new(Duration::from_secs(3_600));
    /// viewed.push("ada", "book 1").await;
    /// advance(Duration::from_secs(600)).await;
    /// viewed.push("ada", "book 2").await;
    /// let last_minute = Instant::now() - Duration::from_secs(60)..;
    /// assert_eq!(viewed.range("ada", last_minute).await, ["book 2"]);
    /// # }
    /// ```
    pub async fn range<Q>(&self, key: &Q, scores: impl RangeBounds<Instant>) -> Vec<T>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        let scores = self.0.ticks(&scores);
        let mut elements = Vec::new();
        self.change(key, |members, _, _| members.copy(members.ranks(&scores), &mut elements)).await;
        elements
    }

    /// Returns the member with the lowest score in the set of `key`, which is its next to expire.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSets;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let devices = ExpiringSets::new(Duration::from_secs(60));
    /// devices.extend("ada", ["phone", "laptop"]).await;
    /// assert_eq!(devices.peek("ada").await, Some("phone"));
    /// # }
    /// ```
    pub async fn peek<Q>(&self, key: &Q) -> Option<T>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        self.change(key, |members, _, _| members.first().cloned()).await.flatten()
    }

    /// Removes and returns the member with the lowest score in the set of `key`, with cause
    /// [`Removed`](Cause::Removed).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSets;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// // A player of the same level, who has waited longest.
    /// let waiting = ExpiringSets::new(Duration::from_secs(600));
    /// waiting.extend("level 3", ["ada", "bob"]).await;
    /// assert_eq!(waiting.pop("level 3").await, Some("ada"));
    /// assert_eq!(waiting.pop("level 4").await, None);
    /// # }
    /// ```
    pub async fn pop<Q>(&self, key: &Q) -> Option<T>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        self.change(key, |members, key, change| members.pop(key, change)).await.flatten()
    }

    /// Removes `member` from the set of `key`, with cause [`Removed`](Cause::Removed). Returns `false` if it is not in
    /// the set.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSets;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let devices = ExpiringSets::new(Duration::from_secs(60));
    /// devices.push("ada", "phone").await;
    /// assert!(devices.remove("ada", "phone").await);
    /// assert_eq!(devices.sets().await, 0, "the last member is gone, and with it the set");
    /// # }
    /// ```
    pub async fn remove<Q, M>(&self, key: &Q, member: &M) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
        M: Hash + Equivalent<T> + ?Sized,
    {
        coop::proceed().await;
        let hash = hash_of(&self.0.hasher, member);
        self.change(key, |members, key, change| members.remove(hash, member, key, change))
            .await
            .unwrap_or(false)
    }

    /// Removes the members with scores in this range from the set of `key`, with cause [`Removed`](Cause::Removed), and
    /// returns their number.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSets;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// # use tokio::time::{Instant, advance};
    /// let logins = ExpiringSets::new(Duration::from_secs(3_600));
    /// logins.push("ada", "phone").await;
    /// advance(Duration::from_secs(60)).await;
    /// let password_changed = Instant::now();
    /// logins.push("ada", "laptop").await;
    /// assert_eq!(logins.remove_range("ada", ..password_changed).await, 1);
    /// assert_eq!(logins.elements("ada").await, ["laptop"]);
    /// # }
    /// ```
    pub async fn remove_range<Q>(&self, key: &Q, scores: impl RangeBounds<Instant>) -> usize
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        let scores = self.0.ticks(&scores);
        let remove = |members: &mut Members<T>, key: &K, change: &mut Change<'_, K, T, T>| {
            let ranks = members.ranks(&scores);
            members.remove_ranks(ranks.clone(), Cause::Removed, key, change);
            ranks.len()
        };
        self.change(key, remove).await.unwrap_or(0)
    }

    /// Returns the score of `member` in the set of `key`, or `None` if it is not in the set.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSets;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// # use tokio::time::advance;
    /// let devices = ExpiringSets::new(Duration::from_secs(60));
    /// devices.push("ada", "phone").await;
    /// advance(Duration::from_secs(20)).await;
    /// let last_seen = devices.score("ada", "phone").await.unwrap();
    /// assert_eq!(last_seen.elapsed(), Duration::from_secs(20));
    /// # }
    /// ```
    pub async fn score<Q, M>(&self, key: &Q, member: &M) -> Option<Instant>
    where
        Q: Hash + Equivalent<K> + ?Sized,
        M: Hash + Equivalent<T> + ?Sized,
    {
        coop::proceed().await;
        let hash = hash_of(&self.0.hasher, member);
        let score = self.change(key, |members, _, _| members.score(hash, member)).await.flatten();
        score.map(|score| self.0.clock.instant(score))
    }

    /// Returns whether `member` is in the set of `key`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSets;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let seen = ExpiringSets::new(Duration::from_secs(600));
    /// seen.push("ada", "message 1").await;
    /// assert!(seen.contains("ada", "message 1").await, "it was delivered to her already");
    /// assert!(!seen.contains("bob", "message 1").await);
    /// # }
    /// ```
    pub async fn contains<Q, M>(&self, key: &Q, member: &M) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
        M: Hash + Equivalent<T> + ?Sized,
    {
        self.score(key, member).await.is_some()
    }

    /// Returns the number of live members in the set of `key`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSets;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let failures = ExpiringSets::new(Duration::from_secs(900));
    /// failures.extend("ada", [1, 2, 3]).await;
    /// if failures.len("ada").await >= 3 {
    ///     println!("wait a quarter of an hour");
    /// }
    /// # assert_eq!(failures.len("ada").await, 3);
    /// # }
    /// ```
    pub async fn len<Q>(&self, key: &Q) -> usize
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        self.change(key, |members, _, _| members.len()).await.unwrap_or(0)
    }

    /// Returns whether the set of `key` has no live members.
    pub async fn is_empty<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.len(key).await == 0
    }

    /// Removes all members from the set of `key`, with cause [`Removed`](Cause::Removed).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSets;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let failures = ExpiringSets::new(Duration::from_secs(900));
    /// failures.extend("ada", [1, 2]).await;
    /// failures.clear("ada").await; // the password was right
    /// assert!(failures.is_empty("ada").await);
    /// # }
    /// ```
    pub async fn clear<Q>(&self, key: &Q)
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.remove_range(key, ..).await;
    }

    /// Returns the keys of all sets that have live members, in no particular order. One shard is locked at a time, so
    /// concurrent changes may or may not be included.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSets;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let typing = ExpiringSets::new(Duration::from_secs(5));
    /// typing.push("room 1", "ada").await;
    /// typing.push("room 1", "bob").await;
    /// for room in typing.keys().await {
    ///     println!("{} users are typing in {room}", typing.len(room).await);
    /// }
    /// # assert_eq!(typing.keys().await, ["room 1"]);
    /// # }
    /// ```
    pub async fn keys(&self) -> Vec<K> {
        let mut keys = Vec::new();
        for shard in 0..self.0.shard_count() {
            coop::proceed().await;
            self.read_shard(shard, |sets| sets.copy_keys(&mut keys)).await;
        }
        keys
    }

    /// Returns the number of sets that have live members. One shard is locked at a time, so concurrent changes may or
    /// may not be counted.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSets;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let devices = ExpiringSets::new(Duration::from_secs(60));
    /// devices.extend("ada", ["phone", "laptop"]).await;
    /// devices.push("bob", "phone").await;
    /// assert_eq!(devices.sets().await, 2, "two users are online");
    /// # }
    /// ```
    pub async fn sets(&self) -> usize {
        let mut count = 0;
        for shard in 0..self.0.shard_count() {
            coop::proceed().await;
            count += self.read_shard(shard, KeyedMembers::len).await;
        }
        count
    }

    /// Subscribes to the removals from now on; see [`ExpiringSet::events`](crate::ExpiringSet::events).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSets;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let devices = ExpiringSets::new(Duration::from_secs(60));
    /// let mut events = devices.events();
    /// devices.push("ada", "phone").await;
    ///
    /// let event = events.recv().await.unwrap().unwrap();
    /// assert_eq!((event.key, event.value), ("ada", "phone"));
    /// # }
    /// ```
    pub fn events(&self) -> Events<K, T> {
        Events::new(&self.0.publisher)
    }

    /// Subscribes to the removals from now on. The stream loses no event while it exists; see
    /// [`ExpiringSet::events_lossless`](crate::ExpiringSet::events_lossless).
    ///
    /// # Panics
    ///
    /// Panics if `capacity` is 0.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSets;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let devices = ExpiringSets::new(Duration::from_secs(60));
    /// let mut offline = devices.events_lossless(1_000);
    /// devices.push("ada", "phone").await;
    /// let event = offline.recv().await.unwrap();
    /// println!("the {} of {} is offline", event.value, event.key);
    /// # assert_eq!(event.key, "ada");
    /// # }
    /// ```
    pub fn events_lossless(&self, capacity: usize) -> LosslessEvents<K, T> {
        LosslessEvents::new(&self.0.publisher, capacity)
    }

    /// Returns the number of unread events by which the fullest lossless stream exceeds its capacity.
    pub fn overflow(&self) -> usize {
        self.0.publisher.overflow()
    }

    async fn put(
        &self,
        key: K,
        members: impl IntoIterator<Item = T>,
        score: Option<Instant>,
        unique: bool,
    ) {
        let hash = self.0.hasher.hash_one(&key);
        // Declared before the lock is taken, so that all of it is dropped after the lock is released.
        let prehash = |member| Prehashed::new(&self.0.hasher, member);
        let mut new_members: SmallVec<[_; 1]> = members.into_iter().map(prehash).collect();
        let mut key = Some(key);
        let score = score.map(|score| self.0.clock.tick_of(score));
        // More than a batch of expired members are removed in several steps: no caller waits for the lock for long.
        let mut push = || {
            self.0.change(self.shard_of(hash), |sets, change| {
                let score = score.unwrap_or(change.now);
                sets.push(hash, &mut key, score, &mut new_members, unique, change)
            })
        };
        while let Err(MoreExpired) = push() {
            yield_now().await;
        }
    }

    /// Calls `op` with a set that has no expired members, if it has others. They are removed as by `put`.
    async fn change<Q, R>(
        &self,
        key: &Q,
        op: impl FnOnce(&mut Members<T>, &K, &mut Change<'_, K, T, T>) -> R,
    ) -> Option<R>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let hash = self.0.hasher.hash_one(key);
        let mut op = Some(op);
        loop {
            let changed = self.0.change(self.shard_of(hash), |sets, change| {
                sets.change(hash, key, change, |members, key, change| {
                    let op = op.take().expect("no member is expired only once");
                    op(members, key, change)
                })
            });
            match changed {
                Ok(outcome) => return outcome,
                Err(MoreExpired) => yield_now().await,
            }
        }
    }

    /// Calls `read` with a shard that has no expired members. They are removed as by `put`.
    async fn read_shard<R>(
        &self,
        shard: usize,
        mut read: impl FnMut(&KeyedMembers<K, T>) -> R,
    ) -> R {
        loop {
            let done =
                self.0.change(shard, |sets, change| sets.expire_some(change).then(|| read(sets)));
            match done {
                Some(outcome) => return outcome,
                None => yield_now().await,
            }
        }
    }

    /// Uses the middle bits of the hash. A shard's table uses the lowest and highest bits, which would be nearly the
    /// same for all keys of a shard if the shard were chosen by them.
    fn shard_of(&self, hash: u64) -> usize {
        (hash >> 40) as usize % self.0.shard_count()
    }
}

impl<K, T> ExpiringSetBuilder<ExpiringSets<K, T>> {
    /// Sets the number of shards, each with its own lock; rounded up to a power of two. Defaults to four per core,
    /// rounded up likewise, but at least 64.
    ///
    /// # Panics
    ///
    /// Panics if `shards` is 0 or above 65,536.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::ExpiringSets;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// // Few keys, many of them in a small program.
    /// let typing: ExpiringSets<u64, String> =
    ///     ExpiringSets::builder(Duration::from_secs(5)).shards(4).build();
    /// # }
    /// ```
    pub fn shards(mut self, shards: usize) -> Self {
        self.shards = checked_shards(shards);
        self
    }
}

impl<K, T> ExpiringSetBuilder<ExpiringSets<K, T>>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: Hash + Eq + Clone + Send + Sync + 'static,
{
    /// Builds the sets and starts their sweeper on the current Tokio runtime.
    ///
    /// # Panics
    ///
    /// Panics outside of a Tokio runtime, and on a runtime without a time driver (`enable_time`).
    pub fn build(self) -> ExpiringSets<K, T> {
        let shards = iter::repeat_with(KeyedMembers::new).take(self.shards);
        ExpiringSets(sweeper::start(self.options, shards))
    }
}

impl<K, T> Clone for ExpiringSets<K, T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K, T> fmt::Debug for ExpiringSets<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpiringSets")
            .field("name", &self.0.name())
            .field("ttl", &self.0.ttl)
            .finish_non_exhaustive()
    }
}
