//! Checks that documents agree with each other: numbers that are quoted from measurements, and lists of other files.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Cells of the first row of a page that begins with `name`.
fn row<'a>(page: &'a str, name: &str) -> Vec<&'a str> {
    let begin = format!("| {name} |");
    let row = page.lines().find(|line| line.starts_with(&begin));
    row.unwrap_or_else(|| panic!("no row {name}"))
        .trim_matches('|')
        .split('|')
        .map(str::trim)
        .collect()
}

/// Nanoseconds of a cell such as `561 (1.52)`.
fn nanoseconds(cell: &str) -> &str {
    cell.split(' ').next().expect("split returns at least one part")
}

/// Ratio of such a cell, with three digits.
fn ratio(cell: &str) -> String {
    let (_, ratio) = cell.split_once('(').expect("a ratio in brackets");
    let ratio = ratio.trim_end_matches(')').parse::<f64>().expect("a number");
    if ratio < 10.0 { format!("{ratio:.2}") } else { format!("{ratio:.1}") }
}

/// Writes thousands with a comma, as prose does.
fn with_commas(number: &str) -> String {
    match number.len() {
        4.. => format!("{},{}", &number[..number.len() - 3], &number[number.len() - 3..]),
        _ => number.to_owned(),
    }
}

/// Joins the lines of a document, as a reader sees them.
fn flowing(text: &str) -> String {
    text.split_whitespace().filter(|word| *word != "//!").collect::<Vec<_>>().join(" ")
}

#[test]
fn readme_quotes_the_measured_ratios_to_dashmap() {
    let (page, readme) = (read("docs/peers.md"), read("README.md"));
    for (method, entries, written) in [
        ("get", 10_000, "10,000 entries"),
        ("get", 1_000_000, "1 M"),
        ("set_ex", 10_000, "10,000 entries"),
        ("set_ex", 1_000_000, "1 M"),
    ] {
        let cells = |tasks| row(&page, &format!("{method}, {entries} entries, uniform, {tasks}"));
        let (one, two) = (cells("1 task"), cells("2 tasks"));
        // The columns of fleeting, DashMap with an `Instant`, moka and quick_cache.
        let ratios = [6, 2, 3, 4].map(|at| format!("{} / {}", ratio(one[at]), ratio(two[at])));
        let expected = format!("| `{method}`, {written} | {} |", ratios.join(" | "));
        assert!(readme.contains(&expected), "README.md lacks {expected}");
    }
}

#[test]
fn readme_quotes_the_measured_bounds() {
    let (peers, ratios) = (read("docs/peers.md"), read("docs/hit-ratio.md"));
    let readme = flowing(&read("README.md"));
    let mean = |name| {
        let cell = row(&ratios, name)[1].parse::<f64>().expect("a number");
        format!("{cell:.1} %")
    };
    let expected = format!(
        "is {}, compared with {} for quick_cache 0.7.0, {} for S3-FIFO as in its paper, {} for moka 0.12.16 and {} for LRU; {} is",
        mean("fleeting"),
        mean("quick_cache"),
        mean("S3-FIFO"),
        mean("moka"),
        mean("LRU"),
        mean("optimum")
    );
    assert!(readme.contains(&expected), "README.md lacks {expected}");
    let [few, many] = [10_000, 1_000_000].map(|entries| {
        let cells = row(&peers, &format!("set that evicts an entry, {entries} entries, 1 task"));
        [6, 4, 2].map(|at| with_commas(nanoseconds(cells[at])))
    });
    let [ours, quick_cache, moka] = few;
    let few = format!("{ours} ns at 10,000 entries (quick_cache: {quick_cache}, moka: {moka})");
    let [ours, quick_cache, moka] = many;
    let many = format!("{ours} ns at a million (quick_cache: {quick_cache}, moka: {moka})");
    assert!(readme.contains(&few) && readme.contains(&many), "README.md lacks {few}, and {many}");
}

#[test]
fn front_page_quotes_the_measured_costs_of_a_get_and_of_an_entry() {
    let (page, front) = (read("docs/peers.md"), flowing(&read("src/lib.rs")));
    let [few, many] = [10_000, 1_000_000]
        .map(|entries| row(&page, &format!("get, {entries} entries, uniform, 1 task")));
    let expected = format!(
        "{} with 10,000 entries and {} with a million, at random keys. A bare `DashMap` takes {} and {}.",
        nanoseconds(few[6]),
        nanoseconds(many[6]),
        nanoseconds(few[1]),
        nanoseconds(many[1])
    );
    assert!(front.contains(&expected), "src/lib.rs lacks {expected}");
    let page = read("docs/bytes.md");
    let bytes = [100_000, 1_000_000, 1_800_000, 10_000_000].map(|entries| {
        let cells = row(&page, &entries.to_string());
        cells[7].parse::<f64>().expect("a number").round() as u32
    });
    let [least, most] = [bytes.iter().min(), bytes.iter().max()].map(|bytes| bytes.expect("four"));
    let expected = format!("{least} to {most} bytes with a 20-byte `String` key");
    assert!(front.contains(&expected), "src/lib.rs lacks {expected}");
}

/// Numbers that a benchmark measures again are outdated elsewhere.
#[test]
fn decisions_link_to_measurements_instead_of_repeating_them() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/decisions");
    let mut links = 0;
    for file in fs::read_dir(folder).expect("the folder exists") {
        let path = file.expect("it can be read").path();
        let text = fs::read_to_string(&path).expect("it is text");
        let paragraphs = text.split("\n\n").filter(|paragraph| paragraph.contains("](../"));
        for paragraph in paragraphs {
            links += 1;
            let prose: String = paragraph.split('`').step_by(2).collect();
            let mut words = prose.split(|c: char| !c.is_alphanumeric());
            let number = words.find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
            assert_eq!(number, None, "{}: {prose}", path.display());
        }
    }
    assert!(links >= 10, "{links} paragraphs link to measurements");
}

#[test]
fn contributing_names_every_model() {
    let contributing = read("CONTRIBUTING.md");
    let models = read("models/src/lib.rs");
    let models = models.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    // The fleet is a simulation, not a model of a protocol.
    let models: Vec<_> = models.filter(|name| *name != "fleet").collect();
    assert!(models.len() >= 5, "{models:?}");
    for name in models {
        assert!(contributing.contains(&format!("model `{name}`")), "CONTRIBUTING.md lacks {name}");
    }
}

/// Words that other libraries use. The search of rustdoc finds items by their names and aliases only.
#[test]
fn search_and_guide_find_the_words_of_other_libraries() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut aliases, mut guide) = (String::new(), String::new());
    let mut folders = vec![root];
    while let Some(folder) = folders.pop() {
        for file in fs::read_dir(folder).expect("the folder exists").flatten() {
            let path = file.path();
            match path.extension().and_then(|end| end.to_str()) {
                None if path.is_dir() => folders.push(path),
                Some("rs") => {
                    let text = fs::read_to_string(&path).expect("it is text").to_lowercase();
                    let lines = text.lines().filter(|line| line.contains("#[doc(alias = "));
                    lines.for_each(|line| aliases.extend([line, "\n"]));
                }
                Some("md") => {
                    guide += &fs::read_to_string(&path).expect("it is text").to_lowercase()
                }
                _ => {}
            }
        }
    }
    for word in ["block_on", "dead letter", "hit rate", "save", "quota", "subscribe"] {
        assert!(aliases.contains(&format!("#[doc(alias = \"{word}\")]")), "no alias {word}");
        assert!(guide.contains(word), "no page of the guide contains {word}");
    }
}

/// Readers of the published crate see its files only.
#[test]
fn package_has_the_files_that_the_readme_names() {
    let list = Command::new(env!("CARGO"))
        .args(["package", "--list", "--allow-dirty", "--offline", "-p", "fleeting"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(list.status.success(), "{}", String::from_utf8_lossy(&list.stderr));
    let list = String::from_utf8(list.stdout).expect("paths are UTF-8");
    let readme = read("README.md");
    let named: Vec<_> = readme
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|code| !code.contains(char::is_whitespace) && !code.starts_with("./"))
        .filter(|code| Path::new(env!("CARGO_MANIFEST_DIR")).join(code).is_file())
        .collect();
    assert!(named.len() >= 5, "{named:?}");
    for path in named {
        assert!(list.lines().any(|listed| listed == path), "the package lacks {path}");
    }
}

#[test]
fn page_of_dependencies_lists_each_with_its_version() {
    let (manifest, page) = (read("Cargo.toml"), read("docs/dependencies.md"));
    let mut expected = BTreeSet::new();
    let mut is_dependency = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            // Not the sections of `cfg(tokio_unstable)` and the like, which repeat a crate with other features.
            is_dependency = line == "[dependencies]"
                || line.starts_with("[target.'cfg(") && line.ends_with(".dependencies]");
        } else if let Some((name, rest)) = line.split_once(" = ").filter(|_| is_dependency) {
            let version = rest.trim_start_matches("{ version = ").split('"').nth(1);
            expected.insert(format!("| {name} | {} |", version.expect("a version")));
        }
    }
    for row in &expected {
        assert!(page.contains(row.as_str()), "docs/dependencies.md lacks {row}");
    }
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| crate"));
    assert_eq!(rows.filter(|row| !row.starts_with("| ---")).count(), expected.len());
}
