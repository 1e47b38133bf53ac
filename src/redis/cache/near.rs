//! What is kept of a cache in this process, while the server tells of changes: a bounded embedded cache.
//!
//! An answer is kept with the mark (`client/marks`) that was taken before the question, and is used while that stands. So
//! nothing has to be taken out: what has changed is not found any more, and leaves by its age.

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
        client::{Feed, Mark},
        codec::with_key,
        error::is_divided,
        keyspace::{few_at_once, shard},
    },
    commands::{Commands, MANY},
    flights::same,
    in_flight_reads::{Answer, Asker, Key, Questions},
    stats::{Counts, NearStats},
};
use crate::{cache::Cache, engine::panics::caught};

/// Longer than a question takes by the client's timeout, as its task may be late.
const LATE: Duration = Duration::from_millis(500);

/// What the handles ask. As a trait, since only who builds a near cache says what values have to be for that.
pub(super) trait Near<V>: Counts {
    /// Whether anything is kept of the key that may be used. Then it is in `found`.
    fn poll_kept(&self, key: &[u8], cx: &mut Context<'_>, found: &mut Found<V>) -> Poll<bool>;

    /// The live value of a key, as the server says; kept if it may be.
    fn read(self: Arc<Self>, key: Vec<u8>) -> BoxFuture<'static, Result<Option<V>, Error>>;

    /// The same of several keys, in their order.
    fn read_many(
        self: Arc<Self>,
        keys: Vec<Vec<u8>>,
    ) -> BoxFuture<'static, Vec<Result<Option<V>, Error>>>;
}

/// The settings of a near cache.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) max_entries: usize,
    pub(super) max_age: Duration,
}

/// Makes one for values of a type.
pub(super) type Make<V> = fn(Settings, Arc<Commands>, Format, String) -> Arc<dyn Near<V>>;

/// What is kept: a value, or that there is none. It is no error, but what `get` returns, so that it is written where that
/// is to be: each move on the way would copy it.
pub(super) type Found<V> = Poll<Result<Option<V>, Error>>;

pub(super) struct NearCache<V> {
    settings: Settings,
    commands: Arc<Commands>,
    /// That of the client of `commands`: a look-up would have to follow three pointers to it.
    feed: Arc<Feed>,
    format: Format,
    name: String,
    /// Made with the first question: a cache needs a runtime, and nobody has to have one who builds this.
    kept: OnceLock<Cache<Key, Kept<V>>>,
    questions: Arc<Questions<V>>,
    /// Of what was found in `kept`, what might not be used, and that there was no value.
    fallen: AtomicU64,
    misses: AtomicU64,
    not_kept: AtomicU64,
}

#[derive(Clone)]
struct Kept<V> {
    value: Option<V>,
    mark: Mark,
}

/// What came of a question: the value as bytes, its TTL as of `PTTL`, and whether changes are told of since.
type Came = (Option<Vec<u8>>, i64, bool);

impl<V: Clone + DeserializeOwned + Send + Sync + 'static> NearCache<V> {
    pub(super) fn make(
        settings: Settings,
        commands: Arc<Commands>,
        format: Format,
        name: String,
    ) -> Arc<dyn Near<V>> {
        let feed = commands.client.feed().expect("its client was made with one").clone();
        Arc::new(Self {
            settings,
            commands,
            feed,
            format,
            name: format!("{name} near"),
            kept: OnceLock::new(),
            questions: Questions::new(),
            fallen: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            not_kept: AtomicU64::new(0),
        })
    }

    fn kept(&self) -> &Cache<Key, Kept<V>> {
        self.kept.get_or_init(|| {
            let builder = Cache::builder().max_entries(self.settings.max_entries);
            builder.publish([]).name(&*self.name).build()
        })
    }

    /// What one script can be about each.
    fn batches(&self, askers: Vec<Asker<V>>) -> Vec<Vec<Asker<V>>> {
        let is_cluster = self.commands.client.is_cluster();
        let mut batches: HashMap<u16, Vec<Vec<Asker<V>>>> = HashMap::new();
        for asker in askers {
            // In a cluster each shard is in a slot of its own.
            let of_shard = batches.entry(if is_cluster { shard(asker.key()) } else { 0 });
            let of_shard = of_shard.or_default();
            match of_shard.last_mut().filter(|batch| batch.len() < MANY) {
                Some(batch) => batch.push(asker),
                None => of_shard.push(vec![asker]),
            }
        }
        batches.into_values().flatten().collect()
    }

    /// Asks about one key.
    async fn answer(&self, asker: Asker<V>) {
        // What is kept dies no later than on the server, and is no older than it may be: so both count from here.
        let begin = Instant::now();
        let (get, ttl) = (self.commands.get(asker.key()), self.commands.ttl(asker.key()));
        let came = get.send_both(ttl, &self.commands.client).await;
        self.settle(asker, begin, came).await;
    }

    /// Asks about several keys, which are in one slot if that matters.
    async fn answer_many(&self, mut askers: Vec<Asker<V>>) {
        while !askers.is_empty() {
            let begin = Instant::now();
            let call = self.commands.read_many(&askers);
            let page = call.send_told::<(Vec<Option<Vec<u8>>>, Vec<i64>)>(&self.commands.client);
            let ((values, ttls), is_told) = match page.await {
                Ok(page) => page,
                Err(Error::Unavailable(cause)) if is_divided(&cause) => {
                    join_all(askers.into_iter().map(|asker| self.answer(asker))).await;
                    return;
                }
                Err(error) => {
                    let all = askers.into_iter();
                    join_all(all.map(|asker| self.settle(asker, begin, Err(same(&error))))).await;
                    return;
                }
            };
            // At least one, or it would not end.
            let rest = askers.split_off(values.len().max(1).min(askers.len()));
            let came = values.into_iter().zip(ttls);
            for (asker, (value, ttl)) in std::mem::replace(&mut askers, rest).into_iter().zip(came)
            {
                let came = match ttl {
                    -3 => {
                        let key = self.commands.keyspace.record(asker.key());
                        let key = String::from_utf8_lossy(&key).into_owned();
                        Err(Error::WrongType { key })
                    }
                    _ => Ok((value, ttl, is_told)),
                };
                // Values are of users. Who waits for one that panics asks by itself, and has the panic in its own place.
                let _ = caught(self.settle(asker, begin, came)).await;
            }
        }
    }

    /// Keeps what came of a question that was sent after `begin`, if it may be kept, and tells it to those who wait.
    async fn settle(&self, asker: Asker<V>, begin: Instant, came: Result<Came, Error>) {
        let (key, mark) = (asker.key(), asker.mark());
        let came = came.and_then(|(value, ttl, is_told)| {
            let record = || self.commands.keyspace.record(key);
            let value = value.map(|value| self.format.decode(&value, record)).transpose()?;
            Ok((value, ttl, is_told))
        });
        let (value, ttl, is_told) = match came {
            Ok(came) => came,
            Err(error) => {
                self.feed.fall(key);
                return asker.tell(Err(error));
            }
        };
        let max_age = self.settings.max_age;
        let lives_for = match (&value, ttl) {
            (None, _) | (Some(_), -1) => max_age,
            // It has died between the two.
            (Some(_), ..-1) => Duration::ZERO,
            (Some(_), ttl) => max_age.min(Duration::from_millis(ttl.unsigned_abs())),
        };
        if is_told && !lives_for.is_zero() && self.feed.stands(mark) {
            let kept = Kept { value: value.clone(), mark };
            match begin.checked_add(lives_for) {
                Some(until) => self.kept().set_until(key.into(), kept, until).await,
                None => self.kept().set(key.into(), kept).await,
            };
        } else {
            // It may be newer than another that is kept.
            self.feed.fall(key);
            self.not_kept.fetch_add(1, Relaxed);
        }
        asker.tell(Ok(value));
    }

    /// What a question has come to, which is our own or another's.
    async fn outcome(
        &self,
        key: &[u8],
        answer: Answer<V>,
        is_own: bool,
    ) -> Result<Option<V>, Error> {
        let answer = match is_own {
            true => answer.await.ok(),
            // Another's may be on a runtime that nobody drives.
            false => {
                let until = self.commands.client.deadline(None) + LATE;
                timeout_at(until, answer).await.ok().and_then(Result::ok)
            }
        };
        match answer {
            Some(answer) => match &*answer {
                Ok(value) => Ok(value.clone()),
                Err(error) => Err(same(error)),
            },
            // What decodes the value has panicked, or a runtime is gone: here it may do so in its caller's place.
            None => {
                let call = self.commands.get(key);
                let value: Option<Vec<u8>> = call.send_idempotent(&self.commands.client).await?;
                let record = || self.commands.keyspace.record(key);
                value.map(|value| self.format.decode(&value, record)).transpose()
            }
        }
    }
}

impl<V: Clone + DeserializeOwned + Send + Sync + 'static> Near<V> for NearCache<V> {
    fn poll_kept(&self, key: &[u8], cx: &mut Context<'_>, found: &mut Found<V>) -> Poll<bool> {
        let Some(kept) = self.kept.get() else { return Poll::Ready(false) };
        let Some(Kept { value, mark }) = ready!(std::pin::pin!(kept.get(key)).poll(cx)) else {
            return Poll::Ready(false);
        };
        // After it was found: who has seen a change before this call has moved the mark by now.
        if !self.feed.stands(mark) {
            self.fallen.fetch_add(1, Relaxed);
            return Poll::Ready(false);
        }
        if value.is_none() {
            self.misses.fetch_add(1, Relaxed);
        }
        *found = Poll::Ready(Ok(value));
        Poll::Ready(true)
    }

    fn read(self: Arc<Self>, key: Vec<u8>) -> BoxFuture<'static, Result<Option<V>, Error>> {
        async move {
            let (answer, asker) = self.questions.join(&key, &self.feed);
            let is_own = asker.is_some();
            if let Some(asker) = asker {
                // By a task of its own: nobody's drop ends it.
                let near = self.clone();
                tokio::spawn(async move { near.answer(asker).await });
            }
            self.outcome(&key, answer, is_own).await
        }
        .boxed()
    }

    fn read_many(
        self: Arc<Self>,
        keys: Vec<Vec<u8>>,
    ) -> BoxFuture<'static, Vec<Result<Option<V>, Error>>> {
        async move {
            let (mut answers, mut askers) = (Vec::with_capacity(keys.len()), Vec::new());
            for key in &keys {
                let (answer, asker) = self.questions.join(key, &self.feed);
                answers.push((answer, asker.is_some()));
                askers.extend(asker);
            }
            if !askers.is_empty() {
                let near = self.clone();
                tokio::spawn(async move {
                    let batches = near.batches(askers).into_iter();
                    few_at_once(batches.map(|askers| near.answer_many(askers))).await;
                });
            }
            let mut values = Vec::with_capacity(keys.len());
            for (key, (answer, is_own)) in keys.iter().zip(answers) {
                values.push(self.outcome(key, answer, is_own).await);
            }
            values
        }
        .boxed()
    }
}

impl<V: Clone + DeserializeOwned + Send + Sync + 'static> Counts for NearCache<V> {
    fn stats(&self) -> NearStats {
        let found = self.kept.get().map_or(0, |kept| kept.stats().hits);
        let misses = self.misses.load(Relaxed);
        let values = found.saturating_sub(self.fallen.load(Relaxed) + misses);
        let not_kept = self.not_kept.load(Relaxed);
        NearStats { values, misses, told_of: self.feed.told_of(), not_kept }
    }
}

/// As of [`Near`], of a key of a user: one that can't be a key is found to be none.
#[inline]
pub(super) fn poll_kept<Q, V>(
    near: &Arc<dyn Near<V>>,
    key: &Q,
    cx: &mut Context<'_>,
    found: &mut Found<V>,
) -> Poll<bool>
where
    Q: Serialize + ?Sized,
{
    let mut is_kept = Poll::Pending;
    if let Err(error) = with_key(key, |key| is_kept = near.poll_kept(key, cx, found)) {
        (*found, is_kept) = (Poll::Ready(Err(error)), Poll::Ready(true));
    }
    is_kept
}

/// What is kept, if that may be used.
pub(super) async fn kept<V>(
    mut poll_kept: impl FnMut(&mut Context<'_>, &mut Found<V>) -> Poll<bool>,
) -> Result<Option<Option<V>>, Error> {
    poll_fn(|cx| {
        let mut found = Poll::Pending;
        match ready!(poll_kept(cx, &mut found)) {
            true => found.map_ok(Some),
            false => Poll::Ready(Ok(None)),
        }
    })
    .await
}
