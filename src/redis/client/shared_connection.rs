//! The way to one server: the connection that all callers share, and how it is replaced.
//!
//! 1. There is one attempt to connect at a time, for all who wait, and none where nobody asks.
//! 2. A connection that has ended, or that is silent (nothing came for [`PATIENCE`], or until somebody gave up, and then
//!    nothing for [`PING`]), is let go: who asks next waits for another, and who may ask twice does. All others who wait on
//!    it still get what comes.
//! 3. One that is to be renewed is used until the next one stands.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering::Release},
    },
    time::Duration,
};

use ::redis::{Cmd, ErrorKind, RedisError, RedisResult, Value};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
    connect::{Dial, Dialled},
    connection::Line,
    sentinel::Sentinels,
    single_flight::{Joint, Outcome},
};
use crate::redis::{Error, error::is_refusal};

/// So long a line may be silent before it is doubted.
const PATIENCE: Duration = Duration::from_millis(400);

/// So long one that is doubted has to answer a `PING`, or anything else. Both together are less than the second after
/// which callers give up: so the next call of each goes another way.
const PING: Duration = Duration::from_millis(400);

/// One by which somebody is told of changes is doubted when it says nothing for so long: who waits for what may never come
/// asks nothing.
const PULSE: Duration = Duration::from_millis(500);

/// How often a line that works is renewed, at most.
const RENEW_EVERY: Duration = Duration::from_millis(250);

/// So long nobody tries again what has failed: in general, and where the server wants other credentials.
const FAILURE_HOLDS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// A cheap clone.
#[derive(Clone)]
pub(super) struct Link(Arc<State>);

/// Where it leads.
#[derive(Clone)]
pub(super) struct Route {
    pub(super) dial: Arc<Dial>,
    pub(super) to: Destination,
}

#[derive(Clone)]
pub(super) enum Destination {
    Server(Arc<::redis::ConnectionInfo>),
    Master(Arc<Sentinels>),
}

struct State {
    route: Route,
    present: Mutex<Present>,
    attempt: Joint<Attempt>,
}

type Attempt = RedisResult<Arc<Line>>;

#[derive(Default)]
struct Present {
    line: Option<Arc<Line>>,
    /// What the last attempt has failed with, with which credentials, and until when that is answer enough.
    failure: Option<(RedisError, u64, Instant)>,
    renewed: Option<Instant>,
}

/// A command on its way.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) asked: Asked<'a>,
    pub(super) deadline: Instant,
    /// Who sent it does so again where the answer is lost: so it need not wait on a line that is let go.
    pub(super) may_repeat: bool,
}

/// What is sent as one.
#[derive(Clone, Copy)]
pub(in crate::redis) enum Asked<'a> {
    One(&'a Cmd),
    /// One that only reads several keys, in one slot.
    Many(&'a Cmd),
    /// Some that only read, of keys in one slot. The answer is those of all, and whether changes are told of from then
    /// on.
    Told(&'a [&'a Cmd]),
}

/// An answer that is waited for. Who gives up where nothing came since doubts the line.
struct Question<'a> {
    link: &'a Link,
    line: &'a Arc<Line>,
    /// How many answers had come before.
    answers: u64,
    is_over: bool,
}

impl Link {
    pub(super) fn new(route: Route) -> Self {
        let (present, attempt) = (Mutex::default(), Joint::new(route.dial.timeout));
        Self(Arc::new(State { route, present, attempt }))
    }

    pub(super) fn to(&self) -> &Destination {
        &self.0.route.to
    }

    /// Connects, where that is not done.
    pub(super) async fn connect(&self) -> Result<(), Error> {
        self.line().await.map_err(Error::Connect).map(drop)
    }

    /// The answer to a command, to one that goes where its slot is being moved if it `is_asking`. [`Error::Connect`]
    /// where it was not sent.
    pub(super) async fn send(&self, request: Request<'_>, is_asking: bool) -> Result<Value, Error> {
        let Request { asked, deadline, may_repeat } = request;
        let line = match self.open_line() {
            Some(line) => line,
            None => match timeout_at(deadline, self.line()).await {
                Ok(line) => line.map_err(Error::Connect)?,
                Err(_) => return Err(no_connection()),
            },
        };
        let mut question = Question::new(self, &line);
        let patience = deadline.min(Instant::now() + PATIENCE);
        let mut answer = std::pin::pin!(async {
            match asked {
                Asked::One(cmd) | Asked::Many(cmd) => line.ask(cmd, is_asking).await,
                Asked::Told(cmds) => line.ask_told(cmds, is_asking).await,
            }
        });
        let mut outcome = timeout_at(patience, &mut answer).await;
        if outcome.is_err() {
            question.doubt();
            outcome = tokio::select! {
                biased;
                outcome = timeout_at(deadline, answer) => outcome,
                () = line.until_let_go(), if may_repeat => return Err(no_answer()),
            };
        }
        let Ok(answer) = outcome else { return Err(no_answer()) };
        question.is_over = true;
        drop(question);
        let answer = match answer {
            // What the server answers as an error comes as a value.
            Ok(answer) => answer.extract_error(),
            Err(error) => {
                if matches!(error.kind(), ErrorKind::Io | ErrorKind::Parse) {
                    self.let_go(&line);
                }
                Err(error)
            }
        };
        answer.map_err(|error| Error::of(error, asked.first()))
    }

    /// Makes another connection in the place of one that works, as the address may lead elsewhere by now.
    pub(super) fn renew(&self) {
        let mut present = self.present();
        let now = Instant::now();
        // Where there is none, who asks next waits for a new one anyway.
        let is_early = present.renewed.is_some_and(|last| now < last + RENEW_EVERY);
        if is_early || present.line.is_none() {
            return;
        }
        present.renewed = Some(now);
        drop(present);
        drop(self.attempt());
    }

    fn open_line(&self) -> Option<Arc<Line>> {
        let line = self.present().line.as_ref().filter(|line| line.is_open())?.clone();
        if line.version != self.0.route.dial.version() {
            self.renew();
        }
        Some(line)
    }

    async fn line(&self) -> Attempt {
        if let Some(line) = self.open_line() {
            return Ok(line);
        }
        let version = self.0.route.dial.version();
        if let Some((error, with, until)) = &self.present().failure
            && *with == version
            && Instant::now() < *until
        {
            return Err(error.clone());
        }
        let gone = |_| Err((ErrorKind::Io, "the runtime that connected is gone").into());
        match self.attempt().await.unwrap_or_else(gone) {
            // It was begun with credentials that have changed since.
            Err(error) if is_refusal(&error) && version != self.0.route.dial.version() => {
                self.attempt().await.unwrap_or_else(gone)
            }
            attempt => attempt,
        }
    }

    /// Joins the attempt that is under way, or begins one.
    fn attempt(&self) -> Outcome<Attempt> {
        self.0.attempt.join(|| {
            let (route, link) = (self.0.route.clone(), Arc::downgrade(&self.0));
            async move {
                let has_ended = Arc::new(AtomicBool::new(false));
                let on_end = {
                    let (link, has_ended) = (link.clone(), has_ended.clone());
                    let dial = route.dial.clone();
                    move || {
                        has_ended.store(true, Release);
                        dial.is_left();
                        if let Some(link) = Self::upgrade(&link) {
                            link.has_ended(&has_ended);
                        }
                    }
                };
                let version = route.dial.version();
                let dialled = match timeout(route.dial.timeout, route.connect(on_end)).await {
                    Ok(dialled) => dialled,
                    Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
                };
                let line = dialled.map(|dialled| Arc::new(Line::new(dialled, version, has_ended)));
                if let Some(link) = Self::upgrade(&link) {
                    link.put(&line, version);
                }
                if let Ok(line) = &line
                    && line.is_told()
                {
                    tokio::spawn(feel_pulse(link, Arc::downgrade(line)));
                }
                line
            }
        })
    }

    fn put(&self, attempt: &Attempt, version: u64) {
        let mut present = self.present();
        let old = match attempt {
            Ok(line) => {
                present.failure = None;
                present.line.replace(line.clone())
            }
            Err(error) => {
                let (short, long) = FAILURE_HOLDS;
                let holds = if is_refusal(error) { long } else { short };
                present.failure = Some((error.clone(), version, Instant::now() + holds));
                None
            }
        };
        drop(present);
        if old.is_some() {
            self.0.route.dial.is_left();
        }
        // Where nobody waits on it, it ends here: not under the lock.
        drop(old);
    }

    fn let_go(&self, line: &Arc<Line>) {
        let mut present = self.present();
        let old = present.line.take_if(|present| Arc::ptr_eq(present, line));
        drop(present);
        if let Some(old) = old {
            self.0.route.dial.is_left();
            // Before anybody asks.
            drop(self.attempt());
            old.let_go();
        }
    }

    /// A line was ended by the other side, or by the network.
    fn has_ended(&self, told_of: &Arc<AtomicBool>) {
        // One that has never answered would end again, and so on.
        let was_used = |line: &Arc<Line>| line.is_told_of_by(told_of) && line.answers() > 0;
        let is_missed = self.present().line.as_ref().is_some_and(was_used);
        if is_missed {
            drop(self.attempt());
        }
    }

    fn doubt(&self, line: &Arc<Line>) {
        // Outside a runtime nobody can find out.
        let Ok(runtime) = Handle::try_current() else { return };
        // One that takes longer is on a runtime that nobody drives.
        if !line.begin_doubt(2 * PING) {
            return;
        }
        let (link, line) = (Arc::downgrade(&self.0), line.clone());
        runtime.spawn(async move {
            let before = line.answers();
            let ping = timeout(PING, line.ask(&::redis::cmd("PING"), false)).await;
            line.end_doubt();
            let is_silent = !matches!(ping, Ok(Ok(_))) && line.answers() == before;
            if is_silent && let Some(link) = Self::upgrade(&link) {
                tracing::warn!("a connection to the server is silent, and is replaced");
                link.let_go(&line);
            }
        });
    }

    fn upgrade(link: &Weak<State>) -> Option<Self> {
        link.upgrade().map(Self)
    }

    fn present(&self) -> MutexGuard<'_, Present> {
        self.0.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Route {
    async fn connect(
        &self,
        on_end: impl Fn() + Clone + Send + Sync + 'static,
    ) -> RedisResult<Dialled> {
        match &self.to {
            Destination::Server(server) => self.dial.server(server, on_end).await,
            Destination::Master(sentinels) => sentinels.connect(&self.dial, on_end).await,
        }
    }
}

impl<'a> Asked<'a> {
    /// By whose key the server is found.
    pub(super) fn first(self) -> &'a Cmd {
        match self {
            Self::One(cmd) | Self::Many(cmd) => cmd,
            Self::Told(cmds) => cmds.first().expect("who asks asks something"),
        }
    }
}

impl<'a> Question<'a> {
    fn new(link: &'a Link, line: &'a Arc<Line>) -> Self {
        Self { link, line, answers: line.answers(), is_over: false }
    }

    fn doubt(&self) {
        if self.line.answers() == self.answers {
            self.link.doubt(self.line);
        }
    }
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.doubt();
        }
    }
}

/// Doubts a line that says nothing, for as long as it is used.
async fn feel_pulse(link: Weak<State>, line: Weak<Line>) {
    let mut before = 0;
    loop {
        sleep(PULSE).await;
        let (Some(link), Some(line)) = (Link::upgrade(&link), line.upgrade()) else { return };
        if !line.is_open() {
            return;
        }
        if line.answers() == before {
            link.doubt(&line);
        }
        before = line.answers();
    }
}

fn no_connection() -> Error {
    Error::Connect((ErrorKind::Io, "no connection in time").into())
}

fn no_answer() -> Error {
    Error::Unanswered((ErrorKind::Io, "no answer in time").into())
}
