//! Limits from configuration: `Limit::try_new`, texts, and the serde form.

use std::time::Duration;

use fleeting::Limit;

use crate::limits::SECOND;

const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

#[test]
fn try_new_returns_an_error_where_new_panics() {
    for (quota, per, message) in [
        (0, SECOND, "quota must be at least 1, got 0"),
        (1, Duration::ZERO, "per must be longer than zero and at most 100 years, got 0ns"),
        (
            1,
            LONGEST + Duration::from_nanos(1),
            "per must be longer than zero and at most 100 years, got 3153600000.000000001s",
        ),
    ] {
        assert_eq!(Limit::try_new(quota, per).unwrap_err().to_string(), message);
        assert!(std::panic::catch_unwind(|| Limit::new(quota, per)).is_err());
    }
    assert_eq!(Limit::try_new(u32::MAX, LONGEST), Ok(Limit::new(u32::MAX, LONGEST)));
}

#[test]
fn text_of_a_quota_and_a_time_is_a_limit() {
    for (text, quota, seconds) in [
        ("100/min", 100, 60.0),
        ("100/m", 100, 60.0),
        ("5/10s", 5, 10.0),
        (" 5 / 10 s ", 5, 10.0),
        ("1/second", 1, 1.0),
        ("1/2hours", 1, 7_200.0),
        ("7/d", 7, 86_400.0),
        ("1/500ms", 1, 0.5),
        ("4294967295/us", u32::MAX, 0.000_001),
    ] {
        let limit = Limit::new(quota, Duration::from_secs_f64(seconds));
        assert_eq!(text.parse::<Limit>(), Ok(limit), "{text}");
    }
    let invalid = [
        "",
        "/",
        "100",
        "100/",
        "/min",
        "100/0s",
        "0/min",
        "-1/min",
        "1.5/s",
        "4294967296/s",
        "1/1.5s",
        "1/fortnight",
        "1/min/s",
        "1/101 years",
        "1/99999999999999999999d",
        "1/40000d",
    ];
    for text in invalid {
        let error = text.parse::<Limit>().expect_err(text);
        assert!(!error.to_string().is_empty());
    }
    let error = "100 per minute".parse::<Limit>().unwrap_err().to_string();
    assert_eq!(
        error,
        "invalid limit \"100 per minute\", expected a quota and a time such as 100/min"
    );
}

#[cfg(feature = "serde")]
#[test]
fn serde_form_of_a_limit_is_a_text_or_its_fields() {
    let read = |text: &str| serde_json::from_str::<Limit>(text);
    assert_eq!(read(r#""100/min""#).unwrap(), Limit::per_minute(100));
    let fields = r#"{"quota": 5, "per": "10s", "name": "burst"}"#;
    assert_eq!(read(fields).unwrap(), Limit::new(5, 10 * SECOND).named("burst"));
    for per in ["90", "90.0", r#""90s""#] {
        let limit = read(&format!(r#"{{"per": {per}, "quota": 5, "name": null}}"#)).unwrap();
        assert_eq!(limit, Limit::new(5, 90 * SECOND), "{per}");
    }
    for (text, message) in [
        (r#""100""#, "such as 100/min"),
        (r#"{"quota": 0, "per": 1}"#, "quota must be at least 1"),
        (r#"{"quota": 1, "per": 0}"#, "per must be longer than zero"),
        (r#"{"quota": 1, "per": -1}"#, ""),
        (r#"{"quota": 1, "per": 1e300}"#, ""),
        (r#"{"quota": 1, "per": "soon"}"#, "invalid time \"soon\""),
        (r#"{"quota": 1}"#, "missing field `per`"),
        (r#"{"quota": 1, "per": 1, "burst": 2}"#, "unknown field `burst`"),
        ("7", "a limit such as \"100/min\""),
    ] {
        let error = read(text).expect_err(text).to_string();
        assert!(error.contains(message), "{text}: {error}");
    }
    let limits = [
        Limit::per_minute(100),
        Limit::new(1, Duration::from_millis(1_500)).named("slow"),
        Limit::new(u32::MAX, LONGEST).of_bytes(),
        Limit::new(1, Duration::from_nanos(1)),
    ];
    let text = serde_json::to_string(&limits).unwrap();
    assert!(
        text.starts_with(r#"[{"quota":100,"per":"60s"},{"quota":1,"per":"1500ms","name":"slow"}"#)
    );
    assert_eq!(serde_json::from_str::<Vec<Limit>>(&text).unwrap(), limits);
}
