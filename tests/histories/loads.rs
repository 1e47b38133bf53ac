//! Calls of the loader methods and of `compute_with`, some of which are cancelled, fail or panic. Each is recorded as
//! two actions: one when the loader begins, and one when its value is written.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, resume_unwind},
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{
            AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    task::Poll,
};

use fleeting::{Cache, Cause, Tagged, TimeToLive};
use futures::FutureExt;
use rand::{RngExt, seq::IndexedRandom};
use tokio::task::yield_now;

use crate::{
    model::Action,
    verbs::Verb,
    worker::{HOUR, Worker},
};

/// Times of a loader in progress; zero until then.
#[derive(Default)]
struct LoadTimes {
    began: AtomicU64,
    ended: AtomicU64,
}

/// The end of a loader.
#[derive(Clone, Copy, PartialEq)]
enum Ending {
    Value,
    Error,
    Panic,
}

/// Behavior of a loader, and the number of times that its caller polls before it is cancelled.
struct LoadPlan {
    yields: u32,
    ending: Ending,
    polls: u32,
}

impl Worker {
    /// The value is read when the closure begins, and written when it has returned.
    pub(crate) async fn compute_with(&mut self, key: u8, hours: u32) {
        let history = self.history.clone();
        let (writes, op) = self.change(hours);
        let LoadPlan { yields, polls, .. } = self.load_plan();
        let (mut saw, mut began, mut ended) = (None, 0, 0);
        let call = history.now();
        let change = async |value: Option<u32>| {
            (saw, began) = (value, history.now());
            yield_times(yields).await;
            ended = history.now();
            op
        };
        let after = cancelled_after(polls, history.cache.compute_with(&key, change)).await;
        let ret = history.now();
        if began > 0 {
            self.record(key, call, began, Action::Saw(saw));
        }
        match writes {
            _ if ended == 0 => {}
            None => {
                if let Some(after) = after {
                    self.record(key, ended, ret, Action::Saw(after));
                }
            }
            Some(None) => {
                let action = Action::Take { cause: Cause::Removed, taken: None };
                self.record(key, ended, ret, action);
            }
            Some(Some(new)) => {
                let action = Action::Put { new, keeps_ttl: false, replaced: None };
                self.record(key, ended, ret, action);
            }
        }
    }

    fn load_plan(&mut self) -> LoadPlan {
        let random = &mut self.random;
        LoadPlan {
            yields: *[0, 1, 2, 50].choose(random).expect("four"),
            ending: *[Ending::Value, Ending::Value, Ending::Value, Ending::Error, Ending::Panic]
                .choose(random)
                .expect("five"),
            polls: *[1, 2, 3, u32::MAX, u32::MAX].choose(random).expect("five"),
        }
    }

    pub(crate) async fn load(&mut self, verb: Verb, key: u8, hours: u32) {
        let (history, value) = (self.history.clone(), self.next_value());
        let tags = self.random.random_bool(0.5).then(|| self.tags());
        let LoadPlan { yields, mut ending, polls } = self.load_plan();
        if ending == Ending::Error && verb != Verb::TryLoad {
            ending = Ending::Value;
        }
        let times = Arc::new(LoadTimes::default());
        let (cache, ttl) = (&history.cache, hours * HOUR);
        let loader = {
            let (history, times) = (history.clone(), times.clone());
            async move || {
                times.began.store(history.now(), Relaxed);
                yield_times(yields).await;
                if ending == Ending::Panic {
                    // Not `panic!`, which would print a message.
                    resume_unwind(Box::new("loader"));
                }
                history.loads.fetch_add(1, SeqCst);
                if ending == Ending::Error {
                    return Err("loader");
                }
                times.ended.store(history.now(), Relaxed);
                Ok(value)
            }
        };
        let call = history.now();
        let load = async {
            match &tags {
                None => load(cache, verb, key, ttl, loader).await,
                Some((_, names)) => {
                    let tagged = Tagged::new(ttl, names.iter().copied());
                    load(cache, verb, key, tagged, loader).await
                }
            }
        };
        let result = cancelled_after(polls, AssertUnwindSafe(load).catch_unwind()).await;
        let ret = history.now();
        let (began, ended) = (times.began.load(Relaxed), times.ended.load(Relaxed));
        let (is_refresh, tags) = (verb == Verb::Refresh, tags.map(|(mask, _)| mask));
        if ended > 0 {
            self.record(key, call, began, Action::BeginLoad { value, is_refresh, tags });
            self.record(key, ended, ret, Action::EndLoad { value, hours, may_discard: false });
        } else if began > 0 && !is_refresh {
            self.record(key, call, began, Action::Saw(None));
        }
        if let Some(Ok(Some(got))) = result
            && (ended == 0 || got != value)
        {
            self.record(key, call, ret, Action::Follow(got));
        }
    }

    pub(crate) async fn load_many(&mut self, hours: u32) {
        let history = self.history.clone();
        let keys = history.keys;
        let values: Vec<u32> = (0..keys).map(|_| self.next_value()).collect();
        let LoadPlan { yields, ending, polls } = self.load_plan();
        let loaded = Mutex::new((vec![], 0, 0));
        let call = history.now();
        let loader = async |missing: Vec<u8>| {
            *loaded.lock().unwrap() = (missing.clone(), history.now(), 0);
            yield_times(yields).await;
            if ending == Ending::Panic {
                resume_unwind(Box::new("loader"));
            }
            history.loads.fetch_add(1, SeqCst);
            loaded.lock().unwrap().2 = history.now();
            missing.into_iter().map(|key| (key, values[usize::from(key)])).collect()
        };
        let load = history.cache.get_many_or_set_with(0..keys, hours * HOUR, loader);
        let result = cancelled_after(polls, AssertUnwindSafe(load).catch_unwind()).await;
        let ret = history.now();
        let (missing, began, ended) = loaded.lock().unwrap().clone();
        for key in missing.iter().copied() {
            let value = values[usize::from(key)];
            if ended == 0 {
                self.record(key, call, began, Action::Saw(None));
                continue;
            }
            let begin = Action::BeginLoad { value, is_refresh: false, tags: None };
            self.record(key, call, began, begin);
            self.record(key, ended, ret, Action::EndLoad { value, hours, may_discard: false });
        }
        if let Some(Ok(found)) = result {
            for (key, got) in (0..).zip(found) {
                let Some(got) = got else { continue };
                if ended == 0 || got != values[usize::from(key)] {
                    self.record(key, call, ret, Action::Follow(got));
                }
            }
        }
    }
}

/// Loads a value by one of the methods for one key. Only one of them accepts an error.
async fn load<F, Fut>(
    cache: &Cache<u8, u32>,
    verb: Verb,
    key: u8,
    ttl: impl TimeToLive<u32> + Send + 'static,
    loader: F,
) -> Option<u32>
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = Result<u32, &'static str>> + Send + 'static,
{
    let succeeds = |result: Result<u32, &'static str>| result.expect("this loader never fails");
    match verb {
        Verb::Load => {
            let loader = async move || succeeds(loader().await);
            Some(cache.get_or_set_with(&key, ttl, loader).await)
        }
        Verb::Refresh => {
            let loader = async move || succeeds(loader().await);
            Some(cache.refresh_with(&key, ttl, loader).await)
        }
        Verb::LoadByFuture => {
            let loader = async move { succeeds(loader().await) };
            Some(cache.get_or_set(&key, ttl, loader).await)
        }
        _ => cache.get_or_try_set_with(&key, ttl, loader).await.ok(),
    }
}

async fn yield_times(yields: u32) {
    for _ in 0..yields {
        yield_now().await;
    }
}

/// Cancels `call` after some polls. Returns `None` if it had not finished.
async fn cancelled_after<T>(mut polls: u32, call: impl Future<Output = T>) -> Option<T> {
    let mut call = pin!(call);
    poll_fn(|cx| match call.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => {
            polls -= 1;
            if polls == 0 { Poll::Ready(None) } else { Poll::Pending }
        }
    })
    .await
}
