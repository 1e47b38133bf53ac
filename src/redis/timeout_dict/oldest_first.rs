//! Who takes how much from which shard, so that the oldest come first.

use std::time::Duration;

/// A script touches no more entries than this, since all others wait meanwhile.
const MOST: usize = 512;

/// Up to as many are looked at in the first place: it costs little more than to count.
const FEW: usize = 40;

/// What is due in a shard.
#[derive(Clone, Debug)]
pub(super) struct Look {
    /// The server's time, in microseconds.
    pub(super) now: i64,
    /// Until the first entry is due; none where there is no deadline.
    pub(super) wait: Option<Duration>,
    /// How many are due.
    count: usize,
    /// When they were to be, the oldest first: of all, or of the first ones.
    due: Vec<i64>,
}

impl Look {
    pub(super) fn new(answer: &[i64]) -> Option<Self> {
        let [now, wait, count, due @ ..] = answer else { return None };
        let wait = u64::try_from(*wait).ok().map(Duration::from_micros);
        let count = usize::try_from(*count).ok()?;
        Some(Self { now: *now, wait, count, due: due.to_vec() })
    }
}

/// Of how many in each shard it is worth to know when they were to be, before it is known how many there are.
pub(super) fn few(room: usize, shards: usize) -> usize {
    match many(room, shards) {
        few @ ..=FEW => few,
        _ => 1,
    }
}

/// Of so many in each shard it must be known, so that rarely one more of a shard belongs to the `room` oldest:
/// keys fall on shards by chance, so a shard has its share of them, give or take four standard deviations.
pub(super) fn many(room: usize, shards: usize) -> usize {
    let share = room.div_ceil(shards);
    match shards {
        1 => share.min(MOST),
        _ => share.saturating_add(4 * share.isqrt() + 4).min(MOST),
    }
}

/// How many of each shard's first entries are the oldest of all, at most `room` together; and whether that is
/// all that is due.
pub(super) fn shares(looks: &[Option<Look>], room: usize) -> (Vec<usize>, bool) {
    let counts = || looks.iter().map(|look| look.as_ref().map_or(0, |look| look.count));
    let is_all = counts().sum::<usize>() <= room && counts().all(|count| count <= MOST);
    if is_all {
        return (counts().collect(), true);
    }
    // Of a shard of which not all was seen, nobody knows the next.
    let known = looks.iter().flatten().filter(|look| look.count > look.due.len());
    let known = known.map(|look| look.due.last().map_or(i64::MIN, |last| *last)).min();
    let mut all = Vec::new();
    for (shard, look) in looks.iter().enumerate() {
        let due = look.iter().flat_map(|look| &look.due);
        let due = due.filter(|at| known.is_none_or(|known| **at <= known));
        all.extend(due.map(|at| (*at, shard)));
    }
    all.sort_unstable();
    let mut shares = vec![0; looks.len()];
    for (_, shard) in all.iter().take(room) {
        shares[*shard] += 1;
    }
    (shares, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(count: i64, due: &[i64]) -> Option<Look> {
        Look::new(&[&[1_000, 0, count], due].concat())
    }

    #[test]
    fn the_oldest_are_taken_wherever_they_are() {
        let looks = [look(3, &[1, 5, 6]), look(2, &[2, 3]), None, look(0, &[])];
        assert_eq!(shares(&looks, 9), (vec![3, 2, 0, 0], true));
        assert_eq!(shares(&looks, 5), (vec![3, 2, 0, 0], true));
        assert_eq!(shares(&looks, 4), (vec![2, 2, 0, 0], false));
        assert_eq!(shares(&looks, 2), (vec![1, 1, 0, 0], false));
        assert_eq!(shares(&looks, 0), (vec![0; 4], false));
    }

    #[test]
    fn what_may_come_after_something_unseen_waits() {
        // The first shard may have another before 9.
        let looks = [look(7, &[1, 2, 3]), look(2, &[2, 9])];
        assert_eq!(shares(&looks, 8), (vec![3, 1], false));
        // Where there is room for all, nothing need be known.
        assert_eq!(shares(&looks, 9), (vec![7, 2], true));
        let most = MOST as i64;
        assert_eq!(shares(&[look(most + 1, &[1]), look(1, &[2])], 9_999), (vec![1, 0], false));
    }
}
