//! What is kept of a cache in this process, while the server tells of changes: a bounded embedded cache, and one question
//! a key for all who miss it.
//!
//! An answer is kept with the mark (`client/marks`) that was taken before the question, and is used while that stands. So
//! nothing has to be taken out: what has changed is not found any more, and leaves by its age.

use std::{
    collections::{HashMap, hash_map::Entry},
    future::poll_fn,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::future::{BoxFuture, FutureExt, Shared};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{sync::oneshot, time::Instant};

use super::{
    super::{
        Error, Format,
        client::{Feed, Mark},
        codec::with_key,
    },
    commands::Commands,
    flights::same,
    stats::{Counts, NearStats},
};
use crate::cache::Cache;

/// What the handles ask. As a trait, since only who builds a near cache says what values have to be for that.
pub(super) trait Near<V>: Counts {
    /// What is kept and may be used: of a value, or that there is none.
    fn poll_kept(&self, key: &[u8], cx: &mut Context<'_>) -> Poll<Option<Option<V>>>;

    /// The live value of a key, as the server says; kept if it may be.
    fn read(self: Arc<Self>, key: Vec<u8>) -> BoxFuture<'static, Result<Option<V>, Error>>;
}

/// The settings of a near cache.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) max_entries: usize,
    pub(super) max_age: Duration,
}

/// Makes one for values of a type.
pub(super) type Make<V> = fn(Settings, Arc<Commands>, Format, String) -> Arc<dyn Near<V>>;

pub(super) struct NearCache<V> {
    settings: Settings,
    commands: Arc<Commands>,
    /// That of the client of `commands`: a look-up would have to follow three pointers to it.
    feed: Arc<Feed>,
    format: Format,
    name: String,
    /// Made with the first question: a cache needs a runtime, and nobody has to have one who builds this.
    kept: OnceLock<Cache<Key, Kept<V>>>,
    asked: Mutex<Asked<V>>,
    /// Of what was found in `kept`, what might not be used, and that there was no value.
    fallen: AtomicU64,
    misses: AtomicU64,
    not_kept: AtomicU64,
}

type Key = Box<[u8]>;

#[derive(Clone)]
struct Kept<V> {
    value: Option<V>,
    mark: Mark,
}

/// The keys that the server is asked about.
type Asked<V> = HashMap<Key, Question<V>>;

/// Who comes while its mark stands has the same answer: it is no older than anything that he can know.
struct Question<V> {
    mark: Mark,
    answer: Answer<V>,
}

type Answer<V> = Shared<oneshot::Receiver<Arc<Result<Option<V>, Error>>>>;

/// Nobody waits for a question from then on who has not begun to.
struct End<V> {
    near: Arc<NearCache<V>>,
    key: Key,
    mark: Mark,
}

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
            asked: Mutex::default(),
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

    /// Joins the question that is under way, or begins one, by a task of its own: nobody's drop ends it.
    fn ask(self: Arc<Self>, key: &[u8]) -> Answer<V> {
        let mut asked = lock(&self.asked);
        if let Some(question) = asked.get(key)
            && self.feed.stands(question.mark)
        {
            return question.answer.clone();
        }
        // Before the server is asked.
        let mark = self.feed.mark(key);
        let (tell, answer) = oneshot::channel();
        let answer = answer.shared();
        let key: Key = key.into();
        // What it takes the place of is waited for, and goes on.
        let old = asked.insert(key.clone(), Question { mark, answer: answer.clone() });
        drop(asked);
        drop(old);
        let end = End { near: self.clone(), key: key.clone(), mark };
        tokio::spawn(async move {
            let answer = self.answer(key, mark).await;
            // After what was kept can be found, and before anybody who is told can ask again.
            drop(end);
            // Nobody may wait any more.
            let _ = tell.send(Arc::new(answer));
        });
        answer
    }

    async fn answer(&self, key: Key, mark: Mark) -> Result<Option<V>, Error> {
        // What is kept dies no later than on the server, and is no older than it may be: so both count from here.
        let begin = Instant::now();
        let (get, ttl) = (self.commands.get(&key), self.commands.ttl(&key));
        let answer = get.send_both::<Option<Vec<u8>>, i64>(ttl, &self.commands.client).await;
        let answer = answer.and_then(|(value, ttl, is_told)| {
            let record = || self.commands.keyspace.record(&key);
            let value = value.map(|value| self.format.decode(&value, record)).transpose()?;
            Ok((value, ttl, is_told))
        });
        let (value, ttl, is_told) = match answer {
            Ok(answer) => answer,
            Err(error) => {
                self.feed.fall(&key);
                return Err(error);
            }
        };
        let max_age = self.settings.max_age;
        let lives_for = match (&value, ttl) {
            (None, _) | (Some(_), -1) => max_age,
            // It has died between the two.
            (Some(_), ..-1) => Duration::ZERO,
            (Some(_), ttl) => max_age.min(Duration::from_millis(ttl.unsigned_abs())),
        };
        let until = begin.checked_add(lives_for);
        if is_told && !lives_for.is_zero() && self.feed.stands(mark) {
            let kept = Kept { value: value.clone(), mark };
            match until {
                Some(until) => self.kept().set_until(key, kept, until).await,
                None => self.kept().set(key, kept).await,
            };
        } else {
            // It may be newer than another that is kept.
            self.feed.fall(&key);
            self.not_kept.fetch_add(1, Relaxed);
        }
        Ok(value)
    }
}

impl<V: Clone + DeserializeOwned + Send + Sync + 'static> Near<V> for NearCache<V> {
    fn poll_kept(&self, key: &[u8], cx: &mut Context<'_>) -> Poll<Option<Option<V>>> {
        let Some(kept) = self.kept.get() else { return Poll::Ready(None) };
        let found = ready!(std::pin::pin!(kept.get(key)).poll(cx));
        Poll::Ready(found.and_then(|Kept { value, mark }| {
            // After it was found: who has seen a change before this call has moved the mark by now.
            if !self.feed.stands(mark) {
                self.fallen.fetch_add(1, Relaxed);
                return None;
            }
            if value.is_none() {
                self.misses.fetch_add(1, Relaxed);
            }
            Some(value)
        }))
    }

    fn read(self: Arc<Self>, key: Vec<u8>) -> BoxFuture<'static, Result<Option<V>, Error>> {
        async move {
            let answer = self.clone().ask(&key).await;
            match answer {
                Ok(answer) => match &*answer {
                    Ok(value) => Ok(value.clone()),
                    Err(error) => Err(same(error)),
                },
                // What decodes the value has panicked, or a runtime is gone: here it may do so in its caller's place.
                Err(_) => {
                    let call = self.commands.get(&key);
                    let value: Option<Vec<u8>> =
                        call.send_idempotent(&self.commands.client).await?;
                    let record = || self.commands.keyspace.record(&key);
                    value.map(|value| self.format.decode(&value, record)).transpose()
                }
            }
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

impl<V> Drop for End<V> {
    fn drop(&mut self) {
        let mut asked = lock(&self.near.asked);
        // Another may have taken its place, as its mark had fallen.
        let over = match asked.entry(std::mem::take(&mut self.key)) {
            Entry::Occupied(question) if question.get().mark == self.mark => {
                Some(question.remove_entry())
            }
            _ => None,
        };
        drop(asked);
        // It may hold a value.
        drop(over);
    }
}

/// What is kept of a key, if that may be used.
#[inline]
pub(super) async fn kept<Q, V>(near: &Arc<dyn Near<V>>, key: &Q) -> Result<Option<Option<V>>, Error>
where
    Q: Serialize + ?Sized,
{
    poll_fn(|cx| {
        let kept = match with_key(key, |key| near.poll_kept(key, cx)) {
            Ok(kept) => ready!(kept),
            Err(error) => return Poll::Ready(Err(error)),
        };
        Poll::Ready(Ok(kept))
    })
    .await
}

/// Nothing of users runs under it.
fn lock<V>(asked: &Mutex<Asked<V>>) -> MutexGuard<'_, Asked<V>> {
    asked.lock().unwrap_or_else(PoisonError::into_inner)
}
