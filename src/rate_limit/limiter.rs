use std::{
    borrow::Borrow,
    fmt,
    hash::{BuildHasher, Hash},
    num::NonZeroU64,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, ready},
};

use super::{
    Limit, Limited, Permit, Standing, State, Window,
    algorithm::{Algorithm, Left, Rule},
    key_state::{Charged, Denied, States},
    per_limit::PerLimit,
    permit::{Refund, Registered},
    stats::{Counts, LimiterStats},
    waiting::Waiting,
};
use crate::engine::{
    clock::{Deadline, LazyNow, Now, Tick},
    coop,
    panics::drop_all,
    state::SharedState,
    store::{Cause, Entry, Location, Store, Vacant},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// How often it is logged at most that calls are denied, in nanoseconds.
const LOG_EVERY: u64 = 1_000_000_000;

/// How many entries a new key at the bound looks through for one that has left.
const LOOK_FOR_ROOM: usize = 512;

/// A limiter of one way to count.
pub(crate) struct Limiter<K, A, S> {
    shared: Arc<SharedState<K, States<A>, S>>,
    window: Window,
    limits: Box<[Limit]>,
    /// The limits as the window counts them.
    rules: Box<[Rule]>,
    least_quota: u32,
    /// What keys beyond the bound share.
    overflow: Mutex<States<A>>,
    /// Until which tick something of it is in use.
    overflow_until: AtomicU64,
    pub(super) waiting: Waiting<K, S>,
    /// Beside the store's shards, one each; written under the shard's lock.
    counts: Box<[Counts]>,
    overflow_counts: Counts,
    refunds: AtomicU64,
    next_state: AtomicU64,
    /// No denial is logged before this tick.
    silent_until: AtomicU64,
    /// How many denials there were when the last one was logged.
    logged: AtomicU64,
    registered: Registered,
}

/// A check under way.
struct Ask<'a> {
    place: Location,
    rules: &'a [Rule],
    cost: u32,
    now: LazyNow<'a>,
}

impl<K, A, S> Limiter<K, A, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    A: Algorithm,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    pub(super) fn new(
        shared: Arc<SharedState<K, States<A>, S>>,
        window: Window,
        limits: Vec<Limit>,
        hasher: S,
    ) -> Arc<Self> {
        Arc::new_cyclic(|limiter: &Weak<Self>| Self {
            window,
            rules: limits.iter().map(|limit| Rule::new(limit, window)).collect(),
            least_quota: least_quota(&limits),
            overflow: Mutex::new(States::new(0, limits.len())),
            limits: limits.into(),
            waiting: Waiting::new(hasher),
            counts: (0..shared.store.shard_count()).map(|_| Counts::default()).collect(),
            shared,
            overflow_until: AtomicU64::new(0),
            overflow_counts: Counts::default(),
            refunds: AtomicU64::new(0),
            next_state: AtomicU64::new(1),
            silent_until: AtomicU64::new(0),
            logged: AtomicU64::new(0),
            registered: Registered::new(limiter.clone()),
        })
    }

    /// Charges `cost` to `key` by the limiter's own limits, or tells when to come again.
    #[inline(always)]
    pub(super) fn poll_check<Q>(
        &self,
        cx: &mut Context<'_>,
        key: &Q,
        cost: u32,
    ) -> Poll<Result<Permit, Limited>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let place = self.shared.store.place(key);
        // The counts of checks say whose turn it is: they do for both.
        let checks = self.counts[place.shard()].checks() + self.overflow_counts.checks();
        if checks.is_multiple_of(coop::PROCEED_EVERY) {
            ready!(coop::poll_proceed(cx));
        }
        if cost == 0 || cost > self.least_quota {
            ready!(coop::poll_proceed(cx));
            return Poll::Ready(self.uncounted(place, &self.limits, cost));
        }
        let ask = Ask { place, rules: &self.rules, cost, now: self.shared.clock.lazy_now() };
        Poll::Ready(self.check_by(ask, key, &self.limits, &mut |_, _| {}))
    }

    /// Charges `cost` to `key`, by the limiter's own limits where no others are given, or tells when to come
    /// again.
    pub(super) fn decide<Q>(
        &self,
        key: &Q,
        limits: Option<&[Limit]>,
        cost: u32,
    ) -> Result<Permit, Limited>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.decide_by(key, limits, cost, &mut |_, _| {})
    }

    /// As [`decide`](Limiter::decide), and tells what it left of each limit.
    #[cfg(feature = "axum")]
    pub(super) fn decide_and_look(
        &self,
        key: &K,
        limits: Option<&[Limit]>,
        cost: u32,
    ) -> (Result<Permit, Limited>, PerLimit<Left>) {
        let mut left = None;
        let mut look = |states: &States<A>, ask: &Ask<'_>| {
            left = Some(states.left(ask.rules, &ask.now));
        };
        let decided = self.decide_by(key, limits, cost, &mut look);
        (decided, left.unwrap_or_else(|| self.left(key, limits)))
    }

    /// What is left of each limit.
    #[cfg(feature = "axum")]
    pub(super) fn left(&self, key: &K, limits: Option<&[Limit]>) -> PerLimit<Left> {
        let rules = self.rules_of(limits.unwrap_or(&self.limits));
        let now = self.shared.clock.lazy_now();
        self.look(key, |states| states.left(&rules, &now))
    }

    pub(super) fn peek<Q>(&self, key: &Q, limits: Option<&[Limit]>) -> State
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let limits = limits.unwrap_or(&self.limits);
        let rules = self.rules_of(limits);
        let now = self.shared.clock.lazy_now();
        let (denied, left) = self
            .look(key, |states| (states.room(&rules, &now, 1).err(), states.left(&rules, &now)));
        let standing = |(left, limit): (&Left, &Limit)| Standing {
            limit: limit.clone(),
            remaining: left.remaining,
            more_at: left.more_at.map(|at| self.shared.clock.instant(at)),
        };
        State {
            standings: left.iter().zip(limits).map(standing).collect(),
            ready: denied.map(|denied| self.shared.clock.instant(denied.ready)),
        }
    }

    /// What a check of one unit would be told now, if it were told to wait.
    pub(super) fn limited<Q>(&self, key: &Q) -> Limited
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let now = self.shared.clock.lazy_now();
        let denied = self.look(key, |states| states.room(&self.rules, &now, 1).err());
        let denied = denied.unwrap_or_else(|| Denied { limit: 0, ready: now.tick() });
        self.limited_by(denied, &self.limits, 1)
    }

    pub(super) fn reset<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.shared.store.remove(key, &self.shared.clock, Cause::Removed).is_some()
    }

    pub(super) fn stats(&self) -> LimiterStats {
        let mut stats = LimiterStats {
            keys: self.shared.store.len(),
            overflowed: self.overflow_counts.checks(),
            refunded: self.refunds.load(Relaxed),
            ..LimiterStats::default()
        };
        for counts in self.counts.iter().chain([&self.overflow_counts]) {
            stats.add(counts);
        }
        stats
    }

    #[inline(never)]
    fn decide_by<Q>(
        &self,
        key: &Q,
        limits: Option<&[Limit]>,
        cost: u32,
        look: &mut impl FnMut(&States<A>, &Ask<'_>),
    ) -> Result<Permit, Limited>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let place = self.shared.store.place(key);
        let plan = limits.map(|limits| self.rules_of(limits));
        let rules = plan.as_deref().unwrap_or(&self.rules);
        let limits = limits.unwrap_or(&self.limits);
        if cost == 0 || cost > least_quota(limits) {
            return self.uncounted(place, limits, cost);
        }
        let ask = Ask { place, rules, cost, now: self.shared.clock.lazy_now() };
        self.check_by(ask, key, limits, look)
    }

    /// For a cost that is not 0, and above no quota. Calls `look` with what the key has in use then, under
    /// its shard's lock.
    #[inline(always)]
    fn check_by<Q>(
        &self,
        ask: Ask<'_>,
        key: &Q,
        limits: &[Limit],
        look: &mut impl FnMut(&States<A>, &Ask<'_>),
    ) -> Result<Permit, Limited>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let charge = |entry: &mut Entry<_>| self.charge(entry, &ask, look);
        let charged = match self.shared.store.change_any(ask.place, key, charge) {
            Ok(charged) => charged,
            Err(vacant) => self.charge_new(vacant, key, &ask, look),
        };
        match charged {
            Ok((state, charged)) => Ok(Permit {
                limiter: self.registered.0,
                hash: ask.place.hash(),
                state: NonZeroU64::new(state),
                charges: charged.charges,
                remaining: charged.remaining as u32,
            }),
            Err(denied) => {
                self.log_denial(&limits[denied.limit], &ask.now);
                Err(self.limited_by(denied, limits, ask.cost))
            }
        }
    }

    /// Charges the limits of a key, under its shard's lock. Returns which state was charged.
    #[inline(always)]
    fn charge(
        &self,
        entry: &mut Entry<States<A>>,
        ask: &Ask<'_>,
        look: &mut impl FnMut(&States<A>, &Ask<'_>),
    ) -> Result<(u64, Charged), Denied> {
        let charged = entry.value.charge(ask.rules, &ask.now, ask.cost);
        if let Some(idle) = entry.value.idle_from(ask.rules).map(Deadline::from)
            && idle.is_later_than(entry.deadline)
        {
            entry.deadline = idle;
        }
        self.counts[ask.place.shard()].count(charged.is_err());
        look(&entry.value, ask);
        charged.map(|charged| (entry.value.id, charged))
    }

    /// Charges the limits of a key that is not known yet.
    #[cold]
    #[inline(never)]
    fn charge_new<'a, Q>(
        &'a self,
        mut vacant: Vacant<'a, K, States<A>>,
        key: &Q,
        ask: &Ask<'_>,
        look: &mut impl FnMut(&States<A>, &Ask<'_>),
    ) -> Result<(u64, Charged), Denied>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let store = &self.shared.store;
        if store.is_full() {
            drop(vacant);
            if !self.make_room(ask.place) {
                return self.charge_overflow(ask, look);
            }
            // The key may be there by now.
            let charge = |entry: &mut Entry<_>| self.charge(entry, ask, look);
            vacant = match store.change_any(ask.place, key, charge) {
                Ok(charged) => return charged,
                Err(vacant) => vacant,
            };
        }
        let fresh = || {
            // A key that was beyond the bound takes along what it had in use there, as does any other new
            // one: nobody knows which they were.
            let overflow_until = Tick::from_nanoseconds(self.overflow_until.load(Relaxed));
            let mut states = match ask.now.has_reached(overflow_until) {
                true => States::new(0, ask.rules.len()),
                false => self.overflow().clone(),
            };
            states.id = self.next_state.fetch_add(1, Relaxed);
            let mut entry = Entry::new(states, ask.now.at_least().into());
            let charged = self.charge(&mut entry, ask, look);
            (entry, charged)
        };
        let charged = store.put_fresh(vacant, || key.to_owned(), fresh);
        charged.unwrap_or_else(|| self.charge_overflow(ask, look))
    }

    /// As a key beyond the bound.
    #[cold]
    fn charge_overflow(
        &self,
        ask: &Ask<'_>,
        look: &mut impl FnMut(&States<A>, &Ask<'_>),
    ) -> Result<(u64, Charged), Denied> {
        let mut shared = self.overflow();
        let charged = shared.charge(ask.rules, &ask.now, ask.cost);
        let until = shared.idle_from(ask.rules).map_or(0, Tick::nanoseconds);
        self.overflow_until.fetch_max(until, Relaxed);
        self.overflow_counts.count(charged.is_err());
        look(&shared, ask);
        charged.map(|charged| (shared.id, charged))
    }

    /// Lets some keys leave that are idle and not yet swept; tells whether there were any. It looks at so
    /// few that a flood of new keys can't make it costly.
    #[cold]
    fn make_room(&self, place: Location) -> bool {
        let store = &self.shared.store;
        let now = self.shared.clock.now();
        let mut idle = Vec::new();
        let mut looked_at = 0;
        for shard in 0..store.shard_count() {
            let mut visit =
                Store::<K, States<A>, S>::visit((place.shard() + shard) % store.shard_count());
            while !visit.is_done() && looked_at < LOOK_FOR_ROOM {
                let all = |buckets| buckets;
                let look = store.sweep_window(&mut visit, all, now, usize::MAX, true, &mut idle);
                looked_at += look.map_or(0, |look| look.looked_at);
                if !idle.is_empty() {
                    drop_all(idle);
                    return true;
                }
            }
        }
        false
    }

    /// Calls `look` with what `key` has in use.
    fn look<Q, R>(&self, key: &Q, look: impl FnOnce(&States<A>) -> R) -> R
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let store = &self.shared.store;
        store.inspect(store.place(key), key, |entry| match entry {
            Some(entry) => look(&entry.value),
            None => look(&self.overflow()),
        })
    }

    /// What costs nothing, or more than a quota.
    #[cold]
    fn uncounted(&self, place: Location, limits: &[Limit], cost: u32) -> Result<Permit, Limited> {
        match limits.iter().find(|limit| limit.quota() < cost) {
            Some(limit) => Err(Limited { limit: limit.clone(), cost, ready: None }),
            None => Ok(Permit {
                limiter: self.registered.0,
                hash: place.hash(),
                state: None,
                charges: PerLimit::Many([].into()),
                remaining: u32::MAX,
            }),
        }
    }

    #[inline]
    fn limited_by(&self, denied: Denied, limits: &[Limit], cost: u32) -> Limited {
        let ready = Some(self.shared.clock.lazy_instant(denied.ready));
        Limited { limit: limits[denied.limit].clone(), cost, ready }
    }

    fn rules_of(&self, limits: &[Limit]) -> PerLimit<Rule> {
        limits.iter().map(|limit| Rule::new(limit, self.window)).collect()
    }

    /// Writes that calls are denied, at most once in [`LOG_EVERY`].
    #[inline]
    fn log_denial(&self, limit: &Limit, now: &LazyNow<'_>) {
        let now = now.at_least();
        let silent_until = self.silent_until.load(Relaxed);
        if now.nanoseconds() < silent_until {
            return;
        }
        let next = now.later(LOG_EVERY).nanoseconds();
        if self.silent_until.compare_exchange(silent_until, next, Relaxed, Relaxed).is_ok() {
            let denied = self.stats().denied;
            let denials = denied - self.logged.swap(denied, Relaxed).min(denied);
            let limiter = self.shared.name();
            tracing::info!(limiter, denials, %limit, "calls are denied");
        }
    }

    fn overflow(&self) -> MutexGuard<'_, States<A>> {
        self.overflow.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K, A, S> Limiter<K, A, S> {
    pub(super) fn limits(&self) -> &[Limit] {
        &self.limits
    }

    #[cfg(feature = "axum")]
    pub(super) fn lazy_now(&self) -> LazyNow<'_> {
        self.shared.clock.lazy_now()
    }
}

impl<K, A, S> Refund for Limiter<K, A, S>
where
    K: Hash + Eq + Send + Sync,
    A: Algorithm,
    S: BuildHasher + Clone + Send + Sync,
{
    fn refund(&self, permit: &Permit) {
        let now = self.shared.clock.lazy_now();
        let refund = |states: &mut States<A>| {
            states.refund(&permit.charges, &now);
            self.refunds.fetch_add(1, Relaxed);
        };
        match permit.state {
            None => refund(&mut self.overflow.lock().unwrap_or_else(PoisonError::into_inner)),
            Some(id) => {
                let is_it = |states: &States<A>| states.id == id.get();
                let place = self.shared.store.place_of(permit.hash);
                self.shared.store.change_where(place, is_it, refund);
            }
        }
    }
}

impl<K, A, S> fmt::Debug for Limiter<K, A, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter")
            .field("name", &self.shared.name())
            .field("window", &self.window)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// 0 where there are no limits: then nothing is counted.
fn least_quota(limits: &[Limit]) -> u32 {
    limits.iter().map(Limit::quota).min().unwrap_or(0)
}
