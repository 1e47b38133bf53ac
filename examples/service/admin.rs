//! The token of the pages for operators.

use std::sync::Arc;

use axum::http::{HeaderMap, header};

/// The token that operators must present. Without one, all requests are admitted.
#[derive(Clone)]
pub(super) struct Admin(Option<Arc<str>>);

impl Admin {
    pub(super) fn new(token: Option<String>) -> Result<Self, String> {
        match token {
            Some(token) if token.is_empty() => Err("--admin-token must not be empty".into()),
            token => Ok(Self(token.map(Into::into))),
        }
    }

    /// Returns whether the request has the token, as the password of `Basic` or as a `Bearer` token.
    pub(super) fn admits(&self, headers: &HeaderMap) -> bool {
        let Some(token) = &self.0 else { return true };
        let Some(field) = headers.get(header::AUTHORIZATION) else { return false };
        let Some((scheme, credentials)) = field.to_str().ok().and_then(|text| text.split_once(' '))
        else {
            return false;
        };
        let given = match scheme.to_ascii_lowercase().as_str() {
            "bearer" => Some(credentials.as_bytes().to_vec()),
            "basic" => decode_base64(credentials).and_then(|pair| {
                // The user name has no colon, the password may.
                let colon = pair.iter().position(|byte| *byte == b':')?;
                Some(pair[colon + 1..].to_vec())
            }),
            _ => None,
        };
        given.is_some_and(|given| is_equal(&given, token.as_bytes()))
    }
}

/// Compares in a time that does not depend on the position of the first difference, so that a token cannot be guessed
/// byte by byte.
fn is_equal(given: &[u8], token: &[u8]) -> bool {
    let difference = given.iter().zip(token).fold(0, |all, (one, other)| all | (one ^ other));
    given.len() == token.len() && difference == 0
}

/// Decodes Base64 of the standard alphabet; returns `None` if the text has other characters.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for digit in text.trim_end_matches('=').bytes() {
        let six = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(six);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}
