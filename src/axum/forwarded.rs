//! Parsers for the fields that proxies write, from right to left: everything to the left may be forged by the client.

use std::{iter, net::IpAddr};

/// Returns the address in the parameter `for` of one element of `Forwarded`.
pub(super) fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    let mut values = from_right(element, b';').filter_map(|pair| {
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (pair[..equals].trim_ascii(), pair[equals + 1..].trim_ascii());
        name.eq_ignore_ascii_case(b"for").then_some(value)
    });
    let value = values.next()?;
    // No proxy writes the parameter twice, so it is unknown which one is genuine.
    if values.next().is_some() {
        return None;
    }
    match value {
        [b'"', quoted @ .., b'"'] => address(&unescaped(quoted)),
        bare => address(bare),
    }
}

/// Returns the content of a quoted string: a backslash quotes the byte after it (RFC 9110, 5.6.4).
fn unescaped(quoted: &[u8]) -> Vec<u8> {
    let mut bytes = quoted.iter().copied();
    iter::from_fn(|| match bytes.next()? {
        b'\\' => bytes.next(),
        byte => Some(byte),
    })
    .collect()
}

/// Parses an address with or without a port: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]:80`.
pub(super) fn address(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text).ok()?.trim_ascii();
    if let Ok(addr) = text.parse::<IpAddr>() {
        return Some(addr.to_canonical());
    }
    let (addr, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (addr, port) = rest.split_once(']')?;
            (IpAddr::V6(addr.parse().ok()?), port)
        }
        None => {
            let (addr, port) = text.split_at(text.find(':')?);
            (IpAddr::V4(addr.parse().ok()?), port)
        }
    };
    // `_` begins an obfuscated port (RFC 7239, 6.3).
    let is_port = |port: &str| port.starts_with('_') || port.parse::<u16>().is_ok();
    let is_whole = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
    is_whole.then(|| addr.to_canonical())
}

/// Returns the parts between separators outside of quotes, the last one first.
///
/// The client's own text is to the left. Read from the left, a quote opened by the client would swallow the text of a
/// proxy.
pub(super) fn from_right(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(text);
    iter::from_fn(move || {
        let text = rest?;
        let Some(at) = last_unquoted(text, separator) else { return rest.take() };
        rest = Some(&text[..at]);
        Some(&text[at + 1..])
    })
}

fn last_unquoted(text: &[u8], separator: u8) -> Option<usize> {
    let mut quoted = false;
    text.iter().enumerate().rev().find_map(|(at, &byte)| {
        if byte == b'"' && !ends_in_escape(&text[..at]) {
            quoted = !quoted;
        }
        (byte == separator && !quoted).then_some(at)
    })
}

fn ends_in_escape(text: &[u8]) -> bool {
    // In an even number, each second backslash is itself escaped.
    text.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}
