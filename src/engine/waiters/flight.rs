//! Single flight: one load of one key, its waiters, and the writes and deadlines that take precedence over its value.
//!
//! 1. At any time at most one caller is the leader, and only the leader loads. If the leader is cancelled or panics,
//!    the flight is leaderless and one waiter is woken to become the leader. If no caller waits, the next one that
//!    joins becomes it.
//! 2. A write to the key increments the write version and supersedes a load that started before it. The result of a
//!    superseded load is not stored. It is returned only to callers that joined before the write; later ones wait until
//!    it finishes and look the key up again. So no two loads of a key run at the same time, and no caller gets a value
//!    that is older than a write it has seen.
//! 3. The removal of a tag counts as a write, too: of a tag of the value that is loaded again, even if an eviction or
//!    its deadline has removed that value from memory by then; and of a tag of the loaded value.
//! 4. A deadline that is set during the load is that of the loaded value. If it passes before the load ends, this
//!    counts as a write.
//! 5. A caller refuses only results of loads that began before its own call, so it waits for two loads at most. A
//!    flight that it joins after another one has been created since, so each of its loads is accepted.
//! 6. A background refresh leads a flight without a caller that drives it. If its runtime is not driven, a waiter ends
//!    the flight by [`end_refresh`](Flight::end_refresh). That counts as a write, so the refresh stores nothing later.
//!    A new refresh does not wait for the waiters of a leaderless flight, which may be kept without being polled: it
//!    ends that flight.

use std::{any::Any, mem, pin::pin, sync::Arc};

use tokio::sync::Notify;

use crate::engine::{
    clock::{Deadline, Now},
    shard::tags::TagSet,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

/// One load of one key. Shared by its leader and its followers.
pub(crate) struct Flight<V> {
    /// Number of writes to the key since the flight was created. Written under the lock of the key's shard, and
    /// compared under it when a result is stored, so Relaxed is enough.
    writes: AtomicU32,
    state: Mutex<State<V>>,
    notify: Notify,
}

struct State<V> {
    phase: Phase<V>,
    /// Write version at the start of the current load.
    started_at: u32,
    /// Tags of the value that the load replaces: the one that was live or within its stale window when the load
    /// started. None of them was removed then.
    replaced_tags: Option<TagSet>,
    /// Tags of the loaded value, unless it keeps those of the replaced one.
    loaded_tags: Option<TagSet>,
    /// Number of the first removal of one of the loaded tags during the load, before they were known; 0 if none was
    /// removed. See [`TaggedLoads`](super::tagged_loads::TaggedLoads).
    tag_removal: u64,
    /// Hard deadline that was set during the load.
    set_deadline: Option<Deadline>,
}

enum Phase<V> {
    Running,
    /// The leader is a background refresh.
    Refreshing,
    /// The leader has gone, and no other caller has taken its place yet.
    Leaderless,
    Finished(Arc<Finished<V>>),
    /// The flight has ended without a result, because its background refresh makes no progress, or because its waiters
    /// do not take the lead.
    Stalled,
}

/// The result of a flight.
struct Finished<V> {
    started_at: u32,
    tag_removal: u64,
    lookup: Lookup<V>,
}

/// Writes and removals of tags that preceded a caller's call. It accepts no load that began before them.
#[derive(Clone, Copy, Default)]
pub(crate) struct Preceding {
    write_version: u32,
    tag_removals: u64,
}

/// Result of a look-up that may join a flight, or of the wait for the flight. `L` belongs to a leader.
#[derive(Clone)]
pub(crate) enum Lookup<V, L = ()> {
    /// A live value was found.
    Live(V),
    /// The caller is the leader of the flight, and loads the value.
    Leader(L),
    /// The call runs inside the loader of the flight, and would wait for itself.
    Nested,
    /// The value was loaded.
    Loaded(V),
    /// The load has failed.
    Failed(LoadFailure),
    /// The flight has no result for this caller, which looks the key up again.
    Again,
}

/// An error of any loader's error type.
pub(crate) type LoadFailure = Arc<dyn Any + Send + Sync>;

impl<V> Flight<V> {
    /// Returns a flight whose creator is the leader, and whose load replaces a value with these tags.
    pub(crate) fn new(replaced_tags: Option<TagSet>) -> Self {
        Self::in_phase(Phase::Running, replaced_tags)
    }

    /// Returns a flight that a background refresh leads, and whose load replaces a value with these tags.
    pub(crate) fn of_refresh(replaced_tags: Option<TagSet>) -> Self {
        Self::in_phase(Phase::Refreshing, replaced_tags)
    }

    fn in_phase(phase: Phase<V>, replaced_tags: Option<TagSet>) -> Self {
        let state = State {
            phase,
            started_at: 0,
            replaced_tags,
            loaded_tags: None,
            tag_removal: 0,
            set_deadline: None,
        };
        Self { writes: AtomicU32::new(0), state: Mutex::new(state), notify: Notify::new() }
    }

    /// Starts the load of a caller that has taken the lead, which replaces a value with these tags. Called under the
    /// lock of the key's shard.
    pub(crate) fn restart(&self, replaced_tags: Option<TagSet>) {
        let mut state = self.state();
        // The removed tags are no longer counted, but the version must not decrease.
        let started_at = self.version(&state);
        self.writes.store(started_at, Relaxed);
        state.started_at = started_at;
        (state.replaced_tags, state.loaded_tags, state.tag_removal) = (replaced_tags, None, 0);
        state.set_deadline = None;
    }

    /// Returns what preceded the callers that accept the result of the current load.
    #[cfg(feature = "redis")]
    pub(crate) fn started(&self) -> Preceding {
        Preceding { write_version: self.state().started_at, tag_removals: 0 }
    }

    /// Makes the result that of a load that began when [`started`](Self::started) returned this.
    #[cfg(feature = "redis")]
    pub(crate) fn restart_at(&self, started: Preceding) {
        self.state().started_at = started.write_version;
    }

    /// Counts a write to the key. Called under the lock of its shard, so a load and a store suffice.
    pub(crate) fn bump_write_version(&self) {
        self.writes.store(self.writes.load(Relaxed) + 1, Relaxed);
    }

    /// Sets the hard deadline of the loaded value. Called under the lock of the key's shard.
    pub(crate) fn set_deadline(&self, deadline: Deadline) {
        self.state().set_deadline = Some(deadline);
    }

    /// Sets the tags of the loaded value, so that their removal counts as a write from now on.
    pub(crate) fn set_tags(&self, tags: Option<TagSet>) {
        self.state().loaded_tags = tags;
    }

    /// Records the first removal of a tag of the loaded value before [`set_tags`](Self::set_tags); 0 if there was none.
    pub(crate) fn set_tag_removal(&self, removal: u64) {
        self.state().tag_removal = removal;
    }

    /// Returns the tags of the value that the load replaces.
    pub(crate) fn replaced_tags(&self) -> Option<TagSet> {
        self.state().replaced_tags.clone()
    }

    /// Returns what precedes a caller that joins the flight now. Called under the lock of the key's shard.
    pub(crate) fn preceding(&self, tag_removals: u64) -> Preceding {
        Preceding { write_version: self.version(&self.state()), tag_removals }
    }

    /// Counts a deadline that was set during the load and has passed as a write. Called under the lock of the key's
    /// shard, before a caller joins that has perhaps seen the expiry.
    pub(crate) fn note_expiry(&self, now: &impl Now) {
        if self.state().set_deadline.take_if(|deadline| now.is_expired(*deadline)).is_some() {
            self.bump_write_version();
        }
    }

    /// Returns whether the current load began before a write that preceded the caller's call, which does not accept it.
    pub(crate) fn began_before(&self, preceding: Preceding) -> bool {
        self.state().started_at < preceding.write_version
    }

    /// Returns whether a write or the removal of a tag takes precedence over the load.
    pub(crate) fn is_superseded(&self) -> bool {
        self.was_superseded(&self.state())
    }

    fn was_superseded(&self, state: &State<V>) -> bool {
        state.tag_removal > 0 || self.version(state) != state.started_at
    }

    /// Returns the hard deadline with which the loaded value is stored, given the one that its loader chose; `None` if
    /// it is not stored. Called under the lock of the key's shard.
    pub(crate) fn deadline_to_store(&self, chosen: Deadline, now: &impl Now) -> Option<Deadline> {
        let state = self.state();
        if self.was_superseded(&state) {
            return None;
        }
        match state.set_deadline {
            None => Some(chosen),
            Some(deadline) => (!now.is_expired(deadline)).then_some(deadline),
        }
    }

    /// Returns the number of writes and of removed tags. Tags are removed without a look at the entries or flights that
    /// have them, so they are counted here.
    fn version(&self, state: &State<V>) -> u32 {
        let tags = state.replaced_tags.iter().chain(&state.loaded_tags);
        let removed_tags = tags.flat_map(|tags| tags.iter()).filter(|tag| tag.is_removed()).count();
        self.writes.load(Relaxed) + removed_tags as u32
    }

    pub(crate) fn is_finished(&self) -> bool {
        matches!(self.state().phase, Phase::Finished(_) | Phase::Stalled)
    }

    /// Returns whether a background refresh leads the flight.
    pub(crate) fn is_refreshing(&self) -> bool {
        matches!(self.state().phase, Phase::Refreshing)
    }

    /// Ends a flight that a background refresh leads, and returns true; does nothing if it has another leader by now.
    /// Called under the lock of the key's shard; after the unlock, the caller wakes the waiters.
    pub(crate) fn end_refresh(&self) -> bool {
        let mut state = self.state();
        let is_refreshing = matches!(state.phase, Phase::Refreshing);
        if is_refreshing {
            self.bump_write_version();
            state.phase = Phase::Stalled;
        }
        is_refreshing
    }

    /// Ends a flight without a leader, and returns true; does nothing if it has one. Called under the lock of the key's
    /// shard. Its waiters were woken when it lost its leader.
    pub(crate) fn end_leaderless(&self) -> bool {
        let mut state = self.state();
        let is_leaderless = matches!(state.phase, Phase::Leaderless);
        if is_leaderless {
            state.phase = Phase::Stalled;
        }
        is_leaderless
    }

    pub(crate) fn wake_waiters(&self) {
        self.notify.notify_waiters();
    }

    /// Makes the flight leaderless, because its leader was cancelled or panicked, and wakes all waiters. The first one
    /// that is polled leads: a single one could be a future that is kept without being polled.
    pub(crate) fn abandon(&self) {
        let mut state = self.state();
        if let Phase::Stalled = state.phase {
            return;
        }
        state.phase = Phase::Leaderless;
        drop(state);
        self.notify.notify_waiters();
    }

    /// Ends the flight with a result of its leader, and wakes all waiters.
    pub(crate) fn finish(&self, lookup: Lookup<V>) {
        let mut state = self.state();
        let State { started_at, tag_removal, .. } = *state;
        let finished = Phase::Finished(Arc::new(Finished { started_at, tag_removal, lookup }));
        if let Phase::Stalled = state.phase {
            drop(state);
            return;
        }
        let before = mem::replace(&mut state.phase, finished);
        drop(state);
        debug_assert!(
            matches!(before, Phase::Running | Phase::Refreshing),
            "only the leader finishes a flight"
        );
        self.notify.notify_waiters();
    }

    /// Waits until the flight finishes or this waiter becomes its leader, which [restarts](Self::restart) it.
    ///
    /// Cancel safe: a waiter that is dropped has not changed the flight.
    pub(crate) async fn wait(&self, preceding: Preceding) -> Lookup<V>
    where
        V: Clone,
    {
        let finished = loop {
            // Registered before the phase is checked, so that no change after the check is missed.
            let mut notified = pin!(self.notify.notified());
            notified.as_mut().enable();
            match self.check_phase() {
                Some(Ok(finished)) => break finished,
                Some(Err(ended)) => return ended,
                None => notified.await,
            }
        };
        finished.lookup_for(preceding)
    }

    /// Returns the result, or takes the lead of a leaderless flight. `None` while a leader is loading.
    fn check_phase(&self) -> Option<Result<Arc<Finished<V>>, Lookup<V>>> {
        let mut state = self.state();
        match &state.phase {
            Phase::Running | Phase::Refreshing => None,
            Phase::Stalled => Some(Err(Lookup::Again)),
            Phase::Finished(finished) => Some(Ok(finished.clone())),
            Phase::Leaderless => {
                state.phase = Phase::Running;
                Some(Err(Lookup::Leader(())))
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State<V>> {
        self.state.lock().expect("no user code runs under this lock")
    }
}

impl<V: Clone> Finished<V> {
    /// Returns the result for a caller with these preceding writes.
    fn lookup_for(&self, preceding: Preceding) -> Lookup<V> {
        let is_newer = self.started_at >= preceding.write_version
            && (self.tag_removal == 0 || self.tag_removal > preceding.tag_removals);
        if is_newer { self.lookup.clone() } else { Lookup::Again }
    }
}
