//! `ClientIp` and `TrustedProxies`: the search through the proxies' fields, and equality by network.

use std::{
    collections::HashSet,
    net::{IpAddr, SocketAddr},
};

use axum::{
    Extension, Router,
    extract::{ConnectInfo, FromRequestParts},
    http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode},
    response::IntoResponse,
    routing::get,
};
use fleeting::{ClientIp, Limit, RateLimitLayer, RateLimiter, TrustedProxies};
use proptest::prelude::*;
use tracing::Level;

use super::asking::{ask, get_with, text};
use crate::{log::Log, vouched::Forwarding};

/// A trusted peer: the trusted networks are 10.0.0.0/8 and fd00::/8.
const PEER: &str = "10.0.0.1";

fn trusted() -> TrustedProxies {
    TrustedProxies::new(["10.0.0.0/8", "fd00::/8"]).expect("the networks are valid")
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap_or_else(|_| panic!("{text} is not an address"))
}

fn headers(name: &'static str, lines: &[&[u8]]) -> HeaderMap {
    let value =
        |line: &&[u8]| HeaderValue::from_bytes(line).expect("the value is valid in a header");
    lines
        .iter()
        .map(|line| (name.parse().expect("the header name is valid"), value(line)))
        .collect()
}

fn client(trusted: &TrustedProxies, peer: &str, headers: &HeaderMap) -> IpAddr {
    trusted.client_ip(ip(peer), headers).addr()
}

#[test]
fn x_forwarded_for_is_read_from_the_right() {
    let table: &[(&[&[u8]], &str)] = &[
        (&[], PEER),
        (&[b"192.0.2.1"], "192.0.2.1"),
        (&[b"203.0.113.1, 192.0.2.1"], "192.0.2.1"),
        (&[b"203.0.113.1,192.0.2.1"], "192.0.2.1"),
        (&[b"203.0.113.1, 192.0.2.1 , 10.9.9.9"], "192.0.2.1"),
        (&[b"203.0.113.1, 192.0.2.1, 10.9.9.9,\t10.8.8.8"], "192.0.2.1"),
        // Several lines: the last line is the nearest.
        (&[b"203.0.113.1", b"192.0.2.1"], "192.0.2.1"),
        (&[b"203.0.113.1", b"192.0.2.1", b"10.9.9.9"], "192.0.2.1"),
        (&[b"192.0.2.1, 10.9.9.9", b"10.8.8.8"], "192.0.2.1"),
        // Only proxies: the furthest one is the client.
        (&[b"10.7.7.7, 10.8.8.8"], "10.7.7.7"),
        // With ports, in all notations.
        (&[b"192.0.2.1:8080"], "192.0.2.1"),
        (&[b"2001:db8::1"], "2001:db8::1"),
        (&[b"[2001:db8::1]"], "2001:db8::1"),
        (&[b"[2001:db8::1]:8080"], "2001:db8::1"),
        (&[b"192.0.2.1, fd00::7"], "192.0.2.1"),
        (&[b"192.0.2.1, [fd00::7]:80"], "192.0.2.1"),
        // IPv4-mapped IPv6 addresses are IPv4, for clients and for proxies.
        (&[b"::ffff:192.0.2.1"], "192.0.2.1"),
        (&[b"192.0.2.1, ::ffff:10.9.9.9"], "192.0.2.1"),
        (&[b"192.0.2.1, [::ffff:10.9.9.9]:80"], "192.0.2.1"),
        // Empty elements are ignored (RFC 9110, 5.6.1.2).
        (&[b"192.0.2.1, , 10.9.9.9"], "192.0.2.1"),
        (&[b"192.0.2.1,"], "192.0.2.1"),
        (&[b"192.0.2.1 ,\t, ,"], "192.0.2.1"),
        (&[b"192.0.2.1", b""], "192.0.2.1"),
        (&[b"192.0.2.1, unknown, ,"], PEER),
        (&[b"", b" , "], PEER),
        // The search ends at an element that cannot be parsed.
        (&[b"unknown"], PEER),
        (&[b"192.0.2.1, unknown"], PEER),
        (&[b"192.0.2.1, unknown, 10.9.9.9"], "10.9.9.9"),
        (&[b"192.0.2.1, 10.9.9"], PEER),
        (&[b"192.0.2.1, 10.9.9.256"], PEER),
        (&[b"192.0.2.1, 010.9.9.9"], PEER),
        (&[b"192.0.2.1, 10.9.9.9:99999"], PEER),
        (&[b"192.0.2.1, 10.9.9.9:"], PEER),
        (&[b"192.0.2.1, 10.9.9.9 10.8.8.8"], PEER),
        (&[b"192.0.2.1, [fd00::7"], PEER),
        (&[b"192.0.2.1, [fd00::7]80"], PEER),
        (&[b"192.0.2.1, [10.9.9.9]"], PEER),
        (&[b"192.0.2.1, fe80::1%eth0"], PEER),
        (&[b"192.0.2.1, \xff"], PEER),
        // Text to the left of the client cannot change the result.
        (&[b"\xff\xfe, 192.0.2.1"], "192.0.2.1"),
        (&[b"\", 192.0.2.1"], "192.0.2.1"),
        (&[b"\"", b"192.0.2.1"], "192.0.2.1"),
        (&[b", , unknown, 192.0.2.1, 10.9.9.9"], "192.0.2.1"),
    ];
    for (lines, expected) in table {
        let headers = headers("x-forwarded-for", lines);
        assert_eq!(client(&trusted(), PEER, &headers), ip(expected), "{headers:?}");
    }
}

#[test]
fn forwarded_is_read_from_the_right() {
    let table: &[(&[&[u8]], &str)] = &[
        (&[], PEER),
        (&[b"for=192.0.2.1"], "192.0.2.1"),
        (&[b"For=192.0.2.1;proto=http;by=203.0.113.43"], "192.0.2.1"),
        (&[b"proto=http; by=203.0.113.43; FOR = 192.0.2.1"], "192.0.2.1"),
        (&[b"for=203.0.113.1, for=192.0.2.1"], "192.0.2.1"),
        (&[b"for=203.0.113.1", b"for=192.0.2.1, for=10.9.9.9"], "192.0.2.1"),
        (&[b"for=\"192.0.2.1\""], "192.0.2.1"),
        (&[b"for=\"192.0.2.1:80\""], "192.0.2.1"),
        (&[b"for=\"[2001:db8::1]\""], "2001:db8::1"),
        (&[b"for=\"[2001:db8::1]:4711\""], "2001:db8::1"),
        (&[b"for=\"[2001:db8::1]:_port\""], "2001:db8::1"),
        (&[b"for=\"[::ffff:192.0.2.1]\""], "192.0.2.1"),
        (&[b"for=192.0.2.1, for=\"[fd00::7]:80\";proto=https"], "192.0.2.1"),
        // Commas, semicolons and escaped quotes do not separate inside quotes.
        (&[b"for=192.0.2.1;host=\"a, for=203.0.113.1\""], "192.0.2.1"),
        (&[b"host=\"a;for=203.0.113.1;\";for=192.0.2.1"], "192.0.2.1"),
        (&[b"for=192.0.2.1;host=\"a\\\", for=203.0.113.1, \\\"\""], "192.0.2.1"),
        (&[b"for=192.0.2.1;host=\"a\\\\\", for=10.9.9.9"], "192.0.2.1"),
        (&[b"for=192.0.2.1,"], "192.0.2.1"),
        (&[b"for=192.0.2.1, , for=10.9.9.9", b""], "192.0.2.1"),
        // A backslash in quotes quotes the next character (RFC 9110, 5.6.4).
        (&[b"for=\"192.0.2\\.1\""], "192.0.2.1"),
        (&[b"for=\"\\[2001:db8::1\\]:\\8\\0\""], "2001:db8::1"),
        (&[b"for=192.0.2.1, for=\"10.9.9.9\\\\\""], PEER),
        // The search ends at an element that cannot be parsed.
        (&[b"for=192.0.2.1, for=unknown"], PEER),
        (&[b"for=192.0.2.1, for=_hidden"], PEER),
        (&[b"for=192.0.2.1, for=\"_SEVKISEK\""], PEER),
        (&[b"for=192.0.2.1, for=_hidden, for=10.9.9.9"], "10.9.9.9"),
        (&[b"for=192.0.2.1, proto=http"], PEER),
        (&[b"for=192.0.2.1, for=10.9.9.9;for=10.8.8.8"], PEER),
        (&[b"for=192.0.2.1, for="], PEER),
        (&[b"for=192.0.2.1, for=\""], PEER),
        (&[b"for=192.0.2.1, for"], PEER),
        (&[b"for=192.0.2.1, 10.9.9.9"], PEER),
        // A quote that the client opened does not swallow the text of a proxy.
        (&[b"for=\"203.0.113.1, for=192.0.2.1"], "192.0.2.1"),
        (&[b"for=\"203.0.113.1", b"for=192.0.2.1"], "192.0.2.1"),
        (&[b"for=\"203.0.113.1, for=\"[2001:db8::1]:80\""], "2001:db8::1"),
        (&[b"host=\"a\\, for=192.0.2.1, for=10.9.9.9"], "192.0.2.1"),
        (&[b"\xff\"\\, for=192.0.2.1"], "192.0.2.1"),
    ];
    let trusted = trusted().forwarded(true);
    for (lines, expected) in table {
        let headers = headers("forwarded", lines);
        assert_eq!(client(&trusted, PEER, &headers), ip(expected), "{headers:?}");
    }
}

#[test]
fn only_the_configured_field_is_read() {
    let mut both = headers("x-forwarded-for", &[b"192.0.2.1"]);
    both.extend(headers("forwarded", &[b"for=192.0.2.2"]));
    assert_eq!(client(&trusted(), PEER, &both), ip("192.0.2.1"));
    assert_eq!(client(&trusted().forwarded(true), PEER, &both), ip("192.0.2.2"));

    let other = headers("forwarded", &[b"for=192.0.2.2"]);
    assert_eq!(client(&trusted(), PEER, &other), ip(PEER));
    let other = headers("x-forwarded-for", &[b"192.0.2.1"]);
    assert_eq!(client(&trusted().forwarded(true), PEER, &other), ip(PEER));
}

#[test]
fn untrusted_peer_is_the_client() {
    let mut headers = headers("x-forwarded-for", &[b"192.0.2.1, 10.9.9.9"]);
    headers.append("forwarded", HeaderValue::from_static("for=192.0.2.1"));
    for peer in ["203.0.113.1", "11.0.0.1", "2001:db8::1", "::ffff:203.0.113.1"] {
        let expected = ip(peer).to_canonical();
        assert_eq!(client(&trusted(), peer, &headers), expected);
        assert_eq!(client(&trusted().forwarded(true), peer, &headers), expected);
        assert_eq!(client(&TrustedProxies::none(), peer, &headers), expected);
        assert_eq!(client(&TrustedProxies::default(), peer, &headers), expected);
    }
    assert_eq!(client(&TrustedProxies::none(), PEER, &headers), ip(PEER));
    assert_eq!(client(&trusted(), "::ffff:10.0.0.1", &headers), ip("192.0.2.1"));
}

#[test]
fn trusted_networks_are_addresses_or_prefixes() {
    let headers = headers("x-forwarded-for", &[b"192.0.2.1"]);
    let trusts = |network: &str, peer: &str| {
        let trusted = TrustedProxies::new([network]).expect("the network is valid");
        client(&trusted, peer, &headers) == ip("192.0.2.1")
    };
    assert!(trusts("127.0.0.1", "127.0.0.1"));
    assert!(!trusts("127.0.0.1", "127.0.0.2"));
    assert!(trusts("::1", "::1"));
    assert!(!trusts("::1", "::2"));
    assert!(trusts(" 10.0.0.0/8 ", "10.255.255.255"));
    assert!(trusts("10.1.2.3/8", "10.255.255.255"));
    assert!(!trusts("10.0.0.0/8", "9.255.255.255"));
    assert!(trusts("0.0.0.0/0", "203.0.113.1"));
    assert!(!trusts("0.0.0.0/0", "2001:db8::1"));
    assert!(!trusts("::/0", "203.0.113.1"));
    assert!(trusts("::ffff:10.0.0.0/104", "10.255.255.255"));
    assert!(trusts("::ffff:10.0.0.1", "10.0.0.1"));
    assert!(!trusts("::ffff:10.0.0.1", "10.0.0.2"));

    let ambiguous = ["010.0.0.0/8", "10.0.0.0/08", "10.0.0.0/+8", "010.0.0.1", "0x0a.0.0.0/8"];
    let invalid = ["", "10.0.0.0/33", "::/129", "10.0.0/8", "example.org", "10.0.0.0/8,::1"];
    for text in ambiguous.into_iter().chain(invalid) {
        let error =
            TrustedProxies::new(["127.0.0.1", text]).expect_err("the text is not a network");
        assert_eq!(
            error.to_string(),
            format!("{text:?} is neither an IP address nor a network such as 10.0.0.0/8")
        );
    }
}

#[test]
fn client_ips_are_equal_if_their_networks_are() {
    let none = HeaderMap::new();
    let shown = |bits: u8, addr: &str| {
        TrustedProxies::none().ipv6_prefix(bits).client_ip(ip(addr), &none).to_string()
    };
    assert_eq!(shown(64, "2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
    assert_eq!(shown(128, "2001:db8:1:2:3:4:5:6"), "2001:db8:1:2:3:4:5:6/128");
    assert_eq!(shown(56, "2001:db8:1:2ff:3:4:5:6"), "2001:db8:1:200::/56");
    assert_eq!(shown(1, "ffff::"), "8000::/1");
    assert_eq!(shown(0, "ffff::"), "::/0");
    assert_eq!(shown(0, "192.0.2.1"), "192.0.2.1");
    assert_eq!(shown(8, "::ffff:192.0.2.1"), "192.0.2.1");

    let find = |addr: &str| TrustedProxies::none().client_ip(ip(addr), &none);
    let same = [find("2001:db8::1"), find("2001:db8::ffff:1:2:3"), find("2001:db8::")];
    assert_eq!(HashSet::from(same).len(), 1);
    let different = [
        find("2001:db8::1"),
        find("2001:db8:0:1::1"),
        find("192.0.2.1"),
        find("192.0.2.2"),
        // The same bits, but other networks.
        find("::"),
        find("0.0.0.0"),
        TrustedProxies::none().ipv6_prefix(56).client_ip(ip("::"), &none),
    ];
    assert_eq!(HashSet::from(different).len(), different.len());
    assert_eq!(find("192.0.2.1"), find("::ffff:192.0.2.1"));
    assert_eq!(find("2001:db8::1").addr(), ip("2001:db8::1"));
}

#[test]
#[should_panic = "ipv6_prefix must be 0 to 128, got 129"]
fn ipv6_prefix_above_128_panics() {
    let _ = TrustedProxies::none().ipv6_prefix(129);
}

#[tokio::test]
async fn extractor_uses_the_peer_and_the_trusted_proxies_extension() {
    let extract = async |request: Request<()>| {
        ClientIp::from_request_parts(&mut request.into_parts().0, &()).await
    };
    let request = || Request::builder().header("x-forwarded-for", "192.0.2.1");
    let peer = ConnectInfo(SocketAddr::from(([10, 0, 0, 1], 1)));

    let client = extract(request().extension(peer).body(()).unwrap()).await.unwrap();
    assert_eq!(client.addr(), ip(PEER));
    let behind = request().extension(peer).extension(trusted()).body(()).unwrap();
    assert_eq!(extract(behind).await.unwrap().addr(), ip("192.0.2.1"));

    let rejection = extract(request().extension(trusted()).body(()).unwrap()).await.unwrap_err();
    let response = rejection.into_response();
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let text = String::from_utf8_lossy(&body);
    assert!(text.contains("into_make_service_with_connect_info"), "{text}");
    // The extension that axum's `MockConnectInfo` layer adds.
    let _: Extension<TrustedProxies> = Extension(trusted());
}

#[test]
fn custom_header_of_the_proxies_contains_one_address() {
    let trusted = trusted().header(HeaderName::from_static("cf-connecting-ip"));
    let table: &[(&[&[u8]], &str)] = &[
        (&[b"192.0.2.1"], "192.0.2.1"),
        (&[b" 2001:db8::1 "], "2001:db8::1"),
        (&[b"10.9.9.9"], "10.9.9.9"),
        (&[b"203.0.113.1", b"192.0.2.1"], "192.0.2.1"),
        (&[b"203.0.113.1, 10.9.9.9"], "10.9.9.9"),
        (&[], PEER),
        (&[b"unknown"], PEER),
    ];
    for (lines, expected) in table {
        let mut all = headers("cf-connecting-ip", lines);
        all.extend(headers("x-forwarded-for", &[b"203.0.113.1"]));
        assert_eq!(client(&trusted, PEER, &all), ip(expected), "{lines:?}");
        assert_eq!(client(&trusted, "198.51.100.1", &all), ip("198.51.100.1"));
    }
}

#[tokio::test]
async fn client_on_a_unix_socket_is_the_address_that_the_proxy_reports() {
    let extract = async |trusted: TrustedProxies, lines: &[&[u8]]| {
        let mut request = Request::builder().extension(trusted).body(()).unwrap();
        *request.headers_mut() = headers("x-forwarded-for", lines);
        let client = ClientIp::from_request_parts(&mut request.into_parts().0, &()).await;
        client.map(|client| client.addr())
    };
    let socket = trusted().unix_socket(true);
    for (lines, expected) in [
        (&[b"192.0.2.1" as &[u8]] as &[&[u8]], "192.0.2.1"),
        (&[b"203.0.113.1, 192.0.2.1, 10.9.9.9"], "192.0.2.1"),
        (&[b"10.9.9.9"], "10.9.9.9"),
    ] {
        assert_eq!(extract(socket.clone(), lines).await, Ok(ip(expected)), "{lines:?}");
        assert!(extract(trusted(), lines).await.is_err(), "accepted without `unix_socket`");
    }
    for lines in [&[] as &[&[u8]], &[b"192.0.2.1, unknown"]] {
        assert!(extract(socket.clone(), lines).await.is_err(), "{lines:?}");
    }
}

#[test]
fn untrusted_proxy_is_logged_once() {
    let (log, _guard) = Log::start(Level::WARN);
    let forwarded = headers("x-forwarded-for", &[b"192.0.2.1"]);
    let none = TrustedProxies::none();
    for peer in ["172.16.0.1", "198.51.100.1"] {
        assert_eq!(client(&none, peer, &HeaderMap::new()), ip(peer));
    }
    assert_eq!(client(&trusted(), PEER, &forwarded), ip("192.0.2.1"));
    let lines = || log.lines("untrusted peer sent a forwarding header").len();
    assert_eq!(lines(), 0);
    for peer in ["198.51.100.1", "2001:db8::1", "198.51.100.1"] {
        assert_eq!(client(&none, peer, &forwarded), ip(peer));
    }
    assert_eq!(lines(), 1);
    for _ in 0..3 {
        client(&none, "172.16.0.1", &forwarded);
    }
    assert_eq!(lines(), 2, "the warning for private networks depends on the one for the Internet");
    client(&none.clone(), "fd00::1", &headers("forwarded", &[b"for=192.0.2.1"]));
    assert_eq!(lines(), 2, "a clone logged the warning again");
    // The configured field counts as well.
    let of_a_cdn = trusted().header(HeaderName::from_static("cf-connecting-ip"));
    client(&of_a_cdn, "198.51.100.1", &headers("cf-connecting-ip", &[b"192.0.2.1"]));
    assert_eq!(lines(), 3);
}

/// Parts from which a client may forge a field.
fn junk() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"10.9.9.9".to_vec()),
        Just(b"203.0.113.9".to_vec()),
        Just(b"for=".to_vec()),
        Just(b"\"[fd00::1]:80\"".to_vec()),
        prop::sample::select(b",;=\"\\ []:_%\xff".as_slice()).prop_map(|byte| vec![byte]),
        prop::collection::vec(32..=126_u8, 0..4),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    /// With any field that a client sends, the address that the proxies wrote is found.
    #[test]
    fn forged_fields_do_not_change_the_client_ip(
        lines in prop::collection::vec(junk(), 0..3),
        own_line: bool,
        second_proxy: bool,
    ) {
        for forwarded in [false, true] {
            let address = |addr: &str| if forwarded { format!("for={addr}") } else { addr.into() };
            let mut lines = lines.clone();
            for addr in ["198.51.100.7"].into_iter().chain(second_proxy.then_some("10.2.2.2")) {
                match lines.last_mut() {
                    Some(line) if !own_line => {
                        line.extend_from_slice(b", ");
                        line.extend_from_slice(address(addr).as_bytes());
                    }
                    _ => lines.push(address(addr).into_bytes()),
                }
            }
            let lines: Vec<&[u8]> = lines.iter().map(Vec::as_slice).collect();
            let name = if forwarded { "forwarded" } else { "x-forwarded-for" };
            let headers = headers(name, &lines);
            let found = client(&trusted().forwarded(forwarded), PEER, &headers);
            prop_assert_eq!(found, ip("198.51.100.7"), "{:?}", headers);
        }
    }
}

proptest! {
    /// The same property as `fuzz/fuzz_targets/forwarded.rs`.
    #[test]
    fn only_addresses_that_a_trusted_proxy_vouched_for_are_found(
        lines in prop::collection::vec(prop_oneof![junk(), any::<Vec<u8>>()], 0..4),
        client: IpAddr,
        hops in prop::collection::vec(any::<u8>(), 0..3),
        is_forwarded: bool,
        has_ports: bool,
        has_own_lines: bool,
    ) {
        Forwarding { lines, client, hops, is_forwarded, has_ports, has_own_lines }.check();
    }
}

#[test]
fn ipv4_addresses_of_a_prefix_are_one_client() {
    let client = |bits: u8, addr: &str| {
        let trusted = TrustedProxies::none().ipv4_prefix(bits);
        trusted.client_ip(addr.parse().unwrap(), &HeaderMap::new())
    };
    assert_eq!(client(24, "192.0.2.1"), client(24, "192.0.2.255"));
    assert_ne!(client(24, "192.0.2.1"), client(24, "192.0.3.1"));
    assert_eq!(client(24, "192.0.2.1").to_string(), "192.0.2.0/24");
    assert_eq!(client(24, "192.0.2.1").addr().to_string(), "192.0.2.1");
    assert_eq!(client(32, "192.0.2.1").to_string(), "192.0.2.1");
    assert_eq!(client(0, "192.0.2.1"), client(0, "203.0.113.9"));
    assert_eq!(client(24, "::ffff:192.0.2.1"), client(24, "192.0.2.9"));
    assert_eq!(client(24, "2001:db8::1").to_string(), "2001:db8::/64");
    assert_ne!(client(0, "0.0.0.0"), client(0, "::"));
}

#[test]
#[should_panic(expected = "ipv4_prefix must be 0 to 32, got 33")]
fn ipv4_prefix_above_32_panics() {
    drop(TrustedProxies::none().ipv4_prefix(33));
}

/// As under tonic's own server, which inserts a type of its own.
#[tokio::test(start_paused = true)]
async fn peer_function_reads_any_connect_info() {
    #[derive(Clone)]
    struct TcpConnectInfo(Option<std::net::IpAddr>);

    let limiter = RateLimiter::builder().limit(Limit::per_hour(1)).build();
    let trusted = TrustedProxies::new(["10.0.0.0/8"])
        .unwrap()
        .peer(|extensions| extensions.get::<TcpConnectInfo>()?.0);
    let app = Router::new().route("/", get("hello")).layer(RateLimitLayer::by_ip(limiter, trusted));
    let call = async |peer: Option<&str>, forwarded: &str| {
        let mut request = get_with(&[("x-forwarded-for", forwarded)]);
        let info = TcpConnectInfo(peer.map(|peer| peer.parse().unwrap()));
        request.extensions_mut().insert(info);
        ask(&app, request).await.status().as_u16()
    };
    assert_eq!(call(Some("10.0.0.1"), "192.0.2.1").await, 200);
    assert_eq!(call(Some("10.0.0.2"), "192.0.2.1").await, 429);
    assert_eq!(call(Some("192.0.2.2"), "203.0.113.9").await, 200);
    assert_eq!(call(Some("192.0.2.2"), "203.0.113.10").await, 429);
    assert_eq!(call(None, "192.0.2.3").await, 500);
}

/// App whose handler returns its client, and a request by the given way.
async fn client_in_handler(app: Router, peer: &str) -> (StatusCode, String) {
    let peer = ConnectInfo(SocketAddr::new(ip(peer), 1337));
    let mut request = get_with(&[("x-forwarded-for", "203.0.113.9, 2001:db8:1:2:3::4")]);
    request.extensions_mut().insert(peer);
    let response = ask(&app, request).await;
    let status = response.status();
    (status, text(response).await)
}

#[tokio::test(start_paused = true)]
async fn extractor_below_by_ip_returns_the_client_by_which_the_layer_limits() {
    let routes = || Router::new().route("/", get(async |client: ClientIp| client.to_string()));
    let limiter = || RateLimiter::builder().limit(Limit::per_hour(100)).build();
    let by = |trusted| RateLimitLayer::by_ip(limiter(), trusted);
    let found = async |app, peer, expected: &str| {
        let answer = client_in_handler(app, peer).await;
        assert_eq!(answer, (StatusCode::OK, expected.to_owned()));
    };
    found(routes().layer(by(trusted())), PEER, "2001:db8:1:2::/64").await;
    found(routes().layer(by(trusted())), "192.0.2.1", "192.0.2.1").await;
    found(routes().layer(by(trusted().ipv6_prefix(48))), PEER, "2001:db8:1::/48").await;
    found(routes().layer(by(TrustedProxies::none())), PEER, PEER).await;
    found(routes().layer(by(TrustedProxies::none().ipv4_prefix(24))), PEER, "10.0.0.0/24").await;
    let peer = |_: &axum::http::Extensions| Some(ip("198.51.100.7"));
    found(routes().layer(by(TrustedProxies::none().peer(peer))), PEER, "198.51.100.7").await;
    // For a layer that extracts its key, too.
    let layer = RateLimitLayer::by::<ClientIp>(limiter())
        .on_decision(|_, request| assert_eq!(request.uri.path(), "/"));
    found(routes().layer(layer).layer(by(trusted())), PEER, "2001:db8:1:2::/64").await;
    // Also for requests that are not limited.
    found(routes().layer(by(trusted()).skip(|_| true)), PEER, "2001:db8:1:2::/64").await;
    found(routes().layer(by(trusted()).enabled(false)), PEER, "2001:db8:1:2::/64").await;
    found(routes().layer(by(trusted()).shadow()), PEER, "2001:db8:1:2::/64").await;
    // The innermost layer decides, and an explicit extension before all of them.
    let wide = || by(trusted().ipv6_prefix(32));
    found(routes().layer(by(trusted())).layer(wide()), PEER, "2001:db8:1:2::/64").await;
    found(routes().layer(wide()).layer(by(trusted())), PEER, "2001:db8::/32").await;
    found(routes().layer(by(TrustedProxies::none())).layer(wide()), PEER, PEER).await;
    let explicit = Extension(TrustedProxies::none());
    found(routes().layer(by(trusted())).layer(explicit), PEER, PEER).await;
}

#[tokio::test(start_paused = true)]
async fn extractor_below_by_ip_fails_if_the_layer_found_no_client() {
    let routes = Router::new().route("/", get(async |client: ClientIp| client.to_string()));
    let limiter = RateLimiter::builder().limit(Limit::per_hour(100)).build();
    let nowhere = TrustedProxies::none().peer(|_| None);
    let layer = RateLimitLayer::by_ip(limiter, nowhere);
    for layer in [layer.clone(), layer.clone().shadow(), layer.skip(|_| true)] {
        let (status, _) = client_in_handler(routes.clone().layer(layer), PEER).await;
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    }
}
