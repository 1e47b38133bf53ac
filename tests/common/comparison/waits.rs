//! Futures on keys, `wait_for` and `expired`, which are polled after each call that wakes them.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Wake, Waker},
};

use fleeting::Event;
use tokio::task::unconstrained;

use super::Comparison;
use crate::oracle::{Key, Value};

/// More would make a run too slow.
const MOST_WAITS: usize = 8;

#[derive(Default)]
pub(super) struct Waits {
    values: Vec<Wait<Value>>,
    removals: Vec<Wait<Removal>>,
}

/// The output of `expired`.
type Removal = Option<Arc<Event<Key, Value>>>;

struct Wait<T> {
    key: Key,
    future: Pin<Box<dyn Future<Output = T>>>,
    woken: Arc<Woken>,
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

impl<T> Wait<T> {
    fn new(key: Key, future: impl Future<Output = T> + 'static) -> Self {
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        Self { key, future: Box::pin(unconstrained(future)), woken }
    }

    fn is_woken(&self) -> bool {
        self.woken.0.load(Relaxed)
    }

    fn poll(&mut self) -> Option<T> {
        self.woken.0.store(false, Relaxed);
        let waker = Waker::from(self.woken.clone());
        match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }
}

impl Comparison {
    pub(super) fn await_value(&mut self, key: Key) {
        if self.waits.values.len() < MOST_WAITS {
            let cache = self.cache.clone();
            let wait = Wait::new(key, async move { cache.wait_for(&key).await });
            // Polled after this call.
            self.waits.values.push(wait);
        }
    }

    pub(super) fn await_removal(&mut self, key: Key) {
        if self.waits.removals.len() == MOST_WAITS {
            return;
        }
        let cache = self.cache.clone();
        let mut wait = Wait::new(key, async move { cache.expired(&key).await });
        match (wait.poll(), self.oracle.await_removal(key)) {
            (None, Some(_)) => self.waits.removals.push(wait),
            (Some(None), None) => {}
            (polled, live) => panic!("{polled:?} for {live:?}"),
        }
    }

    /// Polls the waits for values that the call has woken. The others must not have a value.
    pub(super) fn poll_waits_for_values(&mut self) {
        let Self { waits, oracle, .. } = self;
        waits.values.retain_mut(|wait| {
            if !wait.is_woken() {
                assert_eq!(oracle.peek(wait.key), None, "a value did not wake `wait_for`");
                return true;
            }
            let value = wait.poll();
            assert_eq!(value, oracle.get(wait.key));
            value.is_none()
        });
    }

    /// Polls the waits for removals that the call has woken.
    pub(super) fn poll_waits_for_removals(&mut self) {
        let Self { waits, oracle, streams, .. } = self;
        waits.removals.retain_mut(|wait| {
            let removed = if wait.is_woken() { wait.poll() } else { None };
            let event = removed.map(|event| event.expect("a value was live"));
            let record = event.as_ref().map(|event| streams.record(event));
            assert!(oracle.has_removed(wait.key, record), "{record:?} of key {}", wait.key);
            event.is_none()
        });
    }
}
