//! Property of `TrustedProxies`, for tests and for the fuzzer: the address found is the one that the nearest proxies
//! wrote, regardless of the text that the client sends.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use fleeting::TrustedProxies;

/// Request of a client that passes some trusted proxies.
#[derive(Clone, Debug)]
pub(crate) struct Forwarding {
    /// Lines of the field as the client sends them: any bytes.
    pub(crate) lines: Vec<Vec<u8>>,
    /// Address from which the client connects to the first proxy.
    pub(crate) client: IpAddr,
    /// Last bytes of the addresses of the proxies between the first and the peer.
    pub(crate) hops: Vec<u8>,
    /// True if the proxies write `Forwarded` instead of `X-Forwarded-For`.
    pub(crate) is_forwarded: bool,
    /// True if they write ports.
    pub(crate) has_ports: bool,
    /// True if they write lines of their own, instead of appending to the last one.
    pub(crate) has_own_lines: bool,
}

const PEER: &str = "10.0.0.1";

impl Forwarding {
    pub(crate) fn check(self) {
        let trusted = TrustedProxies::new(["10.0.0.0/8", "fd00::/8"])
            .expect("the networks are valid")
            .forwarded(self.is_forwarded);
        let peer: IpAddr = PEER.parse().expect("it is an address");
        let is_trusted = |addr: IpAddr| match addr.to_canonical() {
            IpAddr::V4(addr) => addr.octets()[0] == 10,
            IpAddr::V6(addr) => addr.octets()[0] == 0xfd,
        };
        let Some(sent) = self.headers(&self.lines) else { return };

        // A peer that is not trusted vouches for nothing.
        let stranger: IpAddr = "192.0.2.1".parse().expect("it is an address");
        assert_eq!(trusted.client_ip(stranger, &sent).addr(), stranger);

        // Text to the left of an address that ends the search changes nothing.
        let found = trusted.client_ip(peer, &sent).addr();
        if !is_trusted(found) {
            let more = [vec![b"198.51.100.9, \"".to_vec()], self.lines.clone()].concat();
            let more = self.headers(&more).expect("all lines are valid");
            assert_eq!(trusted.client_ip(peer, &more).addr(), found, "{sent:?}");
        }

        // The proxies report the client, and each proxy before the last.
        let mut lines = self.lines.clone();
        let hops = self.hops.iter().map(|last| IpAddr::from([10, 0, 1, *last]));
        for addr in [self.client].into_iter().chain(hops) {
            self.append(addr, &mut lines);
        }
        let headers = self.headers(&lines).expect("all lines are valid");
        let found = trusted.client_ip(peer, &headers).addr();
        if !is_trusted(self.client) {
            assert_eq!(found, self.client.to_canonical(), "{headers:?}");
        }
    }

    /// Returns the lines as headers; `None` if a server would reject them.
    fn headers(&self, lines: &[Vec<u8>]) -> Option<HeaderMap> {
        let name = if self.is_forwarded { "forwarded" } else { "x-forwarded-for" };
        let name = HeaderName::from_static(name);
        let value = |line: &Vec<u8>| Some((name.clone(), HeaderValue::from_bytes(line).ok()?));
        lines.iter().map(value).collect()
    }

    fn append(&self, addr: IpAddr, lines: &mut Vec<Vec<u8>>) {
        let text = match (addr, self.has_ports) {
            (IpAddr::V4(addr), true) => format!("{addr}:4711"),
            (IpAddr::V6(addr), true) => format!("[{addr}]:4711"),
            // `Forwarded` has brackets in any case (RFC 7239, 6).
            (IpAddr::V6(addr), false) if self.is_forwarded => format!("[{addr}]"),
            (addr, false) => addr.to_string(),
        };
        let text = if self.is_forwarded { format!("by=_x;For=\"{text}\"") } else { text };
        match lines.last_mut() {
            Some(line) if !self.has_own_lines => {
                line.extend_from_slice(b", ");
                line.extend_from_slice(text.as_bytes());
            }
            _ => lines.push(text.into_bytes()),
        }
    }
}
