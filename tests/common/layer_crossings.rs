//! Table of crossings of the layer: each pair of settings, with each window, denies the same requests, and reports a
//! time after which one passes. A pair that makes no sense has a reason.

// Each test binary compiles this module again and uses only a part of it.
#![allow(dead_code)]

use std::time::Duration;

use axum::{
    Router,
    body::Body,
    http::{Method, Request, Response, StatusCode, request::Parts},
    routing::any,
};
use fleeting::{Limit, RateLimitLayer, Window};
use tower::ServiceExt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    Plans,
    SetLimits,
    ChargeWhen,
    ChargeAfter,
    ChargeFailures,
    Wait,
    MaxKeys,
    Shadow,
    Head,
}

use Setting::*;

const SETTINGS: [Setting; 9] =
    [Plans, SetLimits, ChargeWhen, ChargeAfter, ChargeFailures, Wait, MaxKeys, Shadow, Head];

/// Pairs without a cell of their own, with the reason.
const NO_CELL: [(Setting, Setting, &str); 1] =
    [(ChargeWhen, ChargeFailures, "charge_when has no effect with charge_failures")];

pub(crate) const WINDOWS: [Window; 3] = [Window::Log, Window::Buckets(10), Window::Gcra];

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
/// Failures that pass in an hour.
const FAILURES: u32 = 3;

/// Limiter of a cell, with its clock.
pub(crate) trait Backend {
    /// True if waits are by the clock that [`pass`](Backend::pass) advances.
    const HAS_WAITERS: bool;

    fn layer(&self, key: fn(&Parts) -> Option<String>) -> RateLimitLayer<String>;
    async fn set_limit(&self, limit: Limit);
    async fn pass(&self, time: Duration);
}

/// Window, limit and bound of the limiter of a cell.
#[derive(Clone, Debug)]
pub(crate) struct Needs {
    pub(crate) window: Window,
    pub(crate) limit: Limit,
    pub(crate) max_keys: Option<usize>,
}

/// Plays each cell on a new limiter, and fails with all cells that broke their promise. Prints the pairs that have no
/// cell, with the reasons.
pub(crate) async fn play_all<B: Backend>(
    reason_against: impl Fn(Setting) -> Option<&'static str>,
    new: impl AsyncFn(Needs) -> B,
) {
    let mut broken = Vec::new();
    let mut cells = 0;
    for (first, one) in SETTINGS.into_iter().enumerate() {
        for other in SETTINGS.into_iter().skip(first) {
            let pair = NO_CELL.iter().find(|(a, b, _)| (*a, *b) == (one, other));
            let against = reason_against(one).or(reason_against(other));
            if let Some(reason) = pair.map(|(.., reason)| *reason).or(against) {
                println!("{one:?} with {other:?}: no cell, because {reason}");
                continue;
            }
            for window in WINDOWS {
                cells += 1;
                let settings = [one, other];
                if let Err(promise) = play(window, settings, &new).await {
                    broken.push(format!("{one:?} with {other:?}, {window:?}: {promise}"));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{} of {cells} cells:\n{}", broken.len(), broken.join("\n"));
}

fn ensure(kept: bool, promise: impl FnOnce() -> String) -> Result<(), String> {
    if kept { Ok(()) } else { Err(promise()) }
}

fn key(parts: &Parts) -> Option<String> {
    let key = parts.headers.get("x-key").map_or("ada", |key| key.to_str().expect("it is text"));
    Some(key.to_owned())
}

fn retry_after(response: &Response<Body>) -> Option<Duration> {
    let seconds = response.headers().get("retry-after")?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// The promise of all cells: three failures per hour pass with all settings, and one passes at `Retry-After`.
async fn play<B: Backend>(
    window: Window,
    settings: [Setting; 2],
    new: impl AsyncFn(Needs) -> B,
) -> Result<(), String> {
    let has = |setting: Setting| settings.contains(&setting);
    // With `charge_after`, each response costs two units.
    let cost = if has(ChargeAfter) { 2 } else { 1 };
    let limit = Limit::new(cost * FAILURES, HOUR);
    let max_keys = has(MaxKeys).then_some(1);
    let backend = new(Needs { window, limit: limit.clone(), max_keys }).await;
    let is_failure = |status: StatusCode| status == StatusCode::UNAUTHORIZED;
    let short = Limit::per_second(100);

    let mut layer = backend.layer(key);
    for setting in settings {
        layer = match setting {
            Plans => {
                let other: std::sync::Arc<[Limit]> = [short.clone()].into();
                layer.limits(move |parts, _| (parts.uri.path() == "/other").then(|| other.clone()))
            }
            ChargeWhen => layer.charge_when(is_failure),
            ChargeAfter => layer.charge_after(|_| 2),
            ChargeFailures => layer.charge_failures(move |response| is_failure(response.status())),
            Wait if B::HAS_WAITERS => layer.wait(2 * HOUR),
            Wait => layer.wait(SECOND),
            Shadow => layer.shadow(),
            SetLimits | MaxKeys | Head => layer,
        };
    }
    let app = Router::new()
        .route("/wrong", any(async || StatusCode::UNAUTHORIZED))
        .route("/other", any(async || StatusCode::UNAUTHORIZED))
        .route("/right", any(async || StatusCode::OK))
        .layer(layer);
    let method = if has(Head) { Method::HEAD } else { Method::GET };
    let ask = async |path: &str, key: &str| {
        let request = Request::builder().method(&method).uri(path).header("x-key", key);
        let request = request.body(Body::empty()).expect("the request is valid");
        app.clone().oneshot(request).await.expect("a router has no errors")
    };
    let passes = async |path: &str, key: &str, status: u16| {
        let answer = ask(path, key).await;
        ensure(answer.status() == status, || format!("{path} has status {}", answer.status()))
    };

    if has(MaxKeys) {
        passes("/wrong", "first", 401).await?;
    }
    if has(ChargeWhen) || has(ChargeFailures) {
        // A key beyond the bound keeps its own record of what is taken back.
        let is_recorded = has(MaxKeys) && has(ChargeWhen);
        for _ in 0..if is_recorded { 0 } else { 10 } {
            passes("/right", "ada", 200).await?;
        }
    }
    for _ in 0..FAILURES {
        passes("/wrong", "ada", 401).await?;
    }
    backend.pass(2 * SECOND).await;
    if has(Plans) {
        passes("/other", "ada", 401).await?;
    }
    if has(SetLimits) {
        backend.set_limit(short.clone()).await;
        passes("/wrong", "ada", 401).await?;
        backend.set_limit(limit.clone()).await;
    }
    backend.pass(2 * SECOND).await;

    let begin = tokio::time::Instant::now();
    let answer = ask("/wrong", "ada").await;
    let waited = begin.elapsed();
    if has(Shadow) {
        ensure(answer.status() == 401, || format!("shadow mode: {}", answer.status()))?;
        ensure(!answer.headers().contains_key("ratelimit"), || {
            "shadow mode has a field".to_owned()
        })?;
        return ensure(!B::HAS_WAITERS || waited < SECOND, || format!("shadow mode: {waited:?}"));
    }
    let longest = match window {
        Window::Buckets(n) => HOUR + HOUR / n as u32,
        _ => HOUR,
    };
    if has(Wait) && B::HAS_WAITERS {
        ensure(answer.status() == 401, || format!("waited, {}", answer.status()))?;
        return ensure(waited > SECOND && waited <= longest + SECOND, || {
            format!("waited {waited:?}")
        });
    }
    ensure(answer.status() == 429, || {
        format!("a failure above the quota has {}", answer.status())
    })?;
    let policy = format!("q={};w=3600", limit.quota());
    let field = answer.headers().get("ratelimit-policy").map(|field| field.to_str().expect("text"));
    ensure(field.is_some_and(|field| field.contains(&policy)), || format!("policy {field:?}"))?;
    let wait = retry_after(&answer).ok_or("a denial without Retry-After")?;
    ensure(wait <= longest + SECOND, || format!("Retry-After is {wait:?}"))?;
    backend.pass(wait).await;
    passes("/wrong", "ada", 401).await
}
