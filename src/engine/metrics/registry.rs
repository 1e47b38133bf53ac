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
const EXPORT_INTERVAL: Duration = Duration::from_millis(500);

static REGISTRY: Mutex<Registry> =
    Mutex::new(Registry { groups: BTreeMap::new(), next_id: 0, has_thread: false });

/// Serializes reads, so that no value is followed by an older one. Lock order: `READ_LOCK`, then the registry or the
/// export order.
static READ_LOCK: Mutex<()> = Mutex::new(());

/// Address of the global recorder, if known. `Relaxed`, because the address is only compared, never dereferenced.
static GLOBAL: AtomicUsize = AtomicUsize::new(0);

struct Registry {
    groups: BTreeMap<GroupId, ObjectsOfName>,
    next_id: u64,
    /// True while the thread runs.
    has_thread: bool,
}

/// Kind (name and label of the first series) and name.
type GroupId = ((&'static str, &'static str), String);

/// Objects of one kind and name.
struct ObjectsOfName {
    info: GroupInfo,
    members: BTreeMap<u64, RegisteredObject>,
    /// Sum of the last values of dropped objects.
    ended: MetricValues,
    exported: RecorderState,
    /// True once a second object had the same name, which is reported once.
    is_shared: bool,
}

struct RegisteredObject {
    source: Weak<dyn Source>,
    last: MetricValues,
}

/// Series of a group, and their keys in a recorder.
#[derive(Clone)]
struct GroupInfo {
    series: &'static [Series],
    #[cfg(feature = "dashboard")]
    name: Arc<str>,
    keys: Arc<[Key]>,
}

/// Values already exported to the global recorder for a group.
#[derive(Default)]
struct RecorderState {
    recorder: usize,
    handles: Arc<OnceLock<Box<[Handle]>>>,
    values: MetricValues,
}

/// Update of a group for a recorder.
struct GroupUpdate {
    info: GroupInfo,
    handles: Arc<OnceLock<Box<[Handle]>>>,
    exported: MetricValues,
    now: MetricValues,
}

/// Group and identifier of an object that still exists, and the object.
type LiveSource = (GroupId, u64, Arc<dyn Source>);

/// Registration of an object, owned by it. Dropping it removes the object from the registry, so no memory is leaked.
#[derive(Debug)]
pub(crate) struct Registration {
    group: GroupId,
    id: u64,
}

/// Place of the registration in its object.
pub(crate) type RegistrationCell = OnceLock<Registration>;

/// Registers `source`, and starts the thread if it does not run. Warns, once per kind and name, if another object of
/// this kind has the same name.
pub(crate) fn register(
    series: &'static [Series],
    name: &str,
    source: Weak<dyn Source>,
    slot: &RegistrationCell,
) {
    let mut registry = registry();
    let id = registry.next_id;
    registry.next_id += 1;
    let group = (series[0].id(), name.to_owned());
    // Cannot fail: an object is registered once.
    let _ = slot.set(Registration { group: group.clone(), id });
    let group = registry.groups.entry(group).or_insert_with(|| ObjectsOfName {
        info: GroupInfo {
            series,
            #[cfg(feature = "dashboard")]
            name: name.into(),
            keys: series.iter().map(|series| series.key(name)).collect(),
        },
        members: BTreeMap::new(),
        ended: MetricValues::default(),
        exported: RecorderState::default(),
        is_shared: false,
    });
    let is_shared = !group.members.is_empty() && kind_word(series).is_some();
    let is_newly_shared = is_shared && !mem::replace(&mut group.is_shared, true);
    group.members.insert(id, RegisteredObject { source, last: MetricValues::default() });
    let has_thread = mem::replace(&mut registry.has_thread, true);
    // Unlocked first: a subscriber of the log is user code, and `spawn_exporter` may lock the registry.
    drop(registry);
    if is_newly_shared {
        let kind = kind_word(series);
        tracing::warn!(kind, name, "several objects have the same name, their metrics are summed");
    }
    if !has_thread {
        spawn_exporter();
    }
}

/// Returns the word for a kind of object whose name should be unique; `None` for the others. Several handles of one
/// directory queue or of one cache on Redis have the same name, and their sum is meaningful.
fn kind_word(series: &[Series]) -> Option<&'static str> {
    match series[0].id() {
        ("fleeting_cache_hits_total", _) => Some("cache"),
        ("fleeting_limiter_allowed_total", _) => Some("limiter"),
        ("fleeting_set_resident", _) => Some("set"),
        ("fleeting_dict_entries", "") => Some("timeout dict"),
        _ => None,
    }
}

/// Reads all values and exports them to the recorder.
pub(super) fn publish() {
    with_recorder(|recorder| {
        let (updates, live, turn) = read(Some(address(recorder)));
        // Before waiting, and under no lock: this may be the last handle of an object, and its drop runs user code.
        drop(live);
        turn.wait_for_earlier();
        for GroupUpdate { info, handles, exported, now } in updates {
            let handles = handles.get_or_init(|| info.register(recorder));
            now.export(&exported, handles);
        }
    });
}

/// Reads the values of all objects that still exist.
#[cfg(feature = "dashboard")]
pub(crate) fn read_all() -> Vec<Reading> {
    let (updates, live, _) = read(None);
    let mut readings = Vec::new();
    let mut live = live.into_iter().peekable();
    // Both are sorted by group.
    for GroupUpdate { info, now: values, .. } in updates {
        let (series, name) = (info.series, info.name);
        let mut sources = Vec::new();
        let is_of_it = |(group, ..): &LiveSource| group.0 == series[0].id() && group.1 == *name;
        while let Some((.., source)) = live.next_if(is_of_it) {
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
fn read(recorder: Option<usize>) -> (Vec<GroupUpdate>, Vec<LiveSource>, ExportTurn) {
    // Before the lock: wakers and drops of values may read metrics themselves.
    let live = registry().live_sources();
    live.iter().for_each(|(_, _, source)| source.publish_events());
    drop(live);
    let guard = READ_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    // A recorder of this thread only may be temporary, so nothing is remembered of it. The same holds if the global
    // recorder was replaced since this call began.
    let global = recorder.filter(|recorder| is_global(*recorder));
    let live = registry().live_sources();
    // The registry is not locked here, so objects can be created and dropped in the meantime.
    let read = live.iter().map(|(_, _, source)| {
        let mut values = MetricValues::default();
        source.read(&mut values);
        values
    });
    let read: Vec<_> = read.collect();
    let updates = registry().store_values(&live, read, global);
    // Before the read lock is released, so that turns have the order of the readings.
    let turn = ExportTurn::new();
    drop(guard);
    (updates, live, turn)
}

/// Starts the thread that exports twice per second while any object is registered.
fn spawn_exporter() {
    // A thread: if each change called the recorder, it would cost as much as a `get` (docs/architecture.md).
    let export = || {
        loop {
            // Checked before the export, so that the last values of the last object are still exported.
            let needs_thread = registry().needs_thread();
            if catch_unwind(AssertUnwindSafe(publish)).is_err() {
                tracing::error!("metrics recorder panicked");
            }
            if !needs_thread {
                break;
            }
            thread::sleep(EXPORT_INTERVAL);
        }
    };
    if let Err(error) = thread::Builder::new().name("fleeting-metrics".into()).spawn(export) {
        tracing::error!(%error, "failed to spawn the metrics thread");
        registry().has_thread = false;
    }
}

impl Registry {
    fn live_sources(&self) -> Vec<LiveSource> {
        let members = self.groups.iter().flat_map(|(group, ObjectsOfName { members, .. })| {
            members.iter().filter_map(|(id, member)| {
                member.source.upgrade().map(|source| (group.clone(), *id, source))
            })
        });
        members.collect()
    }

    /// Stores the values read, and returns the resulting updates.
    fn store_values(
        &mut self,
        live: &[LiveSource],
        read: Vec<MetricValues>,
        global: Option<usize>,
    ) -> Vec<GroupUpdate> {
        for ((group, id, _), values) in live.iter().zip(read) {
            let group = self.groups.get_mut(group).expect("groups are never removed");
            debug_assert_eq!(values.len(), group.info.series.len());
            // `live` holds the object, and its registration lasts until it is dropped.
            let member = group.members.get_mut(id).expect("an object that exists is registered");
            member.last.replace_by(values);
        }
        self.groups.values_mut().map(|group| group.update(global)).collect()
    }

    /// Returns whether any object is registered; otherwise marks the thread as stopped.
    fn needs_thread(&mut self) -> bool {
        // Decided under the lock: a concurrent `register` is either counted here or starts a new thread.
        self.has_thread = self.groups.values().any(|group| !group.members.is_empty());
        self.has_thread
    }
}

impl ObjectsOfName {
    fn update(&mut self, global: Option<usize>) -> GroupUpdate {
        let mut now = self.ended.clone();
        self.members.values().for_each(|member| now.add(&member.last));
        let info = self.info.clone();
        let Some(recorder) = global else {
            return GroupUpdate {
                info,
                handles: Arc::default(),
                exported: MetricValues::default(),
                now,
            };
        };
        if self.exported.recorder != recorder {
            self.exported = RecorderState { recorder, ..RecorderState::default() };
        }
        // Stored before the export, so that the next reading exports only the increase after this one. If the recorder
        // panics, this increase is lost and not exported twice.
        let exported = mem::replace(&mut self.exported.values, now.clone());
        GroupUpdate { info, handles: self.exported.handles.clone(), exported, now }
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

impl GroupInfo {
    fn register(&self, recorder: &dyn Recorder) -> Box<[Handle]> {
        let Self { series, keys, .. } = self;
        series.iter().zip(&keys[..]).map(|(series, key)| series.register(key, recorder)).collect()
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
