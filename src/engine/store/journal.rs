//! Departures between the lock of a shard, under which they happen, and the streams that tell of them.

use std::mem;

use super::entry::{Cause, Departure};
use crate::engine::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU8, Ordering::*},
};

/// How many departures gather where writers crowd.
const BATCH: usize = 64;

/// For how many departures a crowd is taken to last.
const CROWD: usize = 1_024;

/// The departures nobody has been told of yet, in the order in which they happened.
///
/// A departure is moved in here while its shard is locked, so the order of two departures of one key is
/// the order in which they happened; telling anybody waits until the shard is unlocked.
pub(crate) struct Journal<K, V> {
    /// The causes somebody wants to hear of, as bits; none without a subscriber.
    wanted: AtomicU8,
    /// The causes somebody waits for, as bits.
    awaited: AtomicU8,
    staged: Staged<K, V>,
}

/// On cache lines of its own: each departure writes it, and each verb asks what is above.
#[repr(align(128))]
struct Staged<K, V> {
    /// Whether who recorded a departure is to see to it that it is told.
    due: AtomicBool,
    /// Saves the lock where nothing happened.
    dirty: AtomicBool,
    pages: Mutex<Pages<K, V>>,
}

struct Pages<K, V> {
    departures: Vec<Departure<K, V>>,
    /// For how many departures more writers let them gather.
    crowd: usize,
}

impl<K, V> Journal<K, V> {
    pub(crate) fn new() -> Self {
        let pages = Pages { departures: Vec::new(), crowd: 0 };
        Self {
            wanted: AtomicU8::new(0),
            awaited: AtomicU8::new(0),
            staged: Staged {
                due: AtomicBool::new(false),
                dirty: AtomicBool::new(false),
                pages: Mutex::new(pages),
            },
        }
    }

    /// Relaxed is enough: who subscribed before a departure in program order is seen by it.
    #[inline]
    pub(crate) fn wants(&self, cause: Cause) -> bool {
        self.wanted.load(Relaxed) & cause.bit() != 0
    }

    /// Keeps departures of these causes from now on, and has those that are `awaited` told at once. What was
    /// recorded before that was seen is there for who [takes](Self::take) afterwards.
    pub(crate) fn want(&self, wanted: u8, awaited: u8) {
        // Without a need not written: every verb reads it.
        if self.wanted.load(Relaxed) != wanted {
            self.wanted.store(wanted, Relaxed);
        }
        if self.awaited.load(Relaxed) != awaited {
            self.awaited.store(awaited, Relaxed);
        }
    }

    /// Keeps a departure, or gives it back where nobody wants to hear of it.
    #[must_use = "what is given back must be dropped after the shard is unlocked"]
    pub(crate) fn record(&self, departure: Departure<K, V>) -> Option<Departure<K, V>> {
        let cause = departure.cause;
        if !self.wants(cause) {
            return Some(departure);
        }
        let mut pages = self.lock();
        pages.departures.push(departure);
        self.note(&mut pages, 1, cause.bit());
        None
    }

    /// Keeps all of `departures`, or leaves them where nobody wants to hear of `cause`.
    pub(crate) fn record_all(&self, cause: Cause, departures: &mut Vec<Departure<K, V>>) {
        if self.wants(cause) && !departures.is_empty() {
            let mut pages = self.lock();
            let count = departures.len();
            pages.departures.append(departures);
            self.note(&mut pages, count, cause.bit());
        }
    }

    /// Keeps those of `departures` whose causes somebody wants to hear of, and leaves the others.
    pub(crate) fn record_wanted(&self, departures: &mut Vec<Departure<K, V>>) {
        let wanted = departures.extract_if(.., |departure| self.wants(departure.cause));
        let mut pages = self.lock();
        let before = pages.departures.len();
        pages.departures.extend(wanted);
        let new = &pages.departures[before..];
        let (count, causes) =
            (new.len(), new.iter().fold(0, |causes, departure| causes | departure.cause.bit()));
        self.note(&mut pages, count, causes);
    }

    /// Whether something is to be told now. What is not waits until it is asked for, or for more: writers
    /// who tell each departure by itself spend most of their time waiting for each other.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.staged.due.load(Acquire)
    }

    #[inline]
    pub(crate) fn is_dirty(&self) -> bool {
        self.staged.dirty.load(Acquire)
    }

    /// Several writers are telling at once.
    #[cold]
    pub(crate) fn note_crowd(&self) {
        self.lock().crowd = CROWD;
    }

    /// Exchanges what is kept for `empty`, of which the memory is used for what comes next.
    pub(crate) fn take(&self, empty: &mut Vec<Departure<K, V>>) {
        debug_assert!(empty.is_empty(), "what was taken before must have been told");
        let mut pages = self.lock();
        // Under the lock, so that no departure is left behind by a flag that was just set.
        self.staged.due.store(false, Relaxed);
        self.staged.dirty.store(false, Relaxed);
        mem::swap(&mut pages.departures, empty);
    }

    /// Called in the lock after the departures are in: who sees a flag finds what it tells of.
    #[inline]
    fn note(&self, pages: &mut Pages<K, V>, count: usize, causes: u8) {
        if count == 0 {
            return;
        }
        pages.crowd = pages.crowd.saturating_sub(count);
        self.staged.dirty.store(true, Release);
        // What nobody wants any more is due too: nobody would ask for it.
        let urgent = self.awaited.load(Relaxed) | !self.wanted.load(Relaxed);
        let may_wait = pages.crowd > 0 && pages.departures.len() < BATCH && causes & urgent == 0;
        if !may_wait {
            self.staged.due.store(true, Release);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pages<K, V>> {
        self.staged.pages.lock().expect("nothing panics while it moves a departure")
    }
}
