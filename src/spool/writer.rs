//! The writer of a spool: moves events from a stream to the backlog, without those that cannot be encoded, and from the
//! backlog to the queue in batches, with pauses after failures.

#[cfg(test)]
mod tests;

use std::{
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
    backlog::{Backlog, Transition},
    batch_size::{BATCH_BYTES, MAX_BATCH},
    record::{SpoolRecord, WallClock},
    stats::SpoolStats,
};
use crate::{
    dirq::{Error, Purge},
    engine::{
        event::Event,
        panics::{drop_all, resume_panic_of},
    },
};

/// Pause after a failed attempt. It doubles after each further failure, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Settings of one handle of a spool.
#[derive(Clone, Copy)]
pub(super) struct WriterSettings {
    /// The causes to write, as bits.
    pub(super) causes: u8,
    pub(super) skip_too_large: bool,
    pub(super) purge: Option<(Duration, Purge)>,
}

/// State shared by all clones of a spool.
pub(super) struct Writer {
    queue: AnyQueue,
    /// The permit to write. It is owned by the task that writes, and not by the run that waits for it: if a run is
    /// dropped in the meantime, the next one must not overtake its batch.
    write_permit: Arc<Semaphore>,
    backlog: Mutex<Backlog>,
    purged: Mutex<Option<Instant>>,
    #[cfg(feature = "metrics")]
    pub(super) registration: crate::engine::metrics::RegistrationCell,
}

impl Writer {
    pub(super) fn new(queue: AnyQueue) -> Self {
        let write_permit = Arc::new(Semaphore::new(1));
        let backlog = Mutex::new(Backlog::new(queue.max_elements()));
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

    /// Moves a batch of events into the backlog, or as many as are available. Waits only for the first. Returns false
    /// if the stream has ended.
    ///
    /// A single poll: there is no await between the stream and the backlog at which an event could be lost.
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
        // Once per batch, so that all its times are converted by the same pair of clock readings.
        let wall_clock = WallClock::now();
        let (mut taken, mut bytes) = (0, 0);
        while taken < MAX_BATCH && bytes < BATCH_BYTES {
            match Pin::new(&mut *events).poll_next(cx) {
                Poll::Ready(Some(event)) => {
                    // Events of other causes count too, so that a long run of them does not keep the task from others.
                    taken += 1;
                    if event.cause.bit() & causes != 0 {
                        bytes += self.push(&event, &wall_clock);
                    }
                    // Dropping the key and the value runs user code, which may panic.
                    drop_all([event]);
                }
                Poll::Ready(None) => return Poll::Ready(false),
                Poll::Pending if taken == 0 => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        Poll::Ready(true)
    }

    /// Returns its size in the backlog in bytes.
    fn push<K: Serialize, V: Serialize>(
        &self,
        event: &Event<K, V>,
        wall_clock: &WallClock,
    ) -> usize {
        match SpoolRecord::of(event, wall_clock) {
            Ok(record) => {
                let len = record.len();
                self.backlog().push(record);
                len
            }
            Err(error) => {
                self.backlog().count_unwritable();
                let queue = self.queue.path().display();
                tracing::error!(%queue, %error, "event skipped because its serialization failed");
                0
            }
        }
    }

    /// Writes until the backlog is empty.
    pub(super) async fn write_all(self: &Arc<Self>, settings: WriterSettings) {
        let mut pause = FIRST_PAUSE;
        loop {
            let permit = self
                .write_permit
                .clone()
                .acquire_owned()
                .await
                .expect("the semaphore is never closed");
            // Checked with the permit: a batch that another run is writing may still fail.
            if self.backlog().is_empty() {
                return;
            }
            let writer = self.clone();
            // A separate task: if this run were dropped during a write, it would be unknown what is in the queue.
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
                Err(ended) => {
                    resume_panic_of(ended);
                    // The runtime is shutting down, and drops this run at its next await.
                    sleep(pause).await;
                }
            }
        }
    }

    /// Purges leftovers of crashed writers, if the interval has passed.
    async fn purge(&self, settings: WriterSettings) {
        let Some((every, purge)) = settings.purge else { return };
        {
            let mut purged = self.purged.lock().expect("nothing under this lock panics");
            if purged.is_some_and(|purged| purged.elapsed() < every) {
                return;
            }
            // Before the purge, so that a purge that fails is not repeated before each batch.
            *purged = Some(Instant::now());
        }
        if let Err(error) = self.queue.purge(purge).await {
            let (queue, error) = (self.queue.path().display(), &error as &dyn std::error::Error);
            tracing::warn!(%queue, error, "purge of the spool's queue failed");
        }
    }

    /// Writes a batch of the backlog. Returns the number of events that were written or skipped.
    async fn write_batch(&self, skip_too_large: bool) -> usize {
        let batch = self.backlog().batch();
        let (written, result) = self.queue.add(&batch).await;
        if let (true, [_], Err(error @ Error::TooLarge { .. })) = (skip_too_large, &*batch, &result)
        {
            let skipped = self.backlog().skip();
            drop(skipped);
            let (queue, error) = (self.queue.path().display(), error as &dyn std::error::Error);
            tracing::error!(%queue, error, "event skipped because it is too large for the queue");
            return 1;
        }
        let (gone, transition) = {
            let mut backlog = self.backlog();
            let gone = backlog.remove_written(written);
            (gone, backlog.record_attempt(batch.len(), written, &result))
        };
        // After unlock, as records may be large.
        drop(gone);
        let queue = self.queue.path().display();
        match (transition, result) {
            (Some(Transition::Stalled), Err(error)) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(%queue, error, "spool write failed, holding events and retrying");
            }
            (Some(Transition::Unsynced), Err(error)) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(%queue, error, "spool sync failed, written events may not survive a crash of the machine");
            }
            (Some(Transition::Recovered(stalled)), _) => {
                tracing::info!(%queue, ?stalled, "spool writes succeed again");
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
