//! Departures between the lock of a shard, under which they happen, and the streams that tell of them.

use std::{array, mem, vec::Drain};

use super::entry::{Cause, Departure};
use crate::engine::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::*},
};

/// How many parts a journal has for the departures of a crowd.
const PARTS: usize = if cfg!(shuttle) { 2 } else { 16 };

/// How many departures of a crowd gather in a part before somebody tells them, and how many at most.
const BATCH_LEN: usize = if cfg!(shuttle) { 2 } else { 32 };
const URGENT_LEN: usize = 8 * BATCH_LEN;

/// For how many departures a part keeps its memory.
const MAX_SPARE_CAPACITY: usize = 256;

/// For how many departures a crowd is taken to last.
const CONTENTION_SPAN: usize = if cfg!(shuttle) { 8 } else { 16_384 };

/// For how many two are taken to meet who may never again, as a writer and one who reads figures.
const FIRST_CONTENTION_SPAN: usize = if cfg!(shuttle) { 2 } else { 64 };

/// The departures nobody has been told of yet, in the order in which they happened.
///
/// 1. A departure is moved in here while its shard is locked, so the order of two departures of one key is
///    the order in which they happened; telling anybody waits until the shard is unlocked.
/// 2. Mostly there is one part, and each departure is due at once. Where several threads would tell at the same
///    time, they would wait for each other most of it. So a crowd has a part for each of some shards, in which
///    departures gather while nobody waits for them. Who asks, [takes](Self::take) them.
/// 3. All parts are locked where departures are taken from several, or there come to be more or fewer: what was
///    recorded first is not taken last.
pub(crate) struct Journal<K, V> {
    subscription: SubscriptionBits,
    flags: Flags,
    parts: [Part<K, V>; PARTS],
}

/// What verbs read, and who subscribes or waits writes. On cache lines of its own, as what is below.
#[repr(align(128))]
struct SubscriptionBits {
    /// The causes somebody wants to hear of, as bits; none without a subscriber.
    subscribed: AtomicU8,
    /// The causes somebody waits for, as bits.
    awaited: AtomicU8,
    /// Whether departures gather, in all the parts. Written where all are locked.
    is_batching: AtomicBool,
}

/// What is written each time that departures are told.
#[repr(align(128))]
struct Flags {
    /// Saves the locks where nothing happened.
    dirty: AtomicBool,
    /// Whether somebody is to tell what is here.
    due: AtomicBool,
    /// Whether that can't be left to the next one.
    urgent: AtomicBool,
    /// For how many departures more a crowd is taken to last.
    contention: AtomicUsize,
    /// Something dies before the sweeper would look again.
    wake_requested: AtomicBool,
}

/// On cache lines of its own: each departure writes one.
#[repr(align(128))]
struct Part<K, V>(Mutex<Vec<Departure<K, V>>>);

type LockedPart<'a, K, V> = MutexGuard<'a, Vec<Departure<K, V>>>;

/// Departures that were taken, and the memory for the next.
pub(crate) struct Taken<K, V> {
    parts: [Vec<Departure<K, V>>; PARTS],
    /// Whether they are in more parts than the first.
    is_batched: bool,
    /// Whether the crowd has gone, and with it the parts' need of memory.
    is_last: bool,
}

impl<K, V> Journal<K, V> {
    pub(crate) fn new() -> Self {
        let subscription = SubscriptionBits {
            subscribed: AtomicU8::new(0),
            awaited: AtomicU8::new(0),
            is_batching: AtomicBool::new(false),
        };
        let flags = Flags {
            dirty: AtomicBool::new(false),
            due: AtomicBool::new(false),
            urgent: AtomicBool::new(false),
            contention: AtomicUsize::new(0),
            wake_requested: AtomicBool::new(false),
        };
        Self { subscription, flags, parts: array::from_fn(|_| Part(Mutex::new(Vec::new()))) }
    }

    /// Relaxed is enough: who subscribed before a departure in program order is seen by it.
    #[inline]
    pub(crate) fn has_subscriber(&self, cause: Cause) -> bool {
        self.subscription.subscribed.load(Relaxed) & cause.bit() != 0
    }

    /// Keeps departures of these causes from now on, and has those that are `awaited` told at once. What was
    /// recorded before that was seen is there for who [takes](Self::take) afterwards.
    pub(crate) fn set_subscribed(&self, subscribed: u8, awaited: u8) {
        set(&self.subscription.subscribed, subscribed);
        set(&self.subscription.awaited, awaited);
    }

    /// Keeps a departure from a shard, or gives it back where nobody wants to hear of it.
    #[must_use = "what is given back must be dropped after the shard is unlocked"]
    pub(crate) fn record(
        &self,
        shard: usize,
        departure: Departure<K, V>,
    ) -> Option<Departure<K, V>> {
        let (cause, is_awaited) = (departure.cause, departure.waiters.is_some());
        if !self.has_subscriber(cause) && !is_awaited {
            return Some(departure);
        }
        let mut part = self.part_of(shard);
        part.push(departure);
        self.raise_flags(&part, 1, cause.bit(), is_awaited);
        None
    }

    /// Keeps all of `departures` from a shard, or leaves them where nobody wants to hear of `cause`.
    pub(crate) fn record_all(
        &self,
        shard: usize,
        cause: Cause,
        departures: &mut Vec<Departure<K, V>>,
    ) {
        let is_awaited = departures.iter().any(|departure| departure.waiters.is_some());
        if self.has_subscriber(cause) && !departures.is_empty() {
            let mut part = self.part_of(shard);
            let count = departures.len();
            part.append(departures);
            self.raise_flags(&part, count, cause.bit(), is_awaited);
        } else if is_awaited {
            self.record_subscribed(shard, departures);
        }
    }

    /// Keeps those of `departures` from a shard whose causes somebody wants to hear of, and leaves the others.
    pub(crate) fn record_subscribed(&self, shard: usize, departures: &mut Vec<Departure<K, V>>) {
        let (mut causes, mut is_awaited) = (0, false);
        let recorded = departures.extract_if(.., |departure| {
            is_awaited |= departure.waiters.is_some();
            let is_recorded = self.has_subscriber(departure.cause) || departure.waiters.is_some();
            causes |= if is_recorded { departure.cause.bit() } else { 0 };
            is_recorded
        });
        let mut part = self.part_of(shard);
        let before = part.len();
        part.extend(recorded);
        if causes != 0 {
            self.raise_flags(&part, part.len() - before, causes, is_awaited);
        }
    }

    /// Whether somebody is to tell what is here. What is not due waits until it is asked for, or for more.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.flags.due.load(Acquire)
    }

    /// Takes it on to tell what is due, unless somebody else has.
    pub(crate) fn claim(&self) -> bool {
        self.flags.due.swap(false, AcqRel)
    }

    /// Something dies before the sweeper would look again. Who flushes next wakes it.
    pub(crate) fn request_wake(&self) {
        self.flags.wake_requested.store(true, Release);
    }

    #[inline]
    pub(crate) fn is_wake_requested(&self) -> bool {
        self.flags.wake_requested.load(Acquire)
    }

    /// Whether it had been; it is not any more.
    pub(crate) fn take_wake_request(&self) -> bool {
        self.flags.wake_requested.swap(false, AcqRel)
    }

    #[inline]
    pub(crate) fn is_dirty(&self) -> bool {
        self.flags.dirty.load(Acquire)
    }

    /// Somebody else is telling. Whether what was claimed may be left to the next one to come.
    #[cold]
    pub(crate) fn note_contention(&self) -> bool {
        match self.flags.contention.load(Relaxed) {
            0 => self.flags.contention.store(FIRST_CONTENTION_SPAN, Relaxed),
            contention if contention <= CONTENTION_SPAN / 2 => {
                self.flags.contention.store(CONTENTION_SPAN, Relaxed)
            }
            _ => {}
        }
        self.subscription.is_batching.load(Relaxed) && !self.flags.urgent.load(Relaxed)
    }

    /// Takes what is here. One at a time calls this.
    pub(crate) fn take(&self, taken: &mut Taken<K, V>) {
        let contention = self.flags.contention.load(Relaxed);
        taken.is_batched = self.subscription.is_batching.load(Relaxed);
        if contention == 0 && !taken.is_batched {
            let mut part = lock(&self.parts[0]);
            // Under the lock, so that no departure is left behind by a flag that was just set.
            self.clear_flags();
            mem::swap(&mut *part, &mut taken.parts[0]);
            return;
        }
        let mut parts: [_; PARTS] = array::from_fn(|part| lock(&self.parts[part]));
        self.clear_flags();
        let mut count = 0;
        for (part, taken) in parts.iter_mut().zip(&mut taken.parts) {
            count += part.len();
            mem::swap(&mut **part, taken);
        }
        let remaining = contention.saturating_sub(count);
        taken.is_last = remaining == 0;
        if taken.is_last {
            parts[1..].iter_mut().for_each(|part| **part = Vec::new());
        }
        // Who has met others meanwhile has begun anew.
        let _ = self.flags.contention.compare_exchange(contention, remaining, Relaxed, Relaxed);
        if taken.is_batched != (remaining > 0) {
            self.subscription.is_batching.store(remaining > 0, Relaxed);
        }
    }

    /// Called in the lock after `count` departures were put in: who sees a flag finds what it tells of. Who awaits one
    /// of them by its key would not ask for it.
    #[inline]
    fn raise_flags(&self, part: &LockedPart<'_, K, V>, count: usize, causes: u8, is_awaited: bool) {
        let (subscription, flags) = (&self.subscription, &self.flags);
        raise(&flags.dirty);
        // What nobody wants any more is urgent too: nobody would ask for it.
        let urgent = subscription.awaited.load(Relaxed) | !subscription.subscribed.load(Relaxed);
        if part.len() >= URGENT_LEN || urgent & causes != 0 || is_awaited {
            // In this order, and whatever the second one was: who claims it must know.
            flags.urgent.store(true, Relaxed);
            flags.due.store(true, Release);
        } else if part.len() % BATCH_LEN < count || !subscription.is_batching.load(Relaxed) {
            raise(&flags.due);
        }
    }

    fn clear_flags(&self) {
        for flag in [&self.flags.dirty, &self.flags.due, &self.flags.urgent] {
            lower(flag);
        }
    }

    /// Locks the part for departures of a shard.
    #[inline]
    fn part_of(&self, shard: usize) -> LockedPart<'_, K, V> {
        loop {
            let is_batching = self.subscription.is_batching.load(Relaxed);
            let part = lock(&self.parts[if is_batching { shard % PARTS } else { 0 }]);
            // In the lock it stays as it is.
            if self.subscription.is_batching.load(Relaxed) == is_batching {
                return part;
            }
        }
    }
}

impl<K, V> Taken<K, V> {
    pub(crate) fn new() -> Self {
        Self { parts: array::from_fn(|_| Vec::new()), is_batched: false, is_last: false }
    }

    /// Gives out what was taken: that of one shard in the order in which it was recorded, all of it by when it left.
    pub(crate) fn drain(&mut self, mut each: impl FnMut(Departure<K, V>)) {
        if !self.is_batched {
            self.parts[0].drain(..).for_each(each);
            limit_spare_capacity(&mut self.parts[0]);
            return;
        }
        let mut parts = self.parts.each_mut().map(|part| part.drain(..));
        let next = |part: &Drain<'_, Departure<K, V>>| {
            let at = part.as_slice().first().map(|next| next.at.nanoseconds());
            at.map_or(u64::MAX, |at| at.min(u64::MAX - 1))
        };
        let mut earliest = parts.each_ref().map(next);
        loop {
            let first = (1..PARTS).fold(0, |a, b| if earliest[b] < earliest[a] { b } else { a });
            let Some(departure) = parts[first].next() else { break };
            earliest[first] = next(&parts[first]);
            each(departure);
        }
        drop(parts);
        self.parts.iter_mut().for_each(limit_spare_capacity);
        if self.is_last {
            self.parts[1..].iter_mut().for_each(|part| *part = Vec::new());
        }
    }
}

/// Keeps no more memory than one look of a sweep fills.
fn limit_spare_capacity<T>(part: &mut Vec<T>) {
    if part.capacity() > MAX_SPARE_CAPACITY {
        *part = Vec::new();
    }
}

fn lock<K, V>(part: &Part<K, V>) -> LockedPart<'_, K, V> {
    part.0.lock().expect("nothing panics while it moves a departure")
}

/// Writes only what is to change: all verbs read it.
#[inline]
fn set(bits: &AtomicU8, to: u8) {
    if bits.load(Relaxed) != to {
        bits.store(to, Relaxed);
    }
}

#[inline]
fn raise(flag: &AtomicBool) {
    if !flag.load(Relaxed) {
        flag.store(true, Release);
    }
}

fn lower(flag: &AtomicBool) {
    if flag.load(Relaxed) {
        flag.store(false, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::{clock::Tick, store::departure_signal::DepartureSignal};

    fn departure(key: u8, is_awaited: bool) -> Departure<u8, u8> {
        let (cause, at) = (Cause::Removed, Tick::EPOCH);
        let waiters = is_awaited.then(|| Box::new((Arc::new(DepartureSignal::new()), key)));
        Departure { key, value: 0, cause, deadline: at.into(), at, waiters }
    }

    /// In a crowd departures gather as long as nobody waits for them, and nobody asks for one that is awaited by its key.
    #[test]
    fn what_is_awaited_by_its_key_is_due_at_once_in_a_crowd_too() {
        let journal = Journal::new();
        let mut taken = Taken::new();
        journal.set_subscribed(Cause::Removed.bit(), 0);
        journal.note_contention();
        journal.take(&mut taken);
        assert!(journal.record(0, departure(1, false)).is_none() && !journal.is_due());
        assert!(journal.record(0, departure(2, true)).is_none() && journal.is_due());
        journal.take(&mut taken);
        taken.drain(drop);

        journal.record_all(1, Cause::Removed, &mut vec![departure(3, false)]);
        assert!(!journal.is_due());
        journal.record_all(1, Cause::Removed, &mut vec![departure(4, true)]);
        assert!(journal.claim());
        journal.record_subscribed(2, &mut vec![departure(5, false), departure(6, true)]);
        assert!(journal.claim());
        // Nor can it be left to the next one to come.
        assert!(!journal.note_contention());
    }
}
