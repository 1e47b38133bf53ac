//! The file format of tables: lines of a key, a tab and a value, sorted by key.

use std::collections::BTreeMap;

/// Encodes a table. Equal tables have equal encodings.
pub(super) fn encode(table: &BTreeMap<String, String>) -> String {
    let escaped = |text: &String| text.len() + text.len() / 8 + 1;
    let capacity = table.iter().map(|(key, value)| escaped(key) + escaped(value)).sum();
    let mut text = String::with_capacity(capacity);
    // The map iterates in the byte order of the unescaped keys, as the format requires.
    for (key, value) in table {
        escape(key, &mut text);
        text.push('\t');
        escape(value, &mut text);
        text.push('\n');
    }
    text
}

/// Decodes a table, or returns the number of the first invalid line, counted from 1.
///
/// Like the other implementations, it accepts blank lines before and after the others, and uses the last of several
/// values of a key.
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

/// Unknown escapes and a trailing backslash are left unchanged.
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
