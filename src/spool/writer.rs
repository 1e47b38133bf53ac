//! What writes for a spool: it takes events off a stream into the backlog, and the backlog in batches to the queue.

use std::{
    panic::resume_unwind,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll},
    time::Duration,
};

use futures_core::Stream;
use serde::Serialize;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep},
};

use super::{
    any_queue::AnyQueue,
    backlog::{BATCH, BATCH_BYTES, Backlog, Transition},
    record::{Record, WallClock},
    stats::SpoolStats,
};
use crate::{
    dirq::{Error, Purge},
    engine::{event::Event, panics::drop_all},
};

/// How long it waits after a try that failed; each next time twice as long, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What a handle of a spool wants.
#[derive(Clone, Copy)]
pub(super) struct Settings {
    /// The causes that are written, as bits.
    pub(super) causes: u8,
    pub(super) skip_too_large: bool,
    pub(super) purge: Option<(Duration, Purge)>,
}

/// What all clones of a spool share.
pub(super) struct Writer {
    queue: AnyQueue,
    /// The one permit to write. It goes with the task that writes, and not with the run that waits for it: a run that
    /// is dropped in between must not let the next one overtake its batch.
    write_permit: Arc<Semaphore>,
    backlog: Mutex<Backlog>,
    purged: Mutex<Option<Instant>>,
    #[cfg(feature = "metrics")]
    pub(super) registration: crate::engine::metrics::Slot,
}

impl Writer {
    pub(super) fn new(queue: AnyQueue) -> Self {
        let write_permit = Arc::new(Semaphore::new(1));
        let backlog = Mutex::new(Backlog::new());
        Self {
            queue,
            write_permit,
            backlog,
            purged: Mutex::default(),
            #[cfg(feature = "metrics")]
            registration: Default::default(),
        }
    }

    pub(super) fn queue(&self) -> &AnyQueue {
        &self.queue
    }

    /// Takes a batch of events into the backlog, or what of it is there; waits only for the first. False where the
    /// stream has ended.
    ///
    /// It is one poll: between the stream and the backlog there is no await at which an event could be lost.
    pub(super) fn poll_batch<K, V, E>(
        &self,
        events: &mut E,
        causes: u8,
        cx: &mut Context<'_>,
    ) -> Poll<bool>
    where
        K: Serialize,
        V: Serialize,
        E: Stream<Item = Arc<Event<K, V>>> + Unpin,
    {
        // Once for all: each event's times are told from this one moment on both clocks.
        let wall_clock = WallClock::now();
        let (mut taken, mut bytes) = (0, 0);
        while taken < BATCH && bytes < BATCH_BYTES {
            match Pin::new(&mut *events).poll_next(cx) {
                Poll::Ready(Some(event)) => {
                    taken += 1;
                    if event.cause.bit() & causes != 0 {
                        bytes += self.push(&event, &wall_clock);
                    }
                    // Key and value are the user's, and so is a panic in their drop.
                    drop_all([event]);
                }
                Poll::Ready(None) => return Poll::Ready(false),
                Poll::Pending if taken == 0 => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        Poll::Ready(true)
    }

    /// Returns how many bytes it is in hand.
    fn push<K: Serialize, V: Serialize>(
        &self,
        event: &Event<K, V>,
        wall_clock: &WallClock,
    ) -> usize {
        match Record::of(event, wall_clock) {
            Ok(record) => {
                let len = record.len();
                self.backlog().push(record);
                len
            }
            Err(error) => {
                self.backlog().pass_over();
                let queue = self.queue.path().display();
                tracing::error!(%queue, %error, "an event that can't be written is passed over");
                0
            }
        }
    }

    /// Writes until the backlog is empty.
    pub(super) async fn write_all(self: &Arc<Self>, settings: Settings) {
        let mut pause = FIRST_PAUSE;
        loop {
            let permit = self.write_permit.clone().acquire_owned().await.expect("nobody closes it");
            // With the permit: what another run is just writing may still fail.
            if self.backlog().is_empty() {
                return;
            }
            let writer = self.clone();
            // A task of its own, as to drop this run in mid-write would leave open what is in the queue.
            let writing = tokio::spawn(async move {
                let _permit = permit;
                writer.purge(settings).await;
                writer.write_batch(settings.skip_too_large).await
            });
            match writing.await {
                Ok(0) => {
                    sleep(pause).await;
                    pause = LONGEST_PAUSE.min(pause * 2);
                }
                Ok(_) => pause = FIRST_PAUSE,
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => resume_unwind(panic),
                    // The runtime shuts down, and with it this run at its next pause.
                    Err(_) => sleep(pause).await,
                },
            }
        }
    }

    /// Takes away what dead writers have left in the queue, if it is time.
    async fn purge(&self, settings: Settings) {
        let Some((every, purge)) = settings.purge else { return };
        {
            let mut purged = self.purged.lock().expect("nothing here panics");
            if purged.is_some_and(|purged| purged.elapsed() < every) {
                return;
            }
            *purged = Some(Instant::now());
        }
        if let Err(error) = self.queue.purge(purge).await {
            let (queue, error) = (self.queue.path().display(), &error as &dyn std::error::Error);
            tracing::warn!(%queue, error, "the spool's queue can't be purged");
        }
    }

    /// Writes a batch of the backlog; tells how many went in, or were skipped.
    async fn write_batch(&self, skip_too_large: bool) -> usize {
        let batch = self.backlog().batch();
        let (written, result) = self.queue.add(&batch).await;
        if let (true, [_], Err(error @ Error::TooLarge { .. })) = (skip_too_large, &*batch, &result)
        {
            let skipped = self.backlog().skip();
            drop(skipped);
            let (queue, error) = (self.queue.path().display(), error as &dyn std::error::Error);
            tracing::error!(%queue, error, "an event that is too large for the queue is skipped");
            return 1;
        }
        let (gone, transition) = {
            let mut backlog = self.backlog();
            let gone = backlog.remove_written(written);
            (gone, backlog.record_try(batch.len(), written, &result))
        };
        drop(gone);
        let queue = self.queue.path().display();
        match (transition, result) {
            (Some(Transition::Stalled), Err(error)) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(%queue, error, "the spool can't write, and holds events back");
            }
            (Some(Transition::Unsynced), Err(error)) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(%queue, error, "what the spool writes may not survive a crash of the machine");
            }
            (Some(Transition::Recovered(stalled)), _) => {
                tracing::info!(%queue, ?stalled, "the spool writes again");
            }
            _ => {}
        }
        written
    }

    pub(super) fn stats(&self) -> SpoolStats {
        self.backlog().stats()
    }

    fn backlog(&self) -> MutexGuard<'_, Backlog> {
        self.backlog.lock().expect("no user code runs under this lock")
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, rc::Rc};

    use futures_util::FutureExt;
    use rustix::io::Errno;
    use tokio::time::Instant;

    use super::*;
    use crate::{
        dirq::{
            Queue, QueueSimple,
            faults::{Fate, with},
        },
        engine::event::Cause,
        spool::record,
    };

    /// Whatever call fails once, the next try writes what is left, and nothing again.
    #[tokio::test]
    async fn an_event_is_written_once_whatever_call_fails() {
        let mut failures = 0;
        for (is_normal, sync) in [(false, false), (false, true), (true, false), (true, true)] {
            let (calls, mut last) = (Rc::new(Cell::new(u32::MAX)), 0);
            // Until the last try had less calls.
            while calls.get() > last {
                last += 1;
                failures += fail_at(is_normal, sync, last, &calls).await;
            }
        }
        assert!(failures > 50, "only {failures} calls failed");
    }

    /// Lets one call fail, by its number; counts all, and returns how often a write failed.
    async fn fail_at(is_normal: bool, sync: bool, at: u32, calls: &Rc<Cell<u32>>) -> u64 {
        let Spooled { _folder, simple, normal, writer } = Spooled::new(is_normal, sync).await;
        calls.set(0);
        let plan = {
            let calls = calls.clone();
            move |_: &'static str| {
                calls.set(calls.get() + 1);
                match calls.get() == at {
                    true => Fate::Refused(Errno::IO),
                    false => Fate::Made,
                }
            }
        };
        with(plan, || {
            while !writer.backlog().is_empty() {
                writer.write_batch(false).now_or_never().expect("it is done in place");
            }
        });
        let keys = keys(&simple, &normal).await;
        assert_eq!(keys, ["0", "1", "2"], "normal: {is_normal}, sync: {sync}, the {at}. call");
        writer.stats().failures
    }

    /// Three events in hand, for a queue of one of the kinds.
    struct Spooled {
        _folder: tempfile::TempDir,
        simple: QueueSimple,
        normal: Queue,
        writer: Writer,
    }

    impl Spooled {
        async fn new(is_normal: bool, sync: bool) -> Self {
            let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
            let simple = QueueSimple::builder(folder.path().join("simple")).sync(sync);
            let simple = simple.open().await.unwrap();
            let normal = Queue::builder(folder.path().join("normal")).schema(record::schema());
            let normal = normal.sync(sync).open().await.unwrap();
            let writer = Writer::new(match is_normal {
                true => normal.clone().into(),
                false => simple.clone().into(),
            });
            for key in 0..3 {
                let (cause, at) = (Cause::Expired, Instant::now());
                let event = Event { key, value: (), cause, deadline: None, at };
                writer.push(&event, &WallClock::now());
            }
            Self { _folder: folder, simple, normal, writer }
        }
    }

    /// Those of the events in the queues, which it empties.
    async fn keys(simple: &QueueSimple, normal: &Queue) -> Vec<String> {
        let mut keys = Vec::new();
        let mut jobs = simple.locked();
        while let Some(job) = jobs.next().await {
            let job = job.unwrap();
            let event: serde_json::Value = serde_json::from_slice(job.value()).unwrap();
            keys.push(event["key"].to_string());
            job.ack().await.unwrap();
        }
        let mut jobs = normal.locked();
        while let Some(job) = jobs.next().await {
            let job = job.unwrap();
            keys.push(job.value().string("key").unwrap().to_owned());
            job.ack().await.unwrap();
        }
        keys
    }

    /// What it was told is written is there, nothing is there twice, and what it left half done goes with a purge.
    #[tokio::test]
    async fn a_process_may_die_at_each_call_of_its_spool() {
        let mut crashes = 0;
        for (is_normal, sync) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut last = 0;
            while die_after(is_normal, sync, last).await {
                (last, crashes) = (last + 1, crashes + 1);
            }
        }
        assert!(crashes > 50, "{crashes} crashes are too few to be all");
    }

    /// Lets a process do so many calls and no more; false where it needs no more.
    async fn die_after(is_normal: bool, sync: bool, last: u32) -> bool {
        let Spooled { _folder, simple, normal, writer } = Spooled::new(is_normal, sync).await;
        let calls = Rc::new(Cell::new(0));
        let plan = {
            let calls = calls.clone();
            move |_: &'static str| {
                calls.set(calls.get() + 1);
                match calls.get() > last {
                    true => Fate::Refused(Errno::IO),
                    false => Fate::Made,
                }
            }
        };
        let often = (Duration::ZERO, Purge::default());
        let settings = Settings { causes: 0, skip_too_large: false, purge: Some(often) };
        let written = with(plan, || {
            // It can't know that it is dead.
            for _ in 0..3 {
                writer.purge(settings).now_or_never().expect("it is done in place");
                writer.write_batch(false).now_or_never().expect("it is done in place");
            }
            let written = writer.stats().written;
            drop(writer);
            written
        });
        let context = format!("normal: {is_normal}, sync: {sync}, dead after {last} calls");
        let found = keys(&simple, &normal).await;
        let all: Vec<_> = (0..found.len()).map(|key| key.to_string()).collect();
        assert_eq!(found, all, "{context}: each once, in order");
        assert!(written <= found.len() as u64, "{context}: {written} were said to be written");
        std::thread::sleep(Duration::from_millis(1));
        let purge = Purge::default().max_temp(Duration::from_nanos(1));
        simple.purge(purge).await.unwrap();
        normal.purge(purge).await.unwrap();
        let left = |path: &std::path::Path| -> usize {
            let list = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
            list.filter_map(|path| std::fs::read_dir(path).ok()).map(Iterator::count).sum()
        };
        assert_eq!(left(simple.path()) + left(normal.path()), 0, "{context}: something is left");
        calls.get() > last
    }

    /// A disk that takes all and syncs nothing must not get it again and again.
    #[tokio::test]
    async fn what_is_not_synced_is_not_written_twice() {
        let folder = tempfile::tempdir().unwrap();
        let queue = QueueSimple::builder(folder.path()).sync(true).open().await.unwrap();
        let writer = Writer::new(queue.clone().into());
        let write = |events: usize, syncs: bool| {
            for _ in 0..events {
                writer.backlog().push(Record::sample());
            }
            let plan = move |what: &'static str| match what == "sync a directory" && !syncs {
                true => Fate::Refused(Errno::IO),
                false => Fate::Made,
            };
            with(plan, || writer.write_batch(false).now_or_never().expect("it is done in place"));
            writer.stats()
        };
        let stats = write(3, false);
        assert_eq!((stats.written, stats.unsynced, stats.failures), (3, 3, 1));
        assert_eq!((stats.in_hand, stats.stalled), (0, None), "nothing is left to write");
        let stats = write(2, true);
        assert_eq!((stats.written, stats.unsynced, stats.failures), (5, 3, 1));
        assert_eq!(queue.count().await.unwrap(), 5);
    }
}
