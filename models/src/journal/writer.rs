//! The steps of writers and of the sweeper.

use super::{
    Bug, Protocol, RECORDED,
    steps::{Call, ReaderStep, State, Thread, WriterStep},
};

/// Length of a batch, and that from which a part is urgent.
const BATCH: usize = 2;
const URGENT: usize = 3;
/// Number of removals for which contention lasts, after the first contention and after another.
const FIRST_SPAN: u8 = 1;
const SPAN: u8 = 2;

impl State {
    /// The next step of a writer; `None` if it has ended or waits.
    pub(super) fn write(&mut self, protocol: &Protocol, writer: usize) -> Option<()> {
        let shards = &protocol.writers[writer];
        let is_sweeper = protocol.has_sweeper && writer + 1 == protocol.writers.len();
        let shard = shards.get(self.writers[writer].begun).copied();
        let next = match self.writers[writer].step {
            WriterStep::Begin => match (shard?, is_sweeper) {
                (_, true) => WriterStep::AskForRoom,
                (_, false) => WriterStep::Lock,
            },
            WriterStep::AskForRoom => {
                self.catch_up_alone(protocol)?;
                if self.room() > 0 { WriterStep::Lock } else { WriterStep::WaitForRoom }
            }
            WriterStep::WaitForRoom => {
                self.catch_up_alone(protocol)?;
                self.is_held_back = !self.is_half_free();
                if self.is_held_back { WriterStep::Waiting } else { WriterStep::AskForRoom }
            }
            WriterStep::Waiting => {
                std::mem::take(&mut self.has_permit).then_some(WriterStep::AskForRoom)?
            }
            WriterStep::Lock => self.lock_shard(protocol, writer, shard?)?,
            WriterStep::Push => self.push(writer, shard?)?,
            WriterStep::Raise(part) => {
                self.raise_flags(protocol.bug, part);
                self.part_owners[part] = None;
                self.writers[writer].begun += 1;
                WriterStep::Flush
            }
            WriterStep::Flush => match std::mem::take(&mut self.is_due) {
                true => WriterStep::Publish,
                false => WriterStep::Begin,
            },
            WriterStep::Publish if self.log_owner.is_some() => match self.note_contention() {
                true => WriterStep::Begin,
                false => WriterStep::LockLog,
            },
            WriterStep::Publish | WriterStep::LockLog => {
                self.log_owner.is_none().then_some(())?;
                if self.is_dirty {
                    self.log_owner = Some(Thread::Writer(writer));
                    WriterStep::Take { contention: self.contention }
                } else {
                    WriterStep::Begin
                }
            }
            WriterStep::Take { contention } => {
                self.can_take(contention).then_some(())?;
                self.catch_up(protocol.bug, contention);
                self.log_owner = None;
                WriterStep::Begin
            }
        };
        self.writers[writer].step = next;
        Some(())
    }

    /// Locks the log and publishes the journal; `None` if it must wait for a lock.
    fn catch_up_alone(&mut self, protocol: &Protocol) -> Option<()> {
        self.log_owner.is_none().then_some(())?;
        if self.is_dirty {
            self.can_take(self.contention).then_some(())?;
            self.catch_up(protocol.bug, self.contention);
        }
        Some(())
    }

    fn lock_shard(&self, protocol: &Protocol, writer: usize, shard: u8) -> Option<WriterStep> {
        let has_lock = |(other, of): (usize, &super::Writer)| {
            matches!(of.step, WriterStep::Push | WriterStep::Raise(_))
                && other != writer
                && protocol.writers[other][of.begun] == shard
        };
        (!self.writers.iter().enumerate().any(has_lock)).then_some(WriterStep::Push)
    }

    /// `Journal::record`, up to the flags. The step after it unlocks the part and the shard.
    fn push(&mut self, writer: usize, shard: u8) -> Option<WriterStep> {
        if !self.is_subscribed {
            let is_subscriber = |step: &ReaderStep| {
                let is_ready = matches!(step, ReaderStep::Ready | ReaderStep::Parked);
                is_ready || *step == ReaderStep::First(Call::Poll)
            };
            if self.readers.iter().any(|reader| is_subscriber(&reader.step)) {
                self.violation = Some(RECORDED);
            }
            self.writers[writer].begun += 1;
            return Some(WriterStep::Flush);
        }
        let part = if self.is_batching { usize::from(shard) % self.parts.len() } else { 0 };
        self.part_owners[part].is_none().then_some(())?;
        self.part_owners[part] = Some(writer);
        let number = &mut self.recorded[usize::from(shard)];
        self.parts[part].push((shard, *number));
        *number += 1;
        self.is_dirty = true;
        Some(WriterStep::Raise(part))
    }

    fn raise_flags(&mut self, bug: Option<Bug>, part: usize) {
        let len = self.parts[part].len();
        let is_awaited = self.is_awaited && bug != Some(Bug::AwaitedIsNotUrgent);
        if len >= URGENT || is_awaited || !self.is_subscribed {
            (self.is_urgent, self.is_due) = (true, true);
        } else if len.is_multiple_of(BATCH) || !self.is_batching {
            self.is_due = true;
        }
    }

    /// Returns whether the removals may stay in the journal.
    fn note_contention(&mut self) -> bool {
        match self.contention {
            0 => self.contention = FIRST_SPAN,
            contention if contention <= SPAN / 2 => self.contention = SPAN,
            _ => {}
        }
        self.is_batching && !self.is_urgent
    }
}
