//! Reads of a near cache that are in flight: one request per key for all callers that miss it.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::future::{FutureExt, Shared};
use tokio::{sync::oneshot, time::Instant};

use super::super::{
    Error,
    client::{Invalidations, KeyVersion},
};

/// Reads in flight of one near cache.
pub(super) struct InFlightReads<V>(Mutex<ReadMap<V>>);

type ReadMap<V> = HashMap<Key, InFlightRead<V>>;

pub(super) type Key = Box<[u8]>;

/// A read that callers may join while its key version is current: its reply is then no older than anything they have
/// seen.
struct InFlightRead<V> {
    version: KeyVersion,
    answer: Answer<V>,
}

/// Reply to a read: the live value, and the time at which it expires, if it does.
#[derive(Clone)]
pub(super) struct LiveReply<V> {
    pub(super) value: Option<V>,
    pub(super) expires_at: Option<Instant>,
    /// True if the value has tags: only callers that started before the read may return it, because a tag may have been
    /// removed since then.
    pub(super) is_tagged: bool,
}

/// Answer of a read, shared by its callers. An error if the task that read was cancelled or panicked.
pub(super) type Answer<V> = Shared<oneshot::Receiver<Arc<Result<LiveReply<V>, Error>>>>;

/// The caller that sends the request of a key for all callers.
pub(super) struct ReadLeader<V> {
    // Declared first, so that it is dropped before `sender`: a caller that is woken by the answer and reads again finds
    // the cached answer, and cannot join this finished read.
    entry: RemoveOnDrop<V>,
    sender: oneshot::Sender<Arc<Result<LiveReply<V>, Error>>>,
}

/// Removes a read when dropped, so that no further caller joins it.
struct RemoveOnDrop<V> {
    reads: Arc<InFlightReads<V>>,
    key: Key,
    version: KeyVersion,
}

impl<V> InFlightReads<V> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::default()))
    }

    /// Joins the read in flight, or starts one. In the second case, the caller gets a [`ReadLeader`] and must send the
    /// request.
    pub(super) fn join(
        self: &Arc<Self>,
        key: &[u8],
        invalidations: &Invalidations,
    ) -> (Answer<V>, Option<ReadLeader<V>>) {
        let mut reads = self.lock();
        if let Some(read) = reads.get(key)
            && invalidations.is_current(read.version)
        {
            return (read.answer.clone(), None);
        }
        // Taken before the request is sent, so that every later change makes it outdated.
        let version = invalidations.version(key);
        let (sender, answer) = oneshot::channel();
        let answer = answer.shared();
        let key: Key = key.into();
        // A replaced read continues for the callers that wait for it.
        let old = reads.insert(key.clone(), InFlightRead { version, answer: answer.clone() });
        drop(reads);
        drop(old);
        let entry = RemoveOnDrop { reads: self.clone(), key, version };
        (answer, Some(ReadLeader { entry, sender }))
    }

    /// No user code runs under this lock, so that a poisoned one is still consistent.
    fn lock(&self) -> MutexGuard<'_, ReadMap<V>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<V> ReadLeader<V> {
    pub(super) fn key(&self) -> &[u8] {
        &self.entry.key
    }

    /// Returns the key version from before the request.
    pub(super) fn version(&self) -> KeyVersion {
        self.entry.version
    }

    pub(super) fn send(self, answer: Result<LiveReply<V>, Error>) {
        // First: a caller that the answer wakes must not join this read again.
        drop(self.entry);
        // All callers may have been dropped.
        let _ = self.sender.send(Arc::new(answer));
    }
}

impl<V> AsRef<[u8]> for ReadLeader<V> {
    fn as_ref(&self) -> &[u8] {
        self.key()
    }
}

impl<V> Drop for RemoveOnDrop<V> {
    fn drop(&mut self) {
        let mut reads = self.reads.lock();
        // A newer read may have replaced this one after its key version was invalidated.
        let finished = match reads.entry(std::mem::take(&mut self.key)) {
            Entry::Occupied(read) if read.get().version == self.version => {
                Some(read.remove_entry())
            }
            _ => None,
        };
        drop(reads);
        // Dropped after unlock, since the answer may hold a value with a `Drop` of the user.
        drop(finished);
    }
}
