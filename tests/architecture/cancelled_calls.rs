//! Checks that the tests of cancellation call each public async method of src/.
//!
//! They name a value by the last word of its type: a call of `RateLimiter` is `limiter.check(..)`, or
//! `Limiter::check(..)`. If several types of a group end in the same word, the name is the whole type: `sorted_set`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use super::{ModuleGraph, top_module, without_comments};

#[test]
fn tests_of_cancellation_call_each_async_method() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut methods = BTreeMap::<_, BTreeSet<_>>::new();
    for (module, code) in ModuleGraph::read(&root.join("src")).modules {
        let group = match top_module(&module) {
            "redis" => "tests/redis/cancellation",
            "dirq" | "spool" => "tests/dirq/cancellation",
            _ => "tests/cancellation",
        };
        methods.entry(group).or_default().extend(async_methods(&code));
    }
    for (group, methods) in methods {
        assert!(methods.len() > 30, "src/ was not read completely: {methods:?}");
        let missing = missing(&methods, &tests_in(&root.join(group)));
        assert!(missing.is_empty(), "{group} does not call {missing:#?}");
    }
}

#[test]
fn method_that_is_not_called_is_found() {
    let code = "
struct Set;
impl<F: Fn() -> u8> SmallSet<F>
where
    F: Send,
{
    pub async fn push(&self, other: impl Future<Output = ()>) {}
    pub fn pop<K>(
        &self,
    ) -> impl Future<Output = u8> {
        async { 1 }
    }
    pub fn len(&self) -> usize { 0 }
    #[deprecated]
    pub async fn add(&self) {}
    pub(super) async fn grow(&self) {}
}
impl Client {
    pub async fn connect() {}
}";
    let pair = |on: &str, method: &str| (on.to_owned(), method.to_owned());
    let methods = [pair("SmallSet", "push"), pair("SmallSet", "pop"), pair("Client", "connect")];
    assert_eq!(async_methods(code), methods);

    let mut methods = BTreeSet::from(methods);
    let tests = "set.push(1), reset.pop(), set\n    .popped(), Client::connect(1)";
    assert_eq!(missing(&methods, tests), ["set.pop"]);
    // Now two types end in the same word.
    methods.insert(pair("LargeSet", "pop"));
    let tests = "set.pop() large_set\n.pop() small_set.push() client.connect()";
    assert_eq!(missing(&methods, tests), ["small_set.pop"]);
}

/// Returns the public async methods of a file with their types.
fn async_methods(code: &str) -> Vec<(String, String)> {
    let mut methods = Vec::new();
    for block in code.split("\nimpl").skip(1) {
        let Some((header, body)) = block.split_once('{') else { continue };
        let on = identifier(without_generics(header).trim_start());
        let mut before = body.split("pub ").next().unwrap_or_default();
        for function in body.split("pub ").skip(1) {
            // A deprecated name calls a method that is in the list itself.
            let attributes = before.rsplit("    }\n").next().unwrap_or_default();
            let is_deprecated = attributes.contains("#[deprecated");
            before = function;
            if is_deprecated {
                continue;
            }
            let signature = function.split(['{', ';']).next().unwrap_or_default();
            let (is_async, rest) = match signature.strip_prefix("async fn ") {
                Some(rest) => (true, rest),
                None => match signature.strip_prefix("fn ") {
                    Some(rest) => (rest.contains("-> impl Future<"), rest),
                    None => continue,
                },
            };
            if is_async {
                methods.push((on.clone(), identifier(rest)));
            }
        }
    }
    methods
}

/// Returns the methods that the tests do not call.
fn missing(methods: &BTreeSet<(String, String)>, tests: &str) -> Vec<String> {
    // A call may be broken into lines.
    let tests = tests.split('.').map(str::trim_end).collect::<Vec<_>>().join(".");
    let types: BTreeSet<_> = methods.iter().map(|(on, _)| on).collect();
    let mut missing = Vec::new();
    for (on, method) in methods {
        let words = words(on);
        let last = words.last().expect("a type has a name");
        let is_shared = types.iter().filter(|on| self::words(on).last() == Some(last)).count() > 1;
        let value = if is_shared { words.join("_") } else { last.clone() };
        let constructor = format!("{}{}", last[..1].to_uppercase(), &last[1..]);
        let calls = [format!("{value}.{method}("), format!("{constructor}::{method}(")];
        if !calls.iter().any(|call| contains_word(&tests, call)) {
            missing.push(format!("{value}.{method}"));
        }
    }
    missing
}

/// `ExpiringSet` is `expiring` and `set`.
fn words(name: &str) -> Vec<String> {
    let mut words = Vec::<String>::new();
    for c in name.chars() {
        match words.last_mut().filter(|_| c.is_lowercase()) {
            Some(word) => word.push(c),
            None => words.push(c.to_lowercase().collect()),
        }
    }
    words
}

/// Returns whether the text contains a call, not as a part of a longer name.
fn contains_word(text: &str, call: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(call).any(|(at, _)| !text[..at].ends_with(is_part))
}

fn identifier(code: &str) -> String {
    code.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// Removes the generic parameters of an `impl`.
fn without_generics(header: &str) -> &str {
    let mut depth = 0;
    let mut previous = ' ';
    for (at, c) in header.char_indices() {
        // The arrow of a function type closes nothing.
        depth += i32::from(c == '<') - i32::from(c == '>' && previous != '-');
        if depth == 0 {
            return if c == '>' { &header[at + 1..] } else { header };
        }
        previous = c;
    }
    header
}

/// Returns the code of the tests in `<group>.rs`, and in the folder `group`.
fn tests_in(group: &Path) -> String {
    let mut tests = fs::read_to_string(group.with_extension("rs")).unwrap_or_default();
    for file in fs::read_dir(group).expect("the folder exists") {
        let path = file.expect("the folder can be listed").path();
        tests += &fs::read_to_string(path).expect("tests can be read");
    }
    without_comments(&tests)
}
