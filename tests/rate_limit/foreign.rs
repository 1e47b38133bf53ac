//! Keys whose code panics or calls the limiter that drops them, and a limiter that outlives its runtime.

use std::{
    cell::{Cell, RefCell},
    hash::{Hash, Hasher},
    panic::AssertUnwindSafe,
    time::Duration,
};

use fleeting::{Limit, RateLimiter};
use futures::FutureExt;
use tokio::{
    runtime::{Builder, Runtime},
    time::{advance, sleep, timeout},
};

use crate::{
    fuse::{FUSE, burn},
    limits::{MILLISECOND, MINUTE, SECOND, WINDOWS},
    patience::patience,
};

struct Fragile(u32);

impl Clone for Fragile {
    fn clone(&self) -> Self {
        burn();
        Self(self.0)
    }
}

impl PartialEq for Fragile {
    fn eq(&self, other: &Self) -> bool {
        burn();
        self.0 == other.0
    }
}

impl Eq for Fragile {}

impl Hash for Fragile {
    fn hash<H: Hasher>(&self, state: &mut H) {
        burn();
        self.0.hash(state);
    }
}

impl Drop for Fragile {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            burn();
        }
    }
}

/// At any place of the panic, at the bound and below it: later calls work, no waiter waits forever, and no entry leaks.
#[tokio::test(start_paused = true)]
async fn panicking_key_does_not_affect_later_calls() {
    for (window, max_keys) in WINDOWS.into_iter().flat_map(|window| [(window, 2), (window, 1_000)])
    {
        for verb in 0..8 {
            let limiter: RateLimiter<Fragile> = RateLimiter::builder()
                .window(window)
                .limit(Limit::per_second(2))
                .max_keys(max_keys)
                .shards(2)
                .build();
            for fuse in 1..16 {
                let permits =
                    [1, 2].map(|key| limiter.check(&Fragile(key)).now_or_never().unwrap());
                if verb == 7 {
                    // The keys are idle now, and not swept yet.
                    advance(5 * SECOND).await;
                }
                FUSE.set(fuse);
                let call = AssertUnwindSafe(async {
                    let [first, second] = permits;
                    match (verb, first, second) {
                        (0, ..) => drop(limiter.check_n(&Fragile(3), 2).await),
                        (1, ..) => drop(limiter.peek(&Fragile(1)).await),
                        (2, ..) => drop(limiter.reset(&Fragile(1)).await),
                        (3, ..) => {
                            drop(timeout(SECOND, limiter.until_ready_n(&Fragile(2), 2)).await)
                        }
                        (4, Ok(permit), _) => permit.refund().await,
                        (5, _, Ok(permit)) => permit.settle(3).await,
                        (6, ..) => limiter.set_limits([Limit::new(2, fuse * SECOND / 8)]),
                        _ => drop(limiter.check(&Fragile(4)).await),
                    }
                });
                let _ = call.catch_unwind().await;
                FUSE.set(0);
                let case = format!("{window:?}, {max_keys} keys, verb {verb}, fuse {fuse}");
                for key in 1..5 {
                    let waits = timeout(MINUTE, async { limiter.until_ready(&Fragile(key)).await });
                    assert!(waits.await.is_ok(), "{case}: {key} waits forever");
                    limiter.peek(&Fragile(key)).await;
                }
                assert!(limiter.stats().keys <= max_keys, "{case}");
                advance(10 * SECOND).await;
            }
            sleep(SECOND).await;
            assert_eq!(limiter.stats().keys, 0, "{window:?}, {max_keys} keys, verb {verb}");
        }
    }
}

thread_local! {
    static CALLED: RefCell<Option<RateLimiter<Chatty>>> = const { RefCell::new(None) };
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

/// Calls its limiter when it is dropped.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Chatty(u32);

impl Drop for Chatty {
    fn drop(&mut self) {
        let called = CALLED.with_borrow(Clone::clone);
        if let Some(limiter) = called.filter(|_| self.0 < 1_000) {
            CALLS.set(CALLS.get() + 1);
            let other = Chatty(1_000 + self.0);
            let _ = limiter.check(&other).now_or_never();
            let _ = limiter.peek(&other).now_or_never();
            let _ = limiter.reset(&other).now_or_never();
            let _ = limiter.until_ready(&other).now_or_never();
            limiter.stats();
        }
    }
}

/// When it is swept, reset, evicted or leaves a wait queue: no lock is held then.
#[tokio::test(start_paused = true)]
async fn dropped_key_may_call_its_limiter() {
    for window in WINDOWS {
        let limiter: RateLimiter<Chatty> = RateLimiter::builder()
            .window(window)
            .limit(Limit::per_second(1))
            .shards(2)
            .max_keys(50)
            .build();
        CALLED.set(Some(limiter.clone()));
        let before = CALLS.get();
        for key in 0..80 {
            let _ = limiter.check(&Chatty(key)).await;
        }
        let wait = |key| {
            let limiter = limiter.clone();
            tokio::spawn(async move { timeout(MINUTE, limiter.until_ready(&Chatty(key))).await })
        };
        let waiting: Vec<_> = (0..40).map(wait).collect();
        sleep(10 * MILLISECOND).await;
        limiter.reset(&Chatty(3)).await;
        limiter.set_limits([Limit::new(1, 2 * SECOND)]);
        for waiting in waiting {
            assert!(waiting.await.unwrap().is_ok(), "the call waits forever: {window:?}");
        }
        advance(10 * SECOND).await;
        for key in 100..200 {
            let _ = limiter.check(&Chatty(key)).await;
        }
        sleep(10 * SECOND).await;
        assert!(CALLS.get() > before + 200, "{}", CALLS.get());
        CALLED.set(None);
    }
}

/// The runtime of the waiter times the wait, and idle keys are evicted without a sweeper.
#[test]
fn limiter_works_after_its_runtime_has_shut_down() {
    let runtime = || -> Runtime {
        Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap()
    };
    let (its, other) = (runtime(), runtime());
    let limiter: RateLimiter<u32> = {
        let _its = its.enter();
        RateLimiter::builder().limit(Limit::new(1, 200 * MILLISECOND)).max_keys(2).build()
    };
    let waiting = limiter.clone();
    let waiting = other.spawn(async move {
        for _ in 0..4 {
            waiting.until_ready(&1).await;
        }
    });
    std::thread::sleep(Duration::from_millis(50));
    drop(its);
    other.block_on(async {
        timeout(patience(), waiting).await.expect("the call waits forever").unwrap();
        for key in 10..20 {
            let _ = limiter.check(&key).await;
        }
        sleep(SECOND).await;
        limiter.check(&20).await.expect("the earlier keys are idle");
        assert!(limiter.stats().keys <= 2);
    });
}
