//! The builder of both kinds of queues: the settings that they have in common.

use std::time::Duration;

use super::{Purge, root::Options};

/// Builder of a directory queue of either kind: [`QueueSimpleBuilder`](super::QueueSimpleBuilder), or
/// [`QueueBuilder`](super::QueueBuilder).
///
/// `S` holds the settings of one kind.
#[derive(Clone, Debug)]
#[must_use]
pub struct DirQueueBuilder<S> {
    pub(super) options: Options,
    pub(super) settings: S,
}

impl<S> DirQueueBuilder<S> {
    /// Sets the mode bits that are removed from all created files and directories, independently of the process' umask.
    /// Defaults to the process' umask.
    pub fn umask(mut self, umask: u32) -> Self {
        self.options.umask = Some(umask);
        self
    }

    /// Sets the last hexadecimal digit of new names, 0 to 15. Writers with different digits never choose the same name.
    /// Defaults to a digit that is chosen at random when the queue is opened.
    pub fn rnd_hex(mut self, digit: u8) -> Self {
        self.options.rnd_hex = Some(digit);
        self
    }

    /// Makes adds to a bounded queue wait while it is full, and sets the interval `every` at which the free capacity is
    /// checked. Waiters are served in FIFO order, except that an add of several elements lets others go first for up to
    /// 100 intervals. An add of more elements than the bound fails immediately. By default, adds to a full queue fail.
    ///
    /// With this setting, [`add`](super::DirQueue::add) and the other adding methods need a runtime with a time driver.
    /// A waiting future that is not polled keeps only the capacity for its own elements from others, until it is
    /// dropped.
    pub fn wait_for_room(mut self, every: Duration) -> Self {
        self.options.wait_for_room = Some(every);
        self
    }

    /// Sets the interval between purges of the queue by the streams of [`watch`](super::DirQueue::watch). The queue is
    /// purged at the end of a scan if the last such purge by this process was at least `every` ago, however many
    /// streams there are. If the purge removes locks, a stream then scans the queue again, so the elements of killed
    /// workers are delivered. Defaults to no purges.
    ///
    /// A purge reads the whole queue, and delays the stream. Errors are logged.
    pub fn purge_every(mut self, every: Duration, purge: Purge) -> Self {
        self.options.purge_every = Some((every, purge));
        self
    }

    /// Sets whether new elements survive a crash of the machine. If so, each add waits until its files, their
    /// names, and the names of all parent directories up to the mount point are on disk. Defaults to false, as in the
    /// other implementations.
    ///
    /// Concurrent adds are [synced together](super#cost).
    ///
    /// If this process may write to a directory of the queue and not read it (a drop box), each add syncs the whole
    /// file system, which takes longer.
    pub fn sync(mut self, sync: bool) -> Self {
        self.options.sync = sync;
        self
    }

    /// Sets the maximum size in bytes of an element, or of each field of an element in a [`Queue`](super::Queue).
    /// Longer ones are neither added nor read ([`Error::TooLarge`](super::Error::TooLarge)). Defaults to 1 GiB.
    ///
    /// An element is read into memory as a whole, and any process with write access to the queue can choose its size.
    pub fn max_size(mut self, bytes: u64) -> Self {
        self.options.max_size = bytes;
        self
    }

    /// Sets the backoff of failed elements: `first` after the first failure, doubled after each further failure, up to
    /// `max`. The actual delay is chosen at random between 0.5 and 1.5 times this value. Defaults to one second and one
    /// minute if [`max_attempts`](Self::max_attempts) is set, otherwise to none: a failed element may be delivered
    /// again immediately.
    ///
    /// This setting [enables the counting of deliveries](super#retries-and-dead-letters).
    pub fn backoff(mut self, first: Duration, max: Duration) -> Self {
        let retries = self.options.retries();
        (retries.first, retries.max) = (first, max);
        self
    }

    /// Sets the number of failures after which an element is a [dead letter](super::DirQueue::take_dead). Defaults to
    /// no limit.
    ///
    /// This setting [enables the counting of deliveries](super#retries-and-dead-letters).
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.options.retries().max_attempts = attempts;
        self
    }
}
