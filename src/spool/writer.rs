//! What writes for a spool: it takes events off a stream into the backlog, and the backlog in batches to the queue.

#[cfg(test)]
mod tests;

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
                self.backlog().count_unwritable();
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
            (gone, backlog.record_attempt(batch.len(), written, &result))
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
