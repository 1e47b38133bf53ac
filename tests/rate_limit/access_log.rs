//! Requests of an access log, limited by client: each decision is compared with a model that stores all requests.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use fleeting::{Limit, RateLimiter, Window};
use tokio::time::{Instant, advance, sleep};

/// A request, with its time in seconds since the start of the log.
struct Request<'a> {
    client: &'a str,
    time: u64,
}

/// Returns the whole log of 10,000 requests, or the shipped excerpt if it is missing: it is not part of the crate. Also
/// returns whether it is the whole log.
fn log() -> (String, bool) {
    let whole = in_crate("../shared/data/access.log");
    if let Ok(log) = fs::read_to_string(&whole) {
        return (log, true);
    }
    eprintln!("{} is missing, using the shipped excerpt instead", whole.display());
    let log = fs::read_to_string(in_crate("examples/data/access-excerpt.log"));
    (log.expect("the excerpt is shipped with the crate"), false)
}

/// Parses all lines that have a client and a time. A time before that of the previous line is replaced by it.
fn requests(log: &str) -> Vec<Request<'_>> {
    let read = |line| read(line).unwrap_or_else(|| panic!("{line:?} has no client and time"));
    let mut requests: Vec<Request<'_>> = log.lines().map(read).collect();
    let first = requests.first().expect("the log is not empty").time;
    let mut latest = first;
    for request in &mut requests {
        latest = latest.max(request.time);
        request.time = latest - first;
    }
    requests
}

/// Parses a line. The log covers one month, in one time zone.
fn read(line: &str) -> Option<Request<'_>> {
    let (client, rest) = line.split_once(' ')?;
    let (time, _) = rest.split_once('[')?.1.split_once(']')?;
    let (date, zone) = time.split_once(' ')?;
    let parts: Vec<&str> = date.split(['/', ':']).collect();
    let [day, "May", "2015", hour, minute, second] = parts[..] else { return None };
    let number = |text: &str| text.parse::<u64>().ok();
    let hours = number(day)? * 24 + number(hour)?;
    let time = (hours * 60 + number(minute)?) * 60 + number(second)?;
    (zone == "+0000").then_some(Request { client, time })
}

/// Outcome of a check: the remaining quota, or the time at which it passes, in seconds since the start of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Passed { remaining: u32 },
    Denied { ready: u64 },
}

/// Quota of requests, and its window in seconds.
type Quota = (u32, u64);

/// Outcomes of a model that stores every admitted request and counts them each time.
fn expected(requests: &[Request<'_>], quotas: &[Quota]) -> Vec<Outcome> {
    let mut passed: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    let mut outcomes = Vec::new();
    for Request { client, time } in requests {
        let passed = passed.entry(client).or_default();
        let left = |(quota, seconds): &Quota, at: u64| {
            let used = passed.iter().filter(|time| **time + seconds > at).count() as u32;
            assert!(used <= *quota);
            quota - used
        };
        let least = |at| {
            quotas.iter().map(|quota| left(quota, at)).min().expect("there is at least one limit")
        };
        outcomes.push(match least(*time) {
            0 => {
                let ready = (*time..).find(|at| least(*at) > 0);
                Outcome::Denied { ready: ready.expect("all charges leave the window eventually") }
            }
            before => {
                passed.push(*time);
                Outcome::Passed { remaining: before - 1 }
            }
        });
    }
    outcomes
}

/// Outcomes of a limiter with this window, at the times of the log by Tokio's clock.
async fn run(requests: &[Request<'_>], quotas: &[Quota], window: Window) -> Vec<Outcome> {
    let mut builder = RateLimiter::<String>::builder().window(window);
    for (quota, seconds) in quotas {
        builder = builder.limit(Limit::new(*quota, Duration::from_secs(*seconds)));
    }
    let limiter = builder.build();
    let start = Instant::now();
    let mut outcomes = Vec::new();
    for request in requests {
        advance(start + Duration::from_secs(request.time) - Instant::now()).await;
        outcomes.push(match limiter.check(request.client).await {
            Ok(permit) => Outcome::Passed { remaining: permit.remaining() },
            Err(limited) => {
                let ready =
                    limited.ready_at().expect("a cost of one is never above a quota") - start;
                Outcome::Denied { ready: ready.as_secs() + u64::from(ready.subsec_nanos() > 0) }
            }
        });
    }
    // Time for the sweeper to remove idle keys.
    sleep(Duration::from_secs(2)).await;
    let passed = requests
        .iter()
        .zip(&outcomes)
        .filter(|(_, outcome)| matches!(outcome, Outcome::Passed { .. }));
    let last: BTreeMap<&str, u64> =
        passed.map(|(request, _)| (request.client, request.time)).collect();
    let longest =
        quotas.iter().map(|(_, seconds)| *seconds).max().expect("there is at least one limit");
    let end = start.elapsed().as_secs();
    let in_use = |longest: u64| last.values().filter(|time| **time + longest > end).count();
    let (keys, least, most) =
        (limiter.stats().keys, in_use(longest), in_use(longest * 11 / 10 + 2));
    assert!(
        (least..=most).contains(&keys),
        "{keys} keys are in memory, expected {least} to {most}"
    );
    outcomes
}

fn denied(outcomes: &[Outcome]) -> usize {
    outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Denied { .. })).count()
}

#[tokio::test(start_paused = true)]
async fn log_window_decides_each_request_exactly_as_the_model() {
    let (log, is_whole) = log();
    let requests = requests(&log);
    assert_eq!(requests.len(), if is_whole { 10_000 } else { 500 });
    let (minute, hour) = ((10, 60), (60, 3_600));
    let both = [minute, hour];
    let each_denies_some = [(5, 60), (20, 3_600), (3, 2)];
    for quotas in [&both[..1], &both[1..], &both, &each_denies_some, &[(1, 1)], &[(2, 7)]] {
        let expected = expected(&requests, quotas);
        let outcomes = run(&requests, quotas, Window::Log).await;
        println!("{quotas:?}: {} of {} denied", denied(&outcomes), outcomes.len());
        for (number, (outcome, expected)) in outcomes.iter().zip(&expected).enumerate() {
            let Request { client, time } = requests[number];
            assert_eq!(
                outcome, expected,
                "request {number}, of {client} at {time} s, by {quotas:?}"
            );
        }
        // The excerpt has too few requests per client for a denial.
        assert!(
            !is_whole || denied(&outcomes) > 0,
            "{quotas:?} denied nothing, so nothing was tested"
        );
    }
}

/// Less exact than the log: never more than the quota, and not much less.
#[tokio::test(start_paused = true)]
async fn buckets_admit_no_more_requests_than_the_quota() {
    let (log, _) = log();
    let requests = requests(&log);
    for (quota, seconds) in [(10, 60), (60, 3_600), (2, 7)] {
        let outcomes = run(&requests, &[(quota, seconds)], Window::Buckets(10)).await;
        let mut passed: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for (request, outcome) in requests.iter().zip(&outcomes) {
            if matches!(outcome, Outcome::Passed { .. }) {
                let passed = passed.entry(request.client).or_default();
                passed.push(request.time);
                let used = passed.iter().filter(|time| **time + seconds > request.time).count();
                assert!(used <= quota as usize, "{used} of {} in {seconds} s", request.client);
            }
        }
        let exact = denied(&expected(&requests, &[(quota, seconds)]));
        let (admitted, most) = (outcomes.len() - denied(&outcomes), outcomes.len() - exact);
        println!("{quota} in {seconds} s: {admitted} pass, by the log {most}");
        assert!(admitted <= most + most / 100 && admitted >= most - most / 10);
    }
}

fn in_crate(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}
