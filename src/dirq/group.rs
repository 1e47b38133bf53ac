//! Adds of several callers that are synced together: one thread makes those of all who came while it made the last, as a
//! disk that waits for one takes others along.
//!
//! 1. One thread makes them, and senders where no more come. It is none of a runtime's, as others than its callers wait for
//!    it. Who is told of an add has it on disk.
//! 2. To leader is a value, which senders with its thread, however that senders.
//! 3. Who is dropped before its add was begun has added nothing.

#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    fmt, io, mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use tokio::sync::oneshot::{self, Sender};

use super::{Error, Name, blocking::Work, bound::CapacityPermit, protocol::Protocol, root::Root};

/// How many adds are made together.
const MAX_GROUP: usize = 64;

/// A queue whose adds are made in groups.
pub(super) trait AddInGroups: Protocol {
    /// What is added.
    type Item: Send + 'static;

    fn group(&self) -> &Group<Self::Item>;

    /// Adds each of them, and has an answer for each.
    fn add_each(&self, items: Vec<Self::Item>) -> Vec<Result<Name, Error>>;
}

/// Those who wait for their adds.
pub(super) struct Group<I>(Mutex<State<I>>);

struct State<I> {
    waiting: VecDeque<WaitingAdd<I>>,
    tickets: u64,
    has_leader: bool,
}

struct WaitingAdd<I> {
    ticket: u64,
    item: I,
    permit: Option<CapacityPermit>,
    sender: Sender<Result<Name, Error>>,
}

/// Whether an add of so many bytes waits for a disk, and is short, so that it is made together with others.
pub(super) fn accepts(root: &Root, len: usize) -> bool {
    // A plan is for the calls of one thread.
    #[cfg(test)]
    if super::fs::faults::has_plan() {
        return false;
    }
    root.sync && !root.in_memory() && len <= Work::SHORT_DATA
}

/// Adds `item`, together with what others add to the queue.
pub(super) async fn add<Q: AddInGroups>(
    queue: &Arc<Q>,
    item: Q::Item,
    permit: Option<CapacityPermit>,
) -> Result<Name, Error> {
    let (sender, receiver) = oneshot::channel();
    let group = queue.group();
    let (ticket, must_lead) = group.enter(item, permit, sender);
    let _queued_add = QueuedAdd { group, ticket };
    if must_lead {
        GroupLeader { queue: queue.clone(), has_resigned: false }.spawn();
    }
    receiver.await.unwrap_or_else(|_| {
        let reason = io::Error::other("there was no thread for it, or it ended too soon");
        Err(Error::io("add to", queue.root().path(), reason))
    })
}

impl<I> Group<I> {
    /// A place in line, by its number; true where its holder is to begin to leader.
    fn enter(
        &self,
        item: I,
        permit: Option<CapacityPermit>,
        sender: Sender<Result<Name, Error>>,
    ) -> (u64, bool) {
        let mut state = self.state();
        state.tickets += 1;
        let ticket = state.tickets;
        state.waiting.push_back(WaitingAdd { ticket, item, permit, sender });
        (ticket, !mem::replace(&mut state.has_leader, true))
    }

    fn state(&self) -> MutexGuard<'_, State<I>> {
        // No step leaves it wrong.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of one who waits, and leaves with it.
struct QueuedAdd<'a, I> {
    group: &'a Group<I>,
    ticket: u64,
}

impl<I> Drop for QueuedAdd<'_, I> {
    fn drop(&mut self) {
        let mut state = self.group.state();
        let found = state.waiting.binary_search_by_key(&self.ticket, |waiting| waiting.ticket);
        let removed = found.ok().and_then(|index| state.waiting.remove(index));
        drop(state);
        drop(removed);
    }
}

/// Who has it leads.
struct GroupLeader<Q: AddInGroups> {
    queue: Arc<Q>,
    has_resigned: bool,
}

impl<Q: AddInGroups> GroupLeader<Q> {
    fn spawn(self) {
        // Where there is no thread to be had, it is dropped.
        let _ = thread::Builder::new().name("fleeting-dirq".into()).spawn(|| self.run());
    }

    fn run(mut self) {
        while let Some(group) = self.next_group() {
            let (count, begun) = (group.len(), Instant::now());
            let (mut items, mut senders, mut permits) = (Vec::new(), Vec::new(), Vec::new());
            for waiting in group {
                items.push(waiting.item);
                senders.push(waiting.sender);
                permits.push(waiting.permit);
            }
            let added = self.queue.add_each(items);
            // Who is told of an element finds it counted once.
            drop(permits);
            let now = Instant::now();
            let others = self.queue.group().state().waiting.len();
            for (sender, added) in senders.into_iter().zip(added) {
                // A waker of somebody's may panic; and nobody may wait any more.
                let _ = catch_unwind(AssertUnwindSafe(|| sender.send(added).is_ok()));
            }
            self.await_callers(count + others, (now - begun) / 8);
        }
    }

    /// Those who wait, in the order in which they came; none where there are none, and then it leads no more.
    fn next_group(&mut self) -> Option<Vec<WaitingAdd<Q::Item>>> {
        let mut state = self.queue.group().state();
        let count = state.waiting.len().min(MAX_GROUP);
        self.has_resigned = count == 0;
        state.has_leader = count > 0;
        (count > 0).then(|| state.waiting.drain(..count).collect())
    }

    /// Lets those come back who were just told: to sync twice for two halves takes longer.
    fn await_callers(&self, count: usize, at_most: Duration) {
        let until = Instant::now() + at_most.min(Duration::from_micros(100));
        while self.queue.group().state().waiting.len() < count && Instant::now() < until {
            thread::yield_now();
        }
    }
}

impl<Q: AddInGroups> Drop for GroupLeader<Q> {
    fn drop(&mut self) {
        if !self.has_resigned {
            let mut state = self.queue.group().state();
            state.has_leader = false;
            // They are told by the end of their channels.
            let removed = mem::take(&mut state.waiting);
            drop(state);
            drop(removed);
        }
    }
}

impl<I> Default for Group<I> {
    fn default() -> Self {
        Self(Mutex::new(State { waiting: VecDeque::new(), tickets: 0, has_leader: false }))
    }
}

impl<I> fmt::Debug for Group<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").finish_non_exhaustive()
    }
}
