//! The bytes of a table: lines of a key, a tabulator and a value, sorted by key.

use std::collections::BTreeMap;

/// The file of `table`, the same for equal tables.
pub(super) fn encode(table: &BTreeMap<String, String>) -> String {
    let escaped = |text: &String| text.len() + text.len() / 8 + 1;
    let capacity = table.iter().map(|(key, value)| escaped(key) + escaped(value)).sum();
    let mut text = String::with_capacity(capacity);
    // A map of strings is in the order of their bytes, which are not escaped yet: as the format asks.
    for (key, value) in table {
        escape(key, &mut text);
        text.push('\t');
        escape(value, &mut text);
        text.push('\n');
    }
    text
}

/// The table in `text`, or the number of the first line that is not one of a table, from 1.
///
/// As the other implementations, it takes blank lines before and after the others, and the last of
/// several values of a key.
pub(super) fn decode(text: &str) -> Result<BTreeMap<String, String>, usize> {
    let body = text.trim_start_matches('\n');
    let before = text.len() - body.len();
    let body = body.trim_end_matches('\n');
    if body.is_empty() {
        return Ok(BTreeMap::new());
    }
    let entry = |(index, line): (usize, &str)| match line.split_once('\t') {
        Some((key, value)) if !value.contains('\t') => Ok((unescape(key), unescape(value))),
        _ => Err(before + index + 1),
    };
    body.split('\n').enumerate().map(entry).collect()
}

fn escape(text: &str, into: &mut String) {
    let mut rest = text;
    while let Some(at) = rest.find(['\\', '\t', '\n']) {
        into.push_str(&rest[..at]);
        into.push_str(match rest.as_bytes()[at] {
            b'\t' => "\\t",
            b'\n' => "\\n",
            _ => "\\\\",
        });
        rest = &rest[at + 1..];
    }
    into.push_str(rest);
}

/// What is no escape stays as it is, as does a backslash at the end.
fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        plain.push_str(&rest[..at]);
        let (escape, read) = match rest.as_bytes().get(at + 1) {
            Some(b'\\') => ('\\', 2),
            Some(b't') => ('\t', 2),
            Some(b'n') => ('\n', 2),
            _ => ('\\', 1),
        };
        plain.push(escape);
        rest = &rest[at + read..];
    }
    plain.push_str(rest);
    plain
}
