//! The stream of locked elements of several queues, merged by the times of the elements. Each queue is read by its own
//! threads, so the stream continues without a queue whose disk does not answer.

use std::{
    future::{pending, poll_fn},
    mem,
    task::Poll,
    time::Duration,
};

use futures_util::{
    FutureExt, StreamExt,
    future::BoxFuture,
    stream::{FuturesUnordered, Stream, unfold},
};
use tokio::time::timeout;

use super::{
    Error, Lock,
    locked_stream::{LockedQueue, LockedStream},
};

/// Locks all elements of the queues that can be locked, in the order of their times, once or, with `poll_interval`,
/// repeatedly. Each is returned with the index of its queue.
pub(super) fn lock_all<T: Send + 'static>(
    queues: Vec<LockedQueue<T>>,
    poll_interval: Option<Duration>,
) -> impl Stream<Item = Result<(usize, Lock<T>), Error>> + Send {
    // As for one queue: `unfold` keeps the future of a step in the stream.
    unfold(Merge::new(queues, poll_interval), |mut merge| async move {
        Some((merge.next().await?, merge))
    })
}

/// A queue of the set.
struct Member<T: Send + 'static> {
    index: usize,
    stream: LockedStream<T>,
}

/// The members of a set, by their states.
struct Merge<T: Send + 'static> {
    /// Members whose next element is known, each with its number.
    ready: Vec<(u64, Member<T>)>,
    /// Members that list or lock elements, and are expected to answer soon.
    busy: FuturesUnordered<BoxFuture<'static, Answer<T>>>,
    /// Members that wait for new elements, and members that did not answer in time.
    waiting: FuturesUnordered<BoxFuture<'static, Answer<T>>>,
    /// In memory there is no disk to wait for, and no timer is needed.
    in_memory: bool,
    /// True if the members wait for new elements, even if there are no members.
    never_ends: bool,
}

enum Answer<T: Send + 'static> {
    /// The next element of a member is known, or its iteration is at its end.
    Next(Member<T>, Option<u64>),
    /// A member has locked an element, or its iteration is at its end.
    Locked(Member<T>, Option<Result<Lock<T>, Error>>),
    /// A member may have new elements; false if it has only one iteration.
    Woken(Member<T>, bool),
}

impl<T: Send + 'static> Merge<T> {
    /// Time after which the stream continues without a member that does not answer.
    const PATIENCE: Duration = Duration::from_secs(1);

    fn new(queues: Vec<LockedQueue<T>>, poll_interval: Option<Duration>) -> Self {
        let in_memory = queues.iter().all(|queue| queue.root().in_memory());
        let members = queues.into_iter().enumerate().map(|(index, queue)| Member {
            index,
            stream: LockedStream::new(queue, poll_interval),
        });
        let busy = members.map(Member::peek).collect();
        Self {
            ready: Vec::new(),
            busy,
            waiting: FuturesUnordered::new(),
            in_memory,
            never_ends: poll_interval.is_some(),
        }
    }

    /// Returns the oldest of the next elements of all members, or `None` if all are at their ends.
    async fn next(&mut self) -> Option<Result<(usize, Lock<T>), Error>> {
        loop {
            match self.answer().await {
                Some(Answer::Next(member, Some(number))) => self.ready.push((number, member)),
                Some(Answer::Next(member, None) | Answer::Locked(member, None)) => {
                    self.waiting.push(member.wait());
                }
                Some(Answer::Woken(member, true)) => self.busy.push(member.peek()),
                Some(Answer::Woken(_, false)) => {}
                Some(Answer::Locked(member, Some(locked))) => {
                    let index = member.index;
                    self.busy.push(member.peek());
                    return Some(locked.map(|lock| (index, lock)));
                }
                None => match self.take_oldest() {
                    Some(member) => self.busy.push(member.lock()),
                    None if self.never_ends => pending().await,
                    None => return None,
                },
            }
        }
    }

    /// Removes the member with the oldest element from those that are ready.
    fn take_oldest(&mut self) -> Option<Member<T>> {
        let ready = self.ready.iter().enumerate();
        let (oldest, _) = ready.min_by_key(|(_, (number, member))| (*number, member.index))?;
        Some(self.ready.swap_remove(oldest).1)
    }

    /// Returns the next answer, or `None` if an element should be chosen from the members that are ready, or if no
    /// member is left.
    async fn answer(&mut self) -> Option<Answer<T>> {
        let (busy, waiting, has_ready) =
            (&mut self.busy, &mut self.waiting, !self.ready.is_empty());
        let may_be_late = has_ready && !self.in_memory;
        let mut answer = poll_fn(|cx| {
            for members in [&mut *busy, &mut *waiting] {
                if let Poll::Ready(Some(answer)) = members.poll_next_unpin(cx) {
                    return Poll::Ready(Some(answer));
                }
            }
            match busy.is_empty() && (has_ready || waiting.is_empty()) {
                true => Poll::Ready(None),
                false => Poll::Pending,
            }
        });
        if !may_be_late {
            return answer.await;
        }
        let answered = timeout(Self::PATIENCE, &mut answer).await;
        answered.unwrap_or_else(|_| {
            // They are still polled, but no longer waited for.
            waiting.extend(mem::take(busy));
            None
        })
    }
}

impl<T: Send + 'static> Member<T> {
    fn peek(mut self) -> BoxFuture<'static, Answer<T>> {
        async move {
            let next = self.stream.peek().await;
            Answer::Next(self, next)
        }
        .boxed()
    }

    fn lock(mut self) -> BoxFuture<'static, Answer<T>> {
        async move {
            let locked = self.stream.next().await;
            Answer::Locked(self, locked)
        }
        .boxed()
    }

    fn wait(mut self) -> BoxFuture<'static, Answer<T>> {
        async move {
            let may_have_new = self.stream.wait().await;
            Answer::Woken(self, may_have_new)
        }
        .boxed()
    }
}
