//! Computes how many entries to lease from each shard so that the oldest of all shards come first: a merge of the
//! deadlines that were peeked at. Does no I/O.

/// Maximum number of entries per script, because the server executes nothing else in the meantime.
const MAX_PER_SCRIPT: usize = 512;

/// Maximum number of deadlines per shard to request in the first peek, where they cost little more than the count.
const MAX_FIRST_PEEK: usize = 40;

/// Due entries of a shard, as returned by `peek_due.lua`.
#[derive(Clone, Debug)]
pub(super) struct DuePeek {
    /// Server time in microseconds.
    pub(super) now: i64,
    /// Number of due entries.
    count: usize,
    /// Deadlines of the due entries, oldest first; possibly only of the first ones.
    deadlines: Vec<i64>,
}

impl DuePeek {
    pub(super) fn new(answer: &[i64]) -> Option<Self> {
        let [now, count, deadlines @ ..] = answer else { return None };
        let count = usize::try_from(*count).ok()?;
        Some(Self { now: *now, count, deadlines: deadlines.to_vec() })
    }
}

/// Returns how many deadlines per shard to request in the first peek, while the number of due entries is unknown.
pub(super) fn first_peek_len(limit: usize, shards: usize) -> usize {
    match peek_len(limit, shards) {
        few @ ..=MAX_FIRST_PEEK => few,
        _ => 1,
    }
}

/// Returns how many deadlines per shard must be known, so that rarely a further entry of a shard is among the `limit`
/// oldest. Keys are distributed randomly, so that a shard has its share of them within about four standard deviations.
pub(super) fn peek_len(limit: usize, shards: usize) -> usize {
    let share = limit.div_ceil(shards);
    match shards {
        1 => share.min(MAX_PER_SCRIPT),
        _ => share.saturating_add(4 * share.isqrt() + 4).min(MAX_PER_SCRIPT),
    }
}

/// Returns how many of each shard's first entries are among the `limit` oldest of all, and whether these are all due
/// entries.
pub(super) fn take_counts(peeks: &[Option<DuePeek>], limit: usize) -> (Vec<usize>, bool) {
    let counts = || peeks.iter().map(|peek| peek.as_ref().map_or(0, |peek| peek.count));
    // In this order, so that the sum of forged counts does not overflow.
    let is_all = counts().all(|count| count <= MAX_PER_SCRIPT) && counts().sum::<usize>() <= limit;
    if is_all {
        return (counts().collect(), true);
    }
    // In a shard that was seen only in part, the next deadline may follow immediately after the last one seen. So no
    // shard may give an entry with a later deadline than that.
    let partial = peeks.iter().flatten().filter(|peek| peek.count > peek.deadlines.len());
    let known = partial.map(|peek| peek.deadlines.last().map_or(i64::MIN, |last| *last)).min();
    let mut all = Vec::new();
    for (shard, peek) in peeks.iter().enumerate() {
        let due = peek.iter().flat_map(|peek| &peek.deadlines);
        let due = due.filter(|at| known.is_none_or(|known| **at <= known));
        all.extend(due.map(|at| (*at, shard)));
    }
    all.sort_unstable();
    let mut takes = vec![0; peeks.len()];
    for (_, shard) in all.iter().take(limit) {
        takes[*shard] += 1;
    }
    (takes, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peek(count: i64, due: &[i64]) -> Option<DuePeek> {
        DuePeek::new(&[&[1_000, count], due].concat())
    }

    #[test]
    fn oldest_entries_are_taken_from_all_shards() {
        let peeks = [peek(3, &[1, 5, 6]), peek(2, &[2, 3]), None, peek(0, &[])];
        assert_eq!(take_counts(&peeks, 9), (vec![3, 2, 0, 0], true));
        assert_eq!(take_counts(&peeks, 5), (vec![3, 2, 0, 0], true));
        assert_eq!(take_counts(&peeks, 4), (vec![2, 2, 0, 0], false));
        assert_eq!(take_counts(&peeks, 2), (vec![1, 1, 0, 0], false));
        assert_eq!(take_counts(&peeks, 0), (vec![0; 4], false));
    }

    #[test]
    fn entries_after_an_unseen_deadline_are_not_taken() {
        // The first shard may have another deadline before 9.
        let peeks = [peek(7, &[1, 2, 3]), peek(2, &[2, 9])];
        assert_eq!(take_counts(&peeks, 8), (vec![3, 1], false));
        // If all entries fit, their order does not matter.
        assert_eq!(take_counts(&peeks, 9), (vec![7, 2], true));
        let most = MAX_PER_SCRIPT as i64;
        assert_eq!(take_counts(&[peek(most + 1, &[1]), peek(1, &[2])], 9_999), (vec![1, 0], false));
    }

    #[test]
    fn forged_counts_do_not_overflow() {
        let peeks = [peek(i64::MAX, &[1]), peek(i64::MAX, &[2]), peek(i64::MAX, &[3])];
        assert_eq!(take_counts(&peeks, 9), (vec![1, 0, 0], false));
        assert!(DuePeek::new(&[1_000, -1]).is_none());
    }
}
