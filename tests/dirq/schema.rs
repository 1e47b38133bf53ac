//! Schemas and the encoding of tables, compared with a simple reference implementation of the format.
//!
//! `PROPTEST_CASES` sets the number of cases (500 by default), and `FLEETING_SEED` the random seed.

use std::{collections::BTreeMap, fs, path::Path};

use fleeting::dirq::{Element, Error, Name, Queue, Schema, Value};
use proptest::{
    collection::{btree_map, vec},
    prelude::*,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::sequences;

type Table = BTreeMap<String, String>;

fn config() -> ProptestConfig {
    sequences::config(500, 7)
}

/// A queue with a table, a string and a binary field, of which only the table is mandatory.
struct Fixture {
    _temp_dir: TempDir,
    runtime: Runtime,
    queue: Queue,
}

impl Fixture {
    fn new() -> Self {
        let temp_dir = match Path::new("/dev/shm").is_dir() {
            true => tempfile::tempdir_in("/dev/shm"),
            false => tempfile::tempdir(),
        };
        let temp_dir = temp_dir.unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let schema = "table:table,text:string?,bytes:binary?".parse().unwrap();
        let queue = Queue::builder(temp_dir.path()).schema(schema).open();
        let queue = runtime.block_on(queue).unwrap();
        Self { _temp_dir: temp_dir, runtime, queue }
    }

    fn add(&self, element: Element) -> Name {
        self.runtime.block_on(self.queue.add(element)).unwrap()
    }

    fn file(&self, name: &Name, field: &str) -> std::path::PathBuf {
        self.queue.path().join(name.to_string()).join(field)
    }

    /// Reads the element, and removes it whether reading succeeded or not.
    fn take(&self, name: &Name) -> Result<Element, Error> {
        self.runtime.block_on(async {
            assert!(self.queue.lock(name).await.unwrap());
            let element = self.queue.get(name).await;
            self.queue.remove(name).await.unwrap();
            element
        })
    }

    /// Reads an element whose table's file has these bytes.
    fn read(&self, bytes: &[u8]) -> Result<Table, Error> {
        let name = self.add(Element::new().with("table", Table::new()));
        fs::write(self.file(&name, "table"), bytes).unwrap();
        self.take(&name).map(|element| element.table("table").unwrap().clone())
    }
}

/// Mostly characters that are special in the format or in similar formats.
fn text() -> impl Strategy<Value = String> {
    let character = prop_oneof![
        3 => Just('\\'),
        2 => Just('\t'),
        2 => Just('\n'),
        2 => prop_oneof![Just('t'), Just('n'), Just('a')],
        1 => prop_oneof![Just('\r'), Just('\0'), Just(' '), Just('\u{b}'), Just('\u{85}'), Just('\u{2028}')],
        1 => prop_oneof![Just('é'), Just('\u{10ffff}'), Just('\u{fffe}'), Just('\u{feff}'), Just('😀')],
        1 => any::<char>(),
    ];
    vec(character, 0..8).prop_map(String::from_iter)
}

/// Sorted by the bytes of the unescaped keys.
fn reference_encoding(table: &Table) -> Vec<u8> {
    let mut lines: Vec<_> = table.iter().collect();
    lines.sort_by_key(|(key, _)| key.as_bytes());
    let escape = |text: &str| text.replace('\\', "\\\\").replace('\t', "\\t").replace('\n', "\\n");
    let line = |(key, value): &(&String, &String)| format!("{}\t{}\n", escape(key), escape(value));
    lines.iter().map(line).collect::<String>().into_bytes()
}

/// Returns the table, or the number of the first invalid line, counted from 1.
fn reference_decoding(text: &str) -> Result<Table, usize> {
    let lines: Vec<&str> = text.split('\n').collect();
    let is_blank = |line: &&str| line.is_empty();
    let before = lines.iter().take_while(|line| is_blank(line)).count();
    let after = lines.iter().rev().take_while(|line| is_blank(line)).count();
    let mut table = Table::new();
    for (number, line) in lines.iter().enumerate().take(lines.len() - after).skip(before) {
        let columns: Vec<&str> = line.split('\t').collect();
        let [key, value] = columns[..] else { return Err(number + 1) };
        table.insert(reference_unescape(key), reference_unescape(value));
    }
    Ok(table)
}

fn reference_unescape(text: &str) -> String {
    let mut plain = String::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        let rest = characters.as_str();
        plain.push(match (character, rest.chars().next()) {
            ('\\', Some('\\')) => '\\',
            ('\\', Some('t')) => '\t',
            ('\\', Some('n')) => '\n',
            _ => {
                plain.push(character);
                continue;
            }
        });
        characters.next();
    }
    plain
}

#[test]
fn table_encoding_follows_the_format_and_round_trips() {
    let fixture = &Fixture::new();
    proptest!(config(), |(table in btree_map(text(), text(), 0..6))| {
        let name = fixture.add(Element::new().with("table", table.clone()));
        let bytes = fs::read(fixture.file(&name, "table")).unwrap();
        prop_assert_eq!(bytes, reference_encoding(&table));
        let element = fixture.take(&name).unwrap();
        prop_assert_eq!(element.table("table"), Some(&table));
    });
}

#[test]
fn table_decoding_of_any_text_follows_the_format() {
    let fixture = &Fixture::new();
    // Lines with one tab and others, so that many texts are tables and many are not.
    let line = prop_oneof![
        6 => (text(), text()).prop_map(|(key, value)| {
            let flat = |text: String| text.replace(['\t', '\n'], "");
            format!("{}\t{}", flat(key), flat(value))
        }),
        1 => Just(String::new()),
        1 => text(),
    ];
    let text = (vec(line, 0..5), any::<bool>())
        .prop_map(|(lines, end)| lines.join("\n") + if end { "\n" } else { "" });
    proptest!(config(), |(text in text)| {
        match (fixture.read(text.as_bytes()), reference_decoding(&text)) {
            (Ok(table), Ok(expected)) => prop_assert_eq!(table, expected),
            (Err(Error::InvalidTable { field, line, .. }), Err(expected)) => {
                prop_assert_eq!((&*field, line), ("table", expected));
            }
            (read, expected) => panic!("{text:?} is read as {read:?}, expected {expected:?}"),
        }
    });
}

#[test]
fn binary_and_string_fields_are_written_unchanged() {
    let fixture = &Fixture::new();
    proptest!(config(), |(text in text(), bytes in vec(any::<u8>(), 0..200))| {
        let element =
            Element::new().with("table", Table::new()).with("text", &*text).with("bytes", &*bytes);
        let name = fixture.add(element.clone());
        prop_assert_eq!(fs::read(fixture.file(&name, "text")).unwrap(), text.as_bytes());
        prop_assert_eq!(&fs::read(fixture.file(&name, "bytes")).unwrap(), &bytes);
        prop_assert_eq!(fixture.take(&name).unwrap(), element);
    });
}

#[test]
fn table_decoding_handles_each_special_case() {
    let fixture = Fixture::new();
    let table = |pairs: &[(&str, &str)]| -> Table {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    };
    for (bytes, expected) in [
        (&b""[..], table(&[])),
        (b"\n", table(&[])),
        (b"\n\n\n", table(&[])),
        (b"a\tb\n", table(&[("a", "b")])),
        (b"a\tb", table(&[("a", "b")])),
        (b"\na\tb\n", table(&[("a", "b")])),
        (b"a\tb\n\n", table(&[("a", "b")])),
        (b"\t\n", table(&[("", "")])),
        (b"\n\t", table(&[("", "")])),
        (b"a\t1\nb\t2\na\t3\n", table(&[("a", "3"), ("b", "2")])),
        (b"b\t2\na\t1\n", table(&[("a", "1"), ("b", "2")])),
        (b"a\t\\x\\0\\r\\T\\N\\ \n", table(&[("a", "\\x\\0\\r\\T\\N\\ ")])),
        (b"a\tb\\", table(&[("a", "b\\")])),
        (b"a\t\\\rb\\\0\n", table(&[("a", "\\\rb\\\0")])),
        (b"a\\\tb\\\n", table(&[("a\\", "b\\")])),
        (b"a\t\\\\t\\\\\\t\\\\\\\\n", table(&[("a", "\\t\\\t\\\\n")])),
        (b"a\r\tb\r\n", table(&[("a\r", "b\r")])),
        ("\u{feff}é\t\u{10ffff}\0\n".as_bytes(), table(&[("\u{feff}é", "\u{10ffff}\0")])),
    ] {
        assert_eq!(
            fixture.read(bytes).unwrap(),
            expected,
            "{:?}",
            bytes.escape_ascii().to_string()
        );
    }
    for (bytes, expected) in [
        (&b"a"[..], 1),
        (b"a\tb\tc\n", 1),
        (b"a\t\tc\n", 1),
        (b"a\tb\n\nc\td\n", 2),
        (b"\n\na\tb\n\nc\td\n", 4),
        (b"\na\n", 2),
        (b"\r\na\tb\n", 1),
        (b"a\tb\n \n", 2),
    ] {
        match fixture.read(bytes) {
            Err(Error::InvalidTable { field, line, .. }) => {
                assert_eq!((&*field, line), ("table", expected));
            }
            read => panic!("{:?} is read as {read:?}", bytes.escape_ascii().to_string()),
        }
    }
    for bytes in [&b"a\t\xff\n"[..], b"a\t\xed\xa0\x80\n", b"\xc3"] {
        let read = fixture.read(bytes);
        assert!(matches!(&read, Err(Error::NotUtf8 { field, .. }) if field == "table"), "{read:?}");
    }
}

#[test]
fn element_must_match_the_schema() {
    let fixture = &Fixture::new();
    let add = |element| fixture.runtime.block_on(fixture.queue.add(element));
    let whole = || Element::new().with("table", [("a", "b")]);

    assert!(matches!(add(Element::new()), Err(Error::MissingField { field }) if field == "table"));
    let without = Element::new().with("text", "optional");
    assert!(matches!(add(without), Err(Error::MissingField { field }) if field == "table"));
    let unexpected = add(whole().with("more", "x"));
    assert!(matches!(unexpected, Err(Error::UnexpectedField { field }) if field == "more"));
    for (field, value, expected, given) in [
        ("table", Value::from("x"), "table", "string"),
        ("text", Value::from(b"x"), "string", "binary"),
        ("bytes", Value::from("x"), "binary", "string"),
        ("bytes", Value::from([("a", "b")]), "binary", "table"),
    ] {
        match add(whole().with(field, value)) {
            Err(Error::WrongType { field: f, expected: e, given: g }) => {
                assert_eq!((&*f, e, g), (field, expected, given));
            }
            added => panic!("{field} of {given}: {added:?}"),
        }
    }
    let left = |name: &str| fs::read_dir(fixture.queue.path().join(name)).unwrap().count();
    assert_eq!(left("temporary"), 0, "rejected adds leave nothing behind");

    let name = add(whole().with("bytes", b"\0\xff")).unwrap();
    fs::write(fixture.file(&name, "more"), "what others know of").unwrap();
    assert_eq!(fixture.take(&name).unwrap(), whole().with("bytes", b"\0\xff"));

    let name = add(whole()).unwrap();
    let file = fixture.file(&name, "table");
    fs::remove_file(&file).unwrap();
    match fixture.take(&name) {
        Err(Error::MissingFile { path }) => assert_eq!(path, file),
        read => panic!("an element without its table is read as {read:?}"),
    }

    let name = add(whole()).unwrap();
    fs::write(fixture.file(&name, "text"), b"a\xffb").unwrap();
    match fixture.take(&name) {
        Err(Error::NotUtf8 { field, source, .. }) => {
            assert_eq!((&*field, source.valid_up_to()), ("text", 1))
        }
        read => panic!("invalid UTF-8 is read as {read:?}"),
    }
}

#[test]
fn queue_without_a_schema_neither_writes_nor_reads_elements() {
    let fixture = Fixture::new();
    fixture.runtime.block_on(async {
        let bare = Queue::open(fixture.queue.path()).await.unwrap();
        let element = Element::new().with("table", [("a", "b")]);
        let added = bare.add(element.clone()).await;
        assert!(matches!(added, Err(Error::NoSchema { path }) if path == bare.path()));
        let name = fixture.queue.add(element).await.unwrap();
        assert!(bare.lock(&name).await.unwrap());
        assert!(matches!(bare.get(&name).await, Err(Error::NoSchema { .. })));
        bare.remove(&name).await.unwrap();
    });
}

/// Reference for field types: `None` if the type is invalid, else whether it is optional.
fn reference_type(given: &str) -> Option<bool> {
    for kind in ["binary", "string", "table"] {
        for (suffix, optional) in
            [("", false), ("?", true), ("*", false), ("?*", true), ("*?", true)]
        {
            if given == format!("{kind}{suffix}") {
                return Some(optional);
            }
        }
    }
    None
}

#[test]
fn schema_validation_follows_the_format() {
    let name = prop_oneof![
        8 => "[0-9a-zA-Z]{1,3}",
        1 => "[0-9a-zA-Z_. -]{0,3}",
        1 => prop_oneof![Just("locked"), Just("Locked"), Just("é"), Just("a\n"), Just("..")].prop_map(str::to_owned),
    ];
    let given = prop_oneof![
        8 => "(binary|string|table)(\\?)?(\\*)?",
        1 => "(binary|string|table)[?*]{0,3}",
        1 => "[a-z?* ]{0,7}",
    ];
    proptest!(config(), |(fields in vec((name, given), 0..4))| {
        let schema = Schema::new(fields.clone());
        let bad_name = |name: &str| {
            name.is_empty() || name == "locked" || name.contains(|c: char| !c.is_ascii_alphanumeric())
        };
        let mut seen = Vec::new();
        for (name, given) in &fields {
            if bad_name(name) {
                let refused = matches!(&schema, Err(Error::InvalidFieldName { field }) if field == name);
                prop_assert!(refused, "{:?}", schema);
                return Ok(());
            }
            if reference_type(given).is_none() {
                let refused = matches!(
                    &schema,
                    Err(Error::InvalidFieldType { field, given: g }) if field == name && g == given
                );
                prop_assert!(refused, "{:?}", schema);
                return Ok(());
            }
            if seen.contains(&name) {
                prop_assert!(matches!(schema, Err(Error::InvalidSchema { .. })), "{:?}", schema);
                return Ok(());
            }
            seen.push(name);
        }
        if fields.iter().all(|(_, given)| reference_type(given) == Some(true)) {
            prop_assert!(matches!(schema, Err(Error::NoMandatoryField)), "{:?}", schema);
            return Ok(());
        }
        let schema = schema.unwrap();
        let text: Vec<_> = fields.iter().map(|(name, given)| format!(" {name}: {given}\n")).collect();
        prop_assert_eq!(&text.join(",").parse::<Schema>().unwrap(), &schema);
        // An element with exactly the mandatory fields is accepted, and no element with fewer.
        let value = |given: &str| match given.trim_end_matches(['?', '*']) {
            "binary" => Value::from(b"x"),
            "string" => Value::from("x"),
            _ => Value::from([("a", "b")]),
        };
        let mandatory = fields.iter().filter(|(_, given)| reference_type(given) == Some(false));
        let mandatory: Vec<_> = mandatory.map(|(name, given)| (name, value(given))).collect();
        for without in 0..=mandatory.len() {
            let some = mandatory.iter().enumerate().filter(|&(index, _)| index != without);
            let element: Element = some.map(|(_, (name, value))| (*name, value.clone())).collect();
            match (schema.check(&element), mandatory.get(without)) {
                (Ok(()), None) => {}
                (Err(Error::MissingField { field }), Some((name, _))) => prop_assert_eq!(&field, *name),
                (checked, missing) => panic!("without {missing:?}: {checked:?}"),
            }
        }
        let all: Element = fields.iter().map(|(name, given)| (name, value(given))).collect();
        prop_assert!(schema.check(&all).is_ok());
    });
}

#[test]
fn invalid_schema_text_is_rejected() {
    for text in ["", "body", "body:string,", "body=string", "body:string;header:table"] {
        let parsed = text.parse::<Schema>();
        let refused =
            matches!(parsed, Err(Error::InvalidSchema { .. } | Error::InvalidFieldType { .. }));
        assert!(refused, "{text:?}: {parsed:?}");
    }
    let twice = "body:string,body:string?".parse::<Schema>().unwrap_err();
    assert_eq!(twice.to_string(), r#"invalid schema: field "body" occurs twice"#);
}

#[test]
fn element_accessors_return_values_by_type() {
    let element = Element::new()
        .with("bytes", vec![1_u8, 2])
        .with("text", "first")
        .with("text", String::from("second"))
        .with("table", BTreeMap::from([("a", "b")]));
    assert_eq!(element.binary("bytes").unwrap(), &b"\x01\x02"[..]);
    assert_eq!(element.string("text"), Some("second"), "the last value of a field is used");
    assert_eq!(element.table("table").unwrap()["a"], "b");
    assert_eq!((element.string("bytes"), element.binary("table")), (None, None));
    assert_eq!((element.table("text"), element.get("none")), (None, None));
    let fields: Vec<_> = element.iter().map(|(field, _)| &**field).collect();
    assert_eq!(fields, ["bytes", "table", "text"]);
    assert_eq!(element.clone().into_iter().collect::<Element>(), element);
}
