//! One connection, and what tells whether its server still answers.

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
use tokio::{sync::Notify, time::Instant};

use super::connect::Dialled;

pub(super) struct Line {
    connection: MultiplexedConnection,
    /// Whether the feed is told of changes by it, in their order among its answers.
    is_told: bool,
    /// Of the credentials that it was made with.
    pub(super) version: u64,
    /// How many answers came. A server answers in the order of asking: where another came since a question was
    /// sent, the line is not silent.
    answers: AtomicU64,
    /// It has ended, and the next question would not be sent.
    has_ended: Arc<AtomicBool>,
    /// Since when it is being found out whether it is silent.
    doubted: Mutex<Option<Instant>>,
    /// It was found to be, and nothing is sent on it any more.
    is_let_go: AtomicBool,
    let_go: Notify,
}

impl Line {
    pub(super) fn new(
        Dialled { connection, is_told, .. }: Dialled,
        version: u64,
        has_ended: Arc<AtomicBool>,
    ) -> Self {
        Self {
            connection,
            is_told,
            version,
            answers: AtomicU64::new(0),
            has_ended,
            doubted: Mutex::new(None),
            is_let_go: AtomicBool::new(false),
            let_go: Notify::new(),
        }
    }

    /// The answer to `cmd`; to one that goes where its slot is being moved, if it `is_asking`. Who gives up on it
    /// leaves the line as it is.
    pub(super) async fn ask(&self, cmd: &Cmd, is_asking: bool) -> RedisResult<Value> {
        let answer = match is_asking {
            true => self.ask_all(&[cmd], true).await.map(|mut all| all.pop().unwrap_or(Value::Nil)),
            false => self.connection.clone().send_packed_command(cmd).await,
        };
        if answer.is_ok() {
            self.answers.fetch_add(1, Relaxed);
        }
        answer
    }

    /// The answers to all, and whether the feed is told of what changes after that.
    pub(super) async fn ask_told(&self, cmds: &[&Cmd], is_asking: bool) -> RedisResult<Value> {
        let mut answers = self.ask_all(cmds, is_asking).await?;
        self.answers.fetch_add(1, Relaxed);
        answers.push(Value::Boolean(self.is_told));
        Ok(Value::Array(answers))
    }

    async fn ask_all(&self, cmds: &[&Cmd], is_asking: bool) -> RedisResult<Vec<Value>> {
        let mut pipeline = ::redis::pipe();
        for &cmd in cmds {
            // That node answers for the slot only right after `ASKING`, so all go in one pipeline.
            if is_asking {
                pipeline.cmd("ASKING");
            }
            pipeline.add_command(cmd.clone());
        }
        let each = 1 + usize::from(is_asking);
        let count = each * cmds.len();
        let answers = self.connection.clone().send_packed_commands(&pipeline, 0, count).await?;
        Ok(answers.into_iter().skip(each - 1).step_by(each).collect())
    }

    pub(super) fn is_told(&self) -> bool {
        self.is_told
    }

    pub(super) fn answers(&self) -> u64 {
        self.answers.load(Relaxed)
    }

    pub(super) fn is_open(&self) -> bool {
        !self.has_ended.load(Acquire)
    }

    /// Whether this is the one that `has_ended` tells of.
    pub(super) fn is_told_of_by(&self, has_ended: &Arc<AtomicBool>) -> bool {
        Arc::ptr_eq(&self.has_ended, has_ended)
    }

    pub(super) fn let_go(&self) {
        self.is_let_go.store(true, Release);
        self.let_go.notify_waiters();
    }

    pub(super) async fn until_let_go(&self) {
        let mut told = std::pin::pin!(self.let_go.notified());
        // Before the look, so that what happens between is not missed.
        told.as_mut().enable();
        if !self.is_let_go.load(Acquire) {
            told.await;
        }
    }

    /// Whether nobody else doubts it, who has begun to within the `longest` time that this takes.
    pub(super) fn begin_doubt(&self, longest: Duration) -> bool {
        let mut doubted = self.doubted.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = doubted.is_none_or(|since| since.elapsed() >= longest);
        if is_first {
            *doubted = Some(Instant::now());
        }
        is_first
    }

    pub(super) fn end_doubt(&self) {
        *self.doubted.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
