//! Details of a gRPC denial: a `google.rpc.Status` with a `google.rpc.RetryInfo`, as clients of gRPC expect the time to
//! wait. Encoded by hand: the messages have five fields, and a dependency would have hundreds.

use std::time::Duration;

const RETRY_INFO: &[u8] = b"type.googleapis.com/google.rpc.RetryInfo";

/// Returns the value of `grpc-status-details-bin`, not yet in Base64.
pub(super) fn status_details(code: u64, message: &str, wait: Duration) -> Vec<u8> {
    let mut delay = Vec::new();
    number(1, wait.as_secs(), &mut delay);
    number(2, wait.subsec_nanos().into(), &mut delay);
    let mut retry_info = Vec::new();
    bytes(1, &delay, &mut retry_info);
    let mut any = Vec::new();
    bytes(1, RETRY_INFO, &mut any);
    bytes(2, &retry_info, &mut any);
    let mut status = Vec::new();
    number(1, code, &mut status);
    bytes(2, message.as_bytes(), &mut status);
    bytes(3, &any, &mut status);
    status
}

/// Appends a field of a number; a zero is omitted.
fn number(field: u64, value: u64, to: &mut Vec<u8>) {
    if value > 0 {
        varint(field << 3, to);
        varint(value, to);
    }
}

/// Appends a field of bytes, of text or of a message.
fn bytes(field: u64, value: &[u8], to: &mut Vec<u8>) {
    varint(field << 3 | 2, to);
    varint(value.len() as u64, to);
    to.extend_from_slice(value);
}

/// Appends seven bits per byte, the lowest first.
fn varint(mut value: u64, to: &mut Vec<u8>) {
    while value > 0x7f {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}
