//! Registry of all named objects, and the thread that exports their metrics.
//!
//! Two exports must not overlap: an increase must be exported once, and a level must not be followed by an older one.
//! So each export waits for those that read before it.

use std::{
    collections::BTreeMap,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use metrics::{Key, Recorder, with_recorder};

#[cfg(feature = "dashboard")]
use super::reading::Reading;
use super::{
    export_order::ExportTurn,
    series::{Handle, Series},
    source::Source,
    values::MetricValues,
};

/// Interval of the exports.
const EVERY: Duration = Duration::from_millis(500);

static REGISTRY: Mutex<Registry> =
    Mutex::new(Registry { groups: BTreeMap::new(), next_id: 0, is_followed: false });

/// Serializes reads, so that no value is followed by an older one. Lock order: `TURN`, then the registry or the export
/// order.
static TURN: Mutex<()> = Mutex::new(());

/// Address of the global recorder, if known. `Relaxed`, because the address is only compared, never dereferenced.
static GLOBAL: AtomicUsize = AtomicUsize::new(0);

struct Registry {
    groups: BTreeMap<GroupId, Group>,
    next_id: u64,
    /// Whether the thread runs.
    is_followed: bool,
}

/// Kind (the name of the first series) and name.
type GroupId = (&'static str, String);

/// Objects of one kind and name.
struct Group {
    introduction: Introduction,
    members: BTreeMap<u64, Member>,
    /// Sum of the last values of dropped objects.
    ended: MetricValues,
    given: RecorderState,
}

struct Member {
    source: Weak<dyn Source>,
    last: MetricValues,
}

/// Series of a group, and their keys in a recorder.
#[derive(Clone)]
struct Introduction {
    series: &'static [Series],
    #[cfg(feature = "dashboard")]
    name: Arc<str>,
    keys: Arc<[Key]>,
}

/// Values that the global recorder has been given for a group.
#[derive(Default)]
struct RecorderState {
    recorder: usize,
    handles: Arc<OnceLock<Box<[Handle]>>>,
    values: MetricValues,
}

/// Update of a group for a recorder.
struct News {
    introduction: Introduction,
    handles: Arc<OnceLock<Box<[Handle]>>>,
    given: MetricValues,
    now: MetricValues,
}

/// Group and identifier of an object that still exists, and the object.
type Living = (GroupId, u64, Arc<dyn Source>);

/// Registration of an object, owned by it. Dropping it removes the object from the registry, so no memory is leaked.
#[derive(Debug)]
pub(crate) struct Registration {
    group: GroupId,
    id: u64,
}

/// Place of the registration in its object.
pub(crate) type Slot = OnceLock<Registration>;

/// Registers `source`, and starts the thread if it does not run.
pub(crate) fn register(
    series: &'static [Series],
    name: &str,
    source: Weak<dyn Source>,
    slot: &Slot,
) {
    let mut registry = registry();
    let id = registry.next_id;
    registry.next_id += 1;
    let group = (series[0].name, name.to_owned());
    // Cannot fail: an object is registered once.
    let _ = slot.set(Registration { group: group.clone(), id });
    let group = registry.groups.entry(group).or_insert_with(|| Group {
        introduction: Introduction {
            series,
            #[cfg(feature = "dashboard")]
            name: name.into(),
            keys: series.iter().map(|series| series.key(name)).collect(),
        },
        members: BTreeMap::new(),
        ended: MetricValues::default(),
        given: RecorderState::default(),
    });
    group.members.insert(id, Member { source, last: MetricValues::default() });
    if !mem::replace(&mut registry.is_followed, true) {
        drop(registry);
        follow();
    }
}

/// Reads all values and exports them to the recorder.
pub(super) fn publish() {
    with_recorder(|recorder| {
        let (news, living, teller) = read(Some(address(recorder)));
        // Before waiting, and under no lock: this may be the last handle of an object, and its drop runs user code.
        drop(living);
        teller.wait_for_earlier();
        for News { introduction, handles, given, now } in news {
            let handles = handles.get_or_init(|| introduction.introduce(recorder));
            now.tell(&given, handles);
        }
    });
}

/// Reads the values of all objects that still exist.
#[cfg(feature = "dashboard")]
pub(crate) fn look() -> Vec<Reading> {
    let (news, living, _) = read(None);
    let mut readings = Vec::new();
    let mut living = living.into_iter().peekable();
    // Both are sorted by group.
    for News { introduction, now: values, .. } in news {
        let (series, name) = (introduction.series, introduction.name);
        let mut sources = Vec::new();
        let is_of_it = |(group, ..): &Living| group.0 == series[0].name && group.1 == *name;
        while let Some((.., source)) = living.next_if(is_of_it) {
            sources.push(source);
        }
        if !sources.is_empty() {
            readings.push(Reading { name: name.to_string(), series, values, sources });
        }
    }
    readings
}

/// Reads all values. Returns the updates for the global recorder, or whole values for any other; the objects read, to
/// be dropped under no lock; and the turn of this export.
fn read(recorder: Option<usize>) -> (Vec<News>, Vec<Living>, ExportTurn) {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // A recorder of this thread only may be temporary, so nothing is remembered of it. The same holds if the global
    // recorder was replaced since this call began.
    let global = recorder.filter(|recorder| is_global(*recorder));
    let living = registry().living();
    let read = living.iter().map(|(_, _, source)| {
        let mut values = MetricValues::default();
        source.read(&mut values);
        values
    });
    let read: Vec<_> = read.collect();
    let news = registry().renew(&living, read, global);
    let teller = ExportTurn::new();
    drop(turn);
    (news, living, teller)
}

/// Starts the thread that exports twice per second while any object is registered.
fn follow() {
    let follow = || {
        loop {
            // Checked before the export, so that the last values of the last object are still exported.
            let is_followed = registry().is_followed();
            if catch_unwind(AssertUnwindSafe(publish)).is_err() {
                tracing::error!("metrics recorder panicked");
            }
            if !is_followed {
                break;
            }
            thread::sleep(EVERY);
        }
    };
    if let Err(error) = thread::Builder::new().name("fleeting-metrics".into()).spawn(follow) {
        tracing::error!(%error, "failed to spawn the metrics thread");
        registry().is_followed = false;
    }
}

impl Registry {
    fn living(&self) -> Vec<Living> {
        let members = self.groups.iter().flat_map(|(group, Group { members, .. })| {
            members.iter().filter_map(|(id, member)| {
                member.source.upgrade().map(|source| (group.clone(), *id, source))
            })
        });
        members.collect()
    }

    /// Stores the values read, and returns the resulting updates.
    fn renew(
        &mut self,
        living: &[Living],
        read: Vec<MetricValues>,
        global: Option<usize>,
    ) -> Vec<News> {
        for ((group, id, _), values) in living.iter().zip(read) {
            let group = self.groups.get_mut(group).expect("groups stay");
            debug_assert_eq!(values.len(), group.introduction.series.len());
            let member = group.members.get_mut(id).expect("members stay as long as they live");
            member.last.renew(values);
        }
        self.groups.values_mut().map(|group| group.news(global)).collect()
    }

    /// Returns whether any object is registered; otherwise marks the thread as stopped.
    fn is_followed(&mut self) -> bool {
        self.is_followed = self.groups.values().any(|group| !group.members.is_empty());
        self.is_followed
    }
}

impl Group {
    fn news(&mut self, global: Option<usize>) -> News {
        let mut now = self.ended.clone();
        self.members.values().for_each(|member| now.add(&member.last));
        let introduction = self.introduction.clone();
        let Some(recorder) = global else {
            return News {
                introduction,
                handles: Arc::default(),
                given: MetricValues::default(),
                now,
            };
        };
        if self.given.recorder != recorder {
            self.given = RecorderState { recorder, ..RecorderState::default() };
        }
        let given = mem::replace(&mut self.given.values, now.clone());
        News { introduction, handles: self.given.handles.clone(), given, now }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut registry = registry();
        let Some(group) = registry.groups.get_mut(&self.group) else { return };
        if let Some(mut member) = group.members.remove(&self.id) {
            member.last.end();
            group.ended.add(&member.last);
        }
    }
}

impl Introduction {
    fn introduce(&self, recorder: &dyn Recorder) -> Box<[Handle]> {
        let Self { series, keys, .. } = self;
        series.iter().zip(&keys[..]).map(|(series, key)| series.introduce(key, recorder)).collect()
    }
}

/// Returns whether `recorder` is the address of the global recorder.
fn is_global(recorder: usize) -> bool {
    if recorder == GLOBAL.load(Relaxed) {
        return true;
    }
    // A new thread has no local recorder.
    let global = thread::spawn(|| with_recorder(address)).join();
    global.is_ok_and(|global| {
        GLOBAL.store(global, Relaxed);
        recorder == global
    })
}

fn address(recorder: &dyn Recorder) -> usize {
    ptr::from_ref(recorder).addr()
}

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}
