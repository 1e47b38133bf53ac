//! Sends any bytes as `Forwarded` or `X-Forwarded-For`: they never panic, and never yield an address for which no
//! trusted proxy vouched.
#![no_main]

use std::net::IpAddr;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

#[path = "../../tests/common/vouched.rs"]
mod vouched;

use vouched::Forwarding;

#[derive(Arbitrary, Debug)]
struct Input {
    flags: [bool; 3],
    client: IpAddr,
    hops: Vec<u8>,
    lines: Vec<Vec<u8>>,
}

fuzz_target!(|input: Input| {
    let Input { flags: [is_forwarded, has_ports, has_own_lines], client, hops, lines } = input;
    Forwarding { lines, client, hops, is_forwarded, has_ports, has_own_lines }.check();
});
