//! The steps of subscribers.

use super::{
    Bug, Protocol, RECEIVED,
    channel::Channel,
    steps::{Action, Call, Reader, ReaderStep, State, Thread},
};

impl State {
    pub(super) fn lock_log(&mut self, reader: usize, action: Action) -> Option<()> {
        self.log_owner.is_none().then_some(())?;
        self.log_owner = Some(Thread::Reader(reader));
        self.readers[reader].step = ReaderStep::First(match action {
            Action::Subscribe(_) => Call::Subscribe,
            Action::Leave(_) => Call::Leave,
            _ => Call::Poll,
        });
        Some(())
    }

    /// Reads the next event of a subscriber, compares it with the published ones, and unlocks the log.
    fn receive(&mut self, bug: Option<Bug>, reader: usize) -> bool {
        let of = &mut self.readers[reader];
        let Some(found) = self.channels[reader].read(&mut of.next, bug) else { return false };
        match found {
            Ok(removal) => {
                if self.published.get(of.position) != Some(&removal) {
                    self.violation = Some(RECEIVED);
                }
                of.position += 1;
            }
            Err(missed) => of.position += usize::from(missed),
        }
        of.step = ReaderStep::Ready;
        self.resume_sweeper();
        self.log_owner = None;
        true
    }

    /// The next step of a subscriber that has the lock of the log.
    pub(super) fn read(&mut self, protocol: &Protocol, reader: usize) -> Option<()> {
        let bug = protocol.bug;
        match self.readers[reader].step {
            ReaderStep::First(call) => {
                if call == Call::Poll && self.receive(bug, reader) {
                    return Some(());
                }
                let contention = self.contention;
                self.readers[reader].step = match self.is_dirty {
                    true => ReaderStep::Take { call, contention, is_second: false },
                    false => ReaderStep::Change(call),
                };
            }
            ReaderStep::Take { call, contention, is_second } => {
                self.can_take(contention).then_some(())?;
                if !is_second {
                    self.catch_up(bug, contention);
                    self.readers[reader].step = ReaderStep::Change(call);
                    return Some(());
                }
                if call != Call::Poll || bug != Some(Bug::ParksAtOnce) {
                    self.append(bug, contention);
                }
                self.end_call(bug, reader, call);
            }
            ReaderStep::Change(call) => {
                if call == Call::Poll && self.receive(bug, reader) {
                    return Some(());
                }
                self.change(bug, reader, call);
                let contention = self.contention;
                self.readers[reader].step = ReaderStep::Take { call, contention, is_second: true };
            }
            _ => unreachable!("it has no lock"),
        }
        Some(())
    }

    fn change(&mut self, bug: Option<Bug>, reader: usize, call: Call) {
        match call {
            Call::Subscribe => {
                self.readers[reader].next = self.channels[reader].join();
                self.readers[reader].position = self.published.len();
            }
            Call::Leave => {
                self.channels[reader].leave(self.readers[reader].next, bug);
                // A channel without readers is removed.
                let channel = &mut self.channels[reader];
                if bug != Some(Bug::LeaverIsCounted) {
                    *channel = Channel { ring: channel.ring, ..Channel::default() };
                }
                self.readers[reader] = Reader::default();
                if bug != Some(Bug::SweeperIsForgotten) {
                    self.resume_sweeper();
                }
            }
            Call::Poll => {}
        }
        self.set_subscribed(call == Call::Poll);
        if call == Call::Leave && bug == Some(Bug::LeaverEndsRecording) {
            self.is_subscribed = false;
        }
    }

    fn end_call(&mut self, bug: Option<Bug>, reader: usize, call: Call) {
        match call {
            Call::Poll => {
                if self.receive(bug, reader) {
                    return;
                }
                self.readers[reader].step = ReaderStep::Parked;
            }
            Call::Subscribe => self.readers[reader].step = ReaderStep::Ready,
            Call::Leave => self.readers[reader].step = ReaderStep::Absent,
        }
        self.log_owner = None;
    }
}
