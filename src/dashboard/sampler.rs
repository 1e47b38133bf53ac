//! The thread that reads all figures once a second, as long as somebody has a dashboard mounted, and what it has read
//! in the last minutes.
//!
//! 1. There is one in a process, however many dashboards are mounted. It needs no runtime, and goes on while a clock of
//!    Tokio's is paused: what it tells is for people.
//! 2. A sample is written as text once, however many look, and not at all while nobody does.
//! 3. Nothing of a cache is held across a wait.

use std::{
    hash::{BuildHasher, RandomState},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;
use tokio::sync::watch;

use super::{
    groups::Group,
    track::{Tracks, Whole},
};
use crate::engine::metrics::look;

const EVERY: Duration = Duration::from_secs(1);

static SHARED: Mutex<Weak<Sampler>> = Mutex::new(Weak::new());

pub(super) struct Sampler {
    /// Which sampler it is, so that who looks knows when it is another.
    boot: String,
    tracks: Mutex<Tracks>,
    live: watch::Sender<Sample>,
}

/// One look at all that there is.
#[derive(Clone, Default)]
pub(super) struct Sample {
    /// From 1 on; 0 where there is none yet.
    pub(super) number: u64,
    /// As JSON.
    pub(super) text: Arc<str>,
}

#[derive(Serialize)]
struct Message<'a, T> {
    boot: &'a str,
    number: u64,
    every_ms: u64,
    version: &'static str,
    groups: T,
}

impl Sampler {
    /// The one of the process.
    pub(super) fn shared() -> Arc<Self> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sampler) = shared.upgrade() {
            return sampler;
        }
        let sampler = Arc::new(Self {
            boot: format!("{:016x}", RandomState::new().hash_one(0)),
            tracks: Mutex::default(),
            live: watch::Sender::default(),
        });
        *shared = Arc::downgrade(&sampler);
        drop(shared);
        follow(Arc::downgrade(&sampler));
        sampler
    }

    /// All that is known: what is now, and the last minutes. And the number of the last sample in it.
    pub(super) fn all(&self) -> (u64, String) {
        let tracks = self.tracks();
        let number = tracks.number();
        (number, self.write(number, tracks.all().collect::<Vec<Whole<'_>>>()))
    }

    /// What is from now on.
    pub(super) fn follow(&self) -> watch::Receiver<Sample> {
        self.live.subscribe()
    }

    fn sample(&self, elapsed: Duration) {
        let readings = look();
        let groups: Vec<_> = readings.iter().filter_map(Group::read).collect();
        // Before the lock: the last of a cache may end here, which is somebody's code.
        drop(readings);
        let mut tracks = self.tracks();
        tracks.add(groups, elapsed);
        let number = tracks.number();
        let is_watched = self.live.receiver_count() > 0;
        let text = is_watched.then(|| self.write(number, tracks.now().collect::<Vec<_>>()));
        drop(tracks);
        self.live.send_replace(Sample { number, text: text.unwrap_or_default().into() });
    }

    fn write(&self, number: u64, groups: impl Serialize) -> String {
        let every_ms = EVERY.as_millis() as u64;
        let version = env!("CARGO_PKG_VERSION");
        let message = Message { boot: &self.boot, number, every_ms, version, groups };
        serde_json::to_string(&message).expect("numbers and texts can be written as JSON")
    }

    fn tracks(&self) -> MutexGuard<'_, Tracks> {
        self.tracks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Samples as long as somebody has the sampler.
fn follow(sampler: Weak<Sampler>) {
    let follow = move || {
        let mut last = Instant::now();
        while let Some(sampler) = sampler.upgrade() {
            let now = Instant::now();
            let elapsed = now - last;
            last = now;
            if catch_unwind(AssertUnwindSafe(|| sampler.sample(elapsed))).is_err() {
                tracing::error!("a value that ended while the dashboard looked at it panicked");
            }
            drop(sampler);
            thread::sleep(EVERY.saturating_sub(now.elapsed()));
        }
    };
    if let Err(error) = thread::Builder::new().name("fleeting-dashboard".into()).spawn(follow) {
        tracing::error!(%error, "there is no thread to look for the dashboard");
    }
}
