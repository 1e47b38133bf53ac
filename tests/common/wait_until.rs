//! Wait of a test thread for an effect that has no deadline of its own.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::patience::patience;

/// Waits until `holds` returns true.
pub(crate) fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < patience(), "not in time: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}
