//! Checks that the modules of src/ import only from lower layers, that no files import each other in a cycle, and that
//! one file hides the tables of DashMap: docs/architecture.md.
//!
//! An import is a `use` of an item that another file defines, or a path to it in the code. A re-export (`pub
//! use self::child::Item`) is not an import. Test code may import any module.

#[path = "architecture/cancelled_calls.rs"]
mod cancelled_calls;
#[path = "architecture/time_limits.rs"]
mod time_limits;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The top-level modules of src/ with their layers. A module imports only from lower layers.
const LAYERS: &[(&str, u32)] = &[
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
fn modules_import_only_from_lower_layers() {
    let graph = ModuleGraph::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let upward: Vec<_> = graph
        .imports
        .iter()
        .filter(|(from, to)| {
            let (from, to) = (top_module(from), top_module(to));
            from != to && layer(from) <= layer(to)
        })
        .collect();
    assert!(upward.is_empty(), "imports upward or from a sibling (from, to): {upward:#?}");
}

#[test]
fn no_files_import_each_other_in_a_cycle() {
    let graph = ModuleGraph::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let cycles = graph.cycles();
    assert!(cycles.is_empty(), "cycles: {cycles:#?}");
}

#[test]
fn only_the_table_names_dashmap_or_unsafe() {
    let graph = ModuleGraph::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let table = "crate::engine::shard::table";
    for word in ["dashmap", "DashMap", "RawTable", "hashbrown::raw", "unsafe"] {
        let naming: Vec<_> = graph
            .modules
            .iter()
            .filter(|(module, code)| !module.starts_with(table) && code.contains(word))
            .map(|(module, _)| module)
            .collect();
        assert!(naming.is_empty(), "{word} is named outside of {table}: {naming:?}");
        assert!(graph.modules[table].contains(word), "{table} does not name {word}");
    }
    // The test double of DashMap is part of the table, but needs no `unsafe`.
    let double = &graph.modules["crate::engine::shard::table::shuttle_map"];
    assert!(!double.contains("unsafe"), "the test double contains `unsafe`");
}

#[test]
fn architecture_page_names_only_files_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/architecture.md")).expect("the page can be read");
    // Paths on the page begin at src/, src/engine/ or src/redis/, and omit the extension.
    let bases = ["src", "src/engine", "src/redis"].map(|base| root.join(base));
    let rooms: Vec<_> = bases.iter().flat_map(|base| entries(base)).collect();
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_/".contains(c);
    let paths: BTreeSet<_> = page
        .split(|c| !is_part(c))
        .map(|path| path.trim_matches('/'))
        .filter(|path| {
            path.split_once('/').is_some_and(|(room, _)| rooms.iter().any(|r| r == room))
        })
        .collect();
    let exists = |path: &str| {
        bases.iter().any(|base| {
            let path = base.join(path);
            path.is_dir()
                || path.with_extension("rs").exists()
                || path.with_extension("lua").exists()
        })
    };
    let missing: Vec<_> = paths.iter().filter(|path| !exists(path)).collect();
    assert!(paths.len() > 50, "only {} paths were found", paths.len());
    assert!(missing.is_empty(), "docs/architecture.md names files that do not exist: {missing:?}");
}

/// The names of the folders in `folder`.
fn entries(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("folders can be listed").flatten();
    let folders = entries.filter(|entry| entry.path().is_dir());
    folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// The check itself, on a small module graph with both faults.
#[test]
fn check_finds_upward_imports_and_cycles() {
    let mut graph = ModuleGraph::default();
    graph.add("crate", "mod engine; mod cache; pub use cache::Cache;");
    graph.add("crate::engine", "pub(crate) mod clock; pub(crate) mod store;");
    graph
        .add("crate::engine::clock", "use crate::Cache; // use super::store::Never;\nstruct Tick;");
    graph.add(
        "crate::engine::store",
        "mod window; pub(crate) use self::window::Window;\nuse super::{clock::Tick, store::window::{self}};",
    );
    graph.add("crate::engine::store::window", "pub struct Window(crate::engine::store::Store);");
    graph.add(
        "crate::cache",
        "use crate::engine::store::Window; #[cfg(test)] mod tests { use crate::x::Y; }",
    );
    graph.resolve();
    let import = |from: &str, to: &str| (from.to_owned(), to.to_owned());
    assert_eq!(
        graph.imports,
        BTreeSet::from([
            import("crate::cache", "crate::engine::store::window"),
            import("crate::engine::clock", "crate::cache"),
            import("crate::engine::store", "crate::engine::clock"),
            import("crate::engine::store", "crate::engine::store::window"),
            import("crate::engine::store::window", "crate::engine::store"),
        ])
    );
    assert_eq!(top_module("crate::engine::clock"), "engine");
    let cycles = graph.cycles();
    let all = [
        "crate::cache",
        "crate::engine::clock",
        "crate::engine::store",
        "crate::engine::store::window",
    ];
    assert_eq!(cycles, [BTreeSet::from(all.map(str::to_owned))]);
}

fn top_module(module: &str) -> &str {
    module.split("::").nth(1).unwrap_or("the crate itself")
}

fn layer(module: &str) -> u32 {
    let found = LAYERS.iter().find(|(name, _)| *name == module);
    found.unwrap_or_else(|| panic!("{module} has no layer; add it to LAYERS")).1
}

/// The modules that are files, and their imports from each other.
#[derive(Default)]
struct ModuleGraph {
    /// The code of each module, without comments, string literals and tests.
    modules: BTreeMap<String, String>,
    /// Paths of the names that a module imports or re-exports, by module and name.
    reexports: BTreeMap<(String, String), String>,
    imports: BTreeSet<(String, String)>,
}

impl ModuleGraph {
    fn read(src: &Path) -> Self {
        let mut graph = Self::default();
        let mut folders = vec![src.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("src/ can be listed") {
                let path = entry.expect("src/ can be listed").path();
                let name =
                    path.file_stem().and_then(|name| name.to_str()).expect("file names are UTF-8");
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|ext| ext == "rs")
                    && !matches!(name, "tests" | "interleavings")
                {
                    let code = fs::read_to_string(&path).expect("sources can be read");
                    graph.add(&module_of(src, &path), &code);
                }
            }
        }
        assert!(
            graph.modules.len() > 100,
            "src/ was not read completely: {} modules",
            graph.modules.len()
        );
        graph.resolve();
        graph
    }

    fn add(&mut self, module: &str, code: &str) {
        self.modules.insert(module.to_owned(), without_tests(&without_comments(code)));
    }

    fn resolve(&mut self) {
        let mut paths = Vec::new();
        for (module, code) in &self.modules {
            let (uses, rest) = uses(code);
            for (is_reexport, path) in uses {
                let path = absolute(module, &path);
                // Private imports count as re-exports, too: child modules import through them.
                let name = path.rsplit("::").next().expect("a path has a last segment").to_owned();
                self.reexports.insert((module.clone(), name), path.clone());
                if !is_reexport {
                    paths.push((module.clone(), path));
                }
            }
            if module != "crate" {
                paths.extend(paths_in(&rest).map(|path| (module.clone(), absolute(module, &path))));
            }
        }
        for (module, path) in paths {
            if let Some(defining_module) = self.defining_module(&path)
                && defining_module != module
                && defining_module != "crate"
                && module != "crate"
            {
                self.imports.insert((module, defining_module));
            }
        }
    }

    /// Returns the module that defines `path`, or `None` if it is not part of this crate.
    fn defining_module(&self, path: &str) -> Option<String> {
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
            match self.reexports.get(&(module.clone(), name.to_owned())) {
                Some(target) if !below.is_empty() => path = format!("{target}::{below}"),
                Some(target) if *target != path => path = target.clone(),
                _ => return Some(module),
            }
        }
        panic!("re-exports of {path} form a cycle")
    }

    /// Returns the groups of modules in which each can be reached from all others.
    fn cycles(&self) -> Vec<BTreeSet<String>> {
        let reached: BTreeMap<_, _> =
            self.modules.keys().map(|module| (module, self.reachable(module))).collect();
        let mut cycles = BTreeSet::new();
        for (module, others) in &reached {
            let cycle: BTreeSet<_> =
                others.iter().filter(|other| reached[other].contains(*module)).cloned().collect();
            if !cycle.is_empty() {
                cycles.insert(cycle);
            }
        }
        cycles.into_iter().collect()
    }

    fn reachable(&self, module: &str) -> BTreeSet<String> {
        let mut reached = BTreeSet::new();
        let mut pending = vec![module.to_owned()];
        while let Some(from) = pending.pop() {
            let imports = self.imports.range((from.clone(), String::new())..);
            for (_, to) in imports.take_while(|(other, _)| *other == from) {
                if reached.insert(to.clone()) {
                    pending.push(to.clone());
                }
            }
        }
        reached
    }
}

/// `src/engine/clock.rs` is `crate::engine::clock`.
fn module_of(src: &Path, file: &Path) -> String {
    let path: PathBuf = file.strip_prefix(src).expect("the file is in src/").with_extension("");
    let parts = path.iter().map(|part| part.to_str().expect("file names are UTF-8"));
    let parts = parts.filter(|part| *part != "lib");
    std::iter::once("crate").chain(parts).collect::<Vec<_>>().join("::")
}

/// Removes comments and string literals.
fn without_comments(code: &str) -> String {
    let mut code_only = String::new();
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
            code_only.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        };
        rest = &rest[skipped..];
    }
    code_only
}

/// Removes the modules that are compiled only for tests.
fn without_tests(code: &str) -> String {
    let mut code = code.to_owned();
    let attributes = ["#[cfg(test)]", "#[cfg(all(test, not(shuttle)))]"];
    while let Some(start) = attributes.iter().filter_map(|it| code.find(it)).min() {
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

/// Returns the `use` statements, each with its paths and whether it is a re-export, and the remaining code.
fn uses(code: &str) -> (Vec<(bool, String)>, String) {
    let mut found = Vec::new();
    let mut rest = String::new();
    for statement in code.split_inclusive([';', '{', '}']).scan(String::new(), |open, piece| {
        // A `use` tree contains braces, too.
        open.push_str(piece);
        let is_use = is_use(open);
        let balanced = open.matches('{').count() == open.matches('}').count();
        let is_whole = !is_use || (open.ends_with(';') && balanced);
        Some(if is_whole { std::mem::take(open) } else { String::new() })
    }) {
        match statement.find("use ").filter(|_| is_use(&statement)) {
            Some(at) => {
                let is_reexport = statement[..at].contains("pub");
                let tree: String = statement[at + 4..].trim_end_matches(';').trim().to_owned();
                let mut paths = Vec::new();
                flatten("", &tree, &mut paths);
                found.extend(paths.into_iter().map(|path| (is_reexport, path)));
            }
            None => rest.push_str(&statement),
        }
    }
    (found, rest)
}

/// Returns whether the code is a `use` statement, possibly after attributes.
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

/// Collects the paths of a `use` tree: `a::{b, c::{self, d}}` has `a::b`, `a::c` and `a::c::d`.
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

/// Returns the paths of this crate in the code.
fn paths_in(code: &str) -> impl Iterator<Item = String> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    code.split(move |c| !is_word(c))
        .filter(|word| word.starts_with("crate::") || word.starts_with("super::"))
        .map(|word| word.trim_end_matches(':').to_owned())
}

/// Returns the absolute path of a path in `module`. Paths of other crates are returned unchanged.
fn absolute(module: &str, path: &str) -> String {
    let (mut module, mut rest) = (module, path);
    if let Some(below) = rest.strip_prefix("self::") {
        return format!("{module}::{below}");
    }
    let mut is_relative = false;
    while let Some(below) = rest.strip_prefix("super::") {
        module = module.rsplit_once("::").expect("`super` is used below the crate root").0;
        (rest, is_relative) = (below, true);
    }
    if is_relative {
        return format!("{module}::{rest}");
    }
    if rest == "super" {
        return module
            .rsplit_once("::")
            .expect("`super` is used below the crate root")
            .0
            .to_owned();
    }
    if module == "crate" && !rest.starts_with("crate") && !rest.starts_with("::") {
        return format!("crate::{rest}");
    }
    rest.to_owned()
}
