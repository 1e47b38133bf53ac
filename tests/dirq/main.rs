//! Tests of directory queues, sets and the spool, through their public API.
#![cfg(unix)]
// Tests of any queue run twice: on disk, where calls run on other threads, and in memory, where they run in place.
#![allow(clippy::duplicate_mod)]

#[path = "../common/cancel.rs"]
mod cancel;
#[path = "../common/clock.rs"]
mod clock;
#[path = "../common/dirq.rs"]
mod directory;
#[path = "../common/example.rs"]
mod example;
#[path = "../common/log.rs"]
mod log;
#[path = "../common/patience.rs"]
mod patience;
#[path = "../common/sequences.rs"]
mod sequences;
#[path = "../common/skipped.rs"]
mod skipped;

mod crash;
#[cfg(target_os = "linux")]
mod disk;
#[cfg(target_os = "linux")]
mod hung_disk;
#[cfg(target_os = "linux")]
mod in_place;
#[cfg(target_os = "linux")]
mod long_run;
mod queue_set;
mod schema;
mod spool;

/// Read-locked by tests that rely on system watches, and write-locked by tests that use up all watches.
static WATCHES: tokio::sync::RwLock<()> = tokio::sync::RwLock::const_new(());

/// On a disk, where calls run on other threads.
#[path = "."]
mod on_disk {
    mod away;
    mod bound;
    mod cancellation;
    mod dead_letters;
    mod hostile;
    mod locked;
    mod purge;
    mod python;
    mod queue;
    mod retries;
    mod simple;
    mod watch;

    pub(super) const IN_MEMORY: bool = false;

    pub(super) fn tempdir() -> std::io::Result<tempfile::TempDir> {
        tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))
    }
}

/// In memory, where most calls run in place.
#[cfg(target_os = "linux")]
#[path = "."]
mod in_memory {
    mod away;
    mod bound;
    mod cancellation;
    mod dead_letters;
    mod hostile;
    mod locked;
    mod purge;
    mod python;
    mod queue;
    mod retries;
    mod simple;
    mod watch;

    pub(super) const IN_MEMORY: bool = true;

    pub(super) fn tempdir() -> std::io::Result<tempfile::TempDir> {
        tempfile::tempdir_in("/dev/shm")
    }
}
