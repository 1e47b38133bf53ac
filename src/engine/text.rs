//! Cutting of texts to a maximum length.

/// Returns the longest prefix of `text` that has at most `max_bytes` bytes and ends at the boundary of a character.
pub(crate) fn prefix(text: &str, max_bytes: usize) -> &str {
    let end = (0..=max_bytes.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn prefix_ends_at_the_boundary_of_a_character() {
        assert_eq!(prefix("häh", 2), "h");
        assert_eq!(prefix("häh", 3), "hä");
        assert_eq!(prefix("häh", 9), "häh");
        assert_eq!(prefix("ä", 1), "");
    }
}
