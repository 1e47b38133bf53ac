//! Decides when a stream scans its queue again, and which of its directories are watched: when a new element is
//! reported, when a backoff ends, and after an interval, which covers everything else.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use tokio::time::{Instant, sleep_until, timeout};

use super::{
    Name,
    blocking::{Work, run},
    file_name::FileName,
    protocol::Protocol,
    record::now_micros,
    records::Records,
    shared_purge::purge_all,
    system_watch::SystemWatch,
    wakeups::{ScanTurn, Wakeups},
};

/// Waits until a queue should be scanned again.
pub(super) struct Watch {
    every: Duration,
    wakeups: Arc<Wakeups>,
    /// The turn to scan the queue.
    turn: Option<ScanTurn>,
    /// Number of the latest turn when the latest scan began. The scan finds the elements of all turns up to this one.
    scanned: u64,
}

impl Watch {
    /// New elements are added to the last directories. The timer covers the others.
    const MAX_DIRECTORIES: usize = 16;
    /// A shorter interval would be a busy loop.
    const MIN_INTERVAL: Duration = Duration::from_millis(1);

    pub(super) fn new<P: Protocol + ?Sized>(queue: &Arc<P>, every: Duration) -> Self {
        let root = queue.root();
        let (purge_every, wakeups) =
            (root.purge_every.map(|(every, _)| every), root.shared.wakeups());
        let every = every.min(purge_every.unwrap_or(every)).max(Self::MIN_INTERVAL);
        let scanned = wakeups.latest_turn();
        Self { every, wakeups, turn: None, scanned }
    }

    /// Waits until there may be something new, and takes the turn to look. Spurious returns are possible. Returns the
    /// element after which the scan should begin; `None` if it begins at the first.
    pub(super) async fn wait<P: Protocol + ?Sized>(&mut self, queue: &Arc<P>) -> Option<Name> {
        if let Some(turn) = self.turn.take() {
            turn.finish();
        }
        self.purge(queue).await;
        // Once: otherwise, each retry of the system watch would postpone the scan.
        let entered = Instant::now();
        let mut is_complete = self.update(queue).await;
        let turn = loop {
            let retry_after = if is_complete { Duration::MAX } else { SystemWatch::RETRY_AFTER };
            if let Ok(turn) = timeout(retry_after, self.next_turn(entered)).await {
                break turn;
            }
            // One of the streams: the retry lists the queue.
            if self.wakeups.begin_watch_retry() {
                is_complete = self.update(queue).await;
            }
        };
        let after = turn.after();
        self.scanned = match after {
            None => self.wakeups.begin_scan(),
            // The elements before it are those of the stream that passed the turn on.
            Some(_) => turn.number(),
        };
        self.turn = Some(turn);
        after
    }

    /// Lets another stream continue after `found`, because there may be more.
    pub(super) fn pass_turn_on(&mut self, found: Name) {
        if let Some(turn) = self.turn.take() {
            turn.pass_on(found);
        }
    }

    async fn next_turn(&self, entered: Instant) -> ScanTurn {
        let mut given = match self.wakeups.enter(self.scanned) {
            Ok(turn) => return turn,
            Err(given) => given,
        };
        loop {
            // Created before the deadline is read, so that no change is missed.
            let mut rearmed = pin!(self.wakeups.rearmed());
            let mut timer = pin!(self.wakeups.next_scan(entered, self.every).map(sleep_until));
            let turn = poll_fn(|cx| {
                if let Poll::Ready(Ok(turn)) = Pin::new(&mut given).poll(cx) {
                    return Poll::Ready(Some(turn));
                }
                let is_rearmed = rearmed.as_mut().poll(cx).is_ready();
                let is_time =
                    timer.as_mut().as_pin_mut().is_some_and(|timer| timer.poll(cx).is_ready());
                if is_rearmed || is_time { Poll::Ready(None) } else { Poll::Pending }
            });
            if let Some(turn) = turn.await.or_else(|| self.wakeups.take_timer(entered, self.every))
            {
                return turn;
            }
        }
    }

    /// Purges the queue, if that is due for this process.
    async fn purge<P: Protocol + ?Sized>(&self, queue: &Arc<P>) {
        let Some((every, purge)) = queue.root().purge_every else { return };
        if !queue.root().shared.begin_purge(every) {
            return;
        }
        match run("purge", Work::Long, queue, move |queue| purge_all(&**queue, &purge)).await {
            // Their elements can be locked again.
            Ok(report) if report.locks > 0 => self.wakeups.wake_one(),
            Ok(_) => {}
            Err(error) => {
                let (path, error) =
                    (queue.root().path().display(), &error as &dyn std::error::Error);
                tracing::warn!(queue = %path, error, "purge of a watched queue failed");
            }
        }
    }

    /// Watches new directories, and looks for the end of the next backoff. Returns whether the system watches them all.
    async fn update<P: Protocol + ?Sized>(&self, queue: &Arc<P>) -> bool {
        let wakeups = self.wakeups.clone();
        let updated = run("watch", Work::Long, queue, move |queue| {
            let root = queue.root();
            let mut directories = root.directories()?;
            let first = directories.len().saturating_sub(Self::MAX_DIRECTORIES);
            let path_of = |number| root.path().join(FileName::directory(number).as_str());
            let paths = directories.split_off(first).into_iter().map(path_of);
            let watched = wakeups.watch_directories(root.path(), paths);
            if let Some(records) = Records::snapshot(root)? {
                wakeups.set_next_due(records.dues(), now_micros());
            }
            Ok(watched)
        });
        // If the queue cannot be listed, the next scan reports the error.
        let (is_complete, failure) = updated.await.unwrap_or((false, None));
        if let Some(error) = failure {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, interval = ?self.every, "file watcher failed, falling back to polling");
        }
        is_complete
    }
}
