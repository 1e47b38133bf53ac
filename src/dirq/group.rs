//! Group commit of synced adds: one thread executes the adds of all callers that arrived during the previous group,
//! because a disk can sync several files at once.
//!
//! 1. One thread per queue executes the adds, and ends when no more arrive. It does not belong to a runtime, because
//!    callers on other runtimes wait for it too. A caller gets its result when the element is on disk.
//! 2. Leadership is a value that is released when its thread ends, even by a panic.
//! 3. An add that is dropped before it begins adds nothing.

#[cfg(test)]
mod tests;

use std::{
    io, mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use super::{
    Error, Name,
    add::{Add, WaitingAdd},
    blocking::Work,
    bound::CapacityPermit,
    root::Root,
};

/// Maximum number of adds in a group.
const MAX_GROUP: usize = 64;

/// Returns whether an add of `len` bytes waits for a disk and is short, so that it is executed in a group.
pub(super) fn accepts(root: &Root, len: usize) -> bool {
    root.sync && !root.in_place && !root.in_memory() && len <= Work::SHORT_DATA
}

/// Adds an element, together with concurrent adds to the queue.
pub(super) async fn add<Q: Add>(
    queue: &Arc<Q>,
    content: Q::Content,
    permit: Option<CapacityPermit>,
) -> Result<Name, Error> {
    let (sender, receiver) = oneshot::channel();
    let group = queue.group();
    let (ticket, must_lead) = {
        let mut locked = group.lock();
        let ticket = locked.push(WaitingAdd { content, permit, sender });
        (ticket, !mem::replace(&mut locked.state.has_leader, true))
    };
    // Before the await: if this future is dropped there, an add whose group has not begun is withdrawn.
    let _guard = group.guard(ticket);
    if must_lead {
        GroupLeader { queue: queue.clone(), has_resigned: false }.spawn();
    }
    receiver.await.unwrap_or_else(|_| {
        let reason = io::Error::other("the thread for synced adds did not start, or ended early");
        Err(Error::io("add to", queue.root().path(), reason))
    })
}

/// The leadership of a queue. Dropping it before it has resigned fails all queued adds.
struct GroupLeader<Q: Add> {
    queue: Arc<Q>,
    has_resigned: bool,
}

impl<Q: Add> GroupLeader<Q> {
    fn spawn(self) {
        // If no thread can be created, the closure is dropped, and the leadership with it.
        let _ = thread::Builder::new().name("fleeting-dirq".into()).spawn(|| self.run());
    }

    fn run(mut self) {
        while let Some(group) = self.next_group() {
            let (count, begun) = (group.len(), Instant::now());
            let (mut contents, mut senders, mut permits) = (Vec::new(), Vec::new(), Vec::new());
            for waiting in group {
                contents.push(waiting.content);
                senders.push(waiting.sender);
                permits.push(waiting.permit);
            }
            let added = self.queue.add_each(&contents);
            // Before the results are sent: a caller that has its result must find the element counted once.
            drop(permits);
            let now = Instant::now();
            // Counted before the results are sent: a caller that then adds again must not be counted twice.
            let others = self.queue.group().lock().len();
            for (sender, added) in senders.into_iter().zip(added) {
                // A caller's waker may panic, and a caller may be gone.
                let _ = catch_unwind(AssertUnwindSafe(|| sender.send(added).is_ok()));
            }
            // An eighth of the group's own time: callers that do not add again delay the next group only a little.
            self.await_callers(count + others, (now - begun) / 8);
        }
    }

    /// Returns the next group in order of arrival. If there is none, resigns the leadership.
    fn next_group(&mut self) -> Option<Vec<WaitingAdd<Q::Content>>> {
        let mut locked = self.queue.group().lock();
        let group = locked.take(MAX_GROUP);
        self.has_resigned = group.is_empty();
        // Under the same lock: an add that is queued after this starts a leader of its own.
        locked.state.has_leader = !group.is_empty();
        (!group.is_empty()).then_some(group)
    }

    /// Waits briefly for callers that have just received their results: one sync of a full group takes less time than
    /// two of half a group.
    fn await_callers(&self, count: usize, at_most: Duration) {
        let until = Instant::now() + at_most.min(Duration::from_micros(100));
        while self.queue.group().lock().len() < count && Instant::now() < until {
            thread::yield_now();
        }
    }
}

impl<Q: Add> Drop for GroupLeader<Q> {
    fn drop(&mut self) {
        if !self.has_resigned {
            let mut locked = self.queue.group().lock();
            locked.state.has_leader = false;
            // Callers see the end of their channels.
            let removed = locked.take(usize::MAX);
            drop(locked);
            drop(removed);
        }
    }
}
