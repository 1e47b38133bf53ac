//! Maximum depth of nested values. It is the same in all encodings, for writers and readers, and in all builds, so that
//! a value that was written can be read.

/// Maximum depth of arrays and maps in an encoded value. It is that of `serde_json`. Decoding a value of this depth
/// fits the stack of a thread, also in a build without optimization.
pub(crate) const MAX_DEPTH: usize = 127;

/// Error for a value that is nested too deeply.
#[derive(Debug, thiserror::Error)]
#[error("the value is nested deeper than {MAX_DEPTH} levels")]
pub(crate) struct TooDeep;

/// Checks that no array or map in a sequence of MessagePack values is at a depth above `max_depth`.
///
/// `rmp_serde` has a limit too, but does not count the maps of enum variants: foreign bytes could exhaust the stack. So
/// this check precedes it, and uses no recursion.
#[cfg(any(feature = "redis", feature = "serde"))]
pub(crate) fn check_message_pack(bytes: &[u8], max_depth: usize) -> Result<(), TooDeep> {
    // Each level takes at least one byte.
    if bytes.len() <= max_depth {
        return Ok(());
    }
    let mut rest = bytes;
    // Number of values that follow in each array or map around the next value.
    let mut following: Vec<u64> = Vec::new();
    // Bytes that are no values, or too few, are left to the decoder, which fails at the same place.
    while let Some((data, values, after)) = split_value(rest) {
        while following.pop_if(|values| *values == 0).is_some() {}
        if let Some(values) = following.last_mut() {
            *values -= 1;
        }
        if values > 0 {
            if following.len() == max_depth {
                return Err(TooDeep);
            }
            following.push(values);
        }
        let Some(after) = after.get(data..) else { break };
        rest = after;
    }
    Ok(())
}

/// Returns the length of a value's data, the number of values in it, and the bytes after its head.
#[cfg(any(feature = "redis", feature = "serde"))]
fn split_value(bytes: &[u8]) -> Option<(usize, u64, &[u8])> {
    let (&marker, rest) = bytes.split_first()?;
    // Splits a length of `N` bytes off.
    fn len<const N: usize>(rest: &[u8]) -> Option<(u64, &[u8])> {
        let (len, rest) = rest.split_first_chunk::<N>()?;
        Some((len.iter().fold(0, |len, byte| (len << 8) | u64::from(*byte)), rest))
    }
    let data = |(len, rest), more: usize| Some((usize::try_from(len).ok()? + more, 0, rest));
    let array = |(values, rest)| Some((0, values, rest));
    let map = |(entries, rest): (u64, _)| Some((0, 2 * entries, rest));
    let fixed = u64::from(marker & 0x0F);
    match marker {
        0x80..=0x8F => map((fixed, rest)),
        0x90..=0x9F => array((fixed, rest)),
        0xA0..=0xBF => data((u64::from(marker & 0x1F), rest), 0),
        // Byte strings, and texts.
        0xC4 | 0xD9 => data(len::<1>(rest)?, 0),
        0xC5 | 0xDA => data(len::<2>(rest)?, 0),
        0xC6 | 0xDB => data(len::<4>(rest)?, 0),
        // Extensions, with a byte for their type.
        0xC7 => data(len::<1>(rest)?, 1),
        0xC8 => data(len::<2>(rest)?, 1),
        0xC9 => data(len::<4>(rest)?, 1),
        0xD4..=0xD8 => data((1 << (marker - 0xD4), rest), 1),
        0xCA | 0xCE | 0xD2 => data((4, rest), 0),
        0xCB | 0xCF | 0xD3 => data((8, rest), 0),
        0xCC | 0xD0 => data((1, rest), 0),
        0xCD | 0xD1 => data((2, rest), 0),
        0xDC => array(len::<2>(rest)?),
        0xDD => array(len::<4>(rest)?),
        0xDE => map(len::<2>(rest)?),
        0xDF => map(len::<4>(rest)?),
        // `nil`, booleans, and small integers; 0xC1 is not a value.
        _ => (marker != 0xC1).then_some((0, 0, rest)),
    }
}
