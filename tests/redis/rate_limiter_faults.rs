//! The rate limiter on Redis while its server is stopped, killed, disconnected, or refuses calls.

use std::{
    mem::replace,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use fleeting::{
    Limit, Window,
    redis::{Breaker, Client, Error, OnError, RateLimiter, RateLimiterBuilder},
};
use tokio::{sync::watch, task::JoinHandle, time::sleep};

use crate::{
    clock::{in_time, ms},
    patience::patience,
    servers::{Proxy, Server, connect},
};

/// Maximum time of a call while the server fails.
fn bound() -> Duration {
    ms(60)
}

/// Time for which the breaker is open.
const OPEN_FOR: Duration = Duration::from_millis(500);

/// Returns a client with the default timeout.
async fn client(url: String) -> Client {
    Client::builder(url).timeout(ms(1_000)).connect().await.unwrap()
}

fn builder(client: &Client, on_error: OnError) -> RateLimiterBuilder<String> {
    let builder = RateLimiter::builder(client, "faults").limit(Limit::per_hour(5));
    let builder = builder.on_error(on_error);
    // The first attempt of a case has the default timeout, which is 50 ms.
    if ms(1) == Duration::from_millis(1) { builder } else { builder.timeout(ms(50)) }
}

/// Returns the output of a call and the time that it took.
async fn timed<T>(call: impl Future<Output = T>) -> (T, Duration) {
    let begin = Instant::now();
    let value = call.await;
    (value, begin.elapsed())
}

/// Measures the maximum delay of timers on this machine, which any call may have in addition.
struct Noise {
    worst: watch::Receiver<Duration>,
    sleeper: JoinHandle<()>,
}

impl Noise {
    fn begin() -> Self {
        const TICK: Duration = Duration::from_millis(1);
        let (late, worst) = watch::channel(Duration::ZERO);
        let sleeper = tokio::spawn(async move {
            loop {
                let ((), took) = timed(sleep(TICK)).await;
                late.send_if_modified(|worst| took > *worst && replace(worst, took) < took);
            }
        });
        Self { worst, sleeper }
    }

    /// Asserts that all of `times` are within [`bound`] plus the delay of timers.
    async fn end(self, times: &[Duration]) {
        // Lets a delayed sleep end first.
        sleep(Duration::from_millis(5)).await;
        self.sleeper.abort();
        let noise = *self.worst.borrow();
        let late: Vec<_> = times.iter().filter(|time| **time > bound() + noise).collect();
        assert!(
            late.is_empty(),
            "of {} calls, some took {late:?}; timers were up to {noise:?} late",
            times.len()
        );
    }
}

/// Asserts that calls are decided in time while the server stalls, immediately once the breaker is open, and by the
/// server again once it is back.
async fn stalls(on_error: OnError, stall: impl AsyncFn(&Server), back: impl AsyncFn(&Server)) {
    let server = Server::start();
    let client = client(server.url()).await;
    let limiter = builder(&client, on_error).build().unwrap();
    assert_eq!(limiter.check("ada").await.unwrap().remaining(), 4);

    stall(&server).await;
    let (begin, noise) = (Instant::now(), Noise::begin());
    let mut times = Vec::new();
    for call in 0..40 {
        let (checked, time) = timed(limiter.check("ada")).await;
        match (on_error, checked) {
            (OnError::Allow, Ok(permit)) => assert_eq!(permit.remaining(), u32::MAX),
            (OnError::Deny, Err(error)) => assert!(error.is_temporary(), "{error:?}"),
            // The local limiter begins empty.
            (OnError::Local, Ok(permit)) if call < 5 => assert_eq!(permit.remaining(), 4 - call),
            (OnError::Local, Err(Error::Limited(limited))) if call >= 5 => {
                assert!(limited.retry_after() > Duration::from_secs(3_500));
            }
            (_, other) => panic!("with {on_error:?}, call {call} is {other:?}"),
        }
        times.push(time);
    }
    noise.end(&times).await;
    // Three calls were sent, and then at most one per open period.
    let periods = (begin.elapsed().as_secs_f64() / OPEN_FOR.as_secs_f64()) as u64;
    let sent = limiter.stats().errors;
    assert!((3..=3 + periods).contains(&sent), "{sent} of 40 calls were sent: {times:?}");
    assert_ne!(limiter.stats().breaker, Breaker::Closed);
    assert_eq!(limiter.stats().by_policy, 40);

    back(&server).await;
    let until = Instant::now() + patience();
    loop {
        sleep(OPEN_FOR / 4).await;
        let _ = limiter.check("grace").await;
        if limiter.stats().breaker == Breaker::Closed {
            break;
        }
        assert!(Instant::now() < until, "the server is back, but the breaker did not close");
    }
    let by_policy = limiter.stats().by_policy;
    assert!(limiter.peek("ada").await.unwrap().remaining() <= 4);
    let _ = limiter.check("grace").await;
    assert_eq!(limiter.stats().by_policy, by_policy, "the server decides again");
}

#[tokio::test]
async fn calls_take_at_most_60_ms_while_the_server_is_stopped() {
    in_time(async || {
        for on_error in [OnError::Allow, OnError::Deny, OnError::Local] {
            stalls(on_error, async |server| server.pause(), async |server| server.resume()).await;
        }
    })
    .await;
}

#[tokio::test]
async fn calls_take_at_most_60_ms_while_the_server_pauses_clients() {
    in_time(async || {
        // The pause ends by itself.
        let pause = async |server: &Server| {
            let mut plain = server.plain().await;
            let () = redis::cmd("CLIENT")
                .arg("PAUSE")
                .arg(ms(1_500).as_millis() as u64)
                .query_async(&mut plain)
                .await
                .unwrap();
        };
        for on_error in [OnError::Allow, OnError::Deny, OnError::Local] {
            stalls(on_error, pause, async |_| ()).await;
        }
    })
    .await;
}

#[tokio::test]
async fn calls_take_at_most_60_ms_without_a_server_and_recover() {
    in_time(async || {
        let mut server = Server::durable();
        let client = client(server.url()).await;
        let limiter = builder(&client, OnError::Deny).build().unwrap();
        // With a longer timeout, as a charge may take the disk of the server longer than 50 ms.
        let patient = builder(&client, OnError::Deny).timeout(patience()).build().unwrap();
        for left in [4, 3] {
            assert_eq!(patient.check("ada").await.unwrap().remaining(), left);
        }
        server.kill();
        let (noise, mut times) = (Noise::begin(), Vec::new());
        for _ in 0..40 {
            let (checked, time) = timed(limiter.check("ada")).await;
            let error = checked.unwrap_err();
            assert!(error.is_temporary(), "{error:?}");
            times.push(time);
        }
        noise.end(&times).await;
        server.restart();
        let until = Instant::now() + patience();
        let state = loop {
            match limiter.peek("ada").await {
                Ok(state) => break state,
                Err(error) => assert!(error.is_temporary(), "{error:?}"),
            }
            assert!(Instant::now() < until, "the server is back, but calls fail");
            sleep(Duration::from_millis(50)).await;
        };
        // Earlier charges were kept.
        assert_eq!(state.remaining(), 3);
        assert_eq!(patient.check("ada").await.unwrap().remaining(), 2);
    })
    .await;
}

#[tokio::test]
async fn concurrent_calls_to_a_stopped_server_take_no_longer_than_one() {
    in_time(async || {
        let server = Server::start();
        let client = client(server.url()).await;
        let limiter = builder(&client, OnError::Allow).build().unwrap();
        limiter.check("ada").await.unwrap();
        server.pause();
        let (mut callers, mut sleepers) =
            (tokio::task::JoinSet::new(), tokio::task::JoinSet::new());
        for _ in 0..200 {
            let limiter = limiter.clone();
            callers.spawn(async move { timed(limiter.check("ada")).await.1 });
            sleepers.spawn(async { timed(sleep(ms(50))).await.1 });
        }
        // A delay of timers delays callers too.
        let worst = sleepers.join_all().await.into_iter().max().unwrap();
        let noise = worst.saturating_sub(ms(50) + Duration::from_millis(2));
        let times = callers.join_all().await;
        let late: Vec<_> = times.iter().filter(|time| **time > bound() + noise).collect();
        assert!(late.is_empty(), "sleeps took up to {worst:?}, and {} calls {late:?}", late.len());
        server.resume();
    })
    .await;
}

#[tokio::test]
async fn open_breaker_sends_nothing_and_half_open_one_call() {
    in_time(async || {
        let server = Server::start();
        let client = client(server.url()).await;
        let limiter = builder(&client, OnError::Allow).build().unwrap();
        limiter.check("ada").await.unwrap();
        assert_eq!(limiter.stats().breaker, Breaker::Closed);
        server.pause();
        for errors in 1..=3 {
            assert_eq!(limiter.stats().breaker, Breaker::Closed);
            limiter.check("ada").await.unwrap();
            assert_eq!(limiter.stats().errors, errors);
        }
        assert_eq!(limiter.stats().breaker, Breaker::Open);
        for _ in 0..100 {
            limiter.check("ada").await.unwrap();
        }
        let error = limiter.peek("ada").await.unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        assert!(matches!(limiter.reset("ada").await, Err(Error::Unavailable(_))));
        assert_eq!(limiter.stats().errors, 3, "a call was sent while the breaker was open");

        sleep(OPEN_FOR + Duration::from_millis(20)).await;
        assert_eq!(limiter.stats().breaker, Breaker::HalfOpen);
        // Of many concurrent calls, one is sent.
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let limiter = limiter.clone();
            callers.spawn(async move { limiter.check("ada").await.is_ok() });
        }
        assert!(callers.join_all().await.into_iter().all(|passed| passed));
        assert_eq!(limiter.stats().errors, 4);
        assert_eq!(limiter.stats().breaker, Breaker::Open);
        server.resume();
    })
    .await;
}

#[tokio::test]
async fn refund_fails_on_a_stopped_server_but_not_for_a_local_permit() {
    in_time(async || {
        let server = Server::start();
        let client = client(server.url()).await;
        let limiter = builder(&client, OnError::Local).build().unwrap();
        let on_server = limiter.check("ada").await.unwrap();
        server.pause();
        let local = limiter.check("ada").await.unwrap();
        assert_eq!(local.remaining(), 4);
        local.refund().await.unwrap();
        assert_eq!(
            limiter.check("ada").await.unwrap().remaining(),
            4,
            "the local charge was refunded"
        );
        let (refunded, time) = timed(on_server.refund()).await;
        assert!(refunded.unwrap_err().is_temporary());
        assert!(time < 2 * bound());
        server.resume();
    })
    .await;
}

#[tokio::test]
async fn cached_denial_holds_while_the_server_fails() {
    in_time(async || {
        let server = Server::start();
        let client = client(server.url()).await;
        let limiter = builder(&client, OnError::Allow).build().unwrap();
        limiter.check_n("ada", 5).await.unwrap();
        assert!(matches!(limiter.check("ada").await, Err(Error::Limited(_))));
        server.pause();
        assert!(matches!(limiter.check("ada").await, Err(Error::Limited(_))));
        assert!(limiter.check("grace").await.is_ok());
        server.resume();
    })
    .await;
}

#[tokio::test]
async fn cut_connection_never_charges_a_call_twice() {
    in_time(async || {
        let server = Server::start();
        let proxy = Proxy::to(server.port()).await;
        let through = client(proxy.url()).await;
        let direct = client(server.url()).await;
        for window in [Window::Log, Window::Buckets(10), Window::Gcra] {
            let make = |client| {
                RateLimiter::<String>::builder(client, "cut")
                    .window(window)
                    .limit(Limit::new(1_000_000, Duration::from_secs(86_400 * 365)))
                    .on_error(OnError::Deny)
                    .timeout(ms(2_000))
            };
            let limiter = make(&through).build().unwrap();
            let (begin, stop) = (Instant::now(), Arc::new(AtomicBool::new(false)));
            // Totals of all callers.
            let (passed, unanswered) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
            let mut callers = tokio::task::JoinSet::new();
            // Only two callers, so that a cut does not cause the three failures that open the breaker.
            for _ in 0..2 {
                let (limiter, stop) = (limiter.clone(), stop.clone());
                let (passed, unanswered) = (passed.clone(), unanswered.clone());
                callers.spawn(async move {
                    while !stop.load(Relaxed) {
                        match limiter.check("ada").await {
                            Ok(_) => _ = passed.fetch_add(1, Relaxed),
                            Err(Error::Unanswered(_)) => _ = unanswered.fetch_add(1, Relaxed),
                            Err(Error::Connect(_) | Error::Unavailable(_)) => {
                                sleep(Duration::from_millis(5)).await;
                            }
                            Err(error) => panic!("{error:?}"),
                        }
                    }
                });
            }
            // Until both outcomes have occurred. Cuts become rarer if no call passes in between.
            let (mut pause, mut cuts) = (Duration::from_millis(20), 0);
            while cuts < 40 || passed.load(Relaxed) == 0 || unanswered.load(Relaxed) == 0 {
                assert!(begin.elapsed() < patience(), "no call passed, or none was cut");
                let before = passed.load(Relaxed);
                sleep(pause).await;
                proxy.cut();
                cuts += 1;
                if passed.load(Relaxed) == before {
                    pause *= 2;
                }
            }
            stop.store(true, Relaxed);
            callers.join_all().await;
            let (charged, unknown) = (passed.load(Relaxed), unanswered.load(Relaxed));
            let left = make(&direct).build().unwrap().peek("ada").await.unwrap().remaining();
            let used = 1_000_000 - left;
            assert!(
                (charged..=charged + unknown).contains(&used),
                "{window:?}: {charged} passed, {unknown} are unknown, and {used} are charged"
            );
            make(&direct).build().unwrap().reset("ada").await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn refused_calls_are_decided_by_the_policy_and_do_not_open_the_breaker() {
    let server = Server::start_with(&["--maxmemory", "1", "--maxmemory-policy", "noeviction"]);
    let client = client(server.url()).await;
    let allow = builder(&client, OnError::Allow).timeout(patience()).build().unwrap();
    let deny = builder(&client, OnError::Deny).timeout(patience()).build().unwrap();
    for _ in 0..5 {
        allow.check("ada").await.unwrap();
        let error = deny.check("ada").await.unwrap_err();
        assert!(matches!(error, Error::Server(_)), "{error:?}");
    }
    assert_eq!((allow.stats().errors, allow.stats().breaker), (5, Breaker::Closed));
}

#[tokio::test]
async fn refund_on_a_full_server_returns_the_units() {
    for window in [Window::Log, Window::Buckets(10), Window::Gcra] {
        let server = Server::start();
        let client = Client::connect(server.url()).await.unwrap();
        let builder = builder(&client, OnError::Deny).window(window).timeout(patience());
        let limiter = builder.build().unwrap();
        let mut permits = Vec::new();
        for _ in 0..5 {
            permits.push(limiter.check("ada").await.unwrap());
        }
        server.refuse_memory();
        permits.pop().unwrap().refund().await.unwrap();
        permits.pop().unwrap().settle(0).await.unwrap();
        assert_eq!(limiter.peek("ada").await.unwrap().remaining(), 2, "{window:?}");
    }
}

#[tokio::test]
async fn calls_that_were_not_sent_do_not_open_the_breaker() {
    in_time(async || {
        let server = Server::start();
        let client = connect(server.url()).await;
        let make = |name| RateLimiter::builder(&client, name).limit(Limit::per_hour(9_999));
        let patient: RateLimiter<String> = make("a").timeout(patience()).build().unwrap();
        let limiter: RateLimiter<String> =
            make("b").on_error(OnError::Deny).timeout(ms(50)).build().unwrap();
        patient.check("ada").await.unwrap();
        server.pause();
        // As many calls as may be in flight on the connection of all limiters.
        let calls: Vec<_> = (0..1_024)
            .map(|_| {
                let patient = patient.clone();
                tokio::spawn(async move { patient.check("ada").await })
            })
            .collect();
        sleep(ms(100)).await;
        for _ in 0..4 {
            let error = limiter.check("ada").await.unwrap_err();
            assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
            assert_eq!(limiter.stats().breaker, Breaker::Closed);
        }
        server.resume();
        for call in calls {
            call.await.unwrap().unwrap();
        }
        limiter.check("ada").await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn debug_text_of_a_permit_hides_its_key() {
    let server = Server::start();
    let client = Client::connect(server.url()).await.unwrap();
    let limiter = builder(&client, OnError::Deny).timeout(patience()).build().unwrap();
    let permit = limiter.check("session-token").await.unwrap();
    let text = format!("{permit:?}");
    assert!(text.contains(":faults:{#") && !text.contains("token"), "{text}");
}

#[tokio::test]
async fn refund_of_a_charge_that_the_server_has_lost_changes_nothing() {
    for window in [Window::Log, Window::Buckets(10), Window::Gcra] {
        let mut server = Server::start();
        let client = connect(server.url()).await;
        let builder = RateLimiter::<String>::builder(&client, "lost").limit(Limit::per_hour(100));
        let builder = builder.window(window).on_error(OnError::Deny).timeout(patience());
        let limiter = builder.build().unwrap();
        limiter.check("ada").await.unwrap();
        assert!(server.ask("SAVE").starts_with("+OK"));
        // More than the script reads at once.
        let mut lost = Vec::new();
        for _ in 0..60 {
            lost.push(limiter.check("ada").await.unwrap());
        }
        server.kill();
        server.restart();
        let until = Instant::now() + patience();
        while limiter.peek("ada").await.is_err() {
            assert!(Instant::now() < until, "the client does not find the server");
        }
        for permit in lost {
            permit.refund().await.unwrap();
        }
        let left = limiter.peek("ada").await.unwrap().standings()[0].remaining();
        // The charges of a bucket have no identity: a refund takes back units that are in the same bucket.
        let expected = if window == Window::Log { 99..=99 } else { 99..=100 };
        assert!(expected.contains(&left), "{window:?}: {left}");
    }
}
