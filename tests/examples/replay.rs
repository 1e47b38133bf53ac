//! Tests of the example `replay`: each number of its report is compared with a simple computation that shares no code
//! with it: no cache, no clock, and no date library.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::example::example;

const MONTHS: [(&str, i64); 12] = [
    ("Jan", 31),
    ("Feb", 28),
    ("Mar", 31),
    ("Apr", 30),
    ("May", 31),
    ("Jun", 30),
    ("Jul", 31),
    ("Aug", 31),
    ("Sep", 30),
    ("Oct", 31),
    ("Nov", 30),
    ("Dec", 31),
];

#[test]
fn report_about_the_excerpt_is_exact() {
    let path = in_crate("examples/data/access-excerpt.log");
    let log = fs::read(&path).unwrap();
    let report = json_of(&replay(&["--json"], b""));
    assert_eq!(report, expected(&log));
    assert_eq!(report["lines"], 500);
    assert_eq!(report, json_of(&replay(&["--json", path.to_str().unwrap()], b"")));
    assert_eq!(report, replayed(&log));
}

#[test]
fn report_about_the_whole_log_is_exact() {
    let path = in_crate("../shared/data/access.log");
    let Ok(log) = fs::read(&path) else {
        eprintln!(
            "skipped: {} does not exist (it is not part of the crate); another test covers the excerpt",
            path.display()
        );
        return;
    };
    let report = json_of(&replay(&["--json", path.to_str().unwrap()], b""));
    assert_eq!(report, expected(&log));
    assert_eq!(report["lines"], 10_000);
    assert_eq!(report["malformed"], json!({ "count": 1, "first_lines": [8_899] }));
    assert_eq!([&report["late"], &report["back_in_time"]], [9_447, 0]);
    assert_eq!(report["from"], "2015-05-17T10:05:00Z");
    assert_eq!(report["to"], "2015-05-20T21:05:59Z");
}

#[test]
fn report_about_an_empty_log_is_empty() {
    let report = replayed(b"");
    assert_eq!(report, expected(b""));
    assert_eq!(report["lines"], 0);
    assert_eq!(report["from"], Value::Null);
    assert_eq!(report["seconds"], Value::Null);
    assert!(text(&replay(&["-"], b"")).contains("      0 lines\n"));
}

/// Each line of `bad` is malformed, and the lines around it are still read.
#[test]
fn malformed_lines_are_counted_and_listed() {
    let good = request("ok", "17/May/2015:10:05:03 +0000");
    let cut = |to: &str| good[..good.find(to).unwrap() + to.len()].to_owned();
    let bad: Vec<Vec<u8>> = [
        "",
        " ",
        "\t",
        "\0",
        "\r",
        "garbage",
        "{\"json\": true}",
        "[] \"\" \"\"",
        &format!(" {good}"),
        &format!("{good} more"),
        &format!("{good}\""),
        &cut("ok"),
        &cut("ok - - "),
        &cut("+0000"),
        &cut("+0000]"),
        &cut("GET /"),
        &cut("HTTP/1.1\""),
        &cut(" 200"),
        &cut(" 1234"),
        &cut("\"-\""),
        &cut("Mozilla"),
        &good.replace("ok - - [", "ok - ["),
        &good.replace("17/May", "32/May"),
        &good.replace("17/May", "31/Feb"),
        &good.replace("17/May", "29/Feb"),
        &good.replace("May", "Mai"),
        &good.replace("10:05:03", "24:05:03"),
        &good.replace("10:05:03", "10:60:03"),
        &good.replace("10:05", "10-05"),
        &good.replace(" +0000", ""),
        &good.replace("2015", "9999"),
        &good.replace("2015", "1015"),
        &good.replace(" 200 ", " 2x0 "),
        &good.replace(" 200 ", " 20 "),
        &good.replace(" 1234 ", " 12e4 "),
        &good.replace(" 1234 ", " -1 "),
        &good.replace("Mozilla", "Mozilla\" \""),
        &good.replace("Mozilla\"", "Mozilla\\\""),
    ]
    .into_iter()
    .map(|line| line.as_bytes().to_vec())
    .chain([vec![0xff, 0xfe, 0x80], vec![b'x'; 1 << 20], vec![b'"'; 1 << 20]])
    .collect();

    let mut log = format!("{good}\n").into_bytes();
    for line in &bad {
        log.extend([line, good.as_bytes(), b""].join(&b'\n'));
    }
    let report = replayed(&log);
    let named: Vec<usize> = (0..20).map(|bad| 2 + 2 * bad).collect();
    assert_eq!(report["malformed"], json!({ "count": bad.len(), "first_lines": named }));
    assert_eq!(report["lines"], 1 + 2 * bad.len());
    assert_eq!(report, expected(&log));

    // Each line alone, so that two errors cannot cancel each other.
    for line in &bad {
        let log = [good.as_bytes(), line, good.as_bytes()].join(&b'\n');
        let shown = String::from_utf8_lossy(&line[..line.len().min(200)]);
        let malformed = json!({ "count": 1, "first_lines": [2] });
        assert_eq!(replayed(&log)["malformed"], malformed, "of {shown:?}");
    }
}

#[test]
fn unusual_but_complete_lines_are_read() {
    let good = request("ok", "17/May/2015:10:05:03 +0000");
    let long = good.replace("GET /", &format!("GET /{}", "x".repeat(1 << 20)));
    let mut log = [
        &good,
        &long,
        &good.replace("ok", "2001:db8::1"),
        &good.replace("ok", "www.example.org"),
        &good.replace("ok - -", "ok - frank"),
        &good.replace("ok - -", "ok - frank the second"),
        &good.replace(" 1234 ", " - "),
        &good.replace("GET / HTTP/1.1", "-"),
        &good.replace("GET / HTTP/1.1", ""),
        &good.replace("Mozilla", r#"a \"quoted\" \\"#),
        &good.replace("Mozilla", "[x] \u{fffd} ü"),
        &good.replace("17/May/2015", "29/Feb/2016"),
        &good.replace("17/May/2015", "31/Dec/2105"),
    ]
    .map(String::as_str)
    .join("\n")
    .into_bytes();
    // Bytes that are not UTF-8, and no newline at the end.
    log.push(b'\n');
    log.extend(good.bytes().map(|byte| if byte == b'/' { 0xe9 } else { byte }));
    let date = log.len() - good.len() + good.find("17").unwrap();
    log[date + 2] = b'/';
    log[date + 6] = b'/';

    let report = replayed(&log);
    assert_eq!(report["malformed"]["count"], 0);
    assert_eq!(report["lines"], 14);
    assert_eq!(report, expected(&log));
}

#[test]
fn carriage_returns_are_ignored() {
    let log = fs::read_to_string(in_crate("examples/data/access-excerpt.log")).unwrap();
    assert_eq!(replayed(log.replace('\n', "\r\n").as_bytes()), expected(log.as_bytes()));
}

#[test]
fn lines_up_to_a_minute_late_are_sorted_by_time() {
    // The line before the last is 31, 60 and 61 seconds later than the last.
    for (last, late) in [("10:30:30", 1), ("10:30:59", 1), ("10:31:00", 0)] {
        let last = format!("17/May/2015:{last} +0000");
        let log = log([
            ("a", "17/May/2015:10:00:00 +0000"),
            ("b", "17/May/2015:10:30:00 +0000"),
            ("b", &last),
            // Sorted by its time, this request belongs to the open session. That session expires at 10:30:00.
            ("a", "17/May/2015:10:29:59 +0000"),
        ]);
        let report = replayed(&log);
        assert_eq!([&report["late"], &report["back_in_time"]], [late, 1 - late], "{last}");
        assert_eq!(report["opened"], 3 - late, "{last}");
        assert_eq!(report, expected(&log));
    }
}

#[test]
fn lines_over_a_minute_late_count_as_current() {
    let log = log([
        ("a", "17/May/2015:10:00:00 +0000"),
        ("a", "17/May/2015:10:29:59 +0000"),
        // An hour late: sorted by its time, it would be a session of its own.
        ("a", "17/May/2015:09:29:59 +0000"),
        ("b", "01/Jan/1970:00:00:00 +0000"),
        // The line before counts as 10:00:00, so its session has expired by now.
        ("b", "17/May/2015:10:59:59 +0000"),
    ]);
    let report = replayed(&log);
    assert_eq!([&report["late"], &report["back_in_time"]], [0, 2]);
    assert_eq!([&report["opened"], &report["expired"], &report["open"]], [3, 2, 1]);
    assert_eq!(report["seconds"]["max"], 1_799);
    assert_eq!(report, expected(&log));
}

#[test]
fn time_zones_are_applied() {
    let log = log([
        ("a", "31/Dec/2015:23:30:00 +0000"),
        ("a", "01/Jan/2016:01:30:00 +0200"),
        ("a", "31/Dec/2015:20:00:01 -0330"),
        ("a", "01/Jan/2016:05:15:01 +0545"),
    ]);
    let report = replayed(&log);
    assert_eq!(report["from"], "2015-12-31T23:30:00Z");
    assert_eq!(report["to"], "2015-12-31T23:30:01Z");
    assert_eq!(report["back_in_time"], 0);
    assert_eq!(report, expected(&log));
}

/// A session expires exactly at its deadline, not a second earlier or later.
#[test]
fn session_expires_after_exactly_thirty_minutes() {
    for (second, opened) in [("10:29:59", 1), ("10:30:00", 2), ("10:30:01", 2)] {
        let second = format!("17/May/2015:{second} +0000");
        let log = log([("a", "17/May/2015:10:00:00 +0000"), ("a", &second)]);
        let report = replayed(&log);
        assert_eq!(report["opened"], opened, "with a request at {second}");
        assert_eq!(report["open"], 1);
        assert_eq!(report, expected(&log));

        // No request follows, so only the event reports the expiry.
        let log = self::log([("a", "17/May/2015:10:00:00 +0000"), ("b", &second)]);
        assert_eq!(replayed(&log)["expired"], opened - 1, "with the end at {second}");
    }
}

#[test]
fn each_request_extends_its_session() {
    let log = log([
        ("a", "17/May/2015:10:00:00 +0000"),
        ("a", "17/May/2015:10:29:59 +0000"),
        ("a", "17/May/2015:10:59:58 +0000"),
        ("b", "17/May/2015:11:29:57 +0000"),
    ]);
    let report = replayed(&log);
    assert_eq!([&report["opened"], &report["expired"], &report["open"]], [2, 0, 2]);
    assert_eq!(report["seconds"]["max"], 3_598);
    assert_eq!(report["requests"]["max"], 3);
    assert_eq!(report, expected(&log));
}

#[test]
fn rate_window_is_exactly_sixty_seconds() {
    let first = "17/May/2015:10:00:00 +0000";
    // 60 requests at once are within the limit; the next exceeds it while they are in the window.
    for (second, over) in [("00:00", 61), ("00:59", 61), ("01:00", 0), ("01:01", 0)] {
        let last = format!("17/May/2015:10:{second} +0000");
        let log = log([("a", first)].repeat(60).into_iter().chain([("b", first), ("a", &last)]));
        let report = replayed(&log);
        let most = json!([{ "client": "a", "most_in_a_minute": over }]);
        let none = json!([]);
        assert_eq!(report["over_limit"], if over > 0 { most } else { none }, "at {second}");
        assert_eq!(report, expected(&log));
    }
}

#[test]
fn text_report_has_the_same_numbers_as_json() {
    let path = in_crate("examples/data/access-excerpt.log");
    let mut log = fs::read(&path).unwrap();
    log.extend(b"garbage\n\n");
    log.extend(self::log([("e\x1bvil", "17/May/2015:15:00:00 +0000")].repeat(61)));
    let shown = text(&replay(&["-"], &log));
    assert_eq!(shown, text(&replay(&["-"], &log)), "the output is deterministic");

    let report = expected(&log);
    let count = |name: &str, words: &str| format!("{:>7} {words}\n", report[name]);
    for line in [
        count("lines", "lines"),
        "      2 malformed: line 501, 502\n".to_owned(),
        count("late", "out of order by up to a minute, sorted by time"),
        count("back_in_time", "later than that, processed with the current time"),
        count("opened", "opened"),
        count("expired", "expired"),
        count("open", "still open"),
        "     61 e\\u{1b}vil\n".to_owned(),
    ] {
        assert!(shown.contains(&line), "{line:?} is not in\n{shown}");
    }
    for bar in report["histogram"].as_array().unwrap() {
        let sessions = format!(" {:>10}", bar["sessions"]);
        assert!(shown.contains(&sessions), "{sessions} is not in\n{shown}");
    }
}

#[test]
fn unreadable_log_is_reported_with_its_path() {
    for path in ["no/such.log", "examples"] {
        let output = replay(&[path], b"");
        assert_eq!(output.status.code(), Some(1));
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.starts_with(&format!("replay: {path}: ")), "{stderr}");
    }
}

/// A line of a log: a request some seconds after the last one, a late request, or a malformed line.
#[derive(Clone, Debug)]
enum Line {
    After(u8, i64),
    Late(u8, i64),
    Malformed,
}

fn line() -> impl Strategy<Value = Line> {
    // One client is busy enough to exceed the limit.
    let client = || prop_oneof![4 => Just(0_u8), 1 => 1..4_u8];
    let gap = prop_oneof![
        60 => Just(0),
        30 => 1..3_i64,
        2 => 57..63_i64,
        2 => 1_795..1_805_i64,
        1 => 0..100_000_i64,
    ];
    prop_oneof![
        20 => (client(), gap).prop_map(|(client, gap)| Line::After(client, gap)),
        5 => (client(), prop_oneof![0..70_i64, 1..4_000_i64]).prop_map(|(client, late)| Line::Late(client, late)),
        1 => Just(Line::Malformed),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn report_is_exact_for_any_log(lines in proptest::collection::vec(line(), 0..600)) {
        let mut now = 1_431_857_103;
        let mut log = String::new();
        for line in lines {
            let (client, time) = match line {
                Line::After(client, gap) => {
                    now += gap;
                    (client, now)
                }
                Line::Late(client, late) => (client, now - late),
                Line::Malformed => {
                    log.push_str("malformed\n");
                    continue;
                }
            };
            let (year, month, day, [hour, minute, second]) = civil(time);
            let month = MONTHS[month].0;
            let time = format!("{day:02}/{month}/{year}:{hour:02}:{minute:02}:{second:02} +0000");
            log.push_str(&request(&format!("client-{client}"), &time));
            log.push('\n');
        }
        prop_assert_eq!(replayed(log.as_bytes()), expected(log.as_bytes()));
    }
}

/// Returns the expected output of `--json` for `log`.
fn expected(log: &[u8]) -> Value {
    let log = String::from_utf8_lossy(log);
    let lines: Vec<&str> = log.strip_suffix('\n').unwrap_or(&log).split('\n').collect();
    let lines = if log.is_empty() { Vec::new() } else { lines };
    let mut malformed = Vec::new();
    let mut times: Vec<i64> = Vec::new();
    let mut clients: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    let (mut latest, mut late, mut back_in_time) = (i64::MIN, 0, 0);
    for (index, line) in lines.iter().enumerate() {
        let Some((client, logged)) = read(line) else {
            malformed.push(index + 1);
            continue;
        };
        let is_late = logged < latest;
        latest = latest.max(logged);
        // Requests at least 60 s older than the latest are already processed: an older line counts as the last of them.
        let settled = times.iter().copied().filter(|time| *time <= latest - 60).max();
        let time = settled.map_or(logged, |settled| settled.max(logged));
        back_in_time += u64::from(time > logged);
        late += u64::from(is_late && time == logged);
        times.push(time);
        clients.entry(client).or_default().push(time);
    }
    times.sort();
    clients.values_mut().for_each(|times| times.sort());

    let sessions: Vec<&[i64]> =
        clients.values().flat_map(|times| times.chunk_by(|a, b| b - a < 1_800)).collect();
    let end = times.last().copied().unwrap_or(0);
    let open = sessions.iter().filter(|session| session[session.len() - 1] + 1_800 > end).count();
    let seconds: Vec<i64> = sessions.iter().map(|s| s[s.len() - 1] - s[0]).collect();
    let requests: Vec<i64> = sessions.iter().map(|session| session.len() as i64).collect();

    let bars = [0, 1, 10, 30, 60, 600, 3_600, i64::MAX];
    let histogram = bars.windows(2).map(|bar| {
        let sessions = seconds.iter().filter(|s| (bar[0]..bar[1]).contains(*s)).count();
        let below = (bar[1] != i64::MAX).then_some(bar[1]);
        json!({ "below_seconds": below, "sessions": sessions })
    });

    let most = |times: &[i64]| {
        let window = |end: usize| times[..=end].iter().filter(|t| **t > times[end] - 60).count();
        (0..times.len()).map(window).max().unwrap()
    };
    let over: BTreeSet<_> = clients
        .iter()
        .map(|(client, times)| (-(most(times) as i64), *client))
        .filter(|(most, _)| *most < -60)
        .collect();
    let over =
        over.iter().map(|(most, client)| json!({ "client": client, "most_in_a_minute": -most }));

    json!({
        "lines": lines.len(),
        "malformed": {
            "count": malformed.len(),
            "first_lines": malformed.iter().take(20).collect::<Vec<_>>(),
        },
        "late": late,
        "back_in_time": back_in_time,
        "from": times.first().map(|time| iso(*time)),
        "to": times.last().map(|time| iso(*time)),
        "opened": sessions.len(),
        "expired": sessions.len() - open,
        "open": open,
        "seconds": spread(&seconds),
        "requests": spread(&requests),
        "histogram": histogram.collect::<Vec<_>>(),
        "over_limit": over.collect::<Vec<_>>(),
    })
}

/// Parses the client and the Unix time of a line, which is split at its quotes.
fn read(line: &str) -> Option<(&str, i64)> {
    let bare = line.replace(r"\\", "").replace(r#"\""#, "");
    let pieces: Vec<&str> = bare.trim_end().split('"').collect();
    let [start, _request, answer, _referer, " ", _agent, ""] = pieces[..] else { return None };
    let answer = answer.strip_prefix(' ')?.strip_suffix(' ')?;
    let (status, bytes) = answer.split_once(' ')?;
    status.parse::<u16>().ok().filter(|_| status.len() == 3)?;
    if bytes != "-" {
        bytes.parse::<u64>().ok()?;
    }

    let words: Vec<&str> = start.split(' ').collect();
    let [_client, _ident, _user, .., date, zone, ""] = words[..] else { return None };
    let parts: Vec<&str> = date.strip_prefix('[')?.split(['/', ':']).collect();
    let [day, month, year, clock @ ..] = &parts[..] else { return None };
    let clock: Vec<i64> = clock.iter().map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let [hour @ 0..24, minute @ 0..60, second @ 0..60] = clock[..] else { return None };
    let month = MONTHS.iter().position(|(name, _)| name == month)?;
    let day = day.parse::<i64>().ok()?;
    let year = year.parse::<i64>().ok().filter(|year| (1970..2106).contains(year))?;
    if day < 1 || day > days_in(year, month) {
        return None;
    }
    let days = (1970..year).map(days_of_year).sum::<i64>()
        + (0..month).map(|month| days_in(year, month)).sum::<i64>()
        + (day - 1);

    let zone = zone.strip_suffix(']')?;
    let (hours, minutes) = zone.get(1..)?.split_at_checked(2)?;
    let east = hours.parse::<i64>().ok()? * 60 + minutes.parse::<i64>().ok()?;
    let east = if zone.starts_with('-') { -east } else { east };
    let time = ((days * 24 + hour) * 60 + minute - east) * 60 + second;
    line.split_once(' ').map(|(client, _)| (client, time)).filter(|(client, _)| !client.is_empty())
}

/// Returns year, month (from 0), day (from 1) and time of day of a Unix time.
fn civil(time: i64) -> (i64, usize, i64, [i64; 3]) {
    let mut days = time / 86_400;
    let mut year = 1970;
    while days >= days_of_year(year) {
        days -= days_of_year(year);
        year += 1;
    }
    let mut month = 0;
    while days >= days_in(year, month) {
        days -= days_in(year, month);
        month += 1;
    }
    (year, month, days + 1, [time / 3_600 % 24, time / 60 % 60, time % 60])
}

fn iso(time: i64) -> String {
    let (year, month, day, [hour, minute, second]) = civil(time);
    let month = month + 1;
    format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

fn days_of_year(year: i64) -> i64 {
    (0..12).map(|month| days_in(year, month)).sum()
}

fn days_in(year: i64, month: usize) -> i64 {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    MONTHS[month].1 + i64::from(is_leap && month == 1)
}

/// Percentiles by nearest rank: the smallest value that is not below the given percentage of all values.
fn spread(values: &[i64]) -> Option<Value> {
    let rank = |percent: usize| {
        let reaches = |value: &&i64| {
            let below = values.iter().filter(|other| other <= value).count();
            below * 100 >= percent * values.len()
        };
        values.iter().filter(reaches).min()
    };
    let (min, max) = (values.iter().min()?, values.iter().max()?);
    Some(json!({ "min": min, "median": rank(50), "p90": rank(90), "max": max }))
}

fn request(client: &str, time: &str) -> String {
    format!("{client} - - [{time}] \"GET / HTTP/1.1\" 200 1234 \"-\" \"Mozilla\"")
}

fn log<'a>(requests: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
    let lines = requests.into_iter().map(|(client, time)| request(client, time) + "\n");
    lines.collect::<String>().into_bytes()
}

fn replayed(log: &[u8]) -> Value {
    json_of(&replay(&["--json", "-"], log))
}

fn json_of(output: &Output) -> Value {
    serde_json::from_str(&text(output)).unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn replay(args: &[&str], stdin: &[u8]) -> Output {
    let mut child = Command::new(example("replay"))
        .args(args)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The example reads all input before it prints. If it reads nothing, the pipe breaks, which is harmless.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    child.wait_with_output().unwrap()
}

fn in_crate(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}
