//! Replies that the fuzzer makes, and their bytes.

use arbitrary::Arbitrary;

#[derive(Arbitrary, Clone, Debug)]
pub(crate) enum Reply {
    Nil,
    Integer(i64),
    Double(f64),
    Boolean(bool),
    Status(String),
    Error(ErrorKind, String),
    Bytes(Vec<u8>),
    Text(String),
    /// A number as text, as in most replies of Redis.
    Number(i64),
    Array(Vec<Reply>),
    Map(Vec<(Reply, Reply)>),
    Set(Vec<Reply>),
    /// A push, before the next reply.
    Push(String, Vec<Reply>),
    /// Bytes of MessagePack, as in replies of scripts that return many entries.
    Packed(Packed),
    /// Numbers in one string, as in replies of the limiter.
    Doubles(Vec<Few>),
    /// Bytes that need not be a reply, after which the connection ends.
    Raw(Vec<u8>),
    /// An array of which only the length arrives.
    Length(u64),
}

#[derive(Arbitrary, Clone, Debug)]
pub(crate) enum ErrorKind {
    Err,
    NoScript,
    WrongType,
    Moved,
    Loading,
    Other(String),
}

#[derive(Arbitrary, Clone, Debug)]
pub(crate) enum Packed {
    Nil,
    Boolean(bool),
    Integer(i64),
    Text(String),
    Bytes(Vec<u8>),
    Array(Vec<Packed>),
    Map(Vec<(Packed, Packed)>),
    /// An array of which only the length exists.
    Length(u32),
    /// An array in an array and so on.
    Deep(u16),
}

/// Small numbers, times of today, and any others.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) enum Few {
    Small(i8),
    Time(u32),
    Any(f64),
}

impl Reply {
    /// Appends the bytes. Returns false if the connection ends after them.
    pub(crate) fn write(&self, is_resp3: bool, into: &mut Vec<u8>) -> bool {
        let line = |into: &mut Vec<u8>, kind: char, text: &str| {
            let text = text.replace(['\r', '\n'], " ");
            into.extend(format!("{kind}{text}\r\n").bytes());
        };
        let list = |into: &mut Vec<u8>, kind: char, items: &[Reply]| {
            into.extend(format!("{kind}{}\r\n", items.len()).bytes());
            items.iter().all(|item| item.write(is_resp3, into))
        };
        match self {
            Reply::Nil if is_resp3 => into.extend(b"_\r\n"),
            Reply::Nil => into.extend(b"$-1\r\n"),
            Reply::Integer(number) => line(into, ':', &number.to_string()),
            Reply::Double(number) if is_resp3 => line(into, ',', &number.to_string()),
            Reply::Double(number) => bulk(into, number.to_string().as_bytes()),
            Reply::Boolean(is_true) if is_resp3 => {
                line(into, '#', if *is_true { "t" } else { "f" })
            }
            Reply::Boolean(is_true) => line(into, ':', if *is_true { "1" } else { "0" }),
            Reply::Status(text) => line(into, '+', text),
            Reply::Error(kind, text) => line(into, '-', &format!("{} {text}", kind.code())),
            Reply::Bytes(bytes) => bulk(into, bytes),
            Reply::Text(text) => bulk(into, text.as_bytes()),
            Reply::Number(number) => bulk(into, number.to_string().as_bytes()),
            Reply::Array(items) => return list(into, '*', items),
            Reply::Set(items) => return list(into, if is_resp3 { '~' } else { '*' }, items),
            Reply::Map(pairs) => {
                let count = if is_resp3 { pairs.len() } else { 2 * pairs.len() };
                into.extend(format!("{}{count}\r\n", if is_resp3 { '%' } else { '*' }).bytes());
                return pairs
                    .iter()
                    .all(|(key, value)| key.write(is_resp3, into) && value.write(is_resp3, into));
            }
            Reply::Push(kind, items) => {
                if is_resp3 {
                    into.extend(format!(">{}\r\n", items.len() + 1).bytes());
                    bulk(into, kind.as_bytes());
                    if !items.iter().all(|item| item.write(true, into)) {
                        return false;
                    }
                }
                into.extend(b"$-1\r\n");
            }
            Reply::Packed(packed) => {
                let mut bytes = Vec::new();
                packed.write(&mut bytes);
                bulk(into, &bytes);
            }
            Reply::Doubles(numbers) => {
                let numbers = numbers.iter().flat_map(|number| number.value().to_le_bytes());
                bulk(into, &numbers.collect::<Vec<u8>>());
            }
            Reply::Raw(bytes) => {
                into.extend(bytes);
                return false;
            }
            Reply::Length(length) => {
                into.extend(format!("*{length}\r\n").bytes());
                return false;
            }
        }
        true
    }
}

fn bulk(into: &mut Vec<u8>, bytes: &[u8]) {
    into.extend(format!("${}\r\n", bytes.len()).bytes());
    into.extend(bytes);
    into.extend(b"\r\n");
}

impl ErrorKind {
    fn code(&self) -> &str {
        match self {
            ErrorKind::Err => "ERR",
            ErrorKind::NoScript => "NOSCRIPT",
            ErrorKind::WrongType => "WRONGTYPE",
            ErrorKind::Moved => "MOVED",
            ErrorKind::Loading => "LOADING",
            ErrorKind::Other(code) => code,
        }
    }
}

impl Packed {
    fn write(&self, into: &mut Vec<u8>) {
        match self {
            Packed::Nil => into.push(0xc0),
            Packed::Boolean(is_true) => into.push(0xc2 + u8::from(*is_true)),
            Packed::Integer(number) => {
                into.push(0xd3);
                into.extend(number.to_be_bytes());
            }
            Packed::Text(text) => {
                into.push(0xdb);
                into.extend((text.len() as u32).to_be_bytes());
                into.extend(text.bytes());
            }
            Packed::Bytes(bytes) => {
                into.push(0xc6);
                into.extend((bytes.len() as u32).to_be_bytes());
                into.extend(bytes);
            }
            Packed::Array(items) => {
                into.push(0xdd);
                into.extend((items.len() as u32).to_be_bytes());
                items.iter().for_each(|item| item.write(into));
            }
            Packed::Map(pairs) => {
                into.push(0xdf);
                into.extend((pairs.len() as u32).to_be_bytes());
                for (key, value) in pairs {
                    key.write(into);
                    value.write(into);
                }
            }
            Packed::Length(length) => {
                into.push(0xdd);
                into.extend(length.to_be_bytes());
            }
            Packed::Deep(depth) => into.extend(std::iter::repeat_n(0x91, usize::from(*depth))),
        }
    }
}

impl Few {
    fn value(self) -> f64 {
        match self {
            Few::Small(number) => number.into(),
            Few::Time(seconds) => f64::from(seconds) * 1e6,
            Few::Any(number) => number,
        }
    }
}
