//! The record of an element, and its text on disk.

use std::{
    ffi::{CStr, CString},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// The record of an element that was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Number of deliveries.
    pub(super) attempts: u32,
    /// Time from which it may be delivered again, in microseconds since 1970; `None` if it is dead.
    pub(super) due: Option<u64>,
}

impl Record {
    /// Returns the record of an element in delivery: due as soon as it is unlocked.
    pub(super) fn delivered(attempts: u32) -> Self {
        Self { attempts, due: Some(0) }
    }

    pub(super) fn dead(attempts: u32) -> Self {
        Self { attempts, due: None }
    }

    pub(super) fn is_dead(&self) -> bool {
        self.due.is_none()
    }

    /// Returns whether the element may be delivered at the time `now`.
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    pub(super) fn to_text(self) -> CString {
        let Self { attempts, due } = self;
        let due = due.map_or("dead".to_owned(), |due| due.to_string());
        // Stored, and read by processes with other releases of this library: the format must not change.
        CString::new(format!("{attempts} {due}")).expect("digits and a word have no NUL")
    }

    /// Returns `None` if the text is not a record.
    pub(super) fn parse(text: &CStr) -> Option<Self> {
        let (attempts, due) = text.to_str().ok()?.split_once(' ')?;
        let due = match due {
            "dead" => None,
            due => Some(due.parse().ok()?),
        };
        Some(Self { attempts: attempts.parse().ok()?, due })
    }
}

/// Returns the wall clock time, which all processes share, in microseconds since 1970.
pub(super) fn now_micros() -> u64 {
    micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// Returns the time `delay` from now. If it overflows, it is never reached.
pub(super) fn due_in(delay: Duration) -> u64 {
    now_micros().saturating_add(micros(delay))
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_text_round_trips_and_other_text_is_rejected() {
        for record in [
            Record::delivered(1),
            Record::dead(u32::MAX),
            Record { attempts: 0, due: Some(u64::MAX) },
        ] {
            assert_eq!(Record::parse(&record.to_text()), Some(record));
        }
        for text in
            [c"", c"1", c"1 ", c" 1", c"-1 2", c"1 death", c"/etc/passwd", c"1 2 3", c"\xff 1"]
        {
            assert_eq!(Record::parse(text), None, "{text:?}");
        }
    }
}
