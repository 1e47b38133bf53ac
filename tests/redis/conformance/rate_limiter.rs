//! What the embedded limiter and the one on Redis share: the same cases, on both.
//!
//! In memory the clock is paused, on Redis time is real: so windows are short, and what takes time is told
//! within bounds.

use std::time::Duration;

use fleeting::{Limit, Limited, State, Window, redis::Error};
use tokio::time::{Instant, sleep};

use crate::clock::{in_time, ms as per};

/// What a verb tells, whatever it is wrapped in; a failing server fails the test.
trait Told {
    type Told;
    fn told(self) -> Self::Told;
}

impl Told for Result<fleeting::Permit, Limited> {
    type Told = Self;
    fn told(self) -> Self {
        self
    }
}

impl Told for Result<fleeting::redis::Permit, Error> {
    type Told = Result<fleeting::redis::Permit, Limited>;
    fn told(self) -> Self::Told {
        match self {
            Ok(permit) => Ok(permit),
            Err(Error::Limited(limited)) => Err(limited),
            Err(error) => panic!("the server fails: {error:?}"),
        }
    }
}

impl Told for fleeting::Permit {
    type Told = Self;
    fn told(self) -> Self {
        self
    }
}

macro_rules! tells {
    ($($told:ty),*) => {$(
        impl Told for $told {
            type Told = $told;
            fn told(self) -> $told {
                self
            }
        }

        impl Told for Result<$told, Error> {
            type Told = $told;
            fn told(self) -> $told {
                self.expect("the server answers")
            }
        }
    )*};
}

tells!(State, bool, ());

const WINDOWS: [Window; 3] = [Window::Log, Window::Buckets(10), Window::Gcra];

/// By a paused clock.
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

            case!(a_quota_passes_and_no_more, {
                for window in WINDOWS {
                    let limit = Limit::per_minute(3).named("minute");
                    let limiter = $make(window, &[limit]).await;
                    for left in [2, 1, 0] {
                        let permit = limiter.check("ada").await.told().unwrap();
                        assert_eq!(permit.remaining(), left, "{window:?}");
                    }
                    let limited = limiter.check("ada").await.told().unwrap_err();
                    assert_eq!(limited.limit().name(), Some("minute"));
                    assert_eq!(limited.cost(), 1);
                    let most = if window == Window::Gcra { 20 } else { 60 };
                    let wait = limited.retry_after();
                    assert!(wait <= Duration::from_secs(most), "{window:?} {wait:?}");
                    assert!(wait > Duration::from_secs(most - 5), "{window:?} {wait:?}");
                }
            });

            case!(who_waits_as_told_passes, {
                for window in WINDOWS {
                    let limiter = $make(window, &[Limit::new(3, per(120))]).await;
                    for _ in 0..12 {
                        if let Err(limited) = limiter.check("ada").await.told() {
                            sleep(limited.retry_after()).await;
                            let passed = limiter.check("ada").await.told();
                            assert!(passed.is_ok(), "{window:?} {passed:?}");
                        }
                    }
                }
            });

            case!(all_is_free_again_after_the_window, {
                for window in WINDOWS {
                    let limiter = $make(window, &[Limit::new(3, per(60))]).await;
                    assert!(limiter.check_n("ada", 3).await.told().is_ok());
                    assert!(limiter.check("ada").await.told().is_err());
                    sleep(per(61)).await;
                    let permit = limiter.check_n("ada", 3).await.told();
                    assert_eq!(permit.map(|permit| permit.remaining()).ok(), Some(0), "{window:?}");
                }
            });

            case!(no_window_of_log_and_buckets_has_more_than_the_quota, {
                for window in [Window::Log, Window::Buckets(4)] {
                    let (quota, length) = (5, per(80));
                    let limiter = $make(window, &[Limit::new(quota, length)]).await;
                    let mut passed: Vec<(Instant, Instant)> = Vec::new();
                    let begin = Instant::now();
                    while begin.elapsed() < 5 * length {
                        let before = Instant::now();
                        if limiter.check("ada").await.told().is_ok() {
                            passed.push((before, Instant::now()));
                        }
                        sleep(per(3)).await;
                    }
                    // Those that have certainly come within less than the length.
                    for (at, (before, _)) in passed.iter().enumerate() {
                        let within = |(_, after): &&(Instant, Instant)| *after - *before < length;
                        let count = passed[at..].iter().filter(within).count();
                        assert!(count <= quota as usize, "{window:?}: {count}");
                    }
                    // But as much as there is: a burst, and its quota again in each window, all but the last.
                    assert!(passed.len() >= 4 * quota as usize, "{window:?}: {}", passed.len());
                }
            });

            case!(gcra_frees_a_unit_each_step, {
                let limiter = $make(Window::Gcra, &[Limit::new(4, per(200))]).await;
                assert!(limiter.check_n("ada", 4).await.told().is_ok());
                for _ in 0..4 {
                    let wait = limiter.check("ada").await.told().unwrap_err().retry_after();
                    assert!(wait <= per(50), "{wait:?}");
                    sleep(wait).await;
                    assert!(limiter.check("ada").await.told().is_ok());
                }
            });

            case!(a_cost_is_charged_whole_or_not_at_all, {
                for window in WINDOWS {
                    let limiter = $make(window, &[Limit::per_minute(10)]).await;
                    assert_eq!(limiter.check_n("ada", 7).await.told().unwrap().remaining(), 3);
                    assert_eq!(limiter.check_n("ada", 4).await.told().unwrap_err().cost(), 4);
                    assert_eq!(limiter.check_n("ada", 3).await.told().unwrap().remaining(), 0);
                }
            });

            case!(a_cost_of_nothing_always_passes, {
                let limiter = $make(Window::Log, &[Limit::per_minute(1)]).await;
                assert!(limiter.check("ada").await.told().is_ok());
                let permit = limiter.check_n("ada", 0).await.told().unwrap();
                assert_eq!(permit.remaining(), u32::MAX);
                permit.refund().await.told();
                assert!(limiter.check("ada").await.told().is_err());
            });

            case!(a_cost_above_the_quota_never_passes, {
                for window in WINDOWS {
                    let limiter = $make(window, &[Limit::per_minute(9), Limit::per_hour(3)]).await;
                    let limited = limiter.check_n("ada", 4).await.told().unwrap_err();
                    assert_eq!(limited.retry_after(), Duration::MAX);
                    assert_eq!(limited.ready_at(), None);
                    assert_eq!(limited.limit().quota(), 3);
                    assert_eq!(limiter.peek("ada").await.told().remaining(), 3);
                }
            });

            case!(all_limits_are_charged_or_none, {
                for window in WINDOWS {
                    let limits = [Limit::new(2, per(100)), Limit::per_hour(3)];
                    let limiter = $make(window, &limits).await;
                    assert_eq!(limiter.check("ada").await.told().unwrap().remaining(), 1);
                    assert_eq!(limiter.check("ada").await.told().unwrap().remaining(), 0);
                    for _ in 0..3 {
                        let limited = limiter.check("ada").await.told().unwrap_err();
                        assert_eq!(limited.limit().quota(), 2, "{window:?}");
                    }
                    sleep(per(115)).await;
                    assert_eq!(limiter.check("ada").await.told().unwrap().remaining(), 0);
                    let limited = limiter.check("ada").await.told().unwrap_err();
                    assert_eq!(limited.limit().quota(), 3, "{window:?}");
                    let left: Vec<u32> = limiter
                        .peek("ada")
                        .await
                        .told()
                        .standings()
                        .iter()
                        .map(|standing| standing.remaining())
                        .collect();
                    assert_eq!(left, [1, 0], "{window:?}");
                }
            });

            case!(the_limit_that_takes_longest_is_named, {
                for window in WINDOWS {
                    let limits = [Limit::per_minute(1), Limit::per_hour(1), Limit::per_second(1)];
                    let limiter = $make(window, &limits).await;
                    assert!(limiter.check("ada").await.told().is_ok());
                    let limited = limiter.check("ada").await.told().unwrap_err();
                    assert_eq!(limited.limit(), &limits[1], "{window:?}");
                }
            });

            case!(keys_are_limited_each_for_itself, {
                let limiter = $make(Window::Log, &[Limit::per_minute(1)]).await;
                for key in ["ada", "grace", "", "a:b", "{a}", "}{", "ad", "é"] {
                    assert!(limiter.check(key).await.told().is_ok(), "{key:?}");
                }
                for key in ["ada", "grace", "", "a:b", "{a}", "}{", "ad", "é"] {
                    assert!(limiter.check(key).await.told().is_err(), "{key:?}");
                }
            });

            case!(clones_are_one_limiter, {
                let limiter = $make(Window::Log, &[Limit::per_minute(2)]).await;
                let clone = limiter.clone();
                assert!(clone.check("ada").await.told().is_ok());
                assert!(limiter.check(&"ada".to_owned()).await.told().is_ok());
                assert!(clone.check("ada").await.told().is_err());
            });

            case!(a_peek_tells_what_is_left_and_charges_nothing, {
                for window in WINDOWS {
                    let limits = [Limit::per_minute(3), Limit::per_hour(2)];
                    let limiter = $make(window, &limits).await;
                    let state = limiter.peek("ada").await.told();
                    assert_eq!(state.remaining(), 2);
                    assert_eq!(state.retry_after(), Duration::ZERO);
                    assert!(state.standings().iter().all(|each| each.more_after().is_none()));
                    assert!(limiter.check_n("ada", 2).await.told().is_ok());
                    for _ in 0..3 {
                        let state = limiter.peek("ada").await.told();
                        assert_eq!(state.remaining(), 0);
                        let most = if window == Window::Gcra { 1_800 } else { 3_600 };
                        let wait = state.retry_after();
                        assert!(wait <= Duration::from_secs(most), "{window:?} {wait:?}");
                        assert!(wait > Duration::from_secs(most - 5), "{window:?} {wait:?}");
                        let [minute, hour] = state.standings() else { panic!("{state:?}") };
                        assert_eq!((minute.limit(), minute.remaining()), (&limits[0], 1));
                        assert_eq!((hour.limit(), hour.remaining()), (&limits[1], 0));
                        let more = minute.more_after().unwrap();
                        let most = if window == Window::Gcra { 20 } else { 60 };
                        assert!(more <= Duration::from_secs(most), "{window:?} {more:?}");
                        assert!(more > Duration::from_secs(most - 5), "{window:?} {more:?}");
                    }
                }
            });

            case!(more_comes_when_a_peek_says_so, {
                for window in WINDOWS {
                    let limiter = $make(window, &[Limit::new(3, per(90))]).await;
                    assert!(limiter.check("ada").await.told().is_ok());
                    sleep(per(20)).await;
                    assert!(limiter.check_n("ada", 2).await.told().is_ok());
                    for _ in 0..3 {
                        let state = limiter.peek("ada").await.told();
                        let Some(more) = state.standings()[0].more_after() else { break };
                        sleep(more).await;
                        let later = limiter.peek("ada").await.told();
                        assert!(later.remaining() > state.remaining(), "{window:?} {state:?} {later:?}");
                    }
                    assert_eq!(limiter.peek("ada").await.told().remaining(), 3, "{window:?}");
                }
            });

            case!(a_reset_forgets_and_tells_whether_anything_was_known, {
                for window in WINDOWS {
                    let limiter = $make(window, &[Limit::per_minute(1)]).await;
                    assert!(!limiter.reset("ada").await.told());
                    assert!(limiter.check("ada").await.told().is_ok());
                    assert!(limiter.check("ada").await.told().is_err());
                    assert!(limiter.reset("ada").await.told());
                    assert!(limiter.check("ada").await.told().is_ok());
                }
            });

            case!(a_refund_takes_back_what_was_charged_of_all_limits, {
                for window in WINDOWS {
                    let limits = [Limit::per_minute(5), Limit::per_hour(9)];
                    let limiter = $make(window, &limits).await;
                    let first = limiter.check_n("ada", 2).await.told().unwrap();
                    let second = limiter.check_n("ada", 3).await.told().unwrap();
                    assert!(limiter.check("ada").await.told().is_err());
                    first.refund().await.told();
                    let left = |state: State| -> Vec<u32> {
                        state.standings().iter().map(|standing| standing.remaining()).collect()
                    };
                    assert_eq!(left(limiter.peek("ada").await.told()), [2, 6], "{window:?}");
                    assert!(limiter.check_n("ada", 2).await.told().is_ok(), "{window:?}");
                    assert!(limiter.check("ada").await.told().is_err());
                    second.refund().await.told();
                    assert_eq!(left(limiter.peek("ada").await.told()), [3, 7], "{window:?}");
                }
            });

            case!(a_refund_takes_back_nothing_that_has_left, {
                for window in WINDOWS {
                    let limiter = $make(window, &[Limit::new(4, per(60))]).await;
                    let permit = limiter.check_n("ada", 2).await.told().unwrap();
                    sleep(per(61)).await;
                    assert!(limiter.check_n("ada", 4).await.told().is_ok());
                    permit.refund().await.told();
                    assert!(limiter.check_n("ada", 4).await.told().is_err(), "{window:?}");
                }
            });

            case!(a_refund_takes_back_nothing_that_was_reset, {
                for window in WINDOWS {
                    let limiter = $make(window, &[Limit::per_minute(2)]).await;
                    let permit = limiter.check_n("ada", 2).await.told().unwrap();
                    assert!(limiter.reset("ada").await.told());
                    permit.refund().await.told();
                    let permit = limiter.check_n("ada", 2).await.told().unwrap();
                    assert!(limiter.reset("ada").await.told());
                    assert!(limiter.check_n("ada", 2).await.told().is_ok());
                    permit.refund().await.told();
                    assert_eq!(limiter.peek("ada").await.told().remaining(), 0, "{window:?}");
                }
            });

            case!(the_difference_to_what_a_call_has_cost_is_charged_or_given_back, {
                for window in WINDOWS {
                    let limiter = $make(window, &[Limit::per_hour(10), Limit::per_hour(20)]).await;
                    let remaining = async || limiter.peek("ada").await.told().remaining();
                    let charged = async |cost| limiter.check_n("ada", cost).await.told().unwrap();
                    charged(3).await.settle(5).await.told();
                    assert_eq!(remaining().await, 5, "{window:?}");
                    charged(4).await.settle(1).await.told();
                    assert_eq!(remaining().await, 4, "{window:?}");
                    charged(2).await.settle(2).await.told();
                    assert_eq!(remaining().await, 2, "{window:?}");
                    charged(0).await.settle(1).await.told();
                    assert_eq!(remaining().await, 1, "{window:?}");
                    charged(0).await.settle(0).await.told();
                    let permit = limiter.check_with("ada", &[]).await.told().unwrap();
                    permit.settle(9).await.told();
                    assert_eq!(remaining().await, 1, "by no limits nothing is charged");
                }
            });

            case!(a_debt_is_seen_by_the_next_callers, {
                for window in WINDOWS {
                    let limiter = $make(window, &[Limit::new(3, per(60)), Limit::per_hour(900)]).await;
                    let permit = limiter.check("ada").await.told().unwrap();
                    sleep(per(90)).await;
                    permit.settle(7).await.told();
                    let limited = limiter.check("ada").await.told().unwrap_err();
                    assert_eq!(limited.limit().quota(), 3);
                    if window == Window::Log {
                        assert!(limited.retry_after() > per(40), "{limited}");
                    }
                    sleep(limited.retry_after()).await;
                    assert!(limiter.check("ada").await.told().is_ok(), "{window:?}");
                    let state = limiter.peek("ada").await.told();
                    assert_eq!(state.standings()[1].remaining(), 900 - 8, "{window:?}");
                }
            });

            case!(no_debt_is_too_large, {
                for window in WINDOWS {
                    let limiter = $make(window, &[Limit::per_hour(3), Limit::per_hour(70_000)]).await;
                    for _ in 0..3 {
                        let permit = limiter.check_n("ada", 0).await.told().unwrap();
                        permit.settle(u32::MAX).await.told();
                        assert_eq!(limiter.peek("ada").await.told().remaining(), 0);
                        let limited = limiter.check("ada").await.told().unwrap_err();
                        assert!(limited.retry_after() > Duration::from_secs(3_500), "{limited}");
                    }
                }
            });

            case!(a_wait_for_many_units_ends_with_a_permit, {
                for window in WINDOWS {
                    let limiter = $make(window, &[Limit::new(4, per(80))]).await;
                    assert!(limiter.check_n("ada", 4).await.told().is_ok());
                    let begin = Instant::now();
                    assert!(limiter.until_ready_n("ada", 4).await.told().is_ok());
                    assert!(begin.elapsed() >= per(60), "{window:?}");
                    let limited = limiter.until_ready_n("ada", 5).await.told().unwrap_err();
                    assert_eq!(limited.ready_at(), None);
                }
            });

            case!(limits_may_be_given_with_each_check, {
                for window in [Window::Log, Window::Buckets(10)] {
                    let (free, paid) = ([Limit::per_minute(1)], [Limit::per_minute(100)]);
                    let limiter = $make(window, &free).await;
                    assert!(limiter.check_with("ada", &free).await.told().is_ok());
                    assert!(limiter.check_with("ada", &free).await.told().is_err());
                    let permit = limiter.check_with("ada", &paid).await.told().unwrap();
                    assert_eq!(permit.remaining(), 98, "{window:?}");
                    let permit = limiter.check_n_with("ada", 98, &paid).await.told().unwrap();
                    assert_eq!(permit.remaining(), 0, "{window:?}");
                    assert_eq!(limiter.peek_with("ada", &paid).await.told().remaining(), 0);
                    assert!(limiter.check("ada").await.told().is_err());
                    permit.refund().await.told();
                    assert_eq!(limiter.peek_with("ada", &paid).await.told().remaining(), 98);
                }
            });

            case!(without_limits_everything_passes_and_nothing_is_charged, {
                let limiter = $make(Window::Log, &[Limit::per_minute(1)]).await;
                for _ in 0..3 {
                    assert!(limiter.check_with("ada", &[]).await.told().is_ok());
                }
                assert!(limiter.peek_with("ada", &[]).await.told().standings().is_empty());
                assert_eq!(limiter.peek("ada").await.told().remaining(), 1);
            });

            case!(those_who_wait_are_let_in_in_the_order_of_asking, {
                let limiter = $make(Window::Log, &[Limit::new(1, per(30))]).await;
                let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
                let begin = Instant::now();
                for waiter in 0..5 {
                    let (limiter, sender) = (limiter.clone(), sender.clone());
                    tokio::spawn(async move {
                        drop(limiter.until_ready("ada").await.told());
                        sender.send(waiter).unwrap();
                    });
                    sleep(Duration::from_millis(2)).await;
                }
                for waiter in 0..5 {
                    assert_eq!(order.recv().await, Some(waiter));
                }
                assert!(begin.elapsed() >= per(4 * 30));
            });

            case!(who_gives_up_waiting_makes_place, {
                let limiter = $make(Window::Log, &[Limit::new(1, per(60))]).await;
                assert!(limiter.check("ada").await.told().is_ok());
                let impatient = tokio::time::timeout(per(20), limiter.until_ready("ada")).await;
                assert!(impatient.is_err());
                drop(limiter.until_ready("ada").await.told());
            });

            case!(a_wait_with_an_end_ends, {
                let limiter = $make(Window::Log, &[Limit::new(1, per(100))]).await;
                assert!(limiter.check("ada").await.told().is_ok());
                let begin = Instant::now();
                let limited = limiter.until_ready_within("ada", per(20)).await.told().unwrap_err();
                assert!(begin.elapsed() < per(20), "it is clear at once");
                assert!(limited.retry_after() > per(20));
                assert!(limiter.until_ready_within("ada", per(200)).await.told().is_ok());
            });

            case!(who_waits_and_passes_was_denied_nothing, {
                for window in WINDOWS {
                    let limiter = $make(window, &[Limit::new(1, per(60))]).await;
                    for _ in 0..3 {
                        drop(limiter.until_ready("ada").await.told());
                    }
                    let stats = limiter.stats();
                    assert_eq!((stats.admitted, stats.waited, stats.denied), (3, 2, 0), "{window:?}");
                    // In vain, and given up.
                    assert!(limiter.until_ready_within("ada", per(1)).await.told().is_err());
                    let gone = tokio::time::timeout(per(10), limiter.until_ready("ada")).await;
                    assert!(gone.is_err());
                    let stats = limiter.stats();
                    assert_eq!((stats.admitted, stats.waited, stats.denied), (3, 2, 1), "{window:?}");
                    let denials: u64 = limiter.denials().iter().map(|(_, denials)| denials).sum();
                    assert_eq!(denials, 1);
                }
            });

            case!(stats_count_what_was_decided, {
                let limiter = $make(Window::Log, &[Limit::per_minute(2)]).await;
                let permit = limiter.check("ada").await.told().unwrap();
                assert!(limiter.check("ada").await.told().is_ok());
                for _ in 0..3 {
                    assert!(limiter.check("ada").await.told().is_err());
                }
                assert!(limiter.check_n("ada", 0).await.told().is_ok());
                assert!(limiter.check_n("ada", 3).await.told().is_err());
                permit.refund().await.told();
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

    /// A fresh name on the server that all cases share.
    pub(crate) async fn on_redis(window: Window, limits: &[Limit]) -> redis::RateLimiter<String> {
        static SERVER: OnceLock<Server> = OnceLock::new();
        static NAMES: AtomicU64 = AtomicU64::new(0);

        let server = SERVER.get_or_init(Server::start);
        let client = connect(server.url()).await;
        let name = format!("case-{}", NAMES.fetch_add(1, Relaxed));
        let builder = redis::RateLimiter::builder(&client, name)
            .window(window)
            .on_error(redis::OnError::Deny)
            .timeout(std::time::Duration::from_secs(5));
        limits.iter().cloned().fold(builder, |builder, limit| builder.limit(limit)).build().unwrap()
    }
}

suite!(embedded, make::embedded, run, #[tokio::test(start_paused = true)]);
suite!(on_redis, make::on_redis, in_time, #[tokio::test]);
