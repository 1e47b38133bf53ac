//! Access to the pages for operators.

use std::{
    env::{self, VarError},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use axum::http::{HeaderMap, StatusCode, header, request::Parts};

/// Name of the environment variable that may contain the token.
const VARIABLE: &str = "FLEETING_ADMIN_TOKEN";

/// Rule by which requests for operators' pages are admitted.
#[derive(Clone)]
pub(super) enum Admin {
    /// Those with the token.
    Token(Arc<str>),
    /// Without a token, on a loopback address: those that name this machine as their host. A page of another origin
    /// whose name resolves to this machine (DNS rebinding) is not admitted.
    Local,
    /// Without a token, on any other address: none.
    Closed,
}

impl Admin {
    /// Returns the rule for a service that listens on `address`. Without `token`, the environment variable is read.
    pub(super) fn new(token: Option<String>, address: SocketAddr) -> Result<Self, String> {
        let (name, token) = match token {
            Some(token) => ("--admin-token", Some(token)),
            None => match env::var(VARIABLE) {
                Ok(token) => (VARIABLE, Some(token)),
                Err(VarError::NotPresent) => (VARIABLE, None),
                Err(VarError::NotUnicode(_)) => return Err(format!("{VARIABLE} is not UTF-8")),
            },
        };
        match token {
            Some(token) if token.is_empty() => Err(format!("{name} must not be empty")),
            Some(token) => Ok(Self::Token(token.into())),
            None if address.ip().to_canonical().is_loopback() => Ok(Self::Local),
            None => Ok(Self::Closed),
        }
    }

    /// Returns whether the request may see the pages for operators.
    pub(super) fn admits(&self, request: &Parts) -> bool {
        match self {
            Self::Token(token) => has_token(&request.headers, token),
            Self::Local => is_for_this_machine(request),
            Self::Closed => false,
        }
    }

    /// Returns the status and the message for a request that is not admitted.
    pub(super) fn refusal(&self) -> (StatusCode, &'static str) {
        match self {
            Self::Token(_) => {
                (StatusCode::UNAUTHORIZED, "this page needs the token of --admin-token")
            }
            Self::Local => (
                StatusCode::FORBIDDEN,
                "without --admin-token, this page is only for requests to localhost",
            ),
            Self::Closed => (
                StatusCode::FORBIDDEN,
                "without --admin-token, this page is only on a loopback address",
            ),
        }
    }
}

/// Returns whether the request names a loopback address or `localhost` as its host. Browsers always name a host.
fn is_for_this_machine(request: &Parts) -> bool {
    let field = request.headers.get(header::HOST).map(|host| host.to_str().unwrap_or_default());
    let Some(host) = request.uri.authority().map(|authority| authority.as_str()).or(field) else {
        return true;
    };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost")
        || address.parse().is_ok_and(|address: IpAddr| address.to_canonical().is_loopback())
}

/// Returns whether the request has the token, as the password of `Basic` or as a `Bearer` token.
fn has_token(headers: &HeaderMap, token: &str) -> bool {
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
