//! The steps of writers, of the sweeper and of subscribers: each holds at most the locks that the code holds.

use std::mem::take;

use super::{
    Bug, ORDERED,
    channel::{Channel, Removal},
};

const PARTS: usize = 2;

/// The journal, the log, and the threads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(super) parts: [Vec<Removal>; PARTS],
    /// The writer that has the lock of a part.
    pub(super) part_owners: [Option<usize>; PARTS],
    pub(super) is_batching: bool,
    pub(super) is_dirty: bool,
    pub(super) is_due: bool,
    pub(super) is_urgent: bool,
    pub(super) contention: u8,
    pub(super) is_subscribed: bool,
    pub(super) is_awaited: bool,
    pub(super) log_owner: Option<Thread>,
    /// Of the lossless subscriber, and of the other.
    pub(super) channels: [Channel; 2],
    pub(super) is_held_back: bool,
    pub(super) has_permit: bool,
    pub(super) writers: Vec<Writer>,
    pub(super) readers: [Reader; 2],
    pub(super) subscriptions: u8,
    /// Number of recorded removals of each shard.
    pub(super) recorded: [u8; 2],
    pub(super) published: Vec<Removal>,
    pub(super) violation: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Thread {
    Writer(usize),
    Reader(usize),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Writer {
    /// Number of removals that it has begun.
    pub(super) begun: usize,
    pub(super) step: WriterStep,
}

/// Step that a writer executes next. It has the lock of its shard from `Push` to `Raise`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum WriterStep {
    #[default]
    Begin,
    /// The sweeper asks for room, or waits for it.
    AskForRoom,
    WaitForRoom,
    Waiting,
    Lock,
    Push,
    Raise(usize),
    Flush,
    Publish,
    /// Waits for the log.
    LockLog,
    Take {
        contention: u8,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Reader {
    pub(super) step: ReaderStep,
    /// Number of its next event in the channel, and among all published events.
    pub(super) next: u8,
    pub(super) position: usize,
}

/// Step that a subscriber executes next. From `First` on, it has the lock of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum ReaderStep {
    #[default]
    Absent,
    Ready,
    Parked,
    First(Call),
    Take {
        call: Call,
        contention: u8,
        is_second: bool,
    },
    Change(Call),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Call {
    Subscribe,
    Poll,
    Leave,
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// The next step of a writer.
    Write(usize),
    /// Begins to subscribe.
    Subscribe(usize),
    /// Begins to poll for an event.
    Poll(usize),
    /// Begins to drop a subscriber, which may be parked.
    Leave(usize),
    /// The next step of a subscriber.
    Continue(usize),
}

impl State {
    pub(super) fn new(writers: Vec<Writer>) -> Self {
        Self {
            parts: Default::default(),
            part_owners: [None; PARTS],
            is_batching: false,
            is_dirty: false,
            is_due: false,
            is_urgent: false,
            contention: 0,
            is_subscribed: false,
            is_awaited: false,
            log_owner: None,
            channels: [None, Some(1)].map(|ring| Channel { ring, ..Channel::default() }),
            is_held_back: false,
            has_permit: false,
            writers,
            readers: Default::default(),
            subscriptions: 0,
            recorded: [0; 2],
            published: Vec::new(),
            violation: None,
        }
    }

    /// Returns whether no thread has anything to do before another call.
    pub(super) fn is_quiet(&self) -> bool {
        let rests = [WriterStep::Begin, WriterStep::Waiting];
        self.log_owner.is_none() && self.writers.iter().all(|writer| rests.contains(&writer.step))
    }

    pub(super) fn all_are_woken(&self) -> bool {
        let has_journal = self.parts.iter().any(|part| !part.is_empty());
        self.readers.iter().zip(&self.channels).all(|(reader, channel)| {
            reader.step != ReaderStep::Parked || !has_journal && reader.next == channel.end()
        })
    }

    fn is_subscribed(&self, reader: usize) -> bool {
        self.readers[reader].step != ReaderStep::Absent
    }

    pub(super) fn channels_are_consistent(&self) -> bool {
        self.channels.iter().enumerate().all(|(reader, channel)| {
            let counted = channel.events.iter().map(|(_, next_readers)| next_readers).sum::<u8>();
            let first_is_read = channel.events.first().is_none_or(|(_, readers)| *readers > 0);
            first_is_read && counted + channel.at_end == u8::from(self.is_subscribed(reader))
        })
    }

    fn unread(&self) -> u8 {
        if self.is_subscribed(0) { self.channels[0].end() - self.readers[0].next } else { 0 }
    }

    /// Returns whether half of the capacity of the lossless subscriber, which is one, is free.
    pub(super) fn is_half_free(&self) -> bool {
        self.unread() == 0
    }

    /// The free capacity of the lossless subscriber, which is one.
    pub(super) fn room(&self) -> u8 {
        1_u8.saturating_sub(self.unread())
    }

    pub(super) fn resume_sweeper(&mut self) {
        if self.is_held_back && self.is_half_free() {
            (self.is_held_back, self.has_permit) = (false, true);
        }
    }

    pub(super) fn set_subscribed(&mut self, is_awaited: bool) {
        let joined = |reader: &Reader, channel: &Channel| {
            !channel.events.is_empty() || channel.at_end > 0 || reader.step == ReaderStep::Parked
        };
        self.is_subscribed = self
            .readers
            .iter()
            .zip(&self.channels)
            .any(|(reader, channel)| joined(reader, channel));
        let is_parked = |reader: &Reader| reader.step == ReaderStep::Parked;
        self.is_awaited = is_awaited || self.readers.iter().any(is_parked);
    }

    pub(super) fn can_take(&self, contention: u8) -> bool {
        let parts = if contention == 0 && !self.is_batching { 1 } else { PARTS };
        self.part_owners[..parts].iter().all(Option::is_none)
    }

    /// `Log::append`: takes the journal, and wakes the parked subscribers. They are marked here, and lock the log
    /// later. Returns whether it woke any.
    pub(super) fn append(&mut self, bug: Option<Bug>, contention: u8) -> bool {
        let mut woke = false;
        let is_single = contention == 0 && !self.is_batching;
        (self.is_dirty, self.is_due, self.is_urgent) = (false, false, false);
        let mut taken = take(&mut self.parts[0]);
        if !is_single {
            if bug != Some(Bug::OnePartIsTaken) {
                taken.extend(take(&mut self.parts[1]));
            }
            let remaining = contention.saturating_sub(taken.len() as u8);
            if self.contention == contention {
                self.contention = remaining;
            }
            self.is_batching = remaining > 0;
        }
        for removal in &taken {
            let is_next = self.published.iter().filter(|other| other.0 == removal.0).count();
            if is_next != usize::from(removal.1) {
                self.violation = Some(ORDERED);
            }
            self.published.push(*removal);
            for (reader, channel) in self.readers.iter_mut().zip(&mut self.channels) {
                if channel.at_end > 0 || !channel.events.is_empty() {
                    channel.push(*removal);
                }
                if reader.step == ReaderStep::Parked {
                    (reader.step, woke) = (ReaderStep::Ready, true);
                }
            }
        }
        woke
    }

    /// `Publisher::catch_up`, under the lock of the log.
    pub(super) fn catch_up(&mut self, bug: Option<Bug>, contention: u8) {
        // Woken subscribers wait no more.
        if self.append(bug, contention) {
            self.set_subscribed(false);
        }
    }
}
