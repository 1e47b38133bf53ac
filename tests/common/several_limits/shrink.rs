//! Removal of the calls without which a sequence still breaks the same promise.

use super::{Broken, Outcome, Sequence};

/// Returns the shortest sequence that was found, and the reason for which it fails; `reason` is that of the first run.
pub(super) async fn shortest(
    failing: &Sequence,
    reason: &Broken,
    play: impl AsyncFn(&Sequence) -> Outcome,
) -> (Sequence, Broken) {
    let reason_of = async |sequence: &Sequence| match play(sequence).await {
        Err(found) if found.promise == reason.promise => Some(found),
        _ => None,
    };
    let mut shortest = failing.clone();
    let mut last = reason.clone();
    let mut length = shortest.ops.len().div_ceil(2);
    while length > 0 {
        let (mut at, mut has_shrunk) = (0, false);
        while at < shortest.ops.len() {
            let mut shorter = shortest.clone();
            shorter.ops.drain(at..(at + length).min(shorter.ops.len()));
            match reason_of(&shorter).await {
                Some(found) => (shortest, last, has_shrunk) = (shorter, found, true),
                None => at += length,
            }
        }
        if length > 1 || !has_shrunk {
            length /= 2;
        }
    }
    (shortest, last)
}
