//! The streams of several queues, merged by the times of the elements. Each queue is read by its own threads, so the
//! merged stream continues without a queue whose disk does not answer.

use std::{
    future::{Future, pending, poll_fn},
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
    Error, Lock, Name, Walk,
    locked_stream::{LockedQueue, LockedStream},
};

/// Returns the names of all elements in the order of their times. Each is returned with the index of its queue.
pub(super) fn list_all(
    walks: Vec<Walk<Name>>,
    in_memory: bool,
) -> impl Stream<Item = Result<(usize, Name), Error>> + Send {
    let streams = walks.into_iter().map(|names| NameStream { names, next: None });
    merge(streams, in_memory, false)
}

/// Locks all elements of the queues that can be locked, in the order of their times, once or, with `poll_interval`,
/// repeatedly. Each is returned with the index of its queue.
pub(super) fn lock_all<T: Send + 'static>(
    queues: Vec<LockedQueue<T>>,
    poll_interval: Option<Duration>,
) -> impl Stream<Item = Result<(usize, Lock<T>), Error>> + Send {
    let in_memory = queues.iter().all(|queue| queue.root().in_memory());
    let streams = queues.into_iter().map(move |queue| LockedStream::new(queue, poll_interval));
    merge(streams, in_memory, poll_interval.is_some())
}

fn merge<S: MemberStream>(
    streams: impl Iterator<Item = S>,
    in_memory: bool,
    never_ends: bool,
) -> impl Stream<Item = Result<(usize, S::Item), Error>> + Send {
    let members = streams.enumerate().map(|(index, stream)| MemberQueue { index, stream });
    let busy = members.map(MemberQueue::peek).collect();
    let (ready, waiting) = (Vec::new(), FuturesUnordered::new());
    let merge = Merge { ready, busy, waiting, in_memory, never_ends };
    // As for one queue: `unfold` keeps the future of a step in the stream.
    unfold(merge, |mut merge| async move { Some((merge.next().await?, merge)) })
}

/// The stream of one queue: iterations over its elements.
trait MemberStream: Send + 'static {
    type Item: Send + 'static;

    /// Returns the number of the next element, which begins with its time; 0 for an error. Returns `None` at the end of
    /// an iteration.
    fn peek(&mut self) -> impl Future<Output = Option<u64>> + Send;

    /// Returns the next element, or `None` at the end of an iteration.
    fn next(&mut self) -> impl Future<Output = Option<Result<Self::Item, Error>>> + Send;

    /// Waits until there may be new elements. Returns false if there is only one iteration.
    fn wait(&mut self) -> impl Future<Output = bool> + Send;
}

impl<T: Send + 'static> MemberStream for LockedStream<T> {
    type Item = Lock<T>;

    async fn peek(&mut self) -> Option<u64> {
        self.peek().await
    }

    async fn next(&mut self) -> Option<Result<Lock<T>, Error>> {
        self.next().await
    }

    async fn wait(&mut self) -> bool {
        self.wait().await
    }
}

/// The names of a queue, and the next of them if it is known.
struct NameStream {
    names: Walk<Name>,
    next: Option<Result<Name, Error>>,
}

impl MemberStream for NameStream {
    type Item = Name;

    async fn peek(&mut self) -> Option<u64> {
        if self.next.is_none() {
            self.next = self.names.next().await;
        }
        self.next.as_ref().map(|next| next.as_ref().map_or(0, |name| name.element))
    }

    async fn next(&mut self) -> Option<Result<Name, Error>> {
        self.next.take()
    }

    async fn wait(&mut self) -> bool {
        false
    }
}

/// A queue of the set.
struct MemberQueue<S> {
    index: usize,
    stream: S,
}

/// The members of a set, by their states.
struct Merge<S: MemberStream> {
    /// Members whose next element is known, each with its number.
    ready: Vec<(u64, MemberQueue<S>)>,
    /// Members that list or lock elements, and are expected to answer soon.
    busy: FuturesUnordered<BoxFuture<'static, MemberAnswer<S>>>,
    /// Members that wait for new elements, and members that did not answer in time.
    waiting: FuturesUnordered<BoxFuture<'static, MemberAnswer<S>>>,
    /// In memory there is no disk to wait for, and no timer is needed.
    in_memory: bool,
    /// True if the members wait for new elements, even if there are no members.
    never_ends: bool,
}

enum MemberAnswer<S: MemberStream> {
    /// The next element of a member is known, or its iteration is at its end.
    Peeked(MemberQueue<S>, Option<u64>),
    /// A member returns an element, or its iteration is at its end.
    Next(MemberQueue<S>, Option<Result<S::Item, Error>>),
    /// A member may have new elements; false if it has only one iteration.
    Woken(MemberQueue<S>, bool),
}

impl<S: MemberStream> Merge<S> {
    /// Time after which the stream continues without a member that does not answer.
    const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

    /// Returns the oldest of the next elements of all members, or `None` if all are at their ends.
    async fn next(&mut self) -> Option<Result<(usize, S::Item), Error>> {
        loop {
            match self.answer().await {
                Some(MemberAnswer::Peeked(member, Some(number))) => {
                    self.ready.push((number, member))
                }
                Some(MemberAnswer::Peeked(member, None) | MemberAnswer::Next(member, None)) => {
                    self.waiting.push(member.wait());
                }
                Some(MemberAnswer::Woken(member, true)) => self.busy.push(member.peek()),
                Some(MemberAnswer::Woken(_, false)) => {}
                Some(MemberAnswer::Next(member, Some(next))) => {
                    let index = member.index;
                    self.busy.push(member.peek());
                    return Some(next.map(|item| (index, item)));
                }
                None => match self.take_oldest() {
                    Some(member) => self.busy.push(member.next()),
                    None if self.never_ends => pending().await,
                    None => return None,
                },
            }
        }
    }

    /// Removes the member with the oldest element from those that are ready.
    fn take_oldest(&mut self) -> Option<MemberQueue<S>> {
        let ready = self.ready.iter().enumerate();
        let (oldest, _) = ready.min_by_key(|(_, (number, member))| (*number, member.index))?;
        Some(self.ready.swap_remove(oldest).1)
    }

    /// Returns the next answer, or `None` if an element should be chosen from the members that are ready, or if no
    /// member is left.
    async fn answer(&mut self) -> Option<MemberAnswer<S>> {
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
        // Most answers are ready, and need no timer.
        if let Some(answer) = (&mut answer).now_or_never() {
            return answer;
        }
        let answered = timeout(Self::ANSWER_TIMEOUT, &mut answer).await;
        answered.unwrap_or_else(|_| {
            // They are still polled, but no longer waited for.
            waiting.extend(mem::take(busy));
            None
        })
    }
}

impl<S: MemberStream> MemberQueue<S> {
    fn peek(mut self) -> BoxFuture<'static, MemberAnswer<S>> {
        async move {
            let number = self.stream.peek().await;
            MemberAnswer::Peeked(self, number)
        }
        .boxed()
    }

    fn next(mut self) -> BoxFuture<'static, MemberAnswer<S>> {
        async move {
            let next = self.stream.next().await;
            MemberAnswer::Next(self, next)
        }
        .boxed()
    }

    fn wait(mut self) -> BoxFuture<'static, MemberAnswer<S>> {
        async move {
            let may_have_new = self.stream.wait().await;
            MemberAnswer::Woken(self, may_have_new)
        }
        .boxed()
    }
}
