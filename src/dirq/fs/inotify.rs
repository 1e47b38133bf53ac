//! Reports of Linux's inotify about new names in directories.
//!
//! The crate `notify`, which other systems use, also asks for each open, write, close and removal, which would wake
//! each process that watches a queue about ten times per element.

use std::{
    io::{self, PipeReader, PipeWriter},
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::Arc,
    thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags},
    io::{Errno, retry_on_intr},
};

/// Pause after a failed call of the thread, for instance because the system is out of memory.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The watch of a directory. If the directory is deleted and created again, it is another one.
pub(in super::super) type WatchId = i32;

/// Watches directories, on a thread of its own, until it is dropped.
pub(in super::super) struct Watcher {
    inotify: Arc<OwnedFd>,
    /// The thread ends when it is closed.
    _stop: PipeWriter,
}

impl Watcher {
    /// Calls `notify` after reports that contain a name for which `is_new` returns true, and after those that a watched
    /// directory was moved or removed, or that reports were lost.
    pub(in super::super) fn new(
        is_new: fn(&[u8]) -> bool,
        notify: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        let inotify = Arc::new(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?);
        let (stopped, stop) = io::pipe()?;
        let reports = inotify.clone();
        let thread = thread::Builder::new().name("fleeting-inotify".to_owned());
        thread.spawn(move || run(&reports, &stopped, is_new, notify))?;
        Ok(Self { inotify, _stop: stop })
    }

    /// Watches a directory, and returns its watch: the present one if the directory is watched already. `is_root` also
    /// reports that it is moved or removed.
    pub(in super::super) fn watch(
        &mut self,
        directory: &Path,
        is_root: bool,
    ) -> io::Result<WatchId> {
        let mut flags = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
        flags.set(WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF, is_root);
        Ok(inotify::add_watch(&self.inotify, directory, flags)?)
    }

    pub(in super::super) fn unwatch(&mut self, _: &Path, watch: WatchId) {
        // The system has removed the watch of a removed directory.
        let _ = inotify::remove_watch(&self.inotify, watch);
    }
}

fn run(inotify: &OwnedFd, stopped: &PipeReader, is_new: fn(&[u8]) -> bool, notify: impl Fn()) {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    loop {
        let mut ready = [inotify.as_fd(), stopped.as_fd()]
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let polled = retry_on_intr(|| poll(&mut ready, None));
        if !ready[1].revents().is_empty() {
            return;
        }
        let reported = polled.and_then(|_| read(inotify, &mut buffer, is_new));
        // After an error, scanning is always correct.
        if reported.unwrap_or(true) {
            notify();
        }
        if reported.is_err() {
            thread::sleep(RETRY_AFTER);
        }
    }
}

/// Reads what fits into the buffer, by one system call. Returns whether `notify` should be called.
fn read(
    inotify: &OwnedFd,
    buffer: &mut [MaybeUninit<u8>],
    is_new: fn(&[u8]) -> bool,
) -> Result<bool, Errno> {
    let lost = ReadFlags::DELETE_SELF
        | ReadFlags::MOVE_SELF
        | ReadFlags::QUEUE_OVERFLOW
        | ReadFlags::UNMOUNT;
    let mut reader = Reader::new(inotify, buffer);
    let mut is_reported = false;
    loop {
        let event = match reader.next() {
            Ok(event) => event,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(is_reported),
            Err(error) => return Err(error),
        };
        is_reported |= match event.file_name() {
            Some(name) => is_new(name.to_bytes()),
            None => event.events().intersects(lost),
        };
        if reader.is_buffer_empty() {
            return Ok(is_reported);
        }
    }
}
