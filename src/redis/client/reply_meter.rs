//! Maximum size of a reply, checked while it arrives: the client library buffers a reply until it is complete, without
//! a maximum.

use crate::redis::error::ReplyTooLarge;

/// Size of a part of a reply in memory, in addition to its bytes.
const PART_BYTES: u64 = 64;

/// Maximum length of a line: of a number, a simple string, or an error. The client library searches a line from its
/// beginning whenever more of it arrives.
const MAX_LINE: usize = 64 << 10;

/// Maximum length of a line with a number, with room for its type and line break: the longest number has 20 digits.
const MAX_NUMBER_LINE: usize = 32;

/// Size of the reply that is arriving on a connection.
///
/// The meter follows the protocol only as far as needed to find the parts of a reply. It counts nothing after bytes
/// that are not a reply, since the client library ends the connection then.
pub(super) struct ReplyMeter {
    max: u64,
    /// Size of the reply so far, including the parts that it has announced; 0 between two replies.
    size: u64,
    /// Number of parts that follow in each array or map that contains the current part, from the outermost on.
    open: Vec<u64>,
    state: State,
}

enum State {
    /// In the first line of a part.
    Header(Header),
    /// In a string of which this many bytes follow, including the line break.
    Bytes(u64),
    /// After bytes that are not a reply.
    Lost,
}

/// First line of a part, as far as it has arrived.
#[derive(Default)]
struct Header {
    /// First bytes of the line.
    start: [u8; MAX_NUMBER_LINE],
    len: usize,
    ends_with_cr: bool,
}

/// Type of a part of a reply, with its content that follows.
enum Part {
    Simple,
    Bytes(u64),
    Parts(u64),
}

impl ReplyMeter {
    /// Creates a meter for replies of at most `max` bytes.
    pub(super) fn new(max: usize) -> Self {
        Self { max: max as u64, size: 0, open: Vec::new(), state: State::next_header() }
    }

    /// Counts bytes that have arrived.
    ///
    /// # Errors
    ///
    /// The error of a reply that is too large, and the number of bytes in front of this reply.
    pub(super) fn count(&mut self, bytes: &[u8]) -> Result<(), (usize, ReplyTooLarge)> {
        let (mut at, mut reply_at) = (0, 0);
        while at < bytes.len() {
            let rest = &bytes[at..];
            match &mut self.state {
                State::Lost => return Ok(()),
                State::Bytes(more) => {
                    let used = (*more).min(rest.len() as u64);
                    *more -= used;
                    at += used as usize;
                    if *more == 0 {
                        self.end_part();
                    }
                }
                State::Header(header) => {
                    let (used, is_complete) = header.add(rest);
                    at += used;
                    let is_small = header.len <= MAX_LINE;
                    if !is_small || is_complete && !self.begin_part() {
                        self.state = State::Lost;
                        return Err((reply_at, ReplyTooLarge { max: self.max }));
                    }
                }
            }
            if self.size == 0 {
                reply_at = at;
            }
        }
        Ok(())
    }

    /// Begins the part whose first line is complete. Returns false if its reply is too large.
    fn begin_part(&mut self) -> bool {
        let State::Header(header) = std::mem::replace(&mut self.state, State::next_header()) else {
            return true;
        };
        let Some(part) = header.part() else {
            self.state = State::Lost;
            // Numbers with more digits may be valid for the client library.
            return header.len <= MAX_NUMBER_LINE;
        };
        // Each part of an array was counted when the array began.
        let itself = if self.open.is_empty() { PART_BYTES } else { 0 };
        let content = match part {
            Part::Simple => header.len as u64,
            Part::Bytes(bytes) => bytes,
            Part::Parts(parts) => parts.saturating_mul(PART_BYTES),
        };
        self.size = self.size.saturating_add(itself).saturating_add(content);
        match part {
            Part::Parts(parts @ 1..) => self.open.push(parts),
            Part::Bytes(bytes) => self.state = State::Bytes(bytes),
            Part::Simple | Part::Parts(0) => {
                let size = self.size;
                self.end_part();
                return size <= self.max;
            }
        }
        self.size <= self.max
    }

    fn end_part(&mut self) {
        self.state = State::next_header();
        while let Some(parts) = self.open.last_mut() {
            *parts -= 1;
            if *parts > 0 {
                return;
            }
            self.open.pop();
        }
        self.size = 0;
    }
}

impl State {
    fn next_header() -> Self {
        Self::Header(Header::default())
    }
}

impl Header {
    /// Adds the bytes up to the end of the line. Returns their number, and whether the line is complete.
    fn add(&mut self, bytes: &[u8]) -> (usize, bool) {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let used = &bytes[..end.map_or(bytes.len(), |end| end + 1)];
        let room = self.start.get_mut(self.len..).unwrap_or_default();
        room.iter_mut().zip(used).for_each(|(to, from)| *to = *from);
        let is_complete = end.is_some_and(|end| match end {
            0 => self.ends_with_cr,
            end => bytes[end - 1] == b'\r',
        });
        self.len += used.len();
        self.ends_with_cr = used.last() == Some(&b'\r');
        (used.len(), is_complete)
    }

    /// Returns the part that this line begins; `None` if it is invalid.
    fn part(&self) -> Option<Part> {
        let kind = self.start[0];
        if !b"$!=*~>%|".contains(&kind) {
            return Some(Part::Simple);
        }
        let number = str::from_utf8(self.start.get(1..self.len)?).ok()?.trim();
        let number: i64 = number.parse().ok()?;
        // A length below zero is that of nil.
        let len = u64::try_from(number).ok();
        match kind {
            b'$' => Some(len.map_or(Part::Simple, |len| Part::Bytes(len + 2))),
            // The client library takes other negative lengths for huge ones.
            b'!' | b'=' => Some(Part::Bytes(len.map_or(u64::MAX, |len| len + 2))),
            b'%' => len.map(|len| Part::Parts(2 * len)),
            b'|' => len.map(|len| Part::Parts(2 * len + 1)),
            _ => Some(Part::Parts(len.unwrap_or(0))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 1_000;

    /// Returns whether `replies` are small enough, no matter in which parts they arrive.
    fn are_small(replies: &[u8]) -> bool {
        let are_small = |part: usize| {
            let mut meter = ReplyMeter::new(MAX);
            let are_small = replies.chunks(part).all(|bytes| meter.count(bytes).is_ok());
            assert!(
                !are_small || meter.open.is_empty() && meter.size == 0,
                "parts of {part} bytes"
            );
            are_small
        };
        let at_once = are_small(replies.len());
        assert!((1..replies.len()).all(|part| are_small(part) == at_once), "{at_once}");
        at_once
    }

    #[test]
    fn replies_up_to_the_maximum_are_counted_one_by_one() {
        let string = |len: usize| format!("${len}\r\n{}\r\n", "\r\n".repeat(len / 2));
        let largest = string(MAX - 66);
        let all = "+OK\r\n:1\r\n$-1\r\n*-1\r\n*0\r\n_\r\n#t\r\n,1.5\r\n(123\r\n-ERR \n no\r\n=5\r\ntxt:a\r\n\
                   !3\r\nERR\r\n%1\r\n+a\r\n*2\r\n:1\r\n$1\r\na\r\n>2\r\n+invalidate\r\n*1\r\n$1\r\na\r\n\
                   |1\r\n+a\r\n:1\r\n:2\r\n~1\r\n:1\r\n";
        assert!(are_small(format!("{all}{largest}{all}{largest}").as_bytes()));
        assert!(are_small(format!("*12\r\n{}", ":1\r\n".repeat(12)).as_bytes()));
    }

    #[test]
    fn larger_replies_are_refused_as_soon_as_their_size_is_known() {
        for reply in [
            "$935\r\n",
            "$9223372036854775807\r\n",
            "*15\r\n",
            "*9223372036854775807\r\n",
            "!-1\r\n",
            "%8\r\n",
            "%9223372036854775807\r\n",
            "|9223372036854775807\r\n",
            ">15\r\n",
            "*2\r\n$810\r\n",
            "*4\r\n*4\r\n*4\r\n*4\r\n",
            "$00000000000000000000000000000000000001\r\n",
        ] {
            assert!(!are_small(reply.as_bytes()), "{reply:?}");
            // The replies in front of it can be delivered.
            let after_others = format!("+OK\r\n$1\r\na\r\n{reply}");
            let result = ReplyMeter::new(MAX).count(after_others.as_bytes());
            assert_eq!(result.map_err(|(before, _)| before), Err(12), "{reply:?}");
        }
        let nested = "*1\r\n".repeat(100_000);
        assert!(ReplyMeter::new(MAX).count(nested.as_bytes()).is_err());
        let endless = "+".repeat(MAX_LINE + 1);
        assert!(ReplyMeter::new(usize::MAX).count(endless.as_bytes()).is_err());
    }

    #[test]
    fn nothing_is_counted_after_bytes_that_are_not_a_reply() {
        for reply in ["$x\r\n", "%-1\r\n", "*\r\n"] {
            let mut meter = ReplyMeter::new(MAX);
            assert!(meter.count(reply.as_bytes()).is_ok(), "{reply:?}");
            assert!(matches!(meter.state, State::Lost), "{reply:?}");
        }
    }
}
