//! The handle of many sets, one a key: it knows the shard of each key, and is otherwise as that of one set.

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
use tokio::time::Instant;

use super::{
    builder::ExpiringSetBuilder,
    change::Change,
    keyed_members::KeyedMembers,
    members::{Members, Prehashed},
    state::SharedState,
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

/// An [`ExpiringSet`](crate::ExpiringSet) for each key, all with one TTL and one sweeper.
///
/// An `ExpiringSets` is a handle: cheap to clone, and all clones are the same sets. A set begins with its
/// first member and leaves with its last. All that is said of an [`ExpiringSet`](crate::ExpiringSet) holds
/// for each of them; a call begins with the dead of the set it is for, and the sweeper sees to the others.
/// In an event the key is that of the set, and the value is the member.
///
/// # Cost
///
/// The sets are in shards, each behind a lock of its own: a call costs what it costs with one set of that
/// size, and the look-up of its key. The sweeper has the sets in the order of their next deaths. It looks
/// only at those in which one is due, O(log n) for each, however many there are.
///
/// # Under the lock
///
/// `Eq` and `Clone` of keys and members run while a shard is locked, and so must not call the sets; `Hash` and
/// `Drop` do not, and may. A panic in any of them leaves the sets whole.
///
/// # Examples
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
pub struct ExpiringSets<K, T>(Arc<SharedState<KeyedMembers<K, T>, K, T>>);

impl<K, T> ExpiringSets<K, T>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: Hash + Eq + Clone + Send + Sync + 'static,
{
    /// No sets yet; members die when their scores are `ttl` old.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime, as [`ExpiringSetBuilder::build`].
    pub fn new(ttl: Duration) -> Self {
        Self::builder(ttl).build()
    }

    /// Sets them up, as [`ExpiringSet::builder`](crate::ExpiringSet::builder).
    pub fn builder(ttl: Duration) -> ExpiringSetBuilder<Self> {
        ExpiringSetBuilder::new(ttl, "expiring sets")
    }

    /// Moves `member` into the set of `key`, with the present as its score.
    pub async fn push(&self, key: K, member: T) {
        coop::proceed().await;
        self.put(key, [member], None, false);
    }

    /// Moves `member` into the set of `key`, at `score`.
    pub async fn push_at(&self, key: K, member: T, score: Instant) {
        coop::proceed().await;
        self.put(key, [member], Some(score), false);
    }

    /// Moves `member` into the set of `key`, at `score`, in place of all its members at that very score.
    pub async fn push_unique_at(&self, key: K, member: T, score: Instant) {
        coop::proceed().await;
        self.put(key, [member], Some(score), true);
    }

    /// Moves all of `members` into the set of `key`, in their order, with the present as their score.
    pub fn extend(&self, key: K, members: impl IntoIterator<Item = T>) -> impl Future<Output = ()> {
        // The caller's iterator may be of one thread alone, and the future is to go to any.
        let members: Vec<_> = members.into_iter().collect();
        async move {
            coop::proceed().await;
            self.put(key, members, None, false);
        }
    }

    /// The members of the set of `key`, lowest score first.
    pub async fn elements<Q>(&self, key: &Q) -> Vec<T>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.range(key, ..).await
    }

    /// The members of the set of `key` with these scores, lowest first.
    pub async fn range<Q>(&self, key: &Q, scores: impl RangeBounds<Instant>) -> Vec<T>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        let scores = self.0.ticks(&scores);
        let mut elements = Vec::new();
        self.change(key, |members, _, _| members.copy(members.ranks(&scores), &mut elements));
        elements
    }

    /// The member of the set of `key` with the lowest score.
    pub async fn peek<Q>(&self, key: &Q) -> Option<T>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        self.change(key, |members, _, _| members.first().cloned()).flatten()
    }

    /// Takes the member with the lowest score out of the set of `key`.
    pub async fn pop<Q>(&self, key: &Q) -> Option<T>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        self.change(key, |members, key, change| members.pop(key, change)).flatten()
    }

    /// Takes `member` out of the set of `key`; tells whether it was there.
    pub async fn remove<Q, M>(&self, key: &Q, member: &M) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
        M: Hash + Equivalent<T> + ?Sized,
    {
        coop::proceed().await;
        let hash = hash_of(&self.0.hasher, member);
        self.change(key, |members, key, change| members.remove(hash, member, key, change))
            .unwrap_or(false)
    }

    /// Takes the members with these scores out of the set of `key`; tells how many there were.
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
        self.change(key, remove).unwrap_or(0)
    }

    /// The score of `member` in the set of `key`.
    pub async fn score<Q, M>(&self, key: &Q, member: &M) -> Option<Instant>
    where
        Q: Hash + Equivalent<K> + ?Sized,
        M: Hash + Equivalent<T> + ?Sized,
    {
        coop::proceed().await;
        let hash = hash_of(&self.0.hasher, member);
        let score = self.change(key, |members, _, _| members.score(hash, member)).flatten();
        score.map(|score| self.0.clock.instant(score))
    }

    /// Whether `member` is in the set of `key`.
    pub async fn contains<Q, M>(&self, key: &Q, member: &M) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
        M: Hash + Equivalent<T> + ?Sized,
    {
        self.score(key, member).await.is_some()
    }

    /// How many members the set of `key` has.
    pub async fn len<Q>(&self, key: &Q) -> usize
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        coop::proceed().await;
        self.change(key, |members, _, _| members.len()).unwrap_or(0)
    }

    /// Whether there is no set of `key`.
    pub async fn is_empty<Q>(&self, key: &Q) -> bool
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.len(key).await == 0
    }

    /// Takes the whole set of `key` out.
    pub async fn clear<Q>(&self, key: &Q)
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        self.remove_range(key, ..).await;
    }

    /// The keys of all sets, in no order. A shard is looked at at a time.
    pub async fn keys(&self) -> Vec<K> {
        let mut keys = Vec::new();
        for shard in 0..self.0.shard_count() {
            coop::proceed().await;
            self.0.change(shard, |sets, change| {
                sets.expire(change);
                sets.copy_keys(&mut keys);
            });
        }
        keys
    }

    /// How many sets there are. A shard is looked at at a time.
    pub async fn sets(&self) -> usize {
        let mut count = 0;
        for shard in 0..self.0.shard_count() {
            coop::proceed().await;
            count += self.0.change(shard, |sets, change| {
                sets.expire(change);
                sets.len()
            });
        }
        count
    }

    /// A stream of what leaves from now on; see [`ExpiringSet::events`](crate::ExpiringSet::events).
    pub fn events(&self) -> Events<K, T> {
        Events::new(&self.0.publisher)
    }

    /// A stream of what leaves from now on that loses nothing while it lives; see
    /// [`ExpiringSet::events_lossless`](crate::ExpiringSet::events_lossless).
    ///
    /// # Panics
    ///
    /// Where `capacity` is 0.
    pub fn events_lossless(&self, capacity: usize) -> LosslessEvents<K, T> {
        LosslessEvents::new(&self.0.publisher, capacity)
    }

    /// Events beyond the capacity of the fullest lossless stream, waiting for its reader.
    pub fn overflow(&self) -> usize {
        self.0.publisher.overflow()
    }

    fn put(
        &self,
        key: K,
        members: impl IntoIterator<Item = T>,
        score: Option<Instant>,
        alone: bool,
    ) {
        let hash = self.0.hasher.hash_one(&key);
        // All this is made before the lock, and so dropped after it.
        let prehash = |member| Prehashed::new(&self.0.hasher, member);
        let mut coming: SmallVec<[_; 1]> = members.into_iter().map(prehash).collect();
        let mut key = Some(key);
        let score = score.map(|score| self.0.clock.tick_of(score));
        self.0.change(self.shard_of(hash), |sets, change| {
            let score = score.unwrap_or(change.now);
            sets.push(hash, &mut key, score, &mut coming, alone, change);
        });
    }

    fn change<Q, R>(
        &self,
        key: &Q,
        op: impl FnOnce(&mut Members<T>, &K, &mut Change<'_, K, T, T>) -> R,
    ) -> Option<R>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        let hash = self.0.hasher.hash_one(key);
        self.0.change(self.shard_of(hash), |sets, change| sets.change(hash, key, change, op))
    }

    /// By bits of the middle: the table of a shard goes by the lowest and the highest ones, which would be
    /// nearly alike for all keys of a shard.
    fn shard_of(&self, hash: u64) -> usize {
        (hash >> 40) as usize % self.0.shard_count()
    }
}

impl<K, T> ExpiringSetBuilder<ExpiringSets<K, T>> {
    /// How many parts the sets are in, each with a lock of its own; rounded up to a power of two.
    /// Defaults to four for each core, 64 at least.
    ///
    /// # Panics
    ///
    /// Where `shards` is 0 or above 65,536.
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
    /// Makes the sets and starts their sweeper on the current Tokio runtime.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime, and on one without a time driver (`enable_time`).
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
