//! The rooms of src/ import downward only, and no files import each other in circles: docs/architecture.md.
//!
//! An import is a `use` of an item that another file defines, or a path to it in the code. A module that only
//! re-exports (`pub use self::child::Item`) is a door, and no import. Code of tests may import what it likes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Each room of src/, and on which floor it is. A room imports from the floors below it only.
const FLOORS: &[(&str, u32)] = &[
    ("engine", 0),
    ("cache", 1),
    ("dirq", 1),
    ("rate_limit", 1),
    ("sets", 1),
    ("timeout_dict", 1),
    ("redis", 2),
    ("spool", 2),
    ("axum", 3),
    ("dashboard", 3),
];

#[test]
fn rooms_import_downward_only() {
    let house = House::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let upward: Vec<_> = house
        .imports
        .iter()
        .filter(|(from, to)| {
            let (from, to) = (room(from), room(to));
            from != to && floor(from) <= floor(to)
        })
        .collect();
    assert!(upward.is_empty(), "upward or to a sibling (from, to): {upward:#?}");
}

#[test]
fn no_files_import_each_other_in_circles() {
    let house = House::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let circles = house.circles();
    assert!(circles.is_empty(), "circles: {circles:#?}");
}

/// The check itself, on a small house that has both faults.
#[test]
fn what_is_wrong_is_found() {
    let mut house = House::default();
    house.add("crate", "mod engine; mod cache; pub use cache::Cache;");
    house.add("crate::engine", "pub(crate) mod clock; pub(crate) mod store;");
    house
        .add("crate::engine::clock", "use crate::Cache; // use super::store::Never;\nstruct Tick;");
    house.add(
        "crate::engine::store",
        "mod window; pub(crate) use self::window::Window;\nuse super::{clock::Tick, store::window::{self}};",
    );
    house.add("crate::engine::store::window", "pub struct Window(crate::engine::store::Store);");
    house.add(
        "crate::cache",
        "use crate::engine::store::Window; #[cfg(test)] mod tests { use crate::x::Y; }",
    );
    house.resolve();
    let import = |from: &str, to: &str| (from.to_owned(), to.to_owned());
    assert_eq!(
        house.imports,
        BTreeSet::from([
            import("crate::cache", "crate::engine::store::window"),
            import("crate::engine::clock", "crate::cache"),
            import("crate::engine::store", "crate::engine::clock"),
            import("crate::engine::store", "crate::engine::store::window"),
            import("crate::engine::store::window", "crate::engine::store"),
        ])
    );
    assert_eq!(room("crate::engine::clock"), "engine");
    let circles = house.circles();
    let all = [
        "crate::cache",
        "crate::engine::clock",
        "crate::engine::store",
        "crate::engine::store::window",
    ];
    assert_eq!(circles, [BTreeSet::from(all.map(str::to_owned))]);
}

fn room(module: &str) -> &str {
    module.split("::").nth(1).unwrap_or("the crate itself")
}

fn floor(room: &str) -> u32 {
    let found = FLOORS.iter().find(|(name, _)| *name == room);
    found.unwrap_or_else(|| panic!("{room} is on no floor: add it to FLOORS")).1
}

/// The modules that are files, and what they import from each other.
#[derive(Default)]
struct House {
    /// The code of each module, without comments, texts and tests.
    modules: BTreeMap<String, String>,
    /// What a name in a module stands for, where it is defined in another.
    doors: BTreeMap<(String, String), String>,
    imports: BTreeSet<(String, String)>,
}

impl House {
    fn read(src: &Path) -> Self {
        let mut house = Self::default();
        let mut folders = vec![src.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("src/ can be listed") {
                let path = entry.expect("src/ can be listed").path();
                let name = path.file_stem().and_then(|name| name.to_str()).expect("names are text");
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|ext| ext == "rs")
                    && !matches!(name, "tests" | "interleavings")
                {
                    let code = fs::read_to_string(&path).expect("sources can be read");
                    house.add(&module_of(src, &path), &code);
                }
            }
        }
        assert!(house.modules.len() > 100, "this is not all of src/: {}", house.modules.len());
        house.resolve();
        house
    }

    fn add(&mut self, module: &str, code: &str) {
        self.modules.insert(module.to_owned(), without_tests(&without_comments(code)));
    }

    fn resolve(&mut self) {
        let mut paths = Vec::new();
        for (module, code) in &self.modules {
            let (uses, rest) = uses(code);
            for (is_door, path) in uses {
                let path = absolute(module, &path);
                // A door for whoever comes through it, also a private one: children import by it.
                let name = path.rsplit("::").next().expect("a path has a part").to_owned();
                self.doors.insert((module.clone(), name), path.clone());
                if !is_door {
                    paths.push((module.clone(), path));
                }
            }
            if module != "crate" {
                paths.extend(paths_in(&rest).map(|path| (module.clone(), absolute(module, &path))));
            }
        }
        for (module, path) in paths {
            if let Some(home) = self.home(&path)
                && home != module
                && home != "crate"
                && module != "crate"
            {
                self.imports.insert((module, home));
            }
        }
    }

    /// The module that defines what `path` names; none where it is not of this crate.
    fn home(&self, path: &str) -> Option<String> {
        let mut path = path.to_owned();
        for _ in 0..16 {
            if self.modules.contains_key(&path) {
                return Some(path);
            }
            let mut end = path.len();
            let module = loop {
                end = path[..end].rfind("::")?;
                if self.modules.contains_key(&path[..end]) {
                    break path[..end].to_owned();
                }
            };
            let rest = &path[end + 2..];
            let (name, below) =
                rest.split_once("::").map_or((rest, ""), |(name, rest)| (name, rest));
            match self.doors.get(&(module.clone(), name.to_owned())) {
                Some(target) if !below.is_empty() => path = format!("{target}::{below}"),
                Some(target) if *target != path => path = target.clone(),
                _ => return Some(module),
            }
        }
        panic!("{path} leads in a circle of doors")
    }

    /// The modules of which each can be reached from all the others.
    fn circles(&self) -> Vec<BTreeSet<String>> {
        let reached: BTreeMap<_, _> =
            self.modules.keys().map(|module| (module, self.reachable(module))).collect();
        let mut circles = BTreeSet::new();
        for (module, others) in &reached {
            let circle: BTreeSet<_> =
                others.iter().filter(|other| reached[other].contains(*module)).cloned().collect();
            if !circle.is_empty() {
                circles.insert(circle);
            }
        }
        circles.into_iter().collect()
    }

    fn reachable(&self, module: &str) -> BTreeSet<String> {
        let mut reached = BTreeSet::new();
        let mut todo = vec![module.to_owned()];
        while let Some(from) = todo.pop() {
            let imports = self.imports.range((from.clone(), String::new())..);
            for (_, to) in imports.take_while(|(other, _)| *other == from) {
                if reached.insert(to.clone()) {
                    todo.push(to.clone());
                }
            }
        }
        reached
    }
}

/// `src/engine/clock.rs` is `crate::engine::clock`.
fn module_of(src: &Path, file: &Path) -> String {
    let path: PathBuf = file.strip_prefix(src).expect("it is in src/").with_extension("");
    let parts = path.iter().map(|part| part.to_str().expect("names are text"));
    let parts = parts.filter(|part| *part != "lib");
    std::iter::once("crate").chain(parts).collect::<Vec<_>>().join("::")
}

/// The code without comments and texts.
fn without_comments(code: &str) -> String {
    let mut kept = String::new();
    let mut rest = code;
    while let Some(first) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(text) = rest.strip_prefix("r#\"") {
            text.find("\"#").map_or(rest.len(), |end| end + 5)
        } else if first == '"' {
            let mut escaped = false;
            let end = rest[1..].find(|c| {
                let ends = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            });
            end.map_or(rest.len(), |end| end + 2)
        } else if rest.starts_with("'\"'") {
            3
        } else {
            kept.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        };
        rest = &rest[skipped..];
    }
    kept
}

/// The code without the modules that only tests have.
fn without_tests(code: &str) -> String {
    let mut code = code.to_owned();
    while let Some(start) = code.find("#[cfg(test)]") {
        let open = code[start..].find(['{', ';']).map_or(code.len(), |at| start + at);
        let mut depth = 0;
        let end = code[open..].find(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0
        });
        code.replace_range(start..end.map_or(code.len(), |end| open + end + 1), "");
    }
    code
}

/// The `use` statements (whether each is a door, and its paths), and all other code.
fn uses(code: &str) -> (Vec<(bool, String)>, String) {
    let mut found = Vec::new();
    let mut rest = String::new();
    for statement in code.split_inclusive([';', '{', '}']).scan(String::new(), |open, piece| {
        // A tree of a `use` has braces of its own.
        open.push_str(piece);
        let is_use = is_use(open);
        let balanced = open.matches('{').count() == open.matches('}').count();
        let is_whole = !is_use || (open.ends_with(';') && balanced);
        Some(if is_whole { std::mem::take(open) } else { String::new() })
    }) {
        match statement.find("use ").filter(|_| is_use(&statement)) {
            Some(at) => {
                let is_door = statement[..at].contains("pub");
                let tree: String = statement[at + 4..].trim_end_matches(';').trim().to_owned();
                let mut paths = Vec::new();
                flatten("", &tree, &mut paths);
                found.extend(paths.into_iter().map(|path| (is_door, path)));
            }
            None => rest.push_str(&statement),
        }
    }
    (found, rest)
}

/// Whether a piece of code is a `use`, after its attributes.
fn is_use(piece: &str) -> bool {
    let mut piece = piece.trim_start();
    while let Some(attribute) = piece.strip_prefix("#[") {
        let Some(end) = attribute.find(']') else { return false };
        piece = attribute[end + 1..].trim_start();
    }
    if let Some(after) = piece.strip_prefix("pub") {
        let after = after.trim_start();
        piece = match after.strip_prefix('(') {
            Some(scope) => scope.split_once(')').map_or("", |(_, rest)| rest.trim_start()),
            None => after,
        };
    }
    piece.starts_with("use ")
}

/// The paths of a tree: `a::{b, c::{self, d}}` are `a::b`, `a::c` and `a::c::d`.
fn flatten(before: &str, tree: &str, paths: &mut Vec<String>) {
    let tree = tree.trim();
    if let Some((head, inner)) = tree.split_once('{') {
        let inner = inner.trim_end().strip_suffix('}').expect("each brace is closed");
        let (mut depth, mut start) = (0, 0);
        for (at, c) in inner.char_indices().chain([(inner.len(), ',')]) {
            depth += i32::from(c == '{') - i32::from(c == '}');
            if c == ',' && depth == 0 {
                if !inner[start..at].trim().is_empty() {
                    flatten(&format!("{before}{head}"), &inner[start..at], paths);
                }
                start = at + 1;
            }
        }
        return;
    }
    let name = tree.split(" as ").next().unwrap_or(tree).trim();
    let path = format!("{before}{name}");
    paths.push(path.trim_end_matches("::self").trim_end_matches("::*").to_owned());
}

/// What the code names by a path of this crate.
fn paths_in(code: &str) -> impl Iterator<Item = String> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    code.split(move |c| !is_word(c))
        .filter(|word| word.starts_with("crate::") || word.starts_with("super::"))
        .map(|word| word.trim_end_matches(':').to_owned())
}

/// A path of `module`, from the crate on. What is neither of the crate nor beside it stays as it is.
fn absolute(module: &str, path: &str) -> String {
    let (mut module, mut rest) = (module, path);
    if let Some(below) = rest.strip_prefix("self::") {
        return format!("{module}::{below}");
    }
    let mut is_relative = false;
    while let Some(below) = rest.strip_prefix("super::") {
        module = module.rsplit_once("::").expect("the crate has nothing above it").0;
        (rest, is_relative) = (below, true);
    }
    if is_relative {
        return format!("{module}::{rest}");
    }
    if rest == "super" {
        return module.rsplit_once("::").expect("the crate has nothing above it").0.to_owned();
    }
    if module == "crate" && !rest.starts_with("crate") && !rest.starts_with("::") {
        return format!("crate::{rest}");
    }
    rest.to_owned()
}
