//! Behaviour shared by the embedded rate limiter and the one on Redis: the same tests on both.
//!
//! The clock is paused in memory and real on Redis, so windows are short and durations are checked within bounds.

use std::time::Duration;

use fleeting::{Limit, Limited, State, Window, redis::Error};
use tokio::time::{Instant, sleep};

use crate::clock::{in_time, ms as per};

/// Return value of a method: plain, or in a `Result` on Redis. An error of the server fails the test.
trait Reply {
    type Reply;
    fn reply(self) -> Self::Reply;
}

impl Reply for Result<fleeting::Permit, Limited> {
    type Reply = Self;
    fn reply(self) -> Self {
        self
    }
}

impl Reply for Result<fleeting::redis::Permit, Error> {
    type Reply = Result<fleeting::redis::Permit, Limited>;
    fn reply(self) -> Self::Reply {
        match self {
            Ok(permit) => Ok(permit),
            Err(Error::Limited(limited)) => Err(limited),
            Err(error) => panic!("server error: {error:?}"),
        }
    }
}

impl Reply for fleeting::Permit {
    type Reply = Self;
    fn reply(self) -> Self {
        self
    }
}

macro_rules! impl_reply {
    ($($reply:ty),*) => {$(
        impl Reply for $reply {
            type Reply = $reply;
            fn reply(self) -> $reply {
                self
            }
        }

        impl Reply for Result<$reply, Error> {
            type Reply = $reply;
            fn reply(self) -> $reply {
                self.expect("the server replies")
            }
        }
    )*};
}

impl_reply!(State, bool, ());

const WINDOWS: [Window; 3] = [Window::Log, Window::Buckets(10), Window::Gcra];

/// Runs a test with a paused clock, which needs no repetition.
async fn run(case: impl AsyncFn()) {
    case().await;
}

macro_rules! suite {
    ($module:ident, $make:path, $run:path, $(#[$test:meta])+) => {
        mod $module {
            use super::*;

            macro_rules! case {
                ($name:ident, $body:block) => {
                    $(#[$test])+
                    async fn $name() {
                        $run(async || $body).await;
                    }
                };
            }

            case!(check_admits_exactly_the_quota, {
                for window in WINDOWS {
                    let limit = Limit::per_minute(3).named("minute");
                    let limiter = $make(window, &[limit]).await;
                    for remaining in [2, 1, 0] {
                        let permit = limiter.check("ada").await.reply().unwrap();
                        assert_eq!(permit.remaining(), remaining, "{window:?}");
                    }
                    let limited = limiter.check("ada").await.reply().unwrap_err();
                    assert_eq!(limited.limit().name(), Some("minute"));
                    assert_eq!(limited.cost(), 1);
                    let max_secs = if window == Window::Gcra { 20 } else { 60 };
                    let wait = limited.retry_after();
                    assert!(wait <= Duration::from_secs(max_secs), "{window:?} {wait:?}");
                    assert!(wait > Duration::from_secs(max_secs - 5), "{window:?} {wait:?}");
                }
            });

            case!(caller_that_waits_for_retry_after_is_admitted, {
                for window in WINDOWS {
                    let limiter = $make(window, &[Limit::new(3, per(120))]).await;
                    for _ in 0..12 {
                        if let Err(limited) = limiter.check("ada").await.reply() {
                            sleep(limited.retry_after()).await;
                            let passed = limiter.check("ada").await.reply();
                            assert!(passed.is_ok(), "{window:?} {passed:?}");
                        }
                    }
                }
            });

            case!(full_quota_is_available_after_the_window, {
                for window in WINDOWS {
                    let limiter = $make(window, &[Limit::new(3, per(60))]).await;
                    assert!(limiter.check_n("ada", 3).await.reply().is_ok());
                    assert!(limiter.check("ada").await.reply().is_err());
                    sleep(per(61)).await;
                    let permit = limiter.check_n("ada", 3).await.reply();
                    assert_eq!(permit.map(|permit| permit.remaining()).ok(), Some(0), "{window:?}");
                }
            });

            case!(log_and_buckets_never_exceed_the_quota_in_any_window, {
                for window in [Window::Log, Window::Buckets(4)] {
                    let (quota, length) = (5, per(80));
                    let limiter = $make(window, &[Limit::new(quota, length)]).await;
                    let mut passed: Vec<(Instant, Instant)> = Vec::new();
                    let begin = Instant::now();
                    while begin.elapsed() < 5 * length {
                        let before = Instant::now();
                        if limiter.check("ada").await.reply().is_ok() {
                            passed.push((before, Instant::now()));
                        }
                        sleep(per(3)).await;
                    }
                    // Counts the calls that were certainly admitted within one window.
                    for (at, (before, _)) in passed.iter().enumerate() {
                        let within = |(_, after): &&(Instant, Instant)| *after - *before < length;
                        let count = passed[at..].iter().filter(within).count();
                        assert!(count <= quota as usize, "{window:?}: {count}");
                    }
                    // Not too few either: a burst, and the quota in each further window except the last.
                    assert!(passed.len() >= 4 * quota as usize, "{window:?}: {}", passed.len());
                }
            });

            case!(gcra_frees_one_unit_per_interval, {
                let limiter = $make(Window::Gcra, &[Limit::new(4, per(200))]).await;
                assert!(limiter.check_n("ada", 4).await.reply().is_ok());
                for _ in 0..4 {
                    let wait = limiter.check("ada").await.reply().unwrap_err().retry_after();
                    assert!(wait <= per(50), "{wait:?}");
                    sleep(wait).await;
                    assert!(limiter.check("ada").await.reply().is_ok());
                }
            });

            case!(check_n_charges_the_whole_cost_or_nothing, {
                for window in WINDOWS {
                    let limiter = $make(window, &[Limit::per_minute(10)]).await;
                    assert_eq!(limiter.check_n("ada", 7).await.reply().unwrap().remaining(), 3);
                    assert_eq!(limiter.check_n("ada", 4).await.reply().unwrap_err().cost(), 4);
                    assert_eq!(limiter.check_n("ada", 3).await.reply().unwrap().remaining(), 0);
                }
            });

            case!(cost_of_zero_is_always_admitted, {
                let limiter = $make(Window::Log, &[Limit::per_minute(1)]).await;
                assert!(limiter.check("ada").await.reply().is_ok());
                let permit = limiter.check_n("ada", 0).await.reply().unwrap();
                assert_eq!(permit.remaining(), 0);
                permit.refund().await.reply();
                assert!(limiter.check("ada").await.reply().is_err());
            });

            case!(cost_above_the_quota_is_never_admitted, {
                for window in WINDOWS {
                    let limiter = $make(window, &[Limit::per_minute(9), Limit::per_hour(3)]).await;
                    let limited = limiter.check_n("ada", 4).await.reply().unwrap_err();
                    assert_eq!(limited.retry_after(), Duration::MAX);
                    assert_eq!(limited.ready_at(), None);
                    assert_eq!(limited.limit().quota(), 3);
                    assert_eq!(limiter.peek("ada").await.reply().remaining(), 3);
                }
            });

            case!(all_limits_are_charged_or_none_is, {
                for window in WINDOWS {
                    let limits = [Limit::new(2, per(100)), Limit::per_hour(3)];
                    let limiter = $make(window, &limits).await;
                    assert_eq!(limiter.check("ada").await.reply().unwrap().remaining(), 1);
                    assert_eq!(limiter.check("ada").await.reply().unwrap().remaining(), 0);
                    for _ in 0..3 {
                        let limited = limiter.check("ada").await.reply().unwrap_err();
                        assert_eq!(limited.limit().quota(), 2, "{window:?}");
                    }
                    sleep(per(115)).await;
                    assert_eq!(limiter.check("ada").await.reply().unwrap().remaining(), 0);
                    let limited = limiter.check("ada").await.reply().unwrap_err();
                    assert_eq!(limited.limit().quota(), 3, "{window:?}");
                    let remaining: Vec<u32> = limiter
                        .peek("ada")
                        .await
                        .reply()
                        .standings()
                        .iter()
                        .map(|standing| standing.remaining())
                        .collect();
                    assert_eq!(remaining, [1, 0], "{window:?}");
                }
            });

            case!(limited_names_the_limit_with_the_longest_retry_after, {
                for window in WINDOWS {
                    let limits = [Limit::per_minute(1), Limit::per_hour(1), Limit::per_second(1)];
                    let limiter = $make(window, &limits).await;
                    assert!(limiter.check("ada").await.reply().is_ok());
                    let limited = limiter.check("ada").await.reply().unwrap_err();
                    assert_eq!(limited.limit(), &limits[1], "{window:?}");
                }
            });

            case!(keys_are_limited_independently, {
                let limiter = $make(Window::Log, &[Limit::per_minute(1)]).await;
                for key in ["ada", "grace", "", "a:b", "{a}", "}{", "ad", "é"] {
                    assert!(limiter.check(key).await.reply().is_ok(), "{key:?}");
                }
                for key in ["ada", "grace", "", "a:b", "{a}", "}{", "ad", "é"] {
                    assert!(limiter.check(key).await.reply().is_err(), "{key:?}");
                }
            });

            case!(clones_share_one_limiter, {
                let limiter = $make(Window::Log, &[Limit::per_minute(2)]).await;
                let clone = limiter.clone();
                assert!(clone.check("ada").await.reply().is_ok());
                assert!(limiter.check(&"ada".to_owned()).await.reply().is_ok());
                assert!(clone.check("ada").await.reply().is_err());
            });

            case!(peek_returns_the_remaining_quota_and_charges_nothing, {
                for window in WINDOWS {
                    let limits = [Limit::per_minute(3), Limit::per_hour(2)];
                    let limiter = $make(window, &limits).await;
                    let state = limiter.peek("ada").await.reply();
                    assert_eq!(state.remaining(), 2);
                    assert_eq!(state.retry_after(), Duration::ZERO);
                    assert!(state.standings().iter().all(|each| each.more_after().is_none()));
                    assert!(limiter.check_n("ada", 2).await.reply().is_ok());
                    for _ in 0..3 {
                        let state = limiter.peek("ada").await.reply();
                        assert_eq!(state.remaining(), 0);
                        let max_secs = if window == Window::Gcra { 1_800 } else { 3_600 };
                        let wait = state.retry_after();
                        assert!(wait <= Duration::from_secs(max_secs), "{window:?} {wait:?}");
                        assert!(wait > Duration::from_secs(max_secs - 5), "{window:?} {wait:?}");
                        let [minute, hour] = state.standings() else { panic!("{state:?}") };
                        assert_eq!((minute.limit(), minute.remaining()), (&limits[0], 1));
                        assert_eq!((hour.limit(), hour.remaining()), (&limits[1], 0));
                        let more = minute.more_after().unwrap();
                        let max_secs = if window == Window::Gcra { 20 } else { 60 };
                        assert!(more <= Duration::from_secs(max_secs), "{window:?} {more:?}");
                        assert!(more > Duration::from_secs(max_secs - 5), "{window:?} {more:?}");
                    }
                }
            });

            case!(more_after_of_peek_is_when_more_is_available, {
                for window in WINDOWS {
                    let limiter = $make(window, &[Limit::new(3, per(90))]).await;
                    assert!(limiter.check("ada").await.reply().is_ok());
                    sleep(per(20)).await;
                    assert!(limiter.check_n("ada", 2).await.reply().is_ok());
                    for _ in 0..3 {
                        let state = limiter.peek("ada").await.reply();
                        let Some(more) = state.standings()[0].more_after() else { break };
                        sleep(more).await;
                        let later = limiter.peek("ada").await.reply();
                        assert!(later.remaining() > state.remaining(), "{window:?} {state:?} {later:?}");
                    }
                    assert_eq!(limiter.peek("ada").await.reply().remaining(), 3, "{window:?}");
                }
            });

            case!(reset_clears_the_key_and_returns_whether_it_had_charges, {
                for window in WINDOWS {
                    let limiter = $make(window, &[Limit::per_minute(1)]).await;
                    assert!(!limiter.reset("ada").await.reply());
                    assert!(limiter.check("ada").await.reply().is_ok());
                    assert!(limiter.check("ada").await.reply().is_err());
                    assert!(limiter.reset("ada").await.reply());
                    assert!(limiter.check("ada").await.reply().is_ok());
                }
            });

            case!(refund_returns_the_charges_of_all_limits, {
                for window in WINDOWS {
                    let limits = [Limit::per_minute(5), Limit::per_hour(9)];
                    let limiter = $make(window, &limits).await;
                    let first = limiter.check_n("ada", 2).await.reply().unwrap();
                    let second = limiter.check_n("ada", 3).await.reply().unwrap();
                    assert!(limiter.check("ada").await.reply().is_err());
                    first.refund().await.reply();
                    let remaining = |state: State| -> Vec<u32> {
                        state.standings().iter().map(|standing| standing.remaining()).collect()
                    };
                    assert_eq!(remaining(limiter.peek("ada").await.reply()), [2, 6], "{window:?}");
                    assert!(limiter.check_n("ada", 2).await.reply().is_ok(), "{window:?}");
                    assert!(limiter.check("ada").await.reply().is_err());
                    second.refund().await.reply();
                    assert_eq!(remaining(limiter.peek("ada").await.reply()), [3, 7], "{window:?}");
                }
            });

            case!(refund_of_charges_outside_the_window_returns_nothing, {
                for window in WINDOWS {
                    let limiter = $make(window, &[Limit::new(4, per(60))]).await;
                    let permit = limiter.check_n("ada", 2).await.reply().unwrap();
                    sleep(per(61)).await;
                    assert!(limiter.check_n("ada", 4).await.reply().is_ok());
                    permit.refund().await.reply();
                    assert!(limiter.check_n("ada", 4).await.reply().is_err(), "{window:?}");
                }
            });

            case!(refund_after_reset_returns_nothing, {
                for window in WINDOWS {
                    let limiter = $make(window, &[Limit::per_minute(2)]).await;
                    let permit = limiter.check_n("ada", 2).await.reply().unwrap();
                    assert!(limiter.reset("ada").await.reply());
                    permit.refund().await.reply();
                    let permit = limiter.check_n("ada", 2).await.reply().unwrap();
                    assert!(limiter.reset("ada").await.reply());
                    assert!(limiter.check_n("ada", 2).await.reply().is_ok());
                    permit.refund().await.reply();
                    assert_eq!(limiter.peek("ada").await.reply().remaining(), 0, "{window:?}");
                }
            });

            case!(settle_charges_or_refunds_the_difference, {
                for window in WINDOWS {
                    let limiter = $make(window, &[Limit::per_hour(10), Limit::per_hour(20)]).await;
                    let remaining = async || limiter.peek("ada").await.reply().remaining();
                    let charged = async |cost| limiter.check_n("ada", cost).await.reply().unwrap();
                    charged(3).await.settle(5).await.reply();
                    assert_eq!(remaining().await, 5, "{window:?}");
                    charged(4).await.settle(1).await.reply();
                    assert_eq!(remaining().await, 4, "{window:?}");
                    charged(2).await.settle(2).await.reply();
                    assert_eq!(remaining().await, 2, "{window:?}");
                    charged(0).await.settle(1).await.reply();
                    assert_eq!(remaining().await, 1, "{window:?}");
                    charged(0).await.settle(0).await.reply();
                    let permit = limiter.check_with("ada", &[]).await.reply().unwrap();
                    permit.settle(9).await.reply();
                    assert_eq!(remaining().await, 1, "without limits, nothing is charged");
                }
            });

            case!(debt_of_settle_denies_later_callers, {
                for window in WINDOWS {
                    let limiter = $make(window, &[Limit::new(3, per(60)), Limit::per_hour(900)]).await;
                    let permit = limiter.check("ada").await.reply().unwrap();
                    sleep(per(90)).await;
                    permit.settle(7).await.reply();
                    let limited = limiter.check("ada").await.reply().unwrap_err();
                    assert_eq!(limited.limit().quota(), 3);
                    if window == Window::Log {
                        assert!(limited.retry_after() > per(40), "{limited}");
                    }
                    sleep(limited.retry_after()).await;
                    assert!(limiter.check("ada").await.reply().is_ok(), "{window:?}");
                    let state = limiter.peek("ada").await.reply();
                    assert_eq!(state.standings()[1].remaining(), 900 - 8, "{window:?}");
                }
            });

            case!(debt_of_settle_may_be_as_large_as_u32_max, {
                for window in WINDOWS {
                    let limiter = $make(window, &[Limit::per_hour(3), Limit::per_hour(70_000)]).await;
                    for _ in 0..3 {
                        let permit = limiter.check_n("ada", 0).await.reply().unwrap();
                        permit.settle(u32::MAX).await.reply();
                        assert_eq!(limiter.peek("ada").await.reply().remaining(), 0);
                        let limited = limiter.check("ada").await.reply().unwrap_err();
                        assert!(limited.retry_after() > Duration::from_secs(3_500), "{limited}");
                    }
                }
            });

            case!(until_ready_n_waits_for_several_units, {
                for window in WINDOWS {
                    let limiter = $make(window, &[Limit::new(4, per(80))]).await;
                    assert!(limiter.check_n("ada", 4).await.reply().is_ok());
                    let begin = Instant::now();
                    assert!(limiter.until_ready_n("ada", 4).await.reply().is_ok());
                    assert!(begin.elapsed() >= per(60), "{window:?}");
                    let limited = limiter.until_ready_n("ada", 5).await.reply().unwrap_err();
                    assert_eq!(limited.ready_at(), None);
                }
            });

            case!(check_with_applies_the_given_limits, {
                for window in [Window::Log, Window::Buckets(10)] {
                    let (free, paid) = ([Limit::per_minute(1)], [Limit::per_minute(100)]);
                    let limiter = $make(window, &free).await;
                    assert!(limiter.check_with("ada", &free).await.reply().is_ok());
                    assert!(limiter.check_with("ada", &free).await.reply().is_err());
                    let permit = limiter.check_with("ada", &paid).await.reply().unwrap();
                    assert_eq!(permit.remaining(), 98, "{window:?}");
                    let permit = limiter.check_n_with("ada", 98, &paid).await.reply().unwrap();
                    assert_eq!(permit.remaining(), 0, "{window:?}");
                    assert_eq!(limiter.peek_with("ada", &paid).await.reply().remaining(), 0);
                    assert!(limiter.check("ada").await.reply().is_err());
                    permit.refund().await.reply();
                    assert_eq!(limiter.peek_with("ada", &paid).await.reply().remaining(), 98);
                }
            });

            case!(check_with_no_limits_admits_all_and_charges_nothing, {
                let limiter = $make(Window::Log, &[Limit::per_minute(1)]).await;
                for _ in 0..3 {
                    assert!(limiter.check_with("ada", &[]).await.reply().is_ok());
                }
                assert!(limiter.peek_with("ada", &[]).await.reply().standings().is_empty());
                assert_eq!(limiter.peek("ada").await.reply().remaining(), 1);
            });

            case!(until_ready_admits_waiters_in_fifo_order, {
                let limiter = $make(Window::Log, &[Limit::new(1, per(30))]).await;
                let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
                let begin = Instant::now();
                for waiter in 0..5 {
                    let (limiter, sender) = (limiter.clone(), sender.clone());
                    tokio::spawn(async move {
                        drop(limiter.until_ready("ada").await.reply());
                        sender.send(waiter).unwrap();
                    });
                    sleep(Duration::from_millis(2)).await;
                }
                for waiter in 0..5 {
                    assert_eq!(order.recv().await, Some(waiter));
                }
                assert!(begin.elapsed() >= per(4 * 30));
            });

            case!(cancelled_until_ready_does_not_block_later_waiters, {
                let limiter = $make(Window::Log, &[Limit::new(1, per(60))]).await;
                assert!(limiter.check("ada").await.reply().is_ok());
                let impatient = tokio::time::timeout(per(20), limiter.until_ready("ada")).await;
                assert!(impatient.is_err());
                drop(limiter.until_ready("ada").await.reply());
            });

            case!(until_ready_within_is_denied_immediately_if_it_cannot_pass_in_time, {
                let limiter = $make(Window::Log, &[Limit::new(1, per(100))]).await;
                assert!(limiter.check("ada").await.reply().is_ok());
                let begin = Instant::now();
                let limited = limiter.until_ready_within("ada", per(20)).await.reply().unwrap_err();
                assert!(begin.elapsed() < per(20), "the denial is immediate");
                assert!(limited.retry_after() > per(20));
                assert!(limiter.until_ready_within("ada", per(200)).await.reply().is_ok());
            });

            case!(stats_count_an_admitted_waiter_as_waited_not_denied, {
                for window in WINDOWS {
                    let limiter = $make(window, &[Limit::new(1, per(60))]).await;
                    for _ in 0..3 {
                        drop(limiter.until_ready("ada").await.reply());
                    }
                    let stats = limiter.stats();
                    assert_eq!((stats.admitted, stats.waited, stats.denied), (3, 2, 0), "{window:?}");
                    // A denied wait, and a cancelled one.
                    assert!(limiter.until_ready_within("ada", per(1)).await.reply().is_err());
                    let cancelled = tokio::time::timeout(per(10), limiter.until_ready("ada")).await;
                    assert!(cancelled.is_err());
                    let stats = limiter.stats();
                    assert_eq!((stats.admitted, stats.waited, stats.denied), (3, 2, 1), "{window:?}");
                    let denials: u64 = limiter.denials().iter().map(|(_, denials)| denials).sum();
                    assert_eq!(denials, 1);
                }
            });

            case!(stats_count_admitted_denied_and_refunded_checks, {
                let limiter = $make(Window::Log, &[Limit::per_minute(2)]).await;
                let permit = limiter.check("ada").await.reply().unwrap();
                assert!(limiter.check("ada").await.reply().is_ok());
                for _ in 0..3 {
                    assert!(limiter.check("ada").await.reply().is_err());
                }
                assert!(limiter.check_n("ada", 0).await.reply().is_ok());
                assert!(limiter.check_n("ada", 3).await.reply().is_err());
                permit.refund().await.reply();
                let stats = limiter.stats();
                assert_eq!((stats.admitted, stats.denied, stats.refunded), (2, 3, 1));
            });
        }
    };
}

mod make {
    use std::sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    };

    use fleeting::{Limit, RateLimiter, Window, redis};

    use crate::servers::{Server, connect};

    pub(crate) async fn embedded(window: Window, limits: &[Limit]) -> RateLimiter<String> {
        let builder = RateLimiter::builder().window(window);
        limits.iter().cloned().fold(builder, |builder, limit| builder.limit(limit)).build()
    }

    /// Returns a limiter with a unique name on the server that all tests share.
    pub(crate) async fn on_redis(window: Window, limits: &[Limit]) -> redis::RateLimiter<String> {
        static SERVER: OnceLock<Server> = OnceLock::new();
        static NAMES: AtomicU64 = AtomicU64::new(0);

        let server = SERVER.get_or_init(Server::start);
        let client = connect(server.url()).await;
        let name = format!("case-{}", NAMES.fetch_add(1, Relaxed));
        let builder = redis::RateLimiter::builder(&client, name)
            .window(window)
            .on_error(redis::OnError::Deny)
            .timeout(std::time::Duration::from_secs(60));
        limits.iter().cloned().fold(builder, |builder, limit| builder.limit(limit)).build().unwrap()
    }
}

suite!(embedded, make::embedded, run, #[tokio::test(start_paused = true)]);
suite!(on_redis, make::on_redis, in_time, #[tokio::test]);
