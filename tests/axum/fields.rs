//! Rate limit fields of responses: exact to the second, and valid structured fields.

use std::time::{Duration, Instant};

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, Request, request::Parts},
    routing::get,
};
use fleeting::{Headers, Limit, Limited, RateLimitLayer, RateLimiter, Window};
use serde_json::{Value, json};
use tokio::time::advance;

use super::asking::*;
use crate::clock::until_enough;

#[tokio::test(start_paused = true)]
async fn fields_and_retry_after_are_exact_to_the_second() {
    let limiter = RateLimiter::builder()
        .limit(Limit::new(2, Duration::from_millis(1_500)).named("burst"))
        .limit(Limit::per_hour(3))
        .build();
    let layer = RateLimitLayer::new(limiter, all);
    let app = Router::new().route("/", get("hello")).layer(layer);
    let burst = |numbers: [i64; 2]| ("burst".to_owned(), numbers.map(Some));
    let unnamed = |numbers: [i64; 2]| ("3-per-3600s".to_owned(), numbers.map(Some));

    let first = ask(&app, get_with(&[])).await;
    assert_eq!(first.status(), 200);
    assert_eq!(policies(first.headers()), [burst([2, 2]), unnamed([3, 3_600])]);
    assert_eq!(left(first.headers()), [burst([1, 2]), unnamed([2, 3_600])]);
    assert!(!first.headers().contains_key("x-ratelimit-limit"));

    advance(Duration::from_millis(1_000)).await;
    let second = ask(&app, get_with(&[])).await;
    assert_eq!(left(second.headers()), [burst([0, 1]), unnamed([1, 3_599])]);

    let third = ask(&app, get_with(&[])).await;
    assert_eq!(third.status(), 429);
    assert_eq!(third.headers()["retry-after"], "1");
    assert_eq!(policies(third.headers()), [burst([2, 2]), unnamed([3, 3_600])]);
    assert_eq!(left(third.headers()), [burst([0, 1]), unnamed([1, 3_599])]);
    let problem: Value = serde_json::from_str(&text(third).await).unwrap();
    assert_eq!(problem["violated-policies"], serde_json::json!(["burst"]));
    assert_eq!(problem["retry_after_ms"], 500);

    advance(Duration::from_millis(500)).await;
    let fourth = ask(&app, get_with(&[])).await;
    assert_eq!(fourth.status(), 200);
    assert_eq!(left(fourth.headers()), [burst([0, 1]), unnamed([0, 3_599])]);
    let fifth = ask(&app, get_with(&[])).await;
    assert_eq!(fifth.headers()["retry-after"], "3599");
    assert_eq!(left(fifth.headers()), [burst([0, 1]), unnamed([0, 3_599])]);
    let problem: Value = serde_json::from_str(&text(fifth).await).unwrap();
    assert_eq!(problem["violated-policies"], serde_json::json!(["burst", "3-per-3600s"]));
    // A request at the promised time passes.
    advance(Duration::from_secs(3_599)).await;
    assert_eq!(ask(&app, get_with(&[])).await.status(), 200);
}

/// A client that waits for only one of them is denied by the other.
#[tokio::test(start_paused = true)]
async fn denial_names_all_exceeded_limits() {
    let limiter = RateLimiter::<String>::builder()
        .limit(Limit::per_second(2).named("burst"))
        .limit(Limit::per_minute(100).named("wide"))
        .limit(Limit::per_hour(3).named("hourly"))
        .build();
    let handler = {
        let limiter = limiter.clone();
        async move || limiter.check("all").await.map(|_| "hello")
    };
    let cost = |parts: &Parts| parts.uri.query().map_or(1, |query| query.parse().unwrap());
    let layer = RateLimitLayer::new(limiter.clone(), all).cost(cost);
    let by_layer = Router::new().route("/", get("hello")).layer(layer);
    let by_handler = Router::new().route("/", get(handler));
    limiter.check("all").await.unwrap();
    advance(Duration::from_secs(1)).await;
    limiter.check_n("all", 2).await.unwrap();
    let violated = async |app: &Router, uri: &str| {
        let denied = ask(app, Request::get(uri).body(Body::empty()).unwrap()).await;
        assert_eq!(denied.status(), 429);
        let problem: Value = serde_json::from_str(&text(denied).await).unwrap();
        problem["violated-policies"].clone()
    };
    assert_eq!(violated(&by_layer, "/").await, json!(["burst", "hourly"]));
    assert_eq!(violated(&by_handler, "/").await, json!(["burst", "hourly"]));
    advance(Duration::from_secs(1)).await;
    assert_eq!(violated(&by_layer, "/").await, json!(["hourly"]));
    assert_eq!(violated(&by_handler, "/").await, json!(["hourly"]));
    assert_eq!(
        violated(&by_layer, "/?99").await,
        json!(["burst", "hourly"]),
        "a cost above both quotas does not name both"
    );
}

#[tokio::test(start_paused = true)]
async fn slow_response_shows_the_quota_after_its_charge_and_the_wait_from_now() {
    let limiter = RateLimiter::builder().limit(Limit::per_minute(3).named("minute")).build();
    let slow = async || tokio::time::sleep(Duration::from_millis(20_500)).await;
    let app = Router::new().route("/", get(slow)).layer(RateLimitLayer::new(limiter.clone(), all));
    let answer = async {
        let answer = ask(&app, get_with(&[])).await;
        left(answer.headers())
    };
    let concurrent_check = async {
        advance(Duration::from_secs(1)).await;
        limiter.check("all").await.expect("quota is left");
    };
    let (left, ()) = tokio::join!(answer, concurrent_check);
    // 39.5 s of its minute remain.
    assert_eq!(left, [("minute".to_owned(), [Some(2), Some(40)])]);
    assert_eq!(limiter.peek("all").await.remaining(), 1);
}

/// The real clock is the subject: the seconds are read from a coarse one, which lags by some milliseconds, and
/// are right also in these.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn seconds_of_the_fields_change_at_the_exact_time() {
    for _ in 0..5 {
        until_enough(observe_change_of_seconds).await;
    }
}

/// Returns `true` if a response was seen before and after the change.
async fn observe_change_of_seconds() -> bool {
    let per = Duration::from_millis(1_020);
    let limiter = RateLimiter::builder().limit(Limit::new(1_000_000, per)).build();
    let app = Router::new().route("/", get("hello")).layer(RateLimitLayer::new(limiter, all));
    let start = Instant::now();
    ask(&app, get_with(&[])).await;
    let charged = start..Instant::now();
    let mut seen = Vec::new();
    while start.elapsed() < Duration::from_millis(40) {
        let before = Instant::now();
        let answer = ask(&app, get_with(&[])).await;
        let after = Instant::now();
        if after > start + per / 2 {
            // The machine was so slow that nothing may be in use any more.
            return false;
        }
        let seconds = left(answer.headers())[0].1[1].expect("something is in use");
        let until = |charged: Instant, now: Instant| {
            (charged + per - now).as_nanos().div_ceil(1_000_000_000)
        };
        let (least, most) = (until(charged.start, after), until(charged.end, before));
        assert!(
            (least..=most).contains(&(seconds as u128)),
            "{seconds}, expected {least} or {most}"
        );
        seen.push(seconds);
    }
    seen.dedup();
    // Only one of them, or none, if the machine was slow.
    assert!([&[2, 1][..], &[2], &[1], &[]].contains(&&seen[..]), "{seen:?}");
    seen.len() == 2
}

#[tokio::test(start_paused = true)]
async fn fields_are_valid_for_any_limit_name() {
    let names = [r#"with "quotes" and \"#, "Größe", "line\r\nset-cookie: a=b", "", "µ;q=0, \"x\""];
    for name in names {
        let limiter = RateLimiter::<String>::builder()
            .limit(Limit::new(1, Duration::from_micros(1_500)).named(name))
            .limit(Limit::new(1, Duration::from_micros(1_500)))
            .build();
        let app = Router::new().route("/", get("hello")).layer(RateLimitLayer::new(limiter, all));
        ask(&app, get_with(&[])).await;
        let denied = ask(&app, get_with(&[])).await;
        assert_eq!(denied.status(), 429);
        assert!(!denied.headers().contains_key("set-cookie"));
        let names: Vec<_> = left(denied.headers()).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names[1], "1-per-1.5ms");
        assert_eq!(policies(denied.headers()).len(), 2);
        let problem: Value = serde_json::from_str(&text(denied).await).unwrap();
        assert_eq!(problem["violated-policies"][0], names[0], "{name:?}");
        let is_plain = name.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        assert_eq!(names[0] == name, is_plain, "{name:?} became {:?}", names[0]);
    }
}

#[tokio::test(start_paused = true)]
async fn headers_setting_selects_the_fields() {
    let limiter = || {
        RateLimiter::builder()
            .limit(Limit::per_second(5).named("burst"))
            .limit(Limit::per_minute(2).named("minute"))
            .build()
    };
    for headers in [Headers::Draft11, Headers::Legacy, Headers::Both, Headers::None] {
        let layer = RateLimitLayer::new(limiter(), all).headers(headers);
        let app = Router::new().route("/", get("hello")).layer(layer);
        let has_draft = matches!(headers, Headers::Draft11 | Headers::Both);
        let has_legacy = matches!(headers, Headers::Legacy | Headers::Both);
        for (status, remaining, reset) in [(200, 1, 60), (200, 0, 60), (429, 0, 60)] {
            let answer = ask(&app, get_with(&[])).await;
            assert_eq!(answer.status(), status);
            let fields = answer.headers();
            assert_eq!(number(fields, "retry-after"), (status == 429).then_some(60));
            assert_eq!(fields.contains_key("ratelimit"), has_draft, "{headers:?}");
            assert_eq!(fields.contains_key("ratelimit-policy"), has_draft, "{headers:?}");
            let legacy = ["limit", "remaining", "reset"]
                .map(|name| number(fields, &format!("x-ratelimit-{name}")));
            let expected = [2, remaining, reset].map(|number| has_legacy.then_some(number));
            assert_eq!(legacy, expected, "{headers:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nested_layers_list_the_limits_of_both() {
    let inner = RateLimitLayer::new(hourly(1), all).headers(Headers::Both);
    let outer = RateLimiter::builder().limit(Limit::per_minute(3).named("minute")).build();
    let outer = RateLimitLayer::new(outer, all).headers(Headers::Both);
    let app = Router::new().route("/", get("hello")).layer(inner).layer(outer);

    let names =
        |headers: &HeaderMap| left(headers).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    let passed = ask(&app, get_with(&[])).await;
    assert_eq!(names(passed.headers()), ["hourly", "minute"]);
    assert_eq!(policies(passed.headers()).len(), 2);
    assert_eq!(number(passed.headers(), "x-ratelimit-limit"), Some(1));
    let by_inner = ask(&app, get_with(&[])).await;
    assert_eq!((by_inner.status().as_u16(), names(by_inner.headers()).len()), (429, 2));
    assert_eq!(number(by_inner.headers(), "retry-after"), Some(HOUR));
    ask(&app, get_with(&[])).await;
    let by_outer = ask(&app, get_with(&[])).await;
    assert_eq!(names(by_outer.headers()), ["minute"]);
    assert_eq!(number(by_outer.headers(), "retry-after"), Some(60));
    assert_eq!(number(by_outer.headers(), "x-ratelimit-limit"), Some(3));
}

/// Remaining units and `t` of the first limit.
fn first_left(headers: &HeaderMap) -> [Option<i64>; 2] {
    left(headers)[0].1
}

#[tokio::test(start_paused = true)]
async fn denial_returned_by_a_handler_has_the_units_that_are_left() {
    for window in [Window::Log, Window::Buckets(10), Window::Gcra] {
        for style in [Headers::Draft11, Headers::Both] {
            let builder = RateLimiter::<String>::builder().window(window);
            let limiter = builder.limit(Limit::new(5, Duration::from_secs(5))).build();
            let handler = async move |headers: HeaderMap| -> Result<&'static str, Limited> {
                let cost = number(&headers, "cost").expect("the request has a cost");
                limiter.check_n("ada", cost as u32).await?;
                Ok("hello")
            };
            let outer = RateLimitLayer::new(hourly(1_000), all).headers(style);
            let app = Router::new().route("/", get(handler)).layer(outer);
            let denied = async |cost| {
                let response = ask(&app, get_with(&[("cost", cost)])).await;
                assert_eq!(response.status(), 429, "{cost} units, {window:?}");
                let headers = response.headers();
                if style == Headers::Both {
                    let legacy = number(headers, "x-ratelimit-remaining").map(|r| r as i64);
                    assert_eq!(legacy, first_left(headers)[0]);
                }
                (first_left(headers), number(headers, "retry-after"))
            };
            let gcra = |by_gcra, other| if window == Window::Gcra { by_gcra } else { other };
            // A cost above the quota, of which all is left.
            assert_eq!(denied("6").await, ([Some(5), None], None), "{window:?}");
            assert_eq!(ask(&app, get_with(&[("cost", "3")])).await.status(), 200);
            let wait = gcra(1, 5);
            assert_eq!(denied("3").await, ([Some(2), Some(wait)], Some(wait as u64)), "{window:?}");
            assert_eq!(denied("6").await, ([Some(2), Some(wait)], None), "{window:?}");
            assert_eq!(ask(&app, get_with(&[("cost", "2")])).await.status(), 200);
            assert_eq!(denied("1").await, ([Some(0), Some(wait)], Some(wait as u64)), "{window:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn denial_of_a_cost_above_the_quota_has_the_time_until_more_units_are_available() {
    let layer = RateLimitLayer::new(hourly(10), all)
        .cost(|request| number(&request.headers, "cost").expect("the request has a cost") as u32)
        .headers(Headers::Both);
    let app = Router::new().route("/", get("hello")).layer(layer);
    let denied = ask(&app, get_with(&[("cost", "11")])).await;
    assert_eq!(first_left(denied.headers()), [Some(10), None]);
    assert_eq!(number(denied.headers(), "x-ratelimit-reset"), Some(0));
    assert_eq!(ask(&app, get_with(&[("cost", "2")])).await.status(), 200);
    advance(Duration::from_secs(10)).await;
    let denied = ask(&app, get_with(&[("cost", "11")])).await;
    assert_eq!(denied.status(), 429);
    assert!(!denied.headers().contains_key("retry-after"), "no wait helps");
    assert_eq!(first_left(denied.headers()), [Some(8), Some(3_590)]);
    assert_eq!(number(denied.headers(), "x-ratelimit-remaining"), Some(8));
    assert_eq!(number(denied.headers(), "x-ratelimit-reset"), Some(3_590));
}

/// The coarse clock, by which GCRA counts, lies up to some milliseconds before the charge. The real clock is the
/// subject.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn fields_count_each_charge_once_right_after_it() {
    for window in [Window::Log, Window::Buckets(10), Window::Gcra] {
        let builder = RateLimiter::<String>::builder().window(window);
        // Long enough that no unit is free again during the test.
        let limiter = builder.limit(Limit::new(4, Duration::from_secs(4 * HOUR))).build();
        let key = |request: &Parts| Some(request.headers["key"].to_str().unwrap().to_owned());
        let layer = RateLimitLayer::new(limiter, key)
            .cost(|request| number(&request.headers, "cost").unwrap() as u32);
        let app = Router::new().route("/", get("hello")).layer(layer);
        for round in 0..100 {
            let key = round.to_string();
            for (cost, status, remaining) in [("1", 200, 3), ("1", 200, 2), ("3", 429, 2)] {
                let response = ask(&app, get_with(&[("key", &key), ("cost", cost)])).await;
                assert_eq!(response.status(), status);
                assert_eq!(first_left(response.headers())[0], Some(remaining), "{window:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn layer_without_fields_removes_those_that_on_limited_returns() {
    let layer = RateLimitLayer::new(hourly(1), all)
        .headers(Headers::None)
        .on_limited(|limited, _| limited.clone());
    let app = Router::new().route("/", get("hello")).layer(layer);
    assert_eq!(ask(&app, get_with(&[])).await.status(), 200);
    let denied = ask(&app, get_with(&[])).await;
    assert_eq!(denied.status(), 429);
    for name in ["ratelimit", "ratelimit-policy"] {
        assert!(!denied.headers().contains_key(name), "{name}");
    }
    assert!(denied.headers().contains_key("retry-after"));
}
