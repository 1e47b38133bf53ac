//! Tests of the examples of migrations: pairs of programs, with another crate and with this one, and two Python
//! libraries.

use axum::http::StatusCode;

use crate::{guide::assert_shown, http::Client, server::Server, short_programs::lines_of};

const MOKA: &str = include_str!("../../src/guide/from_moka.md");
const GOVERNOR: &str = include_str!("../../src/guide/from_governor.md");

#[test]
fn tokens_are_loaded_and_removed_with_moka_and_after_the_migration() {
    assert_eq!(lines_of("migrate_moka_before"), ["for ada", "token of ada: Explicit"]);
    assert_eq!(lines_of("migrate_moka_after"), ["for ada", "token of ada: Removed"]);
    assert_shown(MOKA, 0, include_str!("../../examples/migrate_moka_before.rs"));
    assert_shown(MOKA, 1, include_str!("../../examples/migrate_moka_after.rs"));
}

#[test]
fn fourth_call_is_denied_with_governor_and_after_the_migration() {
    for name in ["migrate_governor_before", "migrate_governor_after"] {
        let lines = lines_of(name);
        assert_eq!(lines[..3], ["admitted"; 3], "{name}");
        let [denied] = &lines[3..] else { panic!("{name} printed {lines:?}") };
        let wait = denied.strip_prefix("denied for ").and_then(|wait| wait.strip_suffix('s'));
        let seconds: f64 = wait.and_then(|wait| wait.parse().ok()).expect("a time in seconds");
        assert!(seconds > 3_000.0 && seconds <= 3_600.0, "{name}: {denied}");
    }
    assert_shown(GOVERNOR, 0, include_str!("../../examples/migrate_governor_before.rs"));
    assert_shown(GOVERNOR, 1, include_str!("../../examples/migrate_governor_after.rs"));
}

#[tokio::test]
async fn fourth_request_is_denied_with_tower_governor_and_after_the_migration() {
    for name in ["migrate_tower_governor_before", "migrate_tower_governor_after"] {
        let server = Server::start(name, &["127.0.0.1:0"]);
        let client = Client::new();
        for _ in 0..3 {
            let response = client.get(&server.url).send().await;
            assert_eq!(response.status(), StatusCode::OK, "{name}");
            assert_eq!(response.text().await, "hello", "{name}");
        }
        let denied = client.get(&server.url).send().await;
        assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS, "{name}");
        let seconds = denied.headers()["retry-after"].to_str().expect("ASCII").parse::<u64>();
        assert!((1..=60).contains(&seconds.expect("a number")), "{name}");
    }
    assert_shown(GOVERNOR, 3, include_str!("../../examples/migrate_tower_governor_before.rs"));
    assert_shown(GOVERNOR, 4, include_str!("../../examples/migrate_tower_governor_after.rs"));
}

#[test]
fn every_call_of_timed_dict_has_a_counterpart() {
    let lines = lines_of("migrate_timed_dict");
    assert_eq!(lines[0], r#"Cache "d" {"foo": "bar" (expires in 65s)}"#);
    assert_eq!(lines[1..], ["expired: foo bar", "expired: foo baz"]);
}

#[test]
fn every_call_of_ttl_dict_has_a_counterpart() {
    let expected: Vec<_> = (0..8)
        .map(|number| {
            let verdict = if number % 4 < 3 { "allowed" } else { "denied" };
            format!("at {:>3} s: {verdict}", 15 * number)
        })
        .collect();
    assert_eq!(lines_of("migrate_ttl_dict"), expected);
}
