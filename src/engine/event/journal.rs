//! The journal: departures that were recorded under shard locks and are not yet published.

use std::{array, mem, vec::Drain};

use crate::engine::{
    event::departure::{Cause, Departure},
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::*},
    },
};

/// Number of parts of a journal, which are used while threads contend for it.
const PARTS: usize = if cfg!(shuttle) { 2 } else { 16 };

/// While batching: number of departures in a part that make it due, and the number that makes it urgent.
const BATCH_LEN: usize = if cfg!(shuttle) { 2 } else { 32 };
const URGENT_LEN: usize = 8 * BATCH_LEN;

/// Largest capacity that an emptied part keeps.
const MAX_SPARE_CAPACITY: usize = 256;

/// Number of departures for which batching continues after the last contention.
const CONTENTION_SPAN: usize = if cfg!(shuttle) { 8 } else { 16_384 };

/// The same after a single contention, which may be an accident, such as a writer that meets a reader of metrics.
const FIRST_CONTENTION_SPAN: usize = if cfg!(shuttle) { 2 } else { 64 };

/// Departures that are not yet published, in the order in which they happened.
///
/// 1. A departure is recorded while its shard is locked, so departures of one key are in the order in which they
///    happened. It is published after the unlock. Lock order: shard, then part; no lock is taken while a part is
///    locked.
/// 2. Without contention, all departures are in the first part and each is due at once. If several threads publish at
///    the same time, they mostly wait for each other. So under contention the journal batches: each part holds the
///    departures of some of the shards, and is due after a batch of them, unless a subscriber waits for one. A
///    subscriber that reads [takes](Self::take) them itself.
/// 3. `is_batching` changes only while all parts are locked, and recorders check it under the lock of their part.
///    [`take`](Self::take) locks all parts if it takes from several or changes `is_batching`. So of two departures of
///    one shard, the earlier one is never taken later.
pub(crate) struct Journal<K, V> {
    subscription: SubscriptionBits,
    flags: Flags,
    parts: [JournalPart<K, V>; PARTS],
}

/// The causes to record, read by every write and written by subscribers. Aligned like the fields below, so that these
/// flags do not share cache lines with often written ones.
#[repr(align(128))]
struct SubscriptionBits {
    /// Causes that any subscriber receives, as bits; 0 without subscribers.
    subscribed: AtomicU8,
    /// Causes that a parked subscriber waits for, as bits. They are due at once even while batching.
    awaited: AtomicU8,
    /// True if departures are batched, in all parts. Written only while all parts are locked.
    is_batching: AtomicBool,
}

/// Flags that are written whenever departures are published.
#[repr(align(128))]
struct Flags {
    /// True if any part may hold a departure. Lets readers skip the part locks.
    dirty: AtomicBool,
    /// True if the departures should be published now.
    due: AtomicBool,
    /// True if the thread that claims them must publish them itself, even if it has to wait for the log.
    urgent: AtomicBool,
    /// Number of departures for which contention is assumed to last.
    contention: AtomicUsize,
    /// True if the sleeping sweeper must be woken, because an entry expires before it would wake by itself.
    wake_requested: AtomicBool,
}

/// One part. On cache lines of its own, since each departure writes to one.
#[repr(align(128))]
struct JournalPart<K, V>(Mutex<Vec<Departure<K, V>>>);

type LockedPart<'a, K, V> = MutexGuard<'a, Vec<Departure<K, V>>>;

/// Departures that were taken from a journal. Reused, so that its buffers become those of the parts.
pub(crate) struct TakenDepartures<K, V> {
    parts: [Vec<Departure<K, V>>; PARTS],
    /// True if there may be departures in parts other than the first.
    is_batched: bool,
    /// True if contention has ended, so that the other parts need no buffers any more.
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
        Self { subscription, flags, parts: array::from_fn(|_| JournalPart(Mutex::new(Vec::new()))) }
    }

    /// Returns whether departures of this cause are recorded. Relaxed: a departure that happens after `set_subscribed`
    /// has returned sees its effect, and earlier ones are not for the new subscriber.
    #[inline]
    pub(crate) fn has_subscriber(&self, cause: Cause) -> bool {
        self.subscription.subscribed.load(Relaxed) & cause.bit() != 0
    }

    /// Sets the causes that are recorded from now on, and the causes that are due at once. Recorders may still see the
    /// previous sets for a moment. So a caller that is about to wait must [take](Self::take) again afterwards: a
    /// departure recorded before that may not have been flagged as due.
    pub(crate) fn set_subscribed(&self, subscribed: u8, awaited: u8) {
        set(&self.subscription.subscribed, subscribed);
        set(&self.subscription.awaited, awaited);
    }

    /// Records a departure from a shard, or returns it if it has no subscriber and no waiter.
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

    /// Records all of `departures` from a shard, which have the same cause. Without a subscriber for it, records only
    /// those with waiters and leaves the others in the vector.
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

    /// Records those of `departures` from a shard that have a subscriber or a waiter, and leaves the others in the
    /// vector.
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

    /// Returns whether departures should be published now. Others stay until a subscriber reads, or until there are
    /// more. Acquire: pairs with the Release store in `raise_flags`.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.flags.due.load(Acquire)
    }

    /// Claims the publication of due departures. Returns false if another thread has claimed it. Acquire: a thread that
    /// sees `due` must see the `urgent` that was stored before it.
    pub(crate) fn claim(&self) -> bool {
        self.flags.due.swap(false, AcqRel)
    }

    /// Requests that the sleeping sweeper is woken by the next flush. Release, and Acquire where the request is read:
    /// the sweeper that is woken must see the earliest expiry that was stored before.
    pub(crate) fn request_wake(&self) {
        self.flags.wake_requested.store(true, Release);
    }

    /// Returns whether a wake-up was requested.
    #[inline]
    pub(crate) fn is_wake_requested(&self) -> bool {
        self.flags.wake_requested.load(Acquire)
    }

    /// Returns whether a wake-up was requested, and clears the request.
    pub(crate) fn take_wake_request(&self) -> bool {
        self.flags.wake_requested.swap(false, AcqRel)
    }

    /// Returns whether any part may hold a departure. Acquire: pairs with the Release store in `raise`, after the
    /// departure was put in.
    #[inline]
    pub(crate) fn is_dirty(&self) -> bool {
        self.flags.dirty.load(Acquire)
    }

    /// Notes that another thread is publishing. Returns whether the claimed departures may stay until the next
    /// publication: only while batching, and if none is urgent.
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

    /// Takes all departures. The caller must hold the lock of the log, so there is one caller at a time.
    pub(crate) fn take(&self, taken: &mut TakenDepartures<K, V>) {
        let contention = self.flags.contention.load(Relaxed);
        taken.is_batched = self.subscription.is_batching.load(Relaxed);
        if contention == 0 && !taken.is_batched {
            let mut part = lock(&self.parts[0]);
            // Under the lock: a flag that a recorder sets after its departure was put in must not be cleared without
            // taking it.
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
        // Fails if another thread has noted contention in the meantime, whose longer span then stays.
        let _ = self.flags.contention.compare_exchange(contention, remaining, Relaxed, Relaxed);
        if taken.is_batched != (remaining > 0) {
            self.subscription.is_batching.store(remaining > 0, Relaxed);
        }
    }

    /// Sets the flags for `count` departures that were just put into `part`. Called under its lock, so that a thread
    /// that sees a flag finds the departures.
    #[inline]
    fn raise_flags(&self, part: &LockedPart<'_, K, V>, count: usize, causes: u8, is_awaited: bool) {
        let (subscription, flags) = (&self.subscription, &self.flags);
        raise(&flags.dirty);
        // Causes without a subscriber are urgent too: these departures have waiters by key, or their subscriber has
        // gone, so no subscriber would read them.
        let urgent = subscription.awaited.load(Relaxed) | !subscription.subscribed.load(Relaxed);
        if part.len() >= URGENT_LEN || urgent & causes != 0 || is_awaited {
            // In this order, and even if `due` is set already: the thread that claims `due` must see `urgent`.
            flags.urgent.store(true, Relaxed);
            flags.due.store(true, Release);
        } else if part.len() % BATCH_LEN < count || !subscription.is_batching.load(Relaxed) {
            raise(&flags.due);
        }
    }

    /// Clears all flags but the wake-up request. Relaxed: the part locks, held here and by recorders, order the flags.
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
            // Cannot change while a part is locked.
            if self.subscription.is_batching.load(Relaxed) == is_batching {
                return part;
            }
        }
    }
}

impl<K, V> TakenDepartures<K, V> {
    pub(crate) fn new() -> Self {
        Self { parts: array::from_fn(|_| Vec::new()), is_batched: false, is_last: false }
    }

    /// Passes each departure to `each`: those of one shard in the order in which they were recorded, those of several
    /// parts by time.
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

/// Drops the buffer of a part that grew beyond [`MAX_SPARE_CAPACITY`], which is as much as a step of a sweep records.
fn limit_spare_capacity<T>(part: &mut Vec<T>) {
    if part.capacity() > MAX_SPARE_CAPACITY {
        *part = Vec::new();
    }
}

fn lock<K, V>(part: &JournalPart<K, V>) -> LockedPart<'_, K, V> {
    part.0.lock().expect("no user code runs under the lock of a part")
}

/// Stores only a changed value, because every write reads this cache line.
#[inline]
fn set(bits: &AtomicU8, to: u8) {
    if bits.load(Relaxed) != to {
        bits.store(to, Relaxed);
    }
}

/// Sets a flag. Loads it first: while departures arrive faster than they are published, it is set already, and the load
/// keeps its cache line shared.
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

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::Arc;

    use super::super::departure::DepartureSignal;
    use super::*;
    use crate::engine::clock::Tick;

    fn departure(key: u8, is_awaited: bool) -> Departure<u8, u8> {
        let (cause, at) = (Cause::Removed, Tick::EPOCH);
        let waiters = is_awaited.then(|| Box::new((Arc::new(DepartureSignal::new()), key)));
        Departure { key, value: 0, cause, deadline: at.into(), at, waiters }
    }

    /// While batching, departures gather until a subscriber reads them. A departure awaited by its key would not be
    /// read by anyone, so it must be due at once.
    #[test]
    fn awaited_departure_is_urgent_under_contention() {
        let journal = Journal::new();
        let mut taken = TakenDepartures::new();
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
        // Nor may it be left to the next publication.
        assert!(!journal.note_contention());
    }

    /// The first contention may be an accident. Another one soon after it is not, so batching continues for longer.
    #[test]
    fn second_contention_lasts_longer_than_the_first() {
        let is_batching_after = |contentions: usize| {
            let journal = Journal::new();
            let mut taken = TakenDepartures::new();
            journal.set_subscribed(Cause::Removed.bit(), 0);
            (0..contentions).for_each(|_| assert!(!journal.note_contention()));
            journal.take(&mut taken);
            for _ in 0..FIRST_CONTENTION_SPAN {
                assert!(journal.record(0, departure(1, false)).is_none());
            }
            journal.take(&mut taken);
            journal.subscription.is_batching.load(Relaxed)
        };
        assert_eq!([1, 2].map(is_batching_after), [false, true]);
    }
}
