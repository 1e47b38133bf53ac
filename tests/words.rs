//! The language of the repository: plain English in comments, documentation, messages and test names, and one name per
//! concept. `docs/words.md` explains the rules; this test finds sentences and names that break them.
//!
//! Code blocks, code spans, link targets, quoted words and questions are exempt.
#![cfg(not(lean))]

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use regex::{Captures, Regex, RegexSet};

/// Sentences that open with a free relative clause: "What is due is removed" should be "Due entries are removed".
const OPENINGS: &str =
    r"^(What|Who|Whom|Whose|Whoever|Whatever|Whichever|How|Where|Wherever|Whether|Which) [^?]*$";

/// Openings that are idiomatic.
const GOOD_OPENINGS: &str = r"^(How|What|Where|Which|When|Whether) (to|possible|applicable|appropriate|necessary|available|noted|it works)\b";

/// "who" without a noun before it: "lets in who waits" should be "admits waiting callers".
const BARE_WHO: &str = r"(?i)(^|[:;(] |\b(for|by|of|to|with|from|behind|after|before|than|as|so|if|while|when|where|until|unless|because|since|that|but|is|are|lets|has|wakes|tells|keeps|only|also|then|even|whether) )who [a-z]+";

/// Idiomatic uses of a bare "who".
const GOOD_WHO: &str = r"(?i)(regardless|irrespective|depend\w*|based|track|record|question|idea|matter|sure) (of |on |as to |by )?who|who (else|knows|cares)\b";

/// Words and phrases of the old style, each with its replacement. A match that its third field matches too is allowed.
const BANNED: &[(&str, &str, &str)] = &[
    (r"\banew\b", "again", ""),
    (r"\bof late\b", "recently", ""),
    (r"\bmeanwhile\b", "in the meantime, concurrently", ""),
    (r"\bfor ever\b", "forever", ""),
    (r"\bbeside\b", "next to, compared with, in addition to", ""),
    (r"\b(nobody|somebody|anybody)\b", "no caller, another task", r"somebody else"),
    (r"\b(whoever|whomever)\b", "the caller, any task that", ""),
    (r"[,:] whatever\b", "regardless of", ""),
    (r"\bin vain\b", "without result", ""),
    (r"\b(tells?|told|hears?|heard|telling|hearing) of\b|\bhears\b", "reports, receives", ""),
    (r"[;,] tells? (whether|how|what|which|for|when)\b", "returns whether", ""),
    (r"\b(says|say|said) (so|how|what|whether|which|who|when|where)\b", "reports, defines", ""),
    (r"\b(goes|went|go|gone) on\b", "continues", r"(goes|went|go|gone) on to\b"),
    (
        r"\b(dies|died|dying|deaths?)\b",
        "expires (only a process, thread, server or connection dies)",
        r"(process|thread|server|worker|machine|node|connection|consumer|owner|holder|writer|program|master|peer|leader)(es|s)? (\w+ ){0,3}(dies|died|dying)",
    ),
    (r"\bthe (dead|living)\b", "expired entries, live entries", r"the dead letters?"),
    (
        r"\b(entry|entries|values?|keys?|members?|elements?|tags?|events?) (leaves?|has left|have left)\b",
        "is removed, expires",
        r"leaves? (\w+ ){0,3}(unchanged|intact|as it|as they)",
    ),
    (
        r"\b(lease|time|window|life|wait|load|backoff|call|minute|second) (is|are|was|were) over\b",
        "has ended",
        "",
    ),
    (
        r"\b(requests|entries|events|expirations|calls|keys|elements|operations|writes|reads|hits) an? (second|minute|call|key|shard|queue|thread|entry|request|slot)\b",
        "per second",
        r"an? (second|minute|call|entry|request) (later|time|ago)",
    ),
    (r"\bfigures\b", "metrics, numbers", r"figures out"),
    (r"\bfor (about )?so (many|long)\b", "for that long, that many", ""),
    (r"\b(of ours|of theirs)\b", "of this crate", ""),
    (r"\b(even|also|only|not|none) where\b", "if", ""),
    (r"\b(lets? (be|go)|left alone|gets? off)\b", "releases, unchanged, evades", ""),
];

/// Identifiers of the old style that must not return, below each path. Each word has one meaning in the crate.
const OLD_NAMES: &[(&str, &str)] = &[
    (
        "src",
        "Aftermath Beside Comer Farewell Figure Figures KeptMarks Landed Landing Leavers Lives Luggage Mourner \
         Parting Seat Spread Strangers TELLERS Teller Tellers WITHIN Within beside bid_farewell comers dies_idle \
         dying_idle fall fall_all farewell get_minded go_on goes_on has_leavers is_over is_tagged_away land \
         leave_comers leave_leavers leavers let_removed_leave lingering lingers lives minds_deadlines minds_reads \
         outlives over_at overtake overtake_all overtake_any seat stands strangers tell_of_denial turn_away turned_away",
    ),
    ("src/axum", "Plan Plans Sent"),
    (
        "src/cache",
        "Arrival Awaited Chance Leads Led Left Look Pass Sought TagPass Vacant chance give_up has_passed \
         is_overtaken leads overtakes seek stays",
    ),
    (
        "src/dirq",
        "AWAKE Ahead Doubt Manned Post Room SHIFT Standby Told WAITS doubt keeper look_out standby",
    ),
    ("src/dirq/group.rs", "Lead Place"),
    (
        "src/engine",
        "Arrival Asked Awaited Comers Ending Experience Gone Kept Leads Led Left Look Marks Meeting Meetings NOBODY \
         Notes Patience Room STANDBY Signs Sought Vacant Word alarm asked clear_alarm crowd exchange gathers give_up \
         hears is_asked is_let_go kept leads let_go meets_crowd met notes owed pay seek set_alarm spared standby \
         until_let_go untold unwanted visit want wants weigh_anew",
    ),
    ("src/engine/event", "Queue Told holds_back lets_go may_go told"),
    ("src/engine/metrics", "Told"),
    (
        "src/engine/store",
        "OwnDeadlines Pass TagPass Told has_passed is_overtaken is_rung overtakes own ring rung set_own stays \
         take_rung told",
    ),
    (
        "src/rate_limit",
        "Hot Line Lines OwnPlan Plan Room Rule hot let_go owe rules rules_of with_plan",
    ),
    (
        "src/redis",
        "Asker Came Dial Dialled Feed Hot Joint Kept Mark Marks Meeting Meetings PATIENCE PULSE Question Questions \
         Sent Sought Told UnderWay begin_doubt dial dialled doubt doubted end_doubt feed feel_pulse hot is_left \
         is_let_go is_told kept let_go mark met poll_kept telling until_let_go",
    ),
    ("src/redis/cache", "Leads Led Vacant leads"),
    ("src/redis/client", "Asked Line Link asked"),
];

/// Names of types that are defined more than once in `src`, and why.
const SHARED_TYPE_NAMES: &[(&str, &str)] = &[
    (
        "the embedded type and its counterpart on Redis, as api.md names them",
        "Cache Claim Events ExpiringSet ExpiringSetBuilder LimiterStats LosslessEvents Permit RateLimiter \
         RateLimiterBuilder TimeoutDict TimeoutDictBuilder",
    ),
    (
        "the same part of the embedded type and of its counterpart on Redis",
        "Charges CurrentLimits DictState LimitSet Remaining TopDenied",
    ),
    ("each feature with errors has its own type, as api.md names it", "Error"),
    ("private to its file: the data that a lock guards, or of a state machine", "State"),
    ("one definition per operating system", "WatchId Watcher"),
];

/// Folders and files of `src` that are compiled only into tests.
const TEST_CODE: &str =
    r"(^|/|_)(tests|interleavings|fault_injection|fuzzing|shuttle_map)(/|\.rs$)";

/// Comments, strings and characters of Rust.
static TOKEN: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
            r##"(?s)(?:\bb?r#".*?"#|\bb?r"[^"]*"|\bb?"(?:\\.|[^"\\])*"|"(?:\\.|[^"\\])*")|'(?:\\[^']+|[^'\\\n])'|//[^\n]*|/\*.*?\*/"##,
        ).expect("the pattern is valid")
});

/// The start of a call that logs, or of an attribute with an error message.
static LOG: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\b(?:trace|debug|info|warn|error)!\s*\(|#\[error\(").expect("the pattern is valid")
});

/// The end of a line within a string that continues on the next line.
static CONTINUED: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\\\n\s*").expect("the pattern is valid"));

/// A test and its name.
static TEST: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"#\[(?:\w+::)*\w*test\b[^\]]*\]\s*(?:#\[[^\]]*\]\s*)*(?:pub )?(?:async )?fn (\w+)")
        .expect("the pattern is valid")
});

/// Code spans and quotations.
static EXEMPT: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"``[^`]*``|`[^`]*`|"[^"]{1,60}"|“[^”]{1,60}”"#).expect("the pattern is valid")
});

/// Link targets, emphasis and brackets.
static MARKUP: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\]\([^)]*\)|\]\[[^\]]*\]|[*\[\]]").expect("the pattern is valid")
});

/// The end of a sentence and the first letter of the next.
static END: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r#"[.!?]["')]* +[A-Z("]"#).expect("the pattern is valid"));

#[test]
fn comments_docs_messages_and_test_names_are_plain_english() {
    let rules = Rules::new();
    let mut report = String::new();
    let mut sentences = 0;
    for (path, text) in texts() {
        let prose = if path.ends_with(".rs") {
            rust_prose(&text)
        } else if path.ends_with(".md") {
            markdown(text.lines().enumerate().map(|(at, line)| (at + 1, line)))
        } else {
            page_prose(&path, &text)
        };
        for (line, sentence) in prose {
            sentences += 1;
            if let Some(fault) = rules.fault(&sentence) {
                let _ = writeln!(report, "{path}:{line}: {fault}: {sentence}");
            }
        }
    }
    assert!(sentences > 10_000, "only {sentences} sentences were found");
    assert!(report.is_empty(), "rules of docs/words.md are broken:\n{report}");
}

#[test]
fn old_names_do_not_return() {
    let identifier = Regex::new(r"[A-Za-z_]\w*").unwrap();
    let mut report = String::new();
    for (path, text) in texts().into_iter().filter(|(path, _)| path.ends_with(".rs")) {
        let old: Vec<_> = OLD_NAMES
            .iter()
            .filter(|(below, _)| path.starts_with(below))
            .flat_map(|(_, names)| names.split_whitespace())
            .collect();
        for (at, line) in Source::new(&text).code.lines().enumerate() {
            for name in identifier.find_iter(line).filter(|name| old.contains(&name.as_str())) {
                let _ = writeln!(report, "{path}:{}: {}", at + 1, name.as_str());
            }
        }
    }
    assert!(report.is_empty(), "names that docs/words.md replaced:\n{report}");
}

/// Operators search the guide for a message that they see, and alert on messages that they find in the guide.
#[test]
fn comments_wrap_at_120_columns() {
    let mut report = String::new();
    for (path, text) in texts().into_iter().filter(|(path, _)| path.ends_with(".rs")) {
        for (at, line) in text.lines().enumerate() {
            let comment = line.trim_start();
            // Rows of tables and links cannot be wrapped.
            let may_be_long =
                comment.contains("| ") || comment.contains("://") || comment.contains("]: ");
            if comment.starts_with("//") && line.chars().count() > 120 && !may_be_long {
                let _ = writeln!(report, "{path}:{}: {line}", at + 1);
            }
        }
    }
    assert!(report.is_empty(), "comments of more than 120 columns:\n{report}");
}

#[test]
fn one_name_is_one_type() {
    let test_code = Regex::new(TEST_CODE).unwrap();
    let definition =
        Regex::new(r"(?m)^(?:pub(?:\([^)]*\))? )?(?:struct|enum|union|trait|type) (\w+)").unwrap();
    let mut paths: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in texts() {
        if !path.starts_with("src/") || !path.ends_with(".rs") || test_code.is_match(&path) {
            continue;
        }
        for found in definition.captures_iter(&Source::new(&text).code) {
            paths.entry(found[1].to_owned()).or_default().push(path.clone());
        }
    }
    assert!(paths.len() > 500, "only {} types were found", paths.len());
    let mut exempt: BTreeSet<_> =
        SHARED_TYPE_NAMES.iter().flat_map(|(_, names)| names.split_whitespace()).collect();
    let mut report = String::new();
    for (name, paths) in paths.iter().filter(|(_, paths)| paths.len() > 1) {
        if !exempt.remove(name.as_str()) {
            let _ = writeln!(report, "{name}: {}", paths.join(", "));
        }
    }
    assert!(report.is_empty(), "names of more than one type:\n{report}");
    assert!(exempt.is_empty(), "exceptions that are not needed: {exempt:?}");
}

#[test]
fn guide_lists_every_log_message() {
    let (files, guide): (Vec<_>, Vec<_>) = texts()
        .into_iter()
        .filter(|(path, _)| path.starts_with("src/"))
        .partition(|(path, _)| path.ends_with(".rs"));
    let (_, guide) = guide
        .iter()
        .find(|(path, _)| path == "src/guide/log_messages.md")
        .expect("the page exists");
    let mut logged = BTreeSet::new();
    let mut report = String::new();
    for (path, text) in &files {
        let source = Source::new(text);
        for strings in log_strings(&source).filter(|(is_attribute, _)| !is_attribute) {
            // The message is the last string of the call. A long one continues on the next line after a backslash.
            let Some((_, message)) = strings.1.last() else { continue };
            let message = CONTINUED.replace_all(message.trim_matches('"'), "").into_owned();
            if !guide.contains(&format!("`{message}`")) {
                let _ = writeln!(report, "{path} logs a message that the guide lacks: {message}");
            }
            logged.insert(message);
        }
    }
    let listed = guide.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    for (message, _) in listed.filter(|(message, _)| message.contains(' ')) {
        if !logged.contains(message) {
            let _ = writeln!(report, "the guide lists a message that is not logged: {message}");
        }
    }
    assert!(logged.len() > 30, "only {} messages were found", logged.len());
    assert!(report.is_empty(), "{report}");
}

/// The checks themselves: each finds what it is for.
#[test]
fn checks_find_broken_sentences_and_pass_plain_ones() {
    let rules = Rules::new();
    for broken in [
        "What is due leaves.",
        "Wakes who waits.",
        "The lease is over.",
        "Loads it anew.",
        "The entry dies.",
        "Handles 1,000 events a second.",
        "A refresh has told of it, tells whether it did.",
    ] {
        assert!(rules.fault(broken).is_some(), "passed: {broken}");
    }
    for plain in [
        "Who calls this?",
        "The server died.",
        "Callers who wait are woken.",
        "Returns the value regardless of who holds it.",
        "Expired entries are removed a second later.",
    ] {
        assert_eq!(rules.fault(plain), None, "{plain}");
    }
    let source = "//! Module. What is due\n//! leaves.\n/// `What is code`.\nfn f() { warn!(cache, \"it died: {x}\"); }\n#[test]\nfn what_is_due() {}";
    let found: Vec<_> = rust_prose(source).into_iter().map(|(line, _)| line).collect();
    assert_eq!(found, [1, 1, 4, 6], "a code span alone is no sentence");
    let faults = rust_prose(source).into_iter().filter(|(_, text)| rules.fault(text).is_some());
    assert_eq!(faults.map(|(line, _)| line).collect::<Vec<_>>(), [1, 4, 6]);
}

struct Rules {
    openings: Regex,
    good_openings: Regex,
    bare_who: Regex,
    good_who: Regex,
    /// The patterns of [`BANNED`] in their order: most sentences match none, which takes one pass.
    any_banned: RegexSet,
    banned: Vec<(Regex, &'static str, Option<Regex>)>,
}

impl Rules {
    fn new() -> Self {
        let regex =
            |pattern: &str| Regex::new(&format!("(?i){pattern}")).expect("patterns are valid");
        let banned = BANNED.iter().map(|(pattern, instead, allowed)| {
            (regex(pattern), *instead, (!allowed.is_empty()).then(|| regex(allowed)))
        });
        let any_banned = RegexSet::new(BANNED.iter().map(|(pattern, ..)| format!("(?i){pattern}")));
        Self {
            any_banned: any_banned.expect("patterns are valid"),
            openings: regex(OPENINGS),
            good_openings: regex(GOOD_OPENINGS),
            bare_who: regex(BARE_WHO),
            good_who: regex(GOOD_WHO),
            banned: banned.collect(),
        }
    }

    /// Describes the first rule that `sentence` breaks, if any.
    fn fault(&self, sentence: &str) -> Option<String> {
        if sentence.ends_with('?') {
            return None;
        }
        if self.openings.is_match(sentence) && !self.good_openings.is_match(sentence) {
            return Some("begins with a relative clause".to_owned());
        }
        if self.bare_who.is_match(sentence) && !self.good_who.is_match(sentence) {
            return Some("\"who\" without a noun".to_owned());
        }
        let (found, instead) = self.any_banned.matches(sentence).into_iter().find_map(|at| {
            let (pattern, instead, allowed) = &self.banned[at];
            let found = pattern.find(sentence)?;
            let is_allowed = allowed.as_ref().is_some_and(|allowed| allowed.is_match(sentence));
            (!is_allowed).then_some((found, instead))
        })?;
        Some(format!("\"{}\" (write: {instead})", found.as_str()))
    }
}

/// The files that are checked, by their paths from the root of the repository.
fn texts() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders: Vec<PathBuf> =
        ["src", "tests", "benches", "examples", "docs", "fuzz", "models"]
            .map(|name| root.join(name))
            .into();
    let mut files: Vec<_> = fs::read_dir(root)
        .expect("the repository can be read")
        .flatten()
        .map(|entry| entry.path())
        .collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.path() {
                path if path.is_dir() && !path.ends_with("target") => folders.push(path),
                path => files.push(path),
            }
        }
    }
    files.sort();
    let name = |path: &Path| {
        path.strip_prefix(root).expect("it is below").to_str().expect("names are text").to_owned()
    };
    let is_text = |path: &PathBuf| {
        path.extension()
            .is_some_and(|end| ["rs", "md", "html", "js"].iter().any(|known| end == *known))
    };
    let read = |path: PathBuf| Some((name(&path), fs::read_to_string(path).ok()?));
    files.into_iter().filter(is_text).filter_map(read).collect()
}

/// A Rust file in parts: comments by their lines, and the code without comments and with empty strings.
struct Source<'a> {
    code: String,
    comments: Vec<(usize, &'a str)>,
    strings: Vec<(usize, &'a str)>,
}

impl<'a> Source<'a> {
    fn new(text: &'a str) -> Self {
        let (mut comments, mut strings) = (Vec::new(), Vec::new());
        let code = TOKEN.replace_all(text, |found: &Captures<'_>| {
            let range = found.get(0).expect("group 0 is there").range();
            let line = text[..range.start].matches('\n').count() + 1;
            let found = &text[range.clone()];
            if found.starts_with('/') {
                comments.extend(found.lines().enumerate().map(|(at, part)| (line + at, part)));
            } else if found.contains('"') {
                strings.push((range.start, found));
            }
            // As long as before, so that positions stay.
            found
                .chars()
                .map(|c| if c == '\n' { "\n".to_owned() } else { " ".repeat(c.len_utf8()) })
                .collect::<String>()
        });
        Self { code: code.into_owned(), comments, strings }
    }
}

/// A string of a file, with its position.
type Text<'a> = (usize, &'a str);

/// The strings of each call that logs, and of each attribute with an error message; `true` for an attribute.
fn log_strings<'a>(source: &'a Source<'a>) -> impl Iterator<Item = (bool, Vec<Text<'a>>)> {
    LOG.find_iter(&source.code).map(|call| {
        let mut depth = 1;
        let length = source.code[call.end()..].find(|c| {
            depth += i32::from("([{".contains(c)) - i32::from(")]}".contains(c));
            depth == 0
        });
        let inside = call.end()..call.end() + length.unwrap_or(0);
        let strings = source.strings.iter().filter(|(at, _)| inside.contains(at)).copied();
        (call.as_str().starts_with('#'), strings.collect())
    })
}

/// The sentences of comments, of log and error messages, and the names of tests.
fn rust_prose(text: &str) -> Vec<(usize, String)> {
    let source = Source::new(text);
    let line_of = |at: usize| text[..at].matches('\n').count() + 1;
    let mut found = Vec::new();
    // Comments on neighbouring lines, of the same kind, are one text.
    let kind = |comment: &str| comment.chars().take_while(|c| "/!*".contains(*c)).count();
    for block in source
        .comments
        .chunk_by(|(line, one), (next, other)| line + 1 == *next && kind(one) == kind(other))
    {
        found.extend(markdown(
            block
                .iter()
                .map(|(line, comment)| (*line, comment.trim_start_matches(['/', '!', '*']))),
        ));
    }
    for (_, strings) in log_strings(&source) {
        found.extend(
            strings.iter().map(|(at, string)| (line_of(*at), string.trim_matches('"').to_owned())),
        );
    }
    let names = TEST.captures_iter(&source.code).filter_map(|captures| captures.get(1));
    found.extend(names.map(|name| (line_of(name.start()), name.as_str().replace('_', " "))));
    found.sort();
    found
}

/// The texts of a web page: text and titles of HTML, strings that contain a space in JavaScript.
fn page_prose(path: &str, text: &str) -> Vec<(usize, String)> {
    let pattern = if path.ends_with(".js") {
        r#""([^"\\\n]* [^"\\\n]*)"|'([^'\\\n]* [^'\\\n]*)'"#
    } else {
        r#"(?:title|aria-label|placeholder|alt)="([^"]+)"|>([^<>{}]*[a-z][^<>{}]*)<"#
    };
    let captures = Regex::new(pattern).unwrap();
    let texts = captures.captures_iter(text).filter_map(|found| found.get(1).or(found.get(2)));
    let texts =
        texts.map(|found| (text[..found.start()].matches('\n').count() + 1, found.as_str()));
    texts
        .map(|(line, found)| (line, found.split_whitespace().collect::<Vec<_>>().join(" ")))
        .collect()
}

/// The sentences of Markdown with the lines on which they begin. Code spans and quotations become "X".
fn markdown<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<(usize, String)> {
    let mut paragraphs: Vec<Vec<(usize, &str)>> = vec![Vec::new()];
    let mut in_code = false;
    for (number, line) in lines {
        let bare = line.trim();
        let fence = bare.starts_with("```") || bare.starts_with("~~~");
        in_code ^= fence;
        let is_item = bare.starts_with(['-', '*', '+'])
            || bare.trim_start_matches(|c: char| c.is_ascii_digit()).starts_with(". ");
        let starts = is_item || bare.starts_with(['#', '|']);
        if fence || in_code || bare.is_empty() || starts {
            paragraphs.push(Vec::new());
        }
        if fence || in_code || bare.is_empty() || bare.starts_with('[') && bare.contains("]: ") {
            continue;
        }
        if bare.starts_with('|') {
            paragraphs.extend(bare.split('|').map(|cell| vec![(number, cell.trim())]));
            paragraphs.push(Vec::new());
        } else {
            let text = bare.trim_start_matches(['#', '-', '*', '+', '>', ' ']);
            let text = if is_item {
                text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.')
            } else {
                text
            };
            paragraphs.last_mut().expect("there is one").push((number, text.trim()));
        }
    }
    paragraphs.into_iter().flat_map(|paragraph| sentences(&paragraph)).collect()
}

fn sentences(paragraph: &[(usize, &str)]) -> Vec<(usize, String)> {
    let text = paragraph.iter().map(|(_, line)| *line).collect::<Vec<_>>().join(" ");
    // The line of a sentence is the one of its paragraph: a span may have been longer than its replacement.
    let line = paragraph.first().map_or(0, |(line, _)| *line);
    let text = EXEMPT.replace_all(&text, "X");
    let text = MARKUP.replace_all(&text, "");
    let (mut found, mut start) = (Vec::new(), 0);
    for stop in END.find_iter(&text).map(|stop| stop.end() - 1).chain([text.len()]) {
        let sentence = text[start..stop].trim();
        let is_abbreviation =
            ["e.g.", "i.e.", "vs.", "cf."].iter().any(|short| sentence.ends_with(short));
        if is_abbreviation && stop < text.len() {
            continue;
        }
        if sentence.chars().filter(char::is_ascii_alphabetic).count() >= 2 {
            found.push((line, sentence.to_owned()));
        }
        start = stop;
    }
    found
}
