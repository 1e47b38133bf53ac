//! Tests of the policy on a model of a shard: an array of buckets.

mod scans;

use std::collections::HashMap;

use rand::{RngExt, SeedableRng, rngs::SmallRng};

use super::*;

/// A shard of `capacity` entries. The hash of a key is a permutation of its bits, except those that all keys of a shard
/// share.
struct Shard {
    capacity: usize,
    table: Vec<Option<Resident>>,
    buckets: HashMap<u64, usize>,
    policy: Policy,
    now: u64,
    /// Earliest deadline of all entries that were ever inserted.
    earliest_expiry: u64,
    evicted: Vec<u64>,
}

#[derive(Clone, Copy)]
struct Resident {
    key: u64,
    deadline: u64,
}

impl Shard {
    fn new(capacity: usize) -> Self {
        let policy = Policy::new(0x5eed);
        let (table, buckets) = (Vec::new(), HashMap::new());
        Self {
            capacity,
            table,
            buckets,
            policy,
            now: 0,
            earliest_expiry: u64::MAX,
            evicted: Vec::new(),
        }
    }

    /// Gets a key and, after a miss, sets it with a TTL of `ttl` requests. Returns whether it was a hit.
    fn request(&mut self, key: u64, ttl: u64) -> bool {
        self.now += 1;
        if let Some(&bucket) = self.buckets.get(&key) {
            if self.table[bucket].expect("an indexed bucket is full").deadline > self.now {
                self.policy.touch(bucket);
                return true;
            }
            self.remove(bucket);
        }
        let bucket = self.put(key, self.now.saturating_add(ttl));
        while self.buckets.len() > self.capacity {
            self.evict(Some(bucket)).expect("another entry can be evicted");
        }
        false
    }

    fn put(&mut self, key: u64, deadline: u64) -> usize {
        if self.buckets.len() >= self.table.len() / 8 * 7 {
            self.grow();
        }
        self.earliest_expiry = self.earliest_expiry.min(deadline);
        let bucket = self.place(Resident { key, deadline });
        self.policy.inserted(bucket, hash(key), self.buckets.len());
        bucket
    }

    fn grow(&mut self) {
        let buckets = (2 * self.table.len()).max(8);
        let before = std::mem::replace(&mut self.table, vec![None; buckets]);
        let words = self.policy.resize(buckets);
        for (from, resident) in before.into_iter().enumerate() {
            if let Some(resident) = resident {
                let to = self.place(resident);
                self.policy.relocate(&words, from, to);
            }
        }
    }

    fn place(&mut self, resident: Resident) -> usize {
        let mut bucket = hash(resident.key) as usize % self.table.len();
        while self.table[bucket].is_some() {
            bucket = (bucket + 1) % self.table.len();
        }
        self.table[bucket] = Some(resident);
        self.buckets.insert(resident.key, bucket);
        bucket
    }

    /// Returns the evicted key and whether it had expired.
    fn evict(&mut self, exempt: Option<usize>) -> Option<(u64, bool)> {
        let (table, now) = (&self.table, self.now);
        let has_expired = |bucket: usize| {
            table[bucket].expect("no call asks for an empty bucket").deadline <= now
        };
        let mut eligibility = Eligibility { exempt: [exempt, None], ..ANY };
        if self.earliest_expiry <= now {
            eligibility.is_unreadable = Some(&has_expired);
        }
        let bucket = self.policy.victim(eligibility)?;
        assert_ne!(Some(bucket), exempt);
        let Resident { key, deadline } =
            self.table[bucket].expect("the bucket of a victim is full");
        let is_expired = deadline <= now;
        if is_expired {
            self.remove(bucket);
        } else {
            let len = self.buckets.len();
            self.take(bucket);
            self.policy.evicted(bucket, hash(key), len);
            self.evicted.push(key);
        }
        Some((key, is_expired))
    }

    fn remove(&mut self, bucket: usize) {
        self.take(bucket);
        self.policy.departed(bucket);
    }

    fn take(&mut self, bucket: usize) {
        let resident = self.table[bucket].take().expect("a bucket that is emptied is full");
        self.buckets.remove(&resident.key);
    }

    /// Returns the hit ratio in percent.
    fn replay(&mut self, keys: impl Iterator<Item = u64>) -> f64 {
        let (mut hits, mut all) = (0, 0);
        for key in keys {
            all += 1;
            hits += u32::from(self.request(key, u64::MAX));
        }
        100.0 * f64::from(hits) / f64::from(all)
    }
}

/// Any entry may be evicted.
const ANY: Eligibility<'static> = Eligibility {
    exempt: [None; MAX_EXEMPT],
    weights: None,
    is_unreadable: None,
    may_decline: false,
};

/// Returns a hash whose upper bits are the same for all keys, as in one shard.
fn hash(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8 | 0x2a << 56
}

#[test]
fn shard_of_one_entry_evicts_the_previous_one() {
    let mut shard = Shard::new(1);
    for key in 0..1_000 {
        assert!(!shard.request(key, u64::MAX));
        assert!(shard.request(key, u64::MAX), "a key that was just set is present");
        assert_eq!(shard.buckets.len(), 1);
    }
    assert_eq!(shard.evicted, (0..999).collect::<Vec<_>>());
}

#[test]
fn exempt_bucket_is_never_a_victim() {
    let mut shard = Shard::new(10);
    let bucket = shard.put(1, u64::MAX);
    assert!(shard.evict(Some(bucket)).is_none());
    assert_eq!(shard.evict(None), Some((1, false)));
    assert!(shard.evict(None).is_none(), "no entry is left");
    assert!(Policy::new(1).victim(ANY).is_none());
}

#[test]
fn new_entry_is_always_admitted_to_a_small_shard() {
    for capacity in [2, 3, 10] {
        let mut shard = Shard::new(capacity);
        let mut random = SmallRng::seed_from_u64(capacity as u64);
        for _ in 0..20_000 {
            let key = random.random_range(0..30);
            shard.request(key, u64::MAX);
            assert!(shard.request(key, u64::MAX));
            assert!(shard.buckets.len() <= capacity);
        }
    }
}

/// No live entry is evicted while one of its neighbors has expired.
#[test]
fn expired_entries_are_evicted_before_live_ones() {
    for capacity in [1_usize, 2, 7, 12] {
        let mut shard = Shard::new(capacity);
        (0..capacity as u64).for_each(|key| assert!(!shard.request(key, u64::MAX)));
        let bucket = shard.put(1_000, shard.now);
        for _ in 0..100 {
            // Some live entries are read again and again, the others never.
            (0..capacity as u64 / 2).for_each(|key| assert!(shard.request(key, u64::MAX)));
        }
        assert_eq!(shard.evict(None), Some((1_000, true)), "{capacity}");
        assert!(shard.table[bucket].is_none());
        let fresh = shard.put(2_000, u64::MAX);
        shard.put(1_001, shard.now);
        assert_eq!(shard.evict(Some(fresh)), Some((1_001, true)), "{capacity}");
    }
}

#[test]
fn expired_entries_are_evicted_before_most_live_ones_in_a_large_shard() {
    let mut shard = Shard::new(usize::MAX);
    (0..1_000).for_each(|key| assert!(!shard.request(key, u64::MAX)));
    (1_000..1_500).for_each(|key| assert!(!shard.request(key, 1)));
    let mut living = 0;
    for _ in 0..500 {
        let (_, is_expired) = shard.evict(None).expect("the shard has many entries");
        living += u32::from(!is_expired);
    }
    // A third of the entries has expired at first, and few at last.
    assert!(living < 60, "{living} of 500 were alive");
}

#[test]
fn same_seed_chooses_the_same_victims() {
    let run = |seed| {
        let mut shard = Shard::new(300);
        shard.policy = Policy::new(seed).for_another_shard(seed);
        let mut random = SmallRng::seed_from_u64(7);
        for _ in 0..100_000 {
            let key = (1_000_f64).powf(random.random::<f64>()) as u64;
            let ttl = if key.is_multiple_of(3) { 500 } else { u64::MAX };
            shard.request(key, ttl);
        }
        shard.evicted
    };
    assert_eq!(run(1), run(1));
    assert!(run(1).len() > 1_000);
}

#[test]
fn access_words_move_with_their_entries() {
    let mut shard = Shard::new(40);
    // Read in turns with new keys, which are evicted in their place.
    for round in 0..200 {
        (0..20).for_each(|key| _ = shard.request(key, u64::MAX));
        shard.request(1_000 + round, u64::MAX);
    }
    let words = |shard: &Shard| -> Vec<u16> {
        let keys = (0..20).map(|key| shard.buckets[&key]);
        keys.map(|bucket| shard.policy.access_words[bucket].load(Relaxed)).collect()
    };
    let before = words(&shard);
    (0..3).for_each(|_| shard.grow());
    assert_eq!(words(&shard), before);
    (0..20).for_each(|_| _ = shard.evict(None).expect("the shard has 40 entries"));
    let survivors = (0..20).filter(|key| shard.buckets.contains_key(key)).count();
    assert!(survivors >= 18, "{survivors} of 20");
}

/// Reuse of buckets after expiry lets nothing grow. `FLEETING_POLICY_CALLS` sets the number of calls.
#[test]
fn policy_memory_is_bounded_by_the_number_of_entries() {
    let mut shard = Shard::new(2_000);
    let mut random = SmallRng::seed_from_u64(11);
    let calls = std::env::var("FLEETING_POLICY_CALLS");
    let calls = calls.map_or(2_000_000, |calls| calls.parse().expect("a number"));
    let (mut most, mut evicted) = (0, 0);
    for i in 0..calls {
        let key = random.random_range(0..1_000_u64) * random.random_range(1..10) + i / 1_000;
        let ttl = [3, 300, 3_000, u64::MAX][key as usize % 4];
        shard.request(key, ttl);
        if i % 7 == 0
            && let Some(&bucket) = shard.buckets.get(&key)
        {
            shard.remove(bucket);
        }
        most = most.max(shard.policy.bytes());
        if shard.evicted.len() > 10_000 {
            evicted += shard.evicted.drain(..).count();
        }
    }
    assert!(evicted > 10_000, "{evicted}");
    assert!(most <= 12 * 2_000 + size_of::<Policy>(), "{most} bytes");
}

/// The number of entries of a cache that is bounded by weight varies.
#[test]
fn policy_memory_shrinks_with_the_number_of_entries() {
    let mut shard = Shard::new(10_000);
    shard.replay(0..30_000);
    let large = shard.policy.bytes();
    shard.capacity = 100;
    while shard.buckets.len() > 100 {
        shard.evict(None).expect("the shard has many entries");
    }
    shard.replay(30_000..31_000);
    let words = 2 * shard.table.len();
    assert!(shard.policy.bytes() - words < large / 4, "{} of {large}", shard.policy.bytes());
}

#[test]
fn evicted_key_is_a_ghost_until_it_is_inserted_again() {
    let mut shard = Shard::new(1_000);
    shard.replay(0..1_500);
    let late: Vec<u64> = shard.evicted[shard.evicted.len() - 300..].to_vec();
    let known = late.iter().filter(|key| shard.policy.was_evicted_recently(hash(**key)));
    assert!(known.count() > 250);
    let one_off_keys =
        (1_000_000..1_010_000).filter(|key| shard.policy.was_evicted_recently(hash(*key)));
    assert!(one_off_keys.count() < 30);
    for key in late {
        shard.request(key, u64::MAX);
        assert!(!shard.policy.was_evicted_recently(hash(key)));
    }
}

/// The store does not report every departure to the policy.
#[test]
fn bucket_emptied_without_notice_can_be_reused() {
    let mut shard = Shard::new(500);
    let mut random = SmallRng::seed_from_u64(3);
    for _ in 0..200_000 {
        shard.request(random.random_range(0..2_000), u64::MAX);
        let bucket = random.random_range(0..shard.table.len());
        if shard.table[bucket].is_some() {
            shard.take(bucket);
        }
    }
}

#[test]
fn repeated_hit_writes_the_access_word_once() {
    let mut shard = Shard::new(100);
    let bucket = shard.put(1, u64::MAX);
    shard.policy.touch(bucket);
    let access_word = shard.policy.access_words[bucket].load(Relaxed);
    shard.policy.touch(bucket);
    assert_eq!(shard.policy.access_words[bucket].load(Relaxed), access_word);
}

/// LRU has no hits in this workload.
#[test]
fn part_of_a_loop_larger_than_the_shard_stays() {
    let mut shard = Shard::new(1_000);
    shard.replay((0..20_000).map(|i| i % 2_000));
    let hits = shard.replay((0..100_000).map(|i| i % 2_000));
    assert!(hits > 40.0, "{hits:.1} %, and 50 would be best");
}

#[test]
fn entries_without_further_accesses_are_evicted() {
    let mut shard = Shard::new(1_000);
    (0..50).for_each(|_| _ = shard.replay(0..900));
    let mut random = SmallRng::seed_from_u64(6);
    shard.replay((0..60_000).map(|_| 10_000 + random.random_range(0..1_500)));
    let left = (0..900).filter(|key| shard.buckets.contains_key(key)).count();
    assert!(left < 50, "{left} of 900 stay");
}
