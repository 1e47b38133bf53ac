//! The page docs/crossings.md: its cells, and the methods that have a row.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// Operation that runs, or setting that applies, while a method is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Column {
    FirstLoad,
    BackgroundRefresh,
    RefreshAhead,
    ExplicitRefresh,
    BulkLoad,
    KeptError,
    StaleWindow,
    IdleTime,
    Tag,
    Bound,
    Snapshot,
}

const COLUMNS: [(&str, Column); 11] = [
    ("first load", Column::FirstLoad),
    ("background refresh", Column::BackgroundRefresh),
    ("refresh ahead", Column::RefreshAhead),
    ("explicit refresh", Column::ExplicitRefresh),
    ("bulk load", Column::BulkLoad),
    ("kept error", Column::KeptError),
    ("stale window", Column::StaleWindow),
    ("idle time", Column::IdleTime),
    ("tag", Column::Tag),
    ("bound", Column::Bound),
    ("snapshot", Column::Snapshot),
];

/// Outcomes of one method in one column.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cell {
    /// A method, perhaps with an argument: `compute with Op::Keep`.
    pub(crate) verb: String,
    pub(crate) column: Column,
    /// In memory and on Redis.
    pub(crate) outcomes: [String; 2],
}

impl Cell {
    pub(crate) fn method(&self) -> &str {
        self.verb.split(' ').next().expect("split returns at least one part")
    }
}

/// Returns the cells of the page.
pub(crate) fn cells() -> Vec<Cell> {
    parse(&read("docs/crossings.md")).unwrap_or_else(|fault| panic!("docs/crossings.md: {fault}"))
}

/// Returns the cells of all tables; fails unless each method has exactly one cell in each column.
fn parse(page: &str) -> Result<Vec<Cell>, String> {
    let legend = tables(page, "outcome").into_iter().flatten();
    let legend: BTreeSet<_> = legend.map(|mut row| row.swap_remove(0)).collect();
    let mut cells = BTreeMap::new();
    for table in tables(page, "method") {
        for row in &table[1..] {
            if row.len() != table[0].len() {
                return Err(format!("{}: {} cells", row[0], row.len() - 1));
            }
            let verbs = row[0].split(", ");
            let pairs = verbs.flat_map(|verb| (1..row.len()).map(move |at| (verb, at)));
            for (verb, at) in pairs {
                let cell = cell(verb, &table[0][at], &row[at], &legend)?;
                let other = cells.insert((verb.to_owned(), cell.column), cell);
                other.map_or(Ok(()), |other| Err(format!("two cells {other:?}")))?;
            }
        }
    }
    let verbs: BTreeSet<_> = cells.keys().map(|(verb, _)| verb.clone()).collect();
    for (verb, (name, column)) in verbs.iter().flat_map(|verb| COLUMNS.map(|named| (verb, named))) {
        if !cells.contains_key(&(verb.clone(), column)) {
            return Err(format!("{verb}, {name}: no cell"));
        }
    }
    Ok(cells.into_values().collect())
}

fn cell(verb: &str, name: &str, words: &str, legend: &BTreeSet<String>) -> Result<Cell, String> {
    let column = COLUMNS.iter().find(|(known, _)| *known == name);
    let &(_, column) = column.ok_or_else(|| format!("unknown column {name}"))?;
    let (embedded, on_redis) = words.split_once(" / ").unwrap_or((words, words));
    let outcomes = [embedded, on_redis].map(str::to_owned);
    match outcomes.iter().find(|word| !legend.contains(*word)) {
        None => Ok(Cell { verb: verb.to_owned(), column, outcomes }),
        Some(word) => Err(format!("{verb}, {name}: the legend lacks {word}")),
    }
}

/// Returns the tables whose header begins with `first`: their rows, with the header, without backticks.
fn tables(page: &str, first: &str) -> Vec<Vec<Vec<String>>> {
    let begin = format!("| {first} |");
    let mut tables = Vec::new();
    let mut lines = page.lines();
    while let Some(header) = lines.find(|line| line.starts_with(&begin)) {
        let rows = lines.by_ref().take_while(|line| line.starts_with('|')).skip(1);
        tables.push([header].into_iter().chain(rows).map(row).collect());
    }
    tables
}

fn row(line: &str) -> Vec<String> {
    line.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect()
}

/// Fails if a public method of a cache is neither in a row nor in the list of those without one, and if a method of the
/// page does not exist.
pub(crate) fn assert_that_each_method_is_on_the_page() {
    let page = read("docs/crossings.md");
    let mut on_page: BTreeSet<_> = cells().iter().map(|cell| cell.method().to_owned()).collect();
    let list = page.split_once("## Methods without a row");
    let (_, list) = list.expect("the page has a list of methods without a row");
    on_page.extend(list.split('`').skip(1).step_by(2).map(str::to_owned));
    let in_source = &methods("src/cache") | &methods("src/redis/cache");
    assert!(in_source.len() > 60, "src/ was not read completely: {in_source:?}");
    let differing: Vec<_> = on_page.symmetric_difference(&in_source).collect();
    assert!(differing.is_empty(), "not on the page, or not in src/: {differing:?}");
}

/// Returns the public methods of the type `Cache` in a file and the folder of the same name, except for names of other
/// caches, which are hidden.
pub(crate) fn methods(path: &str) -> BTreeSet<String> {
    let mut code = read(&format!("{path}.rs"));
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(path)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("folders can be listed") {
            let path = entry.expect("entries can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.ends_with("foreign_names.rs") {
                continue;
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                code += &fs::read_to_string(path).expect("files can be read");
            }
        }
    }
    methods_in(&code)
}

fn methods_in(code: &str) -> BTreeSet<String> {
    let blocks = code.split("\nimpl").skip(1).filter(|block| {
        let header = block.lines().next().unwrap_or_default();
        header.contains("> Cache<K, V") && !header.contains(" for ")
    });
    let lines = blocks.flat_map(|block| block.split("\n}\n").next().unwrap_or_default().lines());
    let functions = lines.filter_map(|line| line.strip_prefix("    pub "));
    let functions =
        functions.filter_map(|line| line.trim_start_matches("async ").strip_prefix("fn "));
    functions.filter_map(|line| Some(line.split(['<', '(']).next()?.to_owned())).collect()
}

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn faults_of_the_page_are_found() {
    let legend =
        "| outcome | meaning |\n| --- | --- |\n| `kept` | it stays |\n| `ended` | it ends |\n\n";
    let names = COLUMNS.map(|(name, _)| name).join(" | ");
    let header = format!("{legend}| method | {names} |\n| --- |\n");
    let row =
        |verbs: &str, first: &str| format!("| {verbs} | {first}{} |\n", " | `ended`".repeat(10));
    let page = |rows: &[String]| parse(&(header.clone() + &rows.concat()));

    let good = page(&[row("`get`, `compute` with `Op::Keep`", "`kept / ended`")]).unwrap();
    assert_eq!(good.len(), 22);
    assert_eq!((&*good[0].verb, good[0].method()), ("compute with Op::Keep", "compute"));
    assert_eq!(good[0].outcomes, ["kept", "ended"]);
    assert_eq!(good[1].outcomes, ["ended", "ended"]);

    let fault = |rows: &[String]| page(rows).unwrap_err();
    assert_eq!(fault(&[row("`get`", "`lost`")]), "get, first load: the legend lacks lost");
    let twice = row("`get`", "`kept`");
    assert!(fault(&[twice.clone(), twice]).starts_with("two cells"));
    let narrow = header.replace(" | snapshot", "") + &row("`get`", "`kept`");
    assert_eq!(parse(&narrow).unwrap_err(), "get: 11 cells");
    let narrow = narrow.replacen(" | `ended`", "", 1);
    assert_eq!(parse(&narrow).unwrap_err(), "get, snapshot: no cell");
    let other = header.replace("snapshot", "weather") + &row("`get`", "`kept`");
    assert_eq!(parse(&other).unwrap_err(), "unknown column weather");

    let code = "
impl<K, V> Cache<K, V, S>
{
    pub fn get<Q>(
    pub async fn set(&self)
    fn put(
}
impl<K, V> WeakCache<K, V> {
    pub fn upgrade(&self)
}
impl<K, V> Clone for Cache<K, V> {
    pub fn clone(
}
";
    assert_eq!(methods_in(code), BTreeSet::from(["get", "set"].map(str::to_owned)));
}
