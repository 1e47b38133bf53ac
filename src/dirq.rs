//! Directory queues: elements as files in a directory, which processes in any language add and take, at the same
//! time and without a server.
//!
//! They are compatible, byte by byte, with Python's `dirq`, Perl's `Directory::Queue`, and the C and Java
//! implementations: all may work in one directory. [`QueueSimple`] holds a file for each element, [`Queue`] a
//! directory with a file for each field of its [`Schema`]; what they have in common is [`DirQueue`]'s.
//! [`QueueSet`] walks through several, and [`QueueNull`] forgets.
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
//! # What is guaranteed
//!
//! - **Whole or not at all.** An element that can be seen is complete. An add that fails leaves nothing behind.
//! - **One lock.** Of all processes that try to lock an element at once, one succeeds.
//! - **At least once.** An element is in the queue until somebody who has its lock removes it. Whoever dies with
//!   a lock leaves it, and a [`purge`](QueueSimple::purge) by anybody, from time to time, takes it away when it
//!   is too old: then the element comes again.
//! - **In the order of the clocks, best effort.** One handle, with its clones, gives each element a later name
//!   than the one before. Elements of several processes come in the order of their clocks; a writer that
//!   was slow between the look at the clock and the end of the add comes late.
//! - **No way out.** Names are checked ([`Name`]), symbolic links in a queue are never followed, and what has no
//!   name of the format is neither touched nor told of.
//! - **Whatever call fails.** A disk or a quota that is full, an error of a disk, and the death of the process at any
//!   of its calls to the kernel, lose no element and double none that was removed. What a dead process left half
//!   done, a purge takes.
//! - **An end.** What fails because another process was in the way is tried anew, a bounded number of times
//!   ([`Error::GaveUp`]).
//!
//! # What is not
//!
//! - **Not exactly once.** A lock that a purge took away while its owner still worked leads to the same work
//!   twice: choose [`max_lock`](Purge::max_lock) well above the longest work, or renew the lock
//!   ([`Lock::keep_alive`]).
//! - **Not strict order**, and none between elements that are locked at once.
//! - **Not on disk** when an add returns, unless with [`sync`](QueueSimpleBuilder::sync): a crash of the machine
//!   may lose the last seconds, though a crash of the process loses nothing.
//! - **No text that Perl can't have.** The noncharacters of Unicode (as U+FFFE) go between Python and Rust; Perl
//!   can neither read nor write them.
//! - **Not free of a network's faults.** Over NFS a request may be done, and its answer lost. An add and a removal whose
//!   request was sent again find themselves done, and double nothing; a lock that was got this way is not known to be,
//!   and stays until a purge. Ages are by the server's clock, and what is too old is by the client's: keep
//!   both right. What is gone from the server (`ESTALE`) is gone. The `.nfs` files of what is removed while it is open are a purge's
//!   matter.
//! - **No rights of its own.** Those of the files decide ([`umask`](QueueSimpleBuilder::umask)).
//!
//! # RetryPolicy and dead letters
//!
//! Work that fails gives its element back: by a [`Lock`] that is dropped, or by [`retry_in`](Lock::retry_in). In a queue
//! that is opened with [`max_attempts`](QueueSimpleBuilder::max_attempts) or [`backoff`](QueueSimpleBuilder::backoff),
//! each delivery by [`locked`](DirQueue::locked) and [`watch`](DirQueue::watch) is counted before anybody has it, so that
//! a job that takes its process along counts too. What failed rests, for a backoff that doubles each time, and the others
//! come meanwhile; what failed as often as it may is dead: it stays, and only
//! [`take_dead`](DirQueue::take_dead) gives it out, until it is [revived](DirQueue::revive). An element that can't be
//! read is not delivered, and comes as an error each time.
//!
//! What is known of an element stands beside the others in the directory `retries`: a symbolic link that leads nowhere,
//! whose text says how often it was given out, and when it comes again, by the wall clock of who wrote it. All processes
//! that use this library go by it. The other implementations don't know that directory, and work in the queue as if it
//! were not there: they take what rests and what is dead as any other element. What is known of elements that are gone,
//! a purge by this library removes. (It does not stand beside the files of the elements themselves: Perl's purge
//! removes all that has a dot in its name there, and a file more would keep directories from being removed.) Who removes
//! that directory has it all forgotten, as where a clock was wrong. A crash of the machine may lose what was known last,
//! also with [`sync`](QueueSimpleBuilder::sync).
//!
//! To count costs two or three calls to the file system a delivery, and on a disk nothing is locked ahead. Each walk, and
//! each look of a `watch`, begins with a look at all that is known: dead letters that nobody takes away make it slower. A
//! queue that is opened without these settings counts nothing but `retry_in`.
//!
//! # Cost
//!
//! Calls to the file system are made on the runtime's threads for blocking work, one trip there a call: between
//! threads, a trip costs 20 to 50 µs, more than an add to a local disk. Many elements go faster by
//! [`add_many`](QueueSimple::add_many) and [`locked`](QueueSimple::locked), which share trips, and by calls from
//! several tasks at once.
//!
//! **One call after another** to a queue on a disk of this machine makes a trip cheap. Where a call comes within 100 µs
//! of the end of the last, the thread that does it stays awake for the next, for 250 µs at most, and the thread that
//! polls the next call's future looks out for the end of the work, for 100 µs at most: so neither has to be woken, and
//! no disk is waited for in place. That takes two processors. Where they are busy with other things, so that it would
//! be in vain, calls are trips again; it is tried anew from time to time.
//!
//! **Synced** adds of several callers to one queue go together: a thread of its own makes those of up to 64 who came while
//! it made the last, as a disk that waits for one file takes others along, and ends where no more come. Each has its own
//! answer. Their files are open until they are synced: up to 64 of a queue, and about 256 of a process, or less where it
//! may have less.
//!
//! **In memory** no call waits for a disk, and the trip would be most of its cost. So where a queue's directory is
//! on Linux' tmpfs or ramfs when it is opened, as in `/dev/shm`, what is about one element is done in place, by the
//! thread that polls the future: to add up to 64 KiB, to lock, read, unlock, remove or touch, and to go on with what
//! was listed. It takes 5 to 50 µs, and part in Tokio's cooperative budget: a task that does nothing else lets
//! others run about once in a millisecond. What may be long goes to another thread there too: to list, count and
//! purge, to add or read more than 64 KiB, `add_many`, and `add_path`, whose file may be on a disk.
//!
//! There, and on a disk of this machine (ext2 to ext4, XFS, Btrfs, F2FS), a queue keeps up to four of its directories
//! open, all of a process together up to 64, so that their file system can't be unmounted meanwhile.
//!
//! # From Python's `dirq`
//!
//! | there | here |
//! | --- | --- |
//! | `QueueSimple(path, umask, rndhex, granularity)` | [`QueueSimple::builder(path)`](QueueSimple) with the same, then `open()`. A `rndhex` above 15 is an error, and not taken modulo 16 |
//! | `Queue(path, umask, rndhex, maxelts, schema)` | [`Queue::builder(path)`](Queue), with `max_elements` for `maxelts`; [`Schema::new`] of pairs, or parsed from a text |
//! | `add(data)`, `enqueue(data)` | `add` of a [`QueueSimple`]; that of a [`Queue`] takes an [`Element`]. Text is not encoded by itself: give its UTF-8 |
//! | `add_path(path)` | [`add_path`](QueueSimple::add_path) |
//! | `for name in q`, `q.names()`, `q.first()`, `q.next()` | [`names()`](QueueSimple::names), a [`Walk`]: ask it for the [`next`](Walk::next), and for a new one to begin anew. A queue has no cursor, so that clones don't share one (`copy()`) |
//! | `count()` | [`count`](QueueSimple::count). That of `Queue` counts elements, and not what is in `temporary` and `obsolete` |
//! | `lock(name)` | [`lock`](QueueSimple::lock): `false` is no error |
//! | `lock(name, permissive=False)` | the same, and an error of your own where it is `false` |
//! | `unlock(name)` | [`unlock`](QueueSimple::unlock) |
//! | `unlock(name, permissive=True)` | the same, where [`Error::NotLocked`] is passed over |
//! | `get(name)`, `get_path(name)` | [`get`](QueueSimple::get), [`get_path`](QueueSimple::get_path): an error where it is not locked |
//! | `remove(name)` | [`remove`](QueueSimple::remove) |
//! | `dequeue(name)`, `get_element(name)` | [`dequeue`](Queue::dequeue), [`get_element`](DirQueue::get_element): `None` in the place of `QueueLockError` |
//! | `touch(name)` | [`touch`](QueueSimple::touch) |
//! | `purge(maxtemp, maxlock)` | [`purge`](QueueSimple::purge) of a [`Purge`]. It spares young elements in `temporary`, which Python's takes when they are empty, and says what it did |
//! | `QueueSet(q1, q2)`, `add`, `remove`, iteration | [`QueueSet::new`], [`add`](QueueSet::add), [`remove`](QueueSet::remove), [`names`](QueueSet::names): by time, where Python goes by directory |
//! | `QueueNull()` | [`QueueNull::new`] |
//! | `QueueError`, `OSError` | [`Error`], a variant for each cause |
//! | | beyond: [`add_many`](QueueSimple::add_many), [`locked`](QueueSimple::locked) and [`watch`](QueueSimple::watch) with a [`Lock`] that unlocks when it is dropped, [`peek`](QueueSimple::peek), [`sync`](QueueSimpleBuilder::sync) |

// From above: `queue` is what users call on both kinds, `simple` and `normal` what they call on one, and the kinds
// themselves, by operation: `add`, `lock`, `purge`. Both implement `protocol`, on `root`, the queue's directory. `fs` is
// the one door to the file system; `blocking` says on which thread one goes through it, and `group` who goes together.
mod blocking;
mod bound;
mod cursor;
mod dead_letters;
mod delivery;
mod dir_cache;
mod element;
mod error;
#[cfg(test)]
mod fault_injection;
mod file_name;
mod fs;
mod group;
mod lock;
mod lock_guard;
mod metrics;
mod name;
mod name_generator;
mod normal;
mod null;
mod prefetch;
mod prefetch_buffer;
mod protocol;
mod purge_options;
mod queue;
mod records;
mod retry_budget;
mod retry_policy;
mod root;
mod schema;
mod set;
mod simple;
mod spin_handoff;
mod table;
mod walk;
mod watch;

#[cfg(test)]
pub(crate) use self::fs::faults;
pub use self::{
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
