//! Checks that tests wait by `tests/common`: for `patience()`, which an environment variable stretches, or for a time
//! of `ms()`, which doubles when a case is repeated. A fixed limit fails on a machine that is later than its author's.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::without_comments;

/// Words in the name of a constant that limits a wait.
const LIMITS: [&str; 5] = ["PATIENCE", "SHUTDOWN", "STUCK", "TIMEOUT", "TIME_LIMIT"];

/// Constants of the tests that are long enough to be meant as a limit.
const SPANS: [&str; 4] = ["SECOND", "MINUTE", "HOUR", "LONG"];

#[test]
fn tests_on_a_real_clock_have_no_time_limits_of_their_own() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let common = root.join("common");
    let (mut files, mut folders, mut faults) = (0, vec![root.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("tests/ can be listed").flatten() {
            let path = entry.path();
            if path.is_dir() && path != common {
                folders.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") && path != file() {
                files += 1;
                let code = fs::read_to_string(&path).expect("sources can be read");
                let name = path.strip_prefix(&root).expect("the file is in tests/").display();
                faults
                    .extend(fixed_limits(&code).into_iter().map(|line| format!("{name}: {line}")));
            }
        }
    }
    assert!(files > 200, "only {files} files were found");
    assert!(faults.is_empty(), "use `patience()`, or `ms()` inside of `in_time`: {faults:#?}");
}

/// This file, whose own test contains fixed limits.
fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/architecture/time_limits.rs")
}

/// Returns the lines that limit a wait by a fixed time, except those of functions with a paused clock.
fn fixed_limits(code: &str) -> Vec<String> {
    let (mut has_paused_attribute, mut is_paused, mut is_assertion) = (false, false, false);
    let mut found = Vec::new();
    for line in without_comments(code).lines().map(str::trim) {
        if line.starts_with("#[") {
            has_paused_attribute |= line.contains("start_paused = true");
        } else if line.starts_with("fn ") || line.contains("async fn ") || line.contains(" fn ") {
            is_paused = std::mem::take(&mut has_paused_attribute);
        }
        // An assertion that `rustfmt` has split continues on the next line.
        let was_assertion = std::mem::replace(&mut is_assertion, line.ends_with("assert!("));
        let is_asserted = was_assertion || line.contains("assert!(");
        let begins_with_limit = |text: &str| text.split(word_end).next().is_some_and(is_limit);
        let is_constant =
            line.split_once("const ").is_some_and(|(_, name)| begins_with_limit(name));
        let waits = line.split("timeout(").skip(1).any(is_fixed);
        let bounds = is_asserted && line.split("elapsed() < ").skip(1).any(is_fixed);
        // A promise of so many seconds is stretched by a term, too.
        let is_stretched = line.contains("patience()") || line.contains("ms(");
        let limits = !is_paused && !is_stretched && (waits || bounds);
        if is_constant && line.contains(": Duration") || limits {
            found.push(line.to_owned());
        }
    }
    found
}

fn word_end(c: char) -> bool {
    !c.is_ascii_alphanumeric() && c != '_'
}

fn is_limit(name: &str) -> bool {
    LIMITS.iter().any(|word| name.contains(word))
}

/// Returns whether an expression begins with a fixed number of seconds, or is a multiple of a constant.
fn is_fixed(expression: &str) -> bool {
    let factor = expression.trim_start_matches(|c: char| c.is_ascii_digit() || c == '_');
    let factor = factor.strip_prefix(" * ").unwrap_or(factor);
    let factor = factor.strip_prefix("std::time::").unwrap_or(factor);
    let name = factor.split(word_end).next().unwrap_or_default();
    factor.starts_with("Duration::from_secs(") || SPANS.contains(&name) || is_limit(name)
}

#[test]
fn check_finds_fixed_limits() {
    let code = "
        const MY_TIMEOUT: Duration = Duration::from_secs(60);
        async fn helper() {
            timeout(Duration::from_secs(5), call()).await.unwrap();
            assert!(begin.elapsed() < 2 * SECOND);
            assert!(
                begin.elapsed() < MY_TIMEOUT,
            );
        }
        #[tokio::test(start_paused = true)]
        async fn paused() {
            timeout(10 * SECOND, call()).await.unwrap();
        }
        #[tokio::test]
        async fn real() {
            timeout(HOUR, call()).await.unwrap();
            // timeout(HOUR, call()).await.unwrap();
            timeout(patience(), call()).await.unwrap();
            timeout(10 * SECOND + patience() / 8, call()).await.unwrap();
            assert!(timeout(Duration::from_millis(50), call()).await.is_err());
            while begin.elapsed() < 2 * SECOND {}
            assert!(begin.elapsed() < ms(2_000));
        }";
    let found: Vec<_> = fixed_limits(code).iter().map(|line| line[..12].to_owned()).collect();
    let expected = ["const MY_TIM", "timeout(Dura", "assert!(begi", "begin.elapse", "timeout(HOUR"];
    assert_eq!(found, expected);
}
