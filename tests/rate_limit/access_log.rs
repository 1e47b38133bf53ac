//! The requests of an access log, limited by client: each decision, against a limiter that remembers all.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use fleeting::{Limit, RateLimiter, Window};
use tokio::time::{Instant, advance, sleep};

/// When somebody asked, in seconds since the log began.
struct Request<'a> {
    client: &'a str,
    time: u64,
}

/// The whole log, 10,000 requests; where it is not there (it is no part of the crate) the shipped excerpt.
fn log() -> (String, bool) {
    let whole = in_crate("../shared/data/access.log");
    if let Ok(log) = fs::read_to_string(&whole) {
        return (log, true);
    }
    eprintln!("{} is not there: the shipped excerpt is taken in its place", whole.display());
    let log = fs::read_to_string(in_crate("examples/data/access-excerpt.log"));
    (log.expect("the excerpt is shipped with the crate"), false)
}

/// All requests, of lines of any form that have a client and a time. One that goes back in time comes now.
fn requests(log: &str) -> Vec<Request<'_>> {
    let read = |line| read(line).unwrap_or_else(|| panic!("no client and time are in {line:?}"));
    let mut requests: Vec<Request<'_>> = log.lines().map(read).collect();
    let first = requests.first().expect("the log is not empty").time;
    let mut latest = first;
    for request in &mut requests {
        latest = latest.max(request.time);
        request.time = latest - first;
    }
    requests
}

/// All of the log is of one month, in one zone.
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

/// What a check was told: what is left, or when to come again, in seconds since the log began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Passed { remaining: u32 },
    Denied { ready: u64 },
}

/// A quota of requests in so many seconds.
type Rule = (u32, u64);

/// What a limiter says that remembers every request that passed, and counts them anew each time.
fn expected(requests: &[Request<'_>], rules: &[Rule]) -> Vec<Told> {
    let mut passed: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    let mut told = Vec::new();
    for Request { client, time } in requests {
        let passed = passed.entry(client).or_default();
        let left = |(quota, seconds): &Rule, at: u64| {
            let used = passed.iter().filter(|time| **time + seconds > at).count() as u32;
            assert!(used <= *quota);
            quota - used
        };
        let least = |at| rules.iter().map(|rule| left(rule, at)).min().expect("there is a rule");
        told.push(match least(*time) {
            0 => {
                let ready = (*time..).find(|at| least(*at) > 0);
                Told::Denied { ready: ready.expect("in the end all have left") }
            }
            before => {
                passed.push(*time);
                Told::Passed { remaining: before - 1 }
            }
        });
    }
    told
}

/// What `window` says when the log's time is that of Tokio.
async fn told(requests: &[Request<'_>], rules: &[Rule], window: Window) -> Vec<Told> {
    let mut builder = RateLimiter::<String>::builder().window(window);
    for (quota, seconds) in rules {
        builder = builder.limit(Limit::new(*quota, Duration::from_secs(*seconds)));
    }
    let limiter = builder.build();
    let start = Instant::now();
    let mut told = Vec::new();
    for request in requests {
        advance(start + Duration::from_secs(request.time) - Instant::now()).await;
        told.push(match limiter.check(request.client).await {
            Ok(permit) => Told::Passed { remaining: permit.remaining() },
            Err(limited) => {
                let ready = limited.ready_at().expect("one is no more than a quota") - start;
                Told::Denied { ready: ready.as_secs() + u64::from(ready.subsec_nanos() > 0) }
            }
        });
    }
    // By then the sweep has found those that were idle.
    sleep(Duration::from_secs(2)).await;
    let passed = requests.iter().zip(&told).filter(|(_, told)| matches!(told, Told::Passed { .. }));
    let last: BTreeMap<&str, u64> =
        passed.map(|(request, _)| (request.client, request.time)).collect();
    let longest = rules.iter().map(|(_, seconds)| *seconds).max().expect("there is a rule");
    let end = start.elapsed().as_secs();
    let in_use = |longest: u64| last.values().filter(|time| **time + longest > end).count();
    let (keys, least, most) =
        (limiter.stats().keys, in_use(longest), in_use(longest * 11 / 10 + 2));
    assert!((least..=most).contains(&keys), "{keys} keys are known, not {least} to {most}");
    told
}

fn denied(told: &[Told]) -> usize {
    told.iter().filter(|told| matches!(told, Told::Denied { .. })).count()
}

#[tokio::test(start_paused = true)]
async fn the_log_window_decides_each_request_of_a_log_as_one_that_remembers_all() {
    let (log, is_whole) = log();
    let requests = requests(&log);
    assert_eq!(requests.len(), if is_whole { 10_000 } else { 500 });
    let (minute, hour) = ((10, 60), (60, 3_600));
    let both = [minute, hour];
    let each_denies_some = [(5, 60), (20, 3_600), (3, 2)];
    for rules in [&both[..1], &both[1..], &both, &each_denies_some, &[(1, 1)], &[(2, 7)]] {
        let expected = expected(&requests, rules);
        let told = told(&requests, rules, Window::Log).await;
        println!("{rules:?}: {} of {} denied", denied(&told), told.len());
        for (number, (told, expected)) in told.iter().zip(&expected).enumerate() {
            let Request { client, time } = requests[number];
            assert_eq!(told, expected, "request {number}, of {client} at {time} s, by {rules:?}");
        }
        // The excerpt has few requests of each client.
        assert!(!is_whole || denied(&told) > 0, "{rules:?} denied nothing, so nothing was tried");
    }
}

/// Not as exact, but never more; and not much less.
#[tokio::test(start_paused = true)]
async fn buckets_let_no_more_requests_of_a_log_pass_than_the_quota() {
    let (log, _) = log();
    let requests = requests(&log);
    for (quota, seconds) in [(10, 60), (60, 3_600), (2, 7)] {
        let told = told(&requests, &[(quota, seconds)], Window::Buckets(10)).await;
        let mut passed: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for (request, told) in requests.iter().zip(&told) {
            if matches!(told, Told::Passed { .. }) {
                let passed = passed.entry(request.client).or_default();
                passed.push(request.time);
                let used = passed.iter().filter(|time| **time + seconds > request.time).count();
                assert!(used <= quota as usize, "{used} of {} in {seconds} s", request.client);
            }
        }
        let exact = denied(&expected(&requests, &[(quota, seconds)]));
        let (admitted, most) = (told.len() - denied(&told), told.len() - exact);
        println!("{quota} in {seconds} s: {admitted} pass, by the log {most}");
        assert!(admitted <= most + most / 100 && admitted >= most - most / 10);
    }
}

fn in_crate(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}
