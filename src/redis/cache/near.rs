//! Near cache: answers cached in this process, in a bounded embedded cache, while the server reports changes.
//!
//! Each answer is cached with the version that its key had before the request (`client/key_versions`), and is used
//! while that version is current. So a changed key need not be removed: its outdated answer is ignored until it
//! expires.

use std::{
    collections::HashMap,
    future::poll_fn,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::future::{BoxFuture, FutureExt, join_all};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::{Instant, timeout_at};

use super::{
    super::{
        Error, Format,
        client::{Invalidations, KeyVersion, has_waited},
        codec::with_key,
        error::is_try_again,
        few_at_once::few_at_once,
    },
    commands::{Commands, MAX_KEYS_PER_READ, check_page},
    expiry::expires_at,
    flights::clone_error,
    in_flight_reads::{Answer, InFlightReads, Key, LiveReply, ReadLeader},
    stats::{NearCounters, NearStats},
    stored_value::{tags_of, untagged},
};
use crate::{cache::Cache, engine::panics::caught};

/// Time that a follower waits beyond the client's timeout, since the leader's task may be scheduled late.
const READ_GRACE: Duration = Duration::from_millis(500);

/// Object-safe interface of [`NearCache`]. A trait object, because only the builder of a near cache requires the bounds
/// on values (`Clone` and so on), not every [`Cache`](super::Cache).
pub(super) trait DynNearCache<V>: NearCounters {
    /// Looks up a cached answer. Returns true, with the answer in `found`, if there is one that may be used.
    fn poll_cached(&self, key: &[u8], cx: &mut Context<'_>, found: &mut PollGet<V>) -> Poll<bool>;

    /// Looks up a cached answer like [`poll_cached`](DynNearCache::poll_cached). Also returns the time at which the
    /// value expires.
    fn poll_found(
        &self,
        key: &[u8],
        cx: &mut Context<'_>,
        found: &mut Poll<Result<LiveReply<V>, Error>>,
    ) -> Poll<bool>;

    /// Reads the live value of a key from the server, and caches it if possible.
    fn read(self: Arc<Self>, key: Vec<u8>) -> BoxFuture<'static, Result<LiveReply<V>, Error>>;

    /// Reads several keys, in their order.
    fn read_many(
        self: Arc<Self>,
        keys: Vec<Vec<u8>>,
    ) -> BoxFuture<'static, Vec<Result<Option<V>, Error>>>;
}

/// Settings of a near cache.
#[derive(Clone, Debug)]
pub(super) struct NearSettings {
    pub(super) max_entries: usize,
    pub(super) max_age: Duration,
}

/// Constructor of a near cache for values of a type.
pub(super) type MakeNearCache<V> =
    fn(NearSettings, Arc<Commands>, Format, String) -> Arc<dyn DynNearCache<V>>;

/// Output of `get`: the live value or `None`. Look-ups write into it through a reference, because each return by value
/// would move the value once more.
pub(super) type PollGet<V> = Poll<Result<Option<V>, Error>>;

pub(super) struct NearCache<V> {
    settings: NearSettings,
    commands: Arc<Commands>,
    /// That of the client of `commands`. A clone, because a look-up would have to follow three pointers to it.
    invalidations: Arc<Invalidations>,
    format: Format,
    name: String,
    /// Created by the first read: an embedded cache needs a runtime, but the builder of this cache does not.
    cached: OnceLock<Cache<Key, CachedAnswer<V>>>,
    in_flight: Arc<InFlightReads<V>>,
    /// Cached answers that were found but outdated. They count as hits of `cached`, and are subtracted from them.
    outdated: AtomicU64,
    misses: AtomicU64,
    bypassed: AtomicU64,
}

#[derive(Clone)]
struct CachedAnswer<V> {
    found: LiveReply<V>,
    version: KeyVersion,
}

/// Reply to a read: the encoded value, its TTL as of `PTTL`, and whether the server reports changes since then.
type ReadReply = (Option<Vec<u8>>, i64, bool);

impl<V: Clone + DeserializeOwned + Send + Sync + 'static> NearCache<V> {
    pub(super) fn make(
        settings: NearSettings,
        commands: Arc<Commands>,
        format: Format,
        name: String,
    ) -> Arc<dyn DynNearCache<V>> {
        let invalidations =
            commands.client.invalidations().expect("the builder enabled tracking").clone();
        Arc::new(Self {
            settings,
            commands,
            invalidations,
            format,
            name: format!("{name} near"),
            cached: OnceLock::new(),
            in_flight: InFlightReads::new(),
            outdated: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            bypassed: AtomicU64::new(0),
        })
    }

    fn cached(&self) -> &Cache<Key, CachedAnswer<V>> {
        self.cached.get_or_init(|| {
            let builder = Cache::builder().max_entries(self.settings.max_entries);
            builder.publish([]).name(&*self.name).build()
        })
    }

    /// Groups keys by what one script can read.
    fn batches(&self, leaders: Vec<ReadLeader<V>>) -> Vec<Vec<ReadLeader<V>>> {
        let is_cluster = self.commands.client.is_cluster();
        let mut batches: HashMap<u16, Vec<Vec<ReadLeader<V>>>> = HashMap::new();
        for leader in leaders {
            // In a cluster, each shard has its own slot, and the keys of a script must share one.
            let of_shard = batches.entry(if is_cluster {
                self.commands.keyspace.shard(leader.key())
            } else {
                0
            });
            let of_shard = of_shard.or_default();
            match of_shard.last_mut().filter(|batch| batch.len() < MAX_KEYS_PER_READ) {
                Some(batch) => batch.push(leader),
                None => of_shard.push(vec![leader]),
            }
        }
        batches.into_values().flatten().collect()
    }

    /// Reads one key.
    async fn read_one(&self, leader: ReadLeader<V>) {
        // Before the request: the cached answer then expires no later than on the server, and its age is not
        // underestimated.
        let started = Instant::now();
        let (get, ttl) = (self.commands.get(leader.key()), self.commands.pttl(leader.key()));
        let reply: Result<ReadReply, _> = get.send_both_tracked(ttl, &self.commands.client).await;
        let reply = match reply {
            Ok((value, ttl, is_tracked)) => {
                // If the value is replaced while its tags are checked, the TTL is that of the old value.
                let is_tracked = is_tracked && value.as_deref().and_then(tags_of).is_none();
                let live = self.commands.live_or_current(leader.key(), value).await;
                live.map(|value| (value, ttl, is_tracked))
            }
            Err(error) => Err(error),
        };
        self.finish_read(leader, started, reply).await;
    }

    /// Reads several keys, which share a slot in a cluster. `failure` is the error of the first batch of the call that
    /// waited for a server.
    async fn read_batch(&self, mut leaders: Vec<ReadLeader<V>>, failure: &OnceLock<Error>) {
        while !leaders.is_empty() {
            // Before the request, as in `read_one`.
            let started = Instant::now();
            if let Some(error) = failure.get() {
                return self.fail_reads(leaders, started, error).await;
            }
            let call = self.commands.read_many(&leaders);
            let page = call.send_tracked::<(Vec<Option<Vec<u8>>>, Vec<i64>)>(&self.commands.client);
            let page = page.await.and_then(|page| {
                check_page(page.0.0.len(), leaders.len())?;
                Ok(page)
            });
            let ((values, ttls), is_tracked) = match page {
                Ok(page) => page,
                Err(Error::Unavailable(cause)) if is_try_again(&cause) => {
                    join_all(leaders.into_iter().map(|leader| self.read_one(leader))).await;
                    return;
                }
                Err(error) => {
                    self.fail_reads(leaders, started, &error).await;
                    if has_waited(&error) {
                        // Fails if another batch was first.
                        let _ = failure.set(error);
                    }
                    return;
                }
            };
            let rest = leaders.split_off(values.len());
            let reply = values.into_iter().zip(ttls);
            for (leader, (value, ttl)) in
                std::mem::replace(&mut leaders, rest).into_iter().zip(reply)
            {
                let reply = match ttl {
                    -3 => Err(self.commands.wrong_type(leader.key())),
                    _ => Ok((value, ttl, is_tracked)),
                };
                // Decoding runs user code. If it panics, the waiters get no answer and decode the value themselves, so
                // that the panic is raised in the caller's task.
                let _ = caught(self.finish_read(leader, started, reply)).await;
            }
        }
    }

    async fn fail_reads(&self, leaders: Vec<ReadLeader<V>>, started: Instant, error: &Error) {
        let all = leaders.into_iter();
        join_all(all.map(|leader| self.finish_read(leader, started, Err(clone_error(error)))))
            .await;
    }

    /// Caches the reply to a request that was sent after `started`, if possible, and answers the waiters.
    async fn finish_read(
        &self,
        leader: ReadLeader<V>,
        started: Instant,
        reply: Result<ReadReply, Error>,
    ) {
        let (key, version) = (leader.key(), leader.version());
        let reply = reply.and_then(|(value, ttl, is_tracked)| {
            let record = || self.commands.keyspace.record(key);
            let is_tagged = value.as_deref().is_some_and(|value| tags_of(value).is_some());
            let value = value.map(|value| self.format.decode(untagged(&value), record));
            // The server reports the removal of a tag by the name of the tag only.
            Ok((value.transpose()?, ttl, is_tracked && !is_tagged, is_tagged))
        });
        let (value, ttl, is_tracked, is_tagged) = match reply {
            Ok(reply) => reply,
            Err(error) => {
                self.invalidations.invalidate(key);
                return leader.send(Err(error));
            }
        };
        let max_age = self.settings.max_age;
        let found = LiveReply { value, expires_at: expires_at(started, ttl), is_tagged };
        let ttl_here = match (&found.value, ttl) {
            (None, _) | (Some(_), -1) => max_age,
            // The value expired between `GET` and `PTTL`.
            (Some(_), ..-1) => Duration::ZERO,
            (Some(_), ttl) => max_age.min(Duration::from_millis(ttl.unsigned_abs())),
        };
        if is_tracked && !ttl_here.is_zero() && self.invalidations.is_current(version) {
            let cached = CachedAnswer { found: found.clone(), version };
            match started.checked_add(ttl_here) {
                Some(until) => self.cached().set_until(key.into(), cached, until).await,
                None => self.cached().set(key.into(), cached).await,
            };
        } else {
            // This reply may be newer than a cached answer, which must not be returned after it.
            self.invalidations.invalidate(key);
            self.bypassed.fetch_add(1, Relaxed);
        }
        leader.send(Ok(found));
    }

    /// Waits for the answer of a read, which this caller or another one leads.
    async fn wait_for_answer(
        &self,
        key: &[u8],
        answer: Answer<V>,
        is_leader: bool,
    ) -> Result<LiveReply<V>, Error> {
        let answer = match is_leader {
            // Without a timeout: the read is a task of this runtime, and its request has one.
            true => answer.await.ok(),
            // The leader's runtime may be stopped, in which case the answer never comes.
            false => {
                let until = self.commands.client.deadline(None) + READ_GRACE;
                timeout_at(until, answer).await.ok().and_then(Result::ok)
            }
        };
        match answer {
            Some(answer) if is_leader || !is_tagged(&answer) => match &*answer {
                Ok(found) => Ok(found.clone()),
                Err(error) => Err(clone_error(error)),
            },
            // The value has tags, decoding panicked, or the leader's runtime is gone: read again in the caller's task.
            _ => {
                let value = self.commands.get_live(key).await?;
                let record = || self.commands.keyspace.record(key);
                let value = value.map(|value| self.format.decode(untagged(&value), record));
                let value = value.transpose()?;
                Ok(LiveReply { value, expires_at: None, is_tagged: false })
            }
        }
    }

    /// Looks up a cached answer. Passes it to `output` and returns true, if there is one that may be used.
    #[inline]
    fn poll_answer(
        &self,
        key: &[u8],
        cx: &mut Context<'_>,
        output: impl FnOnce(LiveReply<V>),
    ) -> Poll<bool> {
        let Some(cached) = self.cached.get() else { return Poll::Ready(false) };
        let Some(CachedAnswer { found, version }) =
            ready!(std::pin::pin!(cached.get(key)).poll(cx))
        else {
            return Poll::Ready(false);
        };
        // Checked after the look-up: a change that the process saw before this call has bumped the version by now.
        if !self.invalidations.is_current(version) {
            self.outdated.fetch_add(1, Relaxed);
            return Poll::Ready(false);
        }
        if found.value.is_none() {
            self.misses.fetch_add(1, Relaxed);
        }
        output(found);
        Poll::Ready(true)
    }
}

fn is_tagged<V>(answer: &Result<LiveReply<V>, Error>) -> bool {
    answer.as_ref().is_ok_and(|found| found.is_tagged)
}

impl<V: Clone + DeserializeOwned + Send + Sync + 'static> DynNearCache<V> for NearCache<V> {
    fn poll_cached(&self, key: &[u8], cx: &mut Context<'_>, found: &mut PollGet<V>) -> Poll<bool> {
        self.poll_answer(key, cx, |answer| *found = Poll::Ready(Ok(answer.value)))
    }

    fn poll_found(
        &self,
        key: &[u8],
        cx: &mut Context<'_>,
        found: &mut Poll<Result<LiveReply<V>, Error>>,
    ) -> Poll<bool> {
        self.poll_answer(key, cx, |answer| *found = Poll::Ready(Ok(answer)))
    }

    fn read(self: Arc<Self>, key: Vec<u8>) -> BoxFuture<'static, Result<LiveReply<V>, Error>> {
        async move {
            let (answer, leader) = self.in_flight.join(&key, &self.invalidations);
            let is_leader = leader.is_some();
            if let Some(leader) = leader {
                // In its own task, so that the read completes even if this caller is dropped.
                let near = self.clone();
                tokio::spawn(async move { near.read_one(leader).await });
            }
            self.wait_for_answer(&key, answer, is_leader).await
        }
        .boxed()
    }

    fn read_many(
        self: Arc<Self>,
        keys: Vec<Vec<u8>>,
    ) -> BoxFuture<'static, Vec<Result<Option<V>, Error>>> {
        async move {
            let (mut answers, mut leaders) = (Vec::with_capacity(keys.len()), Vec::new());
            for key in &keys {
                let (answer, leader) = self.in_flight.join(key, &self.invalidations);
                answers.push((answer, leader.is_some()));
                leaders.extend(leader);
            }
            if !leaders.is_empty() {
                let near = self.clone();
                tokio::spawn(async move {
                    // In its own task, as in `read`.
                    let batches = near.batches(leaders).into_iter();
                    let failure = OnceLock::new();
                    few_at_once(batches.map(|leaders| near.read_batch(leaders, &failure))).await;
                });
            }
            let mut values = Vec::with_capacity(keys.len());
            for (key, (answer, is_leader)) in keys.iter().zip(answers) {
                let found = self.wait_for_answer(key, answer, is_leader).await;
                values.push(found.map(|found| found.value));
            }
            values
        }
        .boxed()
    }
}

impl<V: Clone + DeserializeOwned + Send + Sync + 'static> NearCounters for NearCache<V> {
    fn stats(&self) -> NearStats {
        let found = self.cached.get().map_or(0, |cached| cached.stats().hits);
        let misses = self.misses.load(Relaxed);
        // Saturating: the counters are read one by one, while others change them.
        let values = found.saturating_sub(self.outdated.load(Relaxed) + misses);
        let bypassed = self.bypassed.load(Relaxed);
        NearStats { values, misses, invalidations: self.invalidations.changes_received(), bypassed }
    }
}

/// Looks up a cached answer for a user's key by [`DynNearCache::poll_cached`]. A key that cannot be encoded is answered
/// with the error.
#[inline]
pub(super) fn poll_cached<Q, V>(
    near: &Arc<dyn DynNearCache<V>>,
    key: &Q,
    cx: &mut Context<'_>,
    found: &mut PollGet<V>,
) -> Poll<bool>
where
    Q: Serialize + ?Sized,
{
    let mut is_cached = Poll::Pending;
    if let Err(error) = with_key(key, |key| is_cached = near.poll_cached(key, cx, found)) {
        (*found, is_cached) = (Poll::Ready(Err(error)), Poll::Ready(true));
    }
    is_cached
}

/// Returns the cached answer, if there is one that may be used.
pub(super) async fn cached<T>(
    mut poll_cached: impl FnMut(&mut Context<'_>, &mut Poll<Result<T, Error>>) -> Poll<bool>,
) -> Result<Option<T>, Error> {
    poll_fn(|cx| {
        let mut found = Poll::Pending;
        match ready!(poll_cached(cx, &mut found)) {
            true => found.map_ok(Some),
            false => Poll::Ready(Ok(None)),
        }
    })
    .await
}
