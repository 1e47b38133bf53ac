//! Sequential model of one key: the effect of each action, and the departures that it publishes.

use fleeting::{Cause, When};

/// A departure that was published, as the value and its cause.
pub(crate) type Departed = (u32, Cause);

/// A live value. Deadlines are counted in hours, so that the time of a history does not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    pub(crate) value: u32,
    /// A bit per tag.
    pub(crate) tags: u8,
    /// `None` for a persistent value.
    pub(crate) hours: Option<u32>,
}

/// Something that a call did to one key at one time, with the results that its caller got.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    /// A read, or a load that found no value.
    Saw(Option<u32>),
    Contains(bool),
    /// `None` for a missing key, or for a value that expires at this moment.
    Ttl(Option<Option<u32>>),
    /// A write; `replaced` is `None` if the call returns nothing.
    Put {
        new: Entry,
        keeps_ttl: bool,
        replaced: Option<Option<u32>>,
    },
    PutIfAbsent {
        new: Entry,
        was_put: bool,
    },
    /// A removal; `taken` is `None` if the call does not return it.
    Take {
        cause: Cause,
        taken: Option<Option<u32>>,
    },
    /// `remove_if` with a predicate that saw a value or was not called.
    TakeIf {
        saw: Option<u32>,
        takes: bool,
    },
    /// `expire` and the like; zero hours expire the value.
    Expire {
        hours: u32,
        when: Option<When>,
        was_changed: bool,
    },
    Persist(bool),
    Extend {
        hours: u32,
        was_changed: bool,
    },
    GetEx {
        hours: u32,
        saw: Option<u32>,
    },
    Update {
        new: u32,
        old: Option<u32>,
    },
    /// `compute` that wrote (`Some(Some)`), removed (`Some(None)`) or kept (`None`) the value.
    Compute {
        saw: Option<u32>,
        writes: Option<Option<Entry>>,
    },
    RemoveTag(u8),
    /// A loader that will return `value` begins. Only a refresh begins although there is a live value. Without tags of
    /// its own, the value keeps those of the one that it replaces.
    BeginLoad {
        value: u32,
        is_refresh: bool,
        tags: Option<u8>,
    },
    /// The value of a load is stored, or discarded because the key was written in between. `may_discard`: a concurrent
    /// write may have done so, even if it took effect before the load began.
    EndLoad {
        value: u32,
        hours: u32,
        may_discard: bool,
    },
    /// A call returned the value that another call loaded, or a live value.
    Follow(u32),
    /// An eviction, at any time: the event does not tell when.
    Evict(u32),
    /// A change of the bound, which may evict. Has no other effect.
    SetBound,
}

/// A load in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Load {
    value: u32,
    /// Tags of the value that is loaded again.
    tags: u8,
    /// Tags of the loaded value, if it has its own.
    own_tags: Option<u8>,
    /// A write takes precedence over the loaded value.
    is_superseded: bool,
    /// Deadline that was set during the load, and takes precedence over its own.
    hours: Option<Option<u32>>,
}

/// State of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct State {
    entry: Option<Entry>,
    /// Number of departures so far.
    departures: usize,
    loads: Vec<Load>,
}

impl Action {
    /// Returns whether the action may supersede a load that began before it.
    pub(crate) fn is_write(&self) -> bool {
        !matches!(
            self,
            Self::Saw(_)
                | Self::Contains(_)
                | Self::Ttl(_)
                | Self::Follow(_)
                | Self::BeginLoad { .. }
                | Self::EndLoad { .. }
                | Self::Evict(_)
                | Self::SetBound
        )
    }
}

impl State {
    pub(crate) fn departures(&self) -> usize {
        self.departures
    }

    /// Returns the states in which `action` can leave the key with the results that it had; none if it cannot have had
    /// them. `events` are all departures of the key, if a subscriber received them.
    pub(crate) fn after(&self, action: &Action, events: Option<&[Departed]>) -> Vec<Self> {
        if let Action::EndLoad { value, hours, may_discard } = *action {
            return self.after_load(value, hours, may_discard, events);
        }
        let mut next = self.clone();
        match next.apply(action, events) {
            true => vec![next],
            false => vec![],
        }
    }

    fn value(&self) -> Option<u32> {
        self.entry.map(|entry| entry.value)
    }

    /// Applies an action that has one possible effect. Returns false if its results were others.
    fn apply(&mut self, action: &Action, events: Option<&[Departed]>) -> bool {
        let value = self.value();
        match *action {
            Action::Saw(saw) => value == saw,
            Action::Contains(is_live) => value.is_some() == is_live,
            Action::Ttl(ttl) => self.entry.map(|entry| entry.hours) == ttl,
            Action::Put { new, keeps_ttl, replaced } => {
                replaced.is_none_or(|replaced| replaced == value)
                    && self.put(new, keeps_ttl, events)
            }
            Action::PutIfAbsent { was_put: false, .. } => value.is_some(),
            Action::PutIfAbsent { new, was_put: true } => {
                value.is_none() && self.put(new, false, events)
            }
            Action::Take { cause, taken } => {
                self.supersede_loads();
                taken.is_none_or(|taken| taken == value) && self.depart(cause, events)
            }
            Action::TakeIf { saw, takes } => {
                if takes && saw.is_some() {
                    self.supersede_loads();
                }
                saw == value && (!takes || self.depart(Cause::Removed, events))
            }
            Action::RemoveTag(tag) => {
                for load in &mut self.loads {
                    load.is_superseded |= (load.tags | load.own_tags.unwrap_or(0)) & tag != 0;
                }
                let is_tagged = self.entry.is_some_and(|entry| entry.tags & tag != 0);
                !is_tagged || self.depart(Cause::Removed, events)
            }
            Action::Expire { hours, when, was_changed } => {
                self.holds(when, hours).is_none_or(|holds| holds == was_changed)
                    && (!was_changed || self.set_deadline(Some(hours), events))
            }
            Action::Persist(was_changed) => {
                let has_deadline = self.entry.is_some_and(|entry| entry.hours.is_some());
                has_deadline == was_changed && (!was_changed || self.set_deadline(None, events))
            }
            Action::Extend { hours: more, was_changed } => {
                let hours = self.entry.and_then(|entry| entry.hours).map(|hours| hours + more);
                hours.is_some() == was_changed && (!was_changed || self.set_deadline(hours, events))
            }
            Action::GetEx { hours, saw } => {
                saw == value && (value.is_none() || self.set_deadline(Some(hours), events))
            }
            Action::Update { new, old } => {
                if let Some(entry) = &mut self.entry {
                    entry.value = new;
                    self.supersede_loads();
                }
                old == value
            }
            Action::Compute { saw, writes: None } => saw == value,
            Action::Compute { saw, writes: Some(None) } => {
                self.supersede_loads();
                saw == value && self.depart(Cause::Removed, events)
            }
            Action::Compute { saw, writes: Some(Some(new)) } => {
                saw == value && self.put(new, false, events)
            }
            Action::BeginLoad { value: new, is_refresh, tags: own_tags } => {
                let tags = self.entry.map_or(0, |entry| entry.tags);
                let (is_superseded, hours) = (false, None);
                self.loads.push(Load { value: new, tags, own_tags, is_superseded, hours });
                is_refresh || value.is_none()
            }
            Action::EndLoad { .. } => unreachable!("has several possible effects"),
            Action::Follow(got) => {
                let is_loading = |load: &Load| load.value == got && !load.is_superseded;
                value == Some(got) || self.loads.iter().any(is_loading)
            }
            Action::SetBound => true,
            Action::Evict(evicted) => value == Some(evicted) && self.depart(Cause::Evicted, events),
        }
    }

    fn after_load(
        &self,
        value: u32,
        hours: u32,
        may_discard: bool,
        events: Option<&[Departed]>,
    ) -> Vec<Self> {
        let Some(at) = self.loads.iter().position(|load| load.value == value) else {
            return vec![];
        };
        let mut discarded = self.clone();
        let load = discarded.loads.remove(at);
        let Load { tags: replaced_tags, own_tags, is_superseded, hours: set, .. } = load;
        let mut states = vec![];
        if !is_superseded {
            let mut stored = discarded.clone();
            // Those of the value that was there when the load began, even if it has been evicted since.
            let tags = own_tags.unwrap_or(replaced_tags);
            let new = Entry { value, tags, hours: set.unwrap_or(Some(hours)) };
            if stored.put(new, false, events) {
                states.push(stored);
            }
        }
        if is_superseded || may_discard {
            states.push(discarded);
        }
        states
    }

    fn put(&mut self, mut new: Entry, keeps_ttl: bool, events: Option<&[Departed]>) -> bool {
        self.supersede_loads();
        if keeps_ttl {
            new.hours = self.entry.and_then(|entry| entry.hours);
        }
        let is_possible = self.depart(Cause::Replaced, events);
        self.entry = Some(new);
        is_possible
    }

    /// Sets the deadline of the live value, and of the value of a refresh in progress.
    fn set_deadline(&mut self, hours: Option<u32>, events: Option<&[Departed]>) -> bool {
        let Some(entry) = &mut self.entry else { return false };
        if hours == Some(0) {
            self.supersede_loads();
            return self.depart(Cause::Expired, events);
        }
        entry.hours = hours;
        self.loads.iter_mut().for_each(|load| load.hours = Some(hours));
        true
    }

    /// Returns whether the condition of `expire_if` holds; `None` if that depends on the time between two calls.
    fn holds(&self, when: Option<When>, hours: u32) -> Option<bool> {
        let Some(Entry { hours: current, .. }) = self.entry else { return Some(false) };
        let Some(when) = when else { return Some(true) };
        match (when, current) {
            (When::NoTtl, _) => Some(current.is_none()),
            (When::HasTtl, _) => Some(current.is_some()),
            (_, Some(current)) if current == hours => None,
            (When::Later, Some(current)) => Some(hours > current),
            (When::Sooner, Some(current)) => Some(hours < current),
            (_, None) => Some(when == When::Sooner),
            _ => None,
        }
    }

    fn supersede_loads(&mut self) {
        self.loads.iter_mut().for_each(|load| load.is_superseded = true);
    }

    /// Removes the live value, if there is one. Returns false if another departure was published at this place.
    fn depart(&mut self, cause: Cause, events: Option<&[Departed]>) -> bool {
        let Some(entry) = self.entry.take() else { return true };
        self.departures += 1;
        let Some(events) = events else { return true };
        events.get(self.departures - 1) == Some(&(entry.value, cause))
    }
}
