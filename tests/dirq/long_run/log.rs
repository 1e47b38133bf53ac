//! Log of the steps of each element in the long run, and the check of its promises.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::Write,
    path::Path,
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};

/// An event in the life of an element. Python writes the same letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// An add begins, has succeeded, and has failed.
    Adding = b'+' as isize,
    Added = b'a' as isize,
    AddFailed = b'f' as isize,
    /// The element was locked and delivered.
    Delivered = b'g' as isize,
    /// An ack begins, and has succeeded.
    Acking = b'b' as isize,
    Acked = b'k' as isize,
    /// The lock had been lost to another process.
    NotLocked = b'n' as isize,
    /// The ack failed, or the element was given back.
    Returned = b'u' as isize,
}

impl Step {
    const ALL: [Self; 8] = [
        Self::Adding,
        Self::Added,
        Self::AddFailed,
        Self::Delivered,
        Self::Acking,
        Self::Acked,
        Self::NotLocked,
        Self::Returned,
    ];

    fn parse(letter: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|step| letter.as_bytes() == [*step as u8])
    }
}

/// The events of one process: a file with one line per event, which survives `kill -9`.
pub(super) struct Log(File);

impl Log {
    pub(super) fn create(path: &Path) -> Self {
        let file = OpenOptions::new().create(true).append(true).open(path);
        Self(file.expect("the log can be created"))
    }

    /// Writes one line by one system call, so that no line is interrupted by another task.
    pub(super) fn note(&self, step: Step, id: &str) {
        let line = format!("{} {} {id}\n", now_micros(), step as u8 as char);
        (&self.0).write_all(line.as_bytes()).expect("the log can be written");
    }
}

/// Returns the time since the machine was started in microseconds, which all processes share.
fn now_micros() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000
}

#[derive(Clone, Copy, Debug)]
struct Event {
    micros: u64,
    step: Step,
    /// Number of the process.
    process: u32,
}

/// The events of all processes, by element.
pub(super) struct Events(BTreeMap<String, Vec<Event>>);

/// Numbers of elements.
#[derive(Debug, Default)]
pub(super) struct Summary {
    pub(super) added: u64,
    pub(super) acked: u64,
    pub(super) delivered_again: u64,
    /// Their process was killed during the ack, which was not logged.
    pub(super) acked_by_killed: u64,
    /// They were locked so long that a purge was allowed to give them to another process.
    pub(super) lost_lock: u64,
}

impl Events {
    /// Reads the logs in a directory. Each has the number of its process as its name.
    pub(super) fn read(logs: &Path) -> Self {
        let mut events = BTreeMap::<_, Vec<_>>::new();
        for entry in fs::read_dir(logs).expect("the logs can be listed") {
            let entry = entry.expect("the logs can be listed");
            let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok())
            else {
                continue;
            };
            let text = fs::read_to_string(entry.path()).expect("a log can be read");
            // The last line of a killed process may be incomplete.
            let complete = text.rsplit_once('\n').map_or("", |(complete, _)| complete);
            for line in complete.lines() {
                let mut words = line.split(' ');
                let mut word = || words.next().expect("a line has three words");
                let micros = word().parse().expect("the first word is a number");
                let step = Step::parse(word()).expect("the second word is a step");
                let event = Event { micros, step, process };
                events.entry(word().to_owned()).or_default().push(event);
            }
        }
        events.values_mut().for_each(|events| events.sort_by_key(|event| event.micros));
        Self(events)
    }

    pub(super) fn acked(&self) -> usize {
        self.0.values().flatten().filter(|event| event.step == Step::Acked).count()
    }

    /// Checks that no element was lost, and that none was delivered again after it was acked. `max_lock` is the age
    /// from which purges have removed locks. `is_killed` returns whether a process was killed.
    pub(super) fn check(&self, max_lock: Duration, is_killed: impl Fn(u32) -> bool) -> Summary {
        let (mut summary, mut faults) = (Summary::default(), Vec::new());
        for (id, events) in &self.0 {
            if let Err(fault) = check_element(events, max_lock, &is_killed, &mut summary) {
                faults.push(format!("element {id} {fault}: {events:?}"));
            }
        }
        let some = faults.iter().take(5).cloned().collect::<Vec<_>>().join("\n");
        assert!(faults.is_empty(), "{} elements, for instance\n{some}", faults.len());
        summary
    }
}

fn check_element(
    events: &[Event],
    max_lock: Duration,
    is_killed: impl Fn(u32) -> bool,
    summary: &mut Summary,
) -> Result<(), &'static str> {
    let count = |step| events.iter().filter(|event| event.step == step).count() as u64;
    let (delivered, acked) = (count(Step::Delivered), count(Step::Acked));
    if count(Step::Adding) == 0 {
        return Err("was delivered, but no process has added it");
    }
    if count(Step::AddFailed) > 0 && delivered > 0 {
        return Err("was delivered although its add failed");
    }
    summary.added += count(Step::Added);
    summary.acked += acked.min(1);
    summary.delivered_again += u64::from(delivered > 1);
    let Some(ack) = events.iter().position(|event| event.step == Step::Acked) else {
        // The end of its last delivery: it must be an ack that its process could not log.
        let last = events.iter().rfind(|event| event.step == Step::Acking);
        // A result may be logged later than all of this, if its process waited for a processor.
        let is_over = |event: &Event, last: &Event| match event.step {
            Step::Added => true,
            Step::Returned | Step::NotLocked if event.process != last.process => true,
            _ => event.micros <= last.micros,
        };
        let is_last = |last: &Event| {
            is_killed(last.process) && events.iter().all(|event| is_over(event, last))
        };
        let by_killed = last.is_some_and(is_last);
        summary.acked_by_killed += u64::from(by_killed);
        return match by_killed || count(Step::Added) == 0 && delivered == 0 {
            true => Ok(()),
            false => Err("was added and not acked"),
        };
    };
    let again = events[ack..].iter().any(|event| event.step == Step::Delivered);
    if !again && acked == 1 {
        return Ok(());
    }
    // A purge takes a lock that is too old, if its process is slow. The margin is for the time before the event.
    let process = events[ack].process;
    let mut before = events[..ack].iter().rev();
    let began = before.find(|event| event.step == Step::Delivered && event.process == process);
    let held = began.map_or(0, |began| events[ack].micros - began.micros);
    if Duration::from_micros(held) < max_lock / 2 {
        return Err("was delivered or acked again after its ack");
    }
    summary.lost_lock += 1;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks an element with a lock of 4 s, of whose processes the second was killed. Each event has its second,
    /// letter and process.
    fn check(events: &[(u64, &str, u32)]) -> Result<(), &'static str> {
        let event = |&(second, letter, process): &(u64, &str, u32)| Event {
            micros: second * 1_000_000,
            step: Step::parse(letter).unwrap(),
            process,
        };
        let events: Vec<_> = events.iter().map(event).collect();
        let max_lock = Duration::from_secs(4);
        check_element(&events, max_lock, |process| process == 2, &mut Summary::default())
    }

    #[test]
    fn lost_and_repeated_elements_are_detected() {
        let added = [(1, "+", 1), (1, "a", 1)];
        let then = |more: &[(u64, &'static str, u32)]| check(&[&added, more].concat());
        assert_eq!(then(&[(2, "g", 1), (2, "b", 1), (2, "k", 1)]), Ok(()));
        assert!(then(&[]).is_err(), "lost");
        assert!(then(&[(2, "g", 1), (2, "b", 1)]).is_err(), "lost by a process that lives");
        assert_eq!(then(&[(2, "g", 2), (2, "b", 2)]), Ok(()), "killed during its ack");
        let late_log = [(1, "+", 1), (2, "g", 2), (2, "b", 2), (3, "a", 1)];
        assert_eq!(check(&late_log), Ok(()), "killed during its ack, before the add was logged");
        assert!(then(&[(2, "g", 2)]).is_err(), "killed before its ack");
        let late_log = [(2, "g", 1), (3, "g", 2), (4, "b", 2), (5, "u", 1)];
        assert_eq!(then(&late_log), Ok(()), "killed during its ack, before a return was logged");
        assert!(
            then(&[(2, "g", 2), (3, "b", 2), (4, "u", 2)]).is_err(),
            "lost after its ack failed"
        );
        let twice = [(2, "g", 1), (2, "k", 1), (3, "g", 2), (3, "k", 2)];
        assert!(then(&twice).is_err());
        assert!(then(&twice[..3]).is_err(), "delivered after its ack");
        assert_eq!(then(&[(2, "g", 2), (5, "g", 1), (6, "k", 2), (6, "n", 1)]), Ok(()));
        let late = [(2, "g", 2), (6, "k", 2), (7, "g", 1), (7, "k", 1)];
        assert_eq!(then(&late), Ok(()), "a purge had taken its lock");
        assert!(check(&[(1, "g", 1), (1, "k", 1)]).is_err(), "not added");
        assert!(check(&[(1, "+", 1), (1, "f", 1), (2, "g", 1), (2, "k", 1)]).is_err());
        assert_eq!(check(&[(1, "+", 2)]), Ok(()), "killed during its add");
    }
}
