//! Arguments that Lua or the protocol could take for something else.

use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3_600);
pub(crate) const NANO: Duration = Duration::from_nanos(1);

/// Texts that are special to Lua, to its conversion of numbers, to the protocol, to patterns, or to the keys of this
/// crate.
pub(crate) const TEXTS: [&str; 52] = [
    "",
    " ",
    "\0",
    "a\0b",
    "\n",
    "\r\n",
    "\r\n$-1\r\n",
    "{",
    "}",
    "{}",
    "}{",
    "{a}",
    "a}:b",
    "{c:0}",
    "%",
    "%s%d%n",
    "%00",
    "%1",
    "*",
    "?",
    "[a-z]",
    "\\",
    "\"",
    "'",
    "'; return 1 --",
    "]]",
    "--[[",
    "null",
    "nil",
    "false",
    "true",
    "0",
    "-0",
    "1",
    "007",
    "1e400",
    "-1e400",
    "1e15",
    "9007199254740993",
    "18446744073709551616",
    "0x10",
    "nan",
    "-nan(ind)",
    "inf",
    "-inf",
    "+inf",
    "(1",
    "[1",
    "$",
    "\u{feff}",
    "é\u{301}\u{202e}",
    "fleeting:cache1:{c:0}",
];

/// Values that are special to the stored form of values with tags, or not UTF-8.
pub(crate) const BYTES: [&[u8]; 9] = [
    b"\xff",
    b"\xff\xfe\0\x80",
    b"\xc1",
    b"\xc1tag",
    b"\xc1tag\0\0\0\0",
    b"\xc1tag\x01\0\0\0\x05\0\0\0staff0123456789abcdef1",
    b"\xc1tag\xff\xff\xff\xff",
    b"\xed\xa0\x80",
    b"\xf0\x9f",
];

/// TTLs at the edges of milliseconds, microseconds and doubles. The first two expire at once.
pub(crate) const TTLS: [Duration; 8] = [
    Duration::ZERO,
    NANO,
    HOUR,
    Duration::from_secs(9_007_199_254_740),
    Duration::from_millis(i64::MAX as u64),
    Duration::from_secs(i64::MAX as u64),
    Duration::from_secs(u64::MAX),
    Duration::MAX,
];
