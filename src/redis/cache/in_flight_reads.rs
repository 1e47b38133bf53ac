//! The keys that a near cache asks its server about: one question a key for all who miss it.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::future::{FutureExt, Shared};
use tokio::sync::oneshot;

use super::super::{
    Error,
    client::{Feed, Mark},
};

/// Of one near cache.
pub(super) struct Questions<V>(Mutex<Open<V>>);

type Open<V> = HashMap<Key, Question<V>>;

pub(super) type Key = Box<[u8]>;

/// Who comes while its mark stands has the same answer: it is no older than anything that he can know.
struct Question<V> {
    mark: Mark,
    answer: Answer<V>,
}

/// An error where who asked is gone.
pub(super) type Answer<V> = Shared<oneshot::Receiver<Arc<Result<Option<V>, Error>>>>;

/// Who asks about a key, for all who wait.
pub(super) struct Asker<V> {
    // First, and so dropped first: what was kept can be found by then, and nobody is told who could ask again and join.
    end: End<V>,
    tell: oneshot::Sender<Arc<Result<Option<V>, Error>>>,
}

/// Nobody waits for a question from then on who has not begun to.
struct End<V> {
    questions: Arc<Questions<V>>,
    key: Key,
    mark: Mark,
}

impl<V> Questions<V> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::default()))
    }

    /// Joins the question that is under way, or begins one: then somebody has to ask.
    pub(super) fn join(self: &Arc<Self>, key: &[u8], feed: &Feed) -> (Answer<V>, Option<Asker<V>>) {
        let mut open = self.lock();
        if let Some(question) = open.get(key)
            && feed.stands(question.mark)
        {
            return (question.answer.clone(), None);
        }
        // Before the server is asked.
        let mark = feed.mark(key);
        let (tell, answer) = oneshot::channel();
        let answer = answer.shared();
        let key: Key = key.into();
        // What it takes the place of is waited for, and goes on.
        let old = open.insert(key.clone(), Question { mark, answer: answer.clone() });
        drop(open);
        drop(old);
        let end = End { questions: self.clone(), key, mark };
        (answer, Some(Asker { end, tell }))
    }

    /// Nothing of users runs under it.
    fn lock(&self) -> MutexGuard<'_, Open<V>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<V> Asker<V> {
    pub(super) fn key(&self) -> &[u8] {
        &self.end.key
    }

    /// As of before the server is asked.
    pub(super) fn mark(&self) -> Mark {
        self.end.mark
    }

    pub(super) fn tell(self, answer: Result<Option<V>, Error>) {
        drop(self.end);
        // Nobody may wait any more.
        let _ = self.tell.send(Arc::new(answer));
    }
}

impl<V> AsRef<[u8]> for Asker<V> {
    fn as_ref(&self) -> &[u8] {
        self.key()
    }
}

impl<V> Drop for End<V> {
    fn drop(&mut self) {
        let mut open = self.questions.lock();
        // Another may have taken its place, as its mark had fallen.
        let over = match open.entry(std::mem::take(&mut self.key)) {
            Entry::Occupied(question) if question.get().mark == self.mark => {
                Some(question.remove_entry())
            }
            _ => None,
        };
        drop(open);
        // It may hold a value.
        drop(over);
    }
}
