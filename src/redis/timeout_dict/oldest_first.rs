//! How many entries are taken from which shard, so that the oldest of all shards come first: a merge of what
//! each shard has at its front. Pure: what the shards have was asked before.

use std::time::Duration;

/// A script touches no more entries than this, since all others wait meanwhile.
const MAX_PER_SCRIPT: usize = 512;

/// Up to as many are peeked at in the first place: it costs little more than to count.
const MAX_FIRST_PEEK: usize = 40;

/// What is due in a shard, as `peek_due.lua` says.
#[derive(Clone, Debug)]
pub(super) struct DuePeek {
    /// The server's time, in microseconds.
    pub(super) now: i64,
    /// Until the first entry is due; none where there is no deadline.
    pub(super) wait: Option<Duration>,
    /// How many are due.
    count: usize,
    /// Their deadlines, the oldest first: of all, or of the first ones.
    deadlines: Vec<i64>,
}

impl DuePeek {
    pub(super) fn new(answer: &[i64]) -> Option<Self> {
        let [now, wait, count, deadlines @ ..] = answer else { return None };
        let wait = u64::try_from(*wait).ok().map(Duration::from_micros);
        let count = usize::try_from(*count).ok()?;
        Some(Self { now: *now, wait, count, deadlines: deadlines.to_vec() })
    }
}

/// Of how many in each shard the first peek asks the deadlines, before it is known how many are due at all.
pub(super) fn first_peek_len(limit: usize, shards: usize) -> usize {
    match peek_len(limit, shards) {
        few @ ..=MAX_FIRST_PEEK => few,
        _ => 1,
    }
}

/// Of so many in each shard the deadlines must be known, so that rarely one more of a shard belongs to the
/// `limit` oldest: keys fall on shards by chance, so a shard has its share of them, give or take four standard
/// deviations.
pub(super) fn peek_len(limit: usize, shards: usize) -> usize {
    let share = limit.div_ceil(shards);
    match shards {
        1 => share.min(MAX_PER_SCRIPT),
        _ => share.saturating_add(4 * share.isqrt() + 4).min(MAX_PER_SCRIPT),
    }
}

/// How many of each shard's first entries are the oldest of all, at most `limit` together; and whether that is
/// all that is due.
pub(super) fn take_counts(peeks: &[Option<DuePeek>], limit: usize) -> (Vec<usize>, bool) {
    let counts = || peeks.iter().map(|peek| peek.as_ref().map_or(0, |peek| peek.count));
    let is_all = counts().sum::<usize>() <= limit && counts().all(|count| count <= MAX_PER_SCRIPT);
    if is_all {
        return (counts().collect(), true);
    }
    // Of a shard of which not all was seen, nobody knows the next deadline: nothing that is later than the last
    // that was seen may be taken anywhere, as that one may be sooner.
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
        DuePeek::new(&[&[1_000, 0, count], due].concat())
    }

    #[test]
    fn the_oldest_are_taken_wherever_they_are() {
        let peeks = [peek(3, &[1, 5, 6]), peek(2, &[2, 3]), None, peek(0, &[])];
        assert_eq!(take_counts(&peeks, 9), (vec![3, 2, 0, 0], true));
        assert_eq!(take_counts(&peeks, 5), (vec![3, 2, 0, 0], true));
        assert_eq!(take_counts(&peeks, 4), (vec![2, 2, 0, 0], false));
        assert_eq!(take_counts(&peeks, 2), (vec![1, 1, 0, 0], false));
        assert_eq!(take_counts(&peeks, 0), (vec![0; 4], false));
    }

    #[test]
    fn what_may_come_after_something_unseen_waits() {
        // The first shard may have another before 9.
        let peeks = [peek(7, &[1, 2, 3]), peek(2, &[2, 9])];
        assert_eq!(take_counts(&peeks, 8), (vec![3, 1], false));
        // Where there is limit for all, nothing need be known.
        assert_eq!(take_counts(&peeks, 9), (vec![7, 2], true));
        let most = MAX_PER_SCRIPT as i64;
        assert_eq!(take_counts(&[peek(most + 1, &[1]), peek(1, &[2])], 9_999), (vec![1, 0], false));
    }
}
