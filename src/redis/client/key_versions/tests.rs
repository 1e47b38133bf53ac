//! Marks in a small world: one key on a server, connections that keep an order, and tasks that read and write through what
//! is kept. Whatever happens in which order, nobody gets what is older than what was seen or written before.

use std::collections::VecDeque;

use rand::{RngExt, SeedableRng, rngs::SmallRng};

use super::*;

const KEY: &[u8] = b"ada";

/// What is left out of the rules, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// A write lets no mark fall.
    SilentWrite,
    /// An answer is kept though its mark has fallen.
    KeptAnyway,
    /// Whoever comes waits for a question whose mark has fallen.
    JoinedAnyway,
    /// An answer that is not kept lets no mark fall.
    SilentAnswer,
    /// Another connection takes the place of one, and no mark falls.
    SilentEnd,
}

#[derive(Clone, Copy, Debug)]
enum Request {
    Read { question: usize },
    Write { task: usize },
}

#[derive(Clone, Copy, Debug)]
enum Push {
    Answer { question: usize, version: u64 },
    Written { task: usize, version: u64 },
    Changed,
}

#[derive(Default)]
struct Line {
    requests: VecDeque<Request>,
    pushes: VecDeque<Push>,
    /// A change that is not told of yet: Redis tells of those of a round when that is over.
    is_changed: bool,
    /// It is not used any more, and its server may still carry out what it was sent.
    is_left: bool,
}

enum Task {
    Idle,
    /// Since when as much was seen.
    Waits {
        question: usize,
        seen: u64,
    },
    Writes,
}

struct Question {
    mark: Mark,
    line: usize,
    answer: Option<u64>,
    is_told: bool,
}

struct World {
    random: SmallRng,
    fault: Fault,
    marks: Marks,
    version: u64,
    lines: Vec<Line>,
    tasks: Vec<Task>,
    questions: Vec<Question>,
    asked: Option<usize>,
    kept: Option<(u64, Mark)>,
    seen: u64,
    /// How often it was answered from what is kept.
    hits: u64,
}

impl World {
    fn new(seed: u64, fault: Fault) -> Self {
        Self {
            random: SmallRng::seed_from_u64(seed),
            fault,
            marks: Marks::new(1),
            version: 0,
            lines: vec![Line::default()],
            tasks: (0..4).map(|_| Task::Idle).collect(),
            questions: Vec::new(),
            asked: None,
            kept: None,
            seen: 0,
            hits: 0,
        }
    }

    /// One thing that happens; an error where somebody gets what is older than what he may know.
    fn step(&mut self) -> Result<(), String> {
        let place = self.marks.place(KEY);
        match self.random.random_range(0..100) {
            0..30 => self.begin(place)?,
            30..55 => self.serve(),
            55..75 => self.hear(place),
            75..85 => self.keep(place),
            85..97 => self.end()?,
            97 => {
                // Somebody else writes.
                self.version += 1;
                self.lines.iter_mut().for_each(|line| line.is_changed = true);
            }
            98 if self.random.random_ratio(1, 3) => self.replace_line(),
            _ => self.send_again(),
        }
        Ok(())
    }

    fn begin(&mut self, place: Place) -> Result<(), String> {
        let task = self.random.random_range(0..self.tasks.len());
        if !matches!(self.tasks[task], Task::Idle) {
            return Ok(());
        }
        let line = self.lines.len() - 1;
        if self.random.random_ratio(1, 6) {
            self.tasks[task] = Task::Writes;
            self.lines[line].requests.push_back(Request::Write { task });
            return Ok(());
        }
        if let Some((version, mark)) = self.kept
            && self.marks.stands(mark)
        {
            self.hits += 1;
            return self.see(version, self.seen);
        }
        let question = match self.asked {
            Some(at)
                if self.fault == Fault::JoinedAnyway
                    || self.marks.stands(self.questions[at].mark) =>
            {
                at
            }
            _ => {
                let mark = self.marks.mark(place);
                self.questions.push(Question { mark, line, answer: None, is_told: false });
                let at = self.questions.len() - 1;
                self.lines[line].requests.push_back(Request::Read { question: at });
                self.asked = Some(at);
                at
            }
        };
        self.tasks[task] = Task::Waits { question, seen: self.seen };
        Ok(())
    }

    /// A server takes what was sent, and tells of what has changed, now or later.
    fn serve(&mut self) {
        let at = self.random.random_range(0..self.lines.len());
        let line = &mut self.lines[at];
        match line.requests.pop_front() {
            Some(Request::Read { question }) => {
                line.pushes.push_back(Push::Answer { question, version: self.version });
            }
            Some(Request::Write { task }) => {
                self.version += 1;
                line.pushes.push_back(Push::Written { task, version: self.version });
                self.lines.iter_mut().for_each(|line| line.is_changed = true);
            }
            None => {}
        }
        let line = &mut self.lines[at];
        if line.is_changed && self.random.random_ratio(1, 2) {
            line.is_changed = false;
            line.pushes.push_back(Push::Changed);
        }
    }

    /// What a connection has brought.
    fn hear(&mut self, place: Place) {
        let at = self.random.random_range(0..self.lines.len());
        match self.lines[at].pushes.pop_front() {
            // Nobody hears it any more.
            Some(Push::Changed) if self.lines[at].is_left => {}
            Some(Push::Changed) => self.marks.fall(place),
            Some(Push::Answer { question, version }) => {
                let question = &mut self.questions[question];
                if question.line == at {
                    question.answer = Some(version);
                }
            }
            Some(Push::Written { task, version }) => {
                if self.fault != Fault::SilentWrite {
                    self.marks.fall(place);
                }
                self.tasks[task] = Task::Idle;
                self.seen = self.seen.max(version);
            }
            None => {}
        }
    }

    /// The task of a question that has its answer goes on.
    fn keep(&mut self, place: Place) {
        let mut ready = self.questions.iter_mut().enumerate();
        let ready = ready.find(|(_, question)| question.answer.is_some() && !question.is_told);
        let Some((at, question)) = ready else { return };
        let version = question.answer.expect("it is ready");
        if self.fault == Fault::KeptAnyway {
            question.mark = self.marks.mark(place);
        }
        if self.marks.stands(question.mark) {
            self.kept = Some((version, question.mark));
        } else if self.fault != Fault::SilentAnswer {
            self.marks.fall(place);
        }
        question.is_told = true;
        if self.asked == Some(at) {
            self.asked = None;
        }
    }

    /// A server can't answer now, and is asked again, by the connection that there is then: so the answer is newer than of
    /// those who were asked after it.
    fn send_again(&mut self) {
        let at = self.random.random_range(0..self.lines.len());
        let requests = &mut self.lines[at].requests;
        let read = requests.iter().position(|request| matches!(request, Request::Read { .. }));
        if let Some(Request::Read { question }) = read.and_then(|read| requests.remove(read)) {
            let last = self.lines.len() - 1;
            self.lines[last].requests.push_back(Request::Read { question });
            self.questions[question].line = last;
        }
    }

    /// Somebody who waited is told.
    fn end(&mut self) -> Result<(), String> {
        let task = self.random.random_range(0..self.tasks.len());
        if let Task::Waits { question, seen } = self.tasks[task]
            && self.questions[question].is_told
        {
            let version = self.questions[question].answer.expect("it is told");
            self.tasks[task] = Task::Idle;
            return self.see(version, seen);
        }
        Ok(())
    }

    fn replace_line(&mut self) {
        let last = self.lines.len() - 1;
        self.lines[last].is_left = true;
        self.lines.push(Line::default());
        if self.fault != Fault::SilentEnd {
            self.marks.fall_all();
        }
    }

    /// Nothing more begins, and all that is on its way arrives: what is kept then is what is there.
    fn rest(&mut self) -> Result<(), String> {
        let place = self.marks.place(KEY);
        let is_busy =
            |line: &Line| !line.requests.is_empty() || !line.pushes.is_empty() || line.is_changed;
        while self.lines.iter().any(is_busy) {
            self.serve();
            self.hear(place);
            self.keep(place);
        }
        match self.kept {
            Some((version, mark)) if self.marks.stands(mark) && version < self.version => {
                Err(format!("{version} is kept, and {} is there", self.version))
            }
            _ => Ok(()),
        }
    }

    fn see(&mut self, version: u64, seen: u64) -> Result<(), String> {
        if version < seen {
            return Err(format!("{version} after {seen}"));
        }
        self.seen = self.seen.max(version);
        Ok(())
    }
}

/// The first seed by which something old is seen, and how often it was answered from what is kept.
fn run(fault: Fault, seeds: u64) -> (Option<(u64, String)>, u64) {
    let mut hits = 0;
    for seed in 0..seeds {
        let mut world = World::new(seed, fault);
        let steps = (0..400).try_for_each(|_| world.step());
        if let Err(error) = steps.and_then(|()| world.rest()) {
            return (Some((seed, error)), hits);
        }
        hits += world.hits;
    }
    (None, hits)
}

fn seeds() -> u64 {
    std::env::var("FLEETING_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(2_000)
}

#[test]
fn nobody_sees_what_is_older_than_what_was_seen() {
    let (old, hits) = run(Fault::None, seeds());
    assert_eq!(old, None);
    assert!(hits > 10 * seeds(), "{hits}");
}

#[test]
fn each_rule_is_needed() {
    let faults = [
        Fault::SilentWrite,
        Fault::KeptAnyway,
        Fault::JoinedAnyway,
        Fault::SilentAnswer,
        Fault::SilentEnd,
    ];
    for fault in faults {
        let (old, _) = run(fault, 20_000);
        assert!(old.is_some(), "{fault:?} is not found");
    }
}

#[test]
fn a_mark_that_fell_never_stands_again() {
    let marks = Marks::new(10_000);
    let ada = marks.place(b"ada");
    // Whatever the seed is.
    let bob = (0_u32..).map(|n| marks.place(&n.to_le_bytes())).find(|place| *place != ada);
    let bob = bob.expect("there are several places");
    let of = |place| marks.mark(place);
    let (of_ada, of_bob) = (of(ada), of(bob));
    marks.fall(ada);
    assert!(!marks.stands(of_ada) && marks.stands(of_bob));
    let again = of(ada);
    marks.fall_all();
    assert!(!marks.stands(of_ada) && !marks.stands(again) && !marks.stands(of_bob));
    assert!(marks.stands(of(ada)));
}
