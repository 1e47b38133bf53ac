//! Directory queues: queues whose elements are files in a directory, shared by your processes in any language, without
//! a server.
//!
//! ```
//! use std::time::Duration;
//! use fleeting::dirq::QueueSimple;
//!
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let dir = dir.path();
//! let queue = QueueSimple::open(dir.join("jobs")).await?;
//! queue.add("resize 7.png").await?;
//!
//! let mut jobs = queue.watch(Duration::from_secs(5));
//! let job = jobs.next().await.transpose()?.unwrap();
//! assert_eq!(job.value(), "resize 7.png");
//! job.ack().await?;
//! # Ok(()) }
//! ```
//!
//! They are compatible, byte for byte, with Python's `dirq`, Perl's `Directory::Queue`, and the C and Java
//! implementations: programs of all these languages may use one directory at the same time.
//!
//! - [`QueueSimple`] stores each element as one file. Choose it if your elements are bytes, such as JSON.
//! - [`Queue`] stores each element as a directory with one file per field of its [`Schema`].
//! - [`DirQueue`] documents the methods that both have in common.
//! - [`QueueSet`] iterates over several queues as one, and [`QueueNull`] discards everything.
//!
//! # Guarantees
//!
//! - **Atomic adds.** An element that you see is complete. An add that fails leaves nothing behind, except with
//!   [`Error::Partial`], which contains the names of the elements that were added.
//! - **Exclusive locks.** If several processes try to lock an element at once, exactly one succeeds.
//! - **At least once.** An element stays in the queue until the owner of its lock removes it. If a process crashes
//!   while it holds a lock, the lock stays until a [`purge`](QueueSimple::purge) by any process removes it because it
//!   is too old. Then the element is delivered again.
//! - **Best-effort FIFO order.** Each name that a handle and its clones assign sorts after the previous one. Elements
//!   of several processes are ordered by the clocks of their writers. If a writer is slow between reading the clock and
//!   finishing the add, its element may become visible after elements with later names.
//! - **No access outside the queue.** Names are checked ([`Name`]) and symbolic links in a queue are never followed.
//!   Files whose names do not match the format are neither changed nor listed.
//! - **Crash safety.** No element is lost, and no removed element reappears, if a disk or a quota is full, if a disk
//!   reports an error, or if the process is killed at any point. A purge removes the leftovers of crashed processes.
//! - **Bounded attempts.** An operation that fails because another process interferes is attempted a bounded number of
//!   times ([`Error::GaveUp`]).
//!
//! # Limits
//!
//! - **Not exactly once.** If a purge removes a lock while its owner still works, the same work is done twice. Choose a
//!   [`max_lock`](Purge::max_lock) well above your longest processing time, or renew the lock ([`Lock::keep_alive`]).
//! - **No strict order** of deliveries, and no order between elements that several workers process at the same time.
//! - **No durability** when an add returns, unless you set [`sync`](QueueSimpleBuilder::sync): a crash of the machine
//!   may lose the last seconds. A crash of your process loses nothing.
//! - **No noncharacters in Perl.** Perl can neither read nor write Unicode noncharacters such as U+FFFE. Python and
//!   Rust can.
//! - **Limits of network file systems.** Over NFS, a request may succeed although its answer is lost. If the answer to
//!   an add or a removal is lost, the repeated request is recognized and nothing is duplicated. If the answer to a lock
//!   is lost, the lock stays without an owner until a purge. The age of a file is given by the server's clock and
//!   compared with the client's clock: keep both synchronized. A file that the server no longer has (`ESTALE`) counts
//!   as missing. NFS keeps a file that was removed while it was open as a `.nfs` file. Such files are ignored; they
//!   disappear when the file is closed, or with a purge.
//! - **A full disk may prevent removals.** Locking an element creates a directory ([`Queue`]) or a name
//!   ([`QueueSimple`]). If the disk or the quota has no free block or inode for it, the element cannot be locked, and
//!   so cannot be removed: each iteration then yields one [`Error::NoSpaceForLock`] and ends. Free some space outside
//!   of the queue first.
//! - **Removals on the lower layer of an overlay** (files of a container's image) delete an element of a [`Queue`] file
//!   by file. If the process is killed in between, an incomplete element stays.
//! - **No check that a disk is mounted.** An add creates a missing queue directory with all its parents, as Python's
//!   does, even with [`sync`](QueueSimpleBuilder::sync): while the disk is not mounted, elements are added to the disk
//!   below, with success. A subdirectory of the mount point does not prevent this. Check the mount when your service
//!   starts, or mount the disk over a directory in which the service may not create anything.
//! - **No access control of its own.** The permissions of the files decide ([`umask`](QueueSimpleBuilder::umask)).
//!
//! # Retries and dead letters
//!
//! An element is returned to the queue if your work fails: if you drop its [`Lock`], by [`retry_in`](Lock::retry_in),
//! or with a reason by [`fail`](Lock::fail). [`release`](Lock::release) returns an element without a failed attempt.
//!
//! To limit the failures, open your queue with [`max_attempts`](QueueSimpleBuilder::max_attempts) or
//! [`backoff`](QueueSimpleBuilder::backoff). Each delivery by [`locked`](DirQueue::locked) and
//! [`watch`](DirQueue::watch) is then counted before you get the element, so a job that crashes its process counts too.
//! A failed element is skipped until its backoff has passed. The backoff doubles after each failure, and other elements
//! are delivered in the meantime.
//!
//! An element that has failed `max_attempts` times is a dead letter: it stays in the queue, and only
//! [`take_dead`](DirQueue::take_dead) delivers it until you [revive](DirQueue::revive) it. [`dead`](DirQueue::dead)
//! lists dead letters with their reasons.
//!
//! You get an element that cannot be read as an error. If deliveries are counted, this is a failed one: the element
//! waits for its backoff and becomes a dead letter, with the error as its reason.
//!
//! The record of an element is kept in the directory `retries` next to the directories of elements. It is a symbolic
//! link without an existing target. Its text holds the number of deliveries and the time from which the element is
//! delivered again, by the wall clock of its writer. The reason of the last failure is a file next to it. All processes
//! that use this library respect these records. The other implementations ignore that directory: they deliver waiting
//! and dead elements like any other. A purge by this library deletes the records of elements that no longer exist, and
//! so do `locked` and `watch` now and then. (Records are not stored next to the files of their elements, because Perl's
//! purge removes all files there with a dot in their name, and because an additional file would keep a directory from
//! being removed.) You may delete the directory `retries` to forget all records, for instance after a wrong clock. A
//! crash of the machine may lose the latest records, even with [`sync`](QueueSimpleBuilder::sync).
//!
//! Counting costs six to eight system calls per delivery, and disables prefetching on a disk. If a record cannot be
//! written, for instance on a full disk, the element is delivered nevertheless, its failure does not count, and a
//! warning is logged. If a record cannot be read, the element is not delivered, because it may be a dead letter: an
//! iteration yields the error, and ends if it cannot list the records. Without these settings, a queue counts only
//! calls of `retry_in` and `fail`.
//!
//! Each iteration, and each scan of a `watch`, reads the records of the elements that are locked or wait for a backoff.
//! The records of dead letters are kept in the directory `retries/dead`, which is listed again only after another
//! element has become a dead letter or is none any more. On a local file system, a directory whose elements are all
//! dead letters is not listed again either until it changes. So a job costs the same with thousands of old dead
//! letters, except for one `stat` per directory of elements. If dead letters and new elements share a directory, each
//! scan lists both: remove dead letters from time to time.
//!
//! # Cost
//!
//! File system calls are made on the runtime's blocking threads, with one round trip per call. The handles of a process
//! on one path use up to 16 of these threads at a time. Further calls wait in order without a thread, so a disk that
//! hangs does not delay work on other disks. A call that is dropped while it waits is not executed. A round trip
//! between threads costs 20 to 50 µs, which is more than an add to a local disk. For many elements, use
//! [`add_many`](QueueSimple::add_many) and [`locked`](QueueSimple::locked), which share round trips, or call from
//! several tasks concurrently.
//!
//! **Consecutive calls** to a queue on a local disk have cheap round trips. If a call begins within 100 µs of the end
//! of the previous one, the thread that executes it then spins for up to 250 µs, waiting for another call. The thread
//! that polls the future of such a call spins for its result for up to 100 µs. Neither thread has to be woken, and no
//! call blocks its thread on a disk. During this time, two processors are occupied. If they are needed for other work
//! and the spinning fails, calls use normal round trips for a while before spinning is tried again.
//!
//! **Synced** adds of concurrent callers to one queue are grouped: a dedicated thread executes the adds of up to 64
//! callers that arrived during the previous group, because a disk can sync several files at once. The thread ends when
//! no more adds arrive. Each caller gets its own result. The files are open until they are synced: up to 64 per queue
//! and about 256 per process, or fewer if the process's limit is lower. An add of more than one mebibyte opens its file
//! for each mebibyte again, and keeps none open while it waits for a thread.
//!
//! **In memory** no call waits for a disk, and the round trip would be most of its cost. If a queue's directory is on
//! Linux' tmpfs or ramfs when it is opened, as in `/dev/shm`, operations on single elements are executed in place, by
//! the thread that polls the future: adding up to 64 KiB, locking, reading, unlocking, removing, touching, and
//! continuing a listing. They take 5 to 50 µs and consume Tokio's cooperative budget: a task that does nothing else
//! lets others run about once per millisecond. Operations that may take long still go to another thread: listing,
//! counting, purging, adding or reading more than 64 KiB, `add_many`, and `add_path`, whose file may be on a disk.
//!
//! In memory and on a local disk (ext2 to ext4, XFS, Btrfs, F2FS), a queue keeps up to six of its directories open,
//! and all queues of a process keep up to 64. Their file systems cannot be unmounted in the meantime.
//!
//! # From Python's `dirq`
//!
//! | Python | fleeting |
//! | --- | --- |
//! | `QueueSimple(path, umask, rndhex, granularity)` | [`QueueSimple::builder(path)`](QueueSimple) with the same settings, then `open()`. A `rndhex` above 15 is an error and is not taken modulo 16 |
//! | `Queue(path, umask, rndhex, maxelts, schema)` | [`Queue::builder(path)`](Queue), with `max_elements` for `maxelts`; [`Schema::new`] from pairs, or parsed from a string |
//! | `add(data)`, `enqueue(data)` | `add` of a [`QueueSimple`]; `add` of a [`Queue`] takes an [`Element`]. Text is not encoded implicitly: pass its UTF-8 |
//! | `add_path(path)` | [`add_path`](QueueSimple::add_path) |
//! | `for name in q`, `q.names()`, `q.first()`, `q.next()` | [`names()`](QueueSimple::names), a [`Walk`]: call [`next`](Walk::next) on it, and create a new one to start over. A queue has no cursor, so clones do not share one (`copy()`) |
//! | `count()` | [`count`](QueueSimple::count). `count` of a `Queue` excludes `temporary` and `obsolete` |
//! | `lock(name)` | [`lock`](QueueSimple::lock): `false` is not an error |
//! | `lock(name, permissive=False)` | the same, with an error of your own if it is `false` |
//! | `unlock(name)` | [`unlock`](QueueSimple::unlock) |
//! | `unlock(name, permissive=True)` | the same, ignoring [`Error::NotLocked`] |
//! | `get(name)`, `get_path(name)` | [`get`](QueueSimple::get), [`get_path`](QueueSimple::get_path): an error if the element is not locked |
//! | `remove(name)` | [`remove`](QueueSimple::remove) |
//! | `dequeue(name)`, `get_element(name)` | [`dequeue`](Queue::dequeue), [`get_element`](DirQueue::get_element): `None` instead of `QueueLockError` |
//! | `touch(name)` | [`touch`](QueueSimple::touch) |
//! | `purge(maxtemp, maxlock)` | [`purge`](QueueSimple::purge) with a [`Purge`]. It keeps recent elements in `temporary`, which Python's removes if they are empty, and returns a report |
//! | `QueueSet(q1, q2)`, `add`, `remove`, iteration | [`QueueSet::new`], [`add`](QueueSet::add), [`remove`](QueueSet::remove), [`names`](QueueSet::names): ordered by time, whereas Python orders by directory first |
//! | `QueueNull()` | [`QueueNull::new`] |
//! | `QueueError`, `OSError` | [`Error`], with one variant per cause |
//! | | in addition: [`add_many`](QueueSimple::add_many), [`locked`](QueueSimple::locked) and [`watch`](QueueSimple::watch) with a [`Lock`] that unlocks on drop, [`peek`](QueueSimple::peek), [`sync`](QueueSimpleBuilder::sync) |

// From top to bottom: `queue` has the public methods of both kinds. `simple` and `normal` have the public methods and
// the implementation of one kind, split by operation: `add`, `lock`, `purge`. Both implement `protocol` on top of
// `root`, the queue's directory, and the steps of `add`, which has their order. All system calls go through `fs`;
// `blocking` chooses the thread on which they run, and `group` batches synced adds.
mod add;
mod blocking;
mod bound;
mod builder;
mod cursor;
mod dead_letters;
mod delivery;
#[cfg(feature = "metrics")]
mod depth;
mod dir_cache;
mod dir_version;
mod element;
mod error;
#[cfg(test)]
mod fault_injection;
mod file_name;
mod fs;
mod group;
mod lock;
mod lock_guard;
mod locked_stream;
#[cfg(feature = "metrics")]
mod measure;
mod metrics;
mod mutex;
mod name;
mod name_generator;
mod normal;
mod null;
mod prefetch_buffer;
mod protocol;
mod purge_options;
mod queue;
mod record;
mod records;
mod retry_budget;
mod retry_policy;
mod root;
mod schema;
mod set;
mod set_stream;
mod shared;
mod shared_purge;
mod simple;
mod snapshot;
mod spin_handoff;
mod system_watch;
mod table;
mod threads;
mod ticket_queue;
mod wakeups;
mod walk;
mod watch;

#[cfg(test)]
pub(crate) use self::fs::faults;
pub use self::{
    builder::DirQueueBuilder,
    dead_letters::DeadElement,
    element::{Element, Value},
    error::Error,
    lock::Lock,
    name::Name,
    normal::{Queue, QueueBuilder},
    null::QueueNull,
    purge_options::{Purge, PurgeReport},
    queue::DirQueue,
    schema::Schema,
    set::QueueSet,
    simple::{QueueSimple, QueueSimpleBuilder},
    walk::Walk,
};
