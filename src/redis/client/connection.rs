//! One connection to a server, and the state that shows whether the server still replies on it.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::Duration,
};

use ::redis::{Cmd, RedisResult, Value, aio::MultiplexedConnection};
use tokio::{
    sync::{Notify, Semaphore, SemaphorePermit},
    time::Instant,
};

use super::{
    connect::{Driver, NewConnection},
    large_runtime::LargeRuntime,
    stream::Traffic,
};

pub(super) struct Connection {
    connection: MultiplexedConnection,
    /// True if the server reports changed keys on this connection, in order with its replies.
    is_tracking: bool,
    /// Version of the credentials that this connection was made with.
    pub(super) credentials_version: u64,
    /// Number of replies received.
    replies: AtomicU64,
    /// Its progress shows that the connection is not silent: a server replies in the order of requests, and a large
    /// reply or request takes time.
    traffic: Arc<Traffic>,
    _driver: Driver,
    /// Runtime of the driver, if it is not that of a caller.
    _runtime: Option<Arc<LargeRuntime>>,
    /// One permit per command that may be in flight.
    in_flight: Semaphore,
    /// Start of the probe in progress.
    probing_since: Mutex<Option<Instant>>,
    /// Set when the connection was found silent: no command is sent on it any more.
    is_retired: AtomicBool,
    retired: Notify,
}

/// Commands that are sent together.
#[derive(Clone, Copy)]
pub(in crate::redis) enum CommandBatch<'a> {
    One(&'a Cmd),
    /// A read of several keys in one slot.
    MultiKey(&'a Cmd),
    /// Reads of keys in one slot. The reply is an array of all replies, followed by whether later changes of the keys
    /// will be reported.
    Tracked(&'a [&'a Cmd]),
}

/// Reason why a command was not sent.
pub(super) enum NotAdmitted {
    /// The connection has ended or was retired.
    Ended,
    /// Too many commands are in flight, and none was answered.
    Silent,
}

impl Connection {
    pub(super) fn new(
        NewConnection { connection, is_tracking, traffic, driver, .. }: NewConnection,
        credentials_version: u64,
        max_in_flight: usize,
        runtime: Option<Arc<LargeRuntime>>,
    ) -> Self {
        Self {
            connection,
            is_tracking,
            credentials_version,
            replies: AtomicU64::new(0),
            traffic,
            _driver: driver,
            _runtime: runtime,
            in_flight: Semaphore::new(max_in_flight),
            probing_since: Mutex::new(None),
            is_retired: AtomicBool::new(false),
            retired: Notify::new(),
        }
    }

    /// Sends commands and returns the reply. If `is_asking`, each follows `ASKING`, as its slot is being migrated to
    /// this node.
    ///
    /// # Cancel safety
    ///
    /// Dropping the call has no effect on the connection.
    pub(super) async fn send(
        &self,
        batch: CommandBatch<'_>,
        is_asking: bool,
    ) -> RedisResult<Value> {
        let reply = match batch {
            CommandBatch::One(cmd) | CommandBatch::MultiKey(cmd) if is_asking => {
                self.reply_all(&[cmd], true).await?.pop().unwrap_or(Value::Nil)
            }
            CommandBatch::One(cmd) | CommandBatch::MultiKey(cmd) => {
                self.connection.clone().send_packed_command(cmd).await?
            }
            CommandBatch::Tracked(cmds) => {
                let mut replies = self.reply_all(cmds, is_asking).await?;
                replies.push(Value::Boolean(self.is_tracking));
                Value::Array(replies)
            }
        };
        self.replies.fetch_add(1, Relaxed);
        Ok(reply)
    }

    /// Returns the replies to commands in one pipeline.
    async fn reply_all(&self, cmds: &[&Cmd], is_asking: bool) -> RedisResult<Vec<Value>> {
        let mut pipeline = ::redis::pipe();
        for &cmd in cmds {
            // `ASKING` holds for the next command only, so both go into one pipeline.
            if is_asking {
                pipeline.cmd("ASKING");
            }
            pipeline.add_command(cmd.clone());
        }
        let each = 1 + usize::from(is_asking);
        let count = each * cmds.len();
        let replies = self.connection.clone().send_packed_commands(&pipeline, 0, count).await?;
        Ok(replies.into_iter().skip(each - 1).step_by(each).collect())
    }

    pub(super) fn is_tracking(&self) -> bool {
        self.is_tracking
    }

    pub(super) fn replies(&self) -> u64 {
        // `Relaxed`: only compared with an earlier number.
        self.replies.load(Relaxed)
    }

    /// Returns a number that increases while the peer sends or accepts bytes: see [`Traffic::progress`].
    pub(super) fn progress(&self) -> u64 {
        self.traffic.progress()
    }

    /// Waits until a further command may be sent.
    pub(super) async fn admit(&self) -> Result<SemaphorePermit<'_>, NotAdmitted> {
        if let Ok(permit) = self.in_flight.try_acquire() {
            return Ok(permit);
        }
        let before = self.progress();
        let permit = tokio::select! {
            permit = self.in_flight.acquire() => permit.map_err(|_| NotAdmitted::Ended)?,
            () = self.until_retired() => return Err(NotAdmitted::Ended),
        };
        match self.is_open() {
            false => Err(NotAdmitted::Ended),
            // The permit is of a caller that gave up: its command is still in flight.
            true if self.progress() == before => Err(NotAdmitted::Silent),
            true => Ok(permit),
        }
    }

    /// Returns whether further commands can be sent.
    pub(super) fn is_open(&self) -> bool {
        !self.traffic.has_ended()
    }

    /// Sets the function to call when the connection has ended: see [`Traffic::set_on_end`].
    pub(super) fn set_on_end(&self, on_end: impl Fn() + Send + Sync + 'static) {
        self.traffic.set_on_end(on_end);
    }

    pub(super) fn retire(&self) {
        // Stored before the notification: `until_retired` checks the flag after it has registered. `Release` pairs
        // with `Acquire` there.
        self.is_retired.store(true, Release);
        self.retired.notify_waiters();
    }

    pub(super) async fn until_retired(&self) {
        let mut retired = std::pin::pin!(self.retired.notified());
        // Registered before the check, so that a notification in between is not missed.
        retired.as_mut().enable();
        if !self.is_retired.load(Acquire) {
            retired.await;
        }
    }

    /// Returns whether the caller may probe the connection: no other probe began within the last `max_duration`.
    pub(super) fn begin_probe(&self, max_duration: Duration) -> bool {
        let mut probing_since = self.probing_since.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = probing_since.is_none_or(|since| since.elapsed() >= max_duration);
        if is_first {
            *probing_since = Some(Instant::now());
        }
        is_first
    }

    pub(super) fn end_probe(&self) {
        *self.probing_since.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl<'a> CommandBatch<'a> {
    /// Returns the first command, whose key selects the server.
    pub(super) fn first(self) -> &'a Cmd {
        match self {
            Self::One(cmd) | Self::MultiKey(cmd) => cmd,
            Self::Tracked(cmds) => cmds.first().expect("a batch has at least one command"),
        }
    }
}
