//! Reference policies: exact LRU, S3-FIFO as in its paper, and Belady's optimum.

use std::{
    collections::{BTreeMap, BinaryHeap, HashMap, VecDeque},
    mem,
};

use crate::{
    replay::Candidate,
    traces::{FOREVER, Request, Trace},
};

#[derive(Default)]
pub(crate) struct Lru {
    capacity: usize,
    /// Deadline of each key, and number of the last call for it.
    entries: HashMap<u32, (u32, usize)>,
    /// Keys by the number of the last call for them.
    order: BTreeMap<usize, u32>,
    calls: usize,
}

impl Candidate for Lru {
    fn new(capacity: usize) -> Self {
        Self { capacity, ..Self::default() }
    }

    async fn get(&mut self, key: u32) -> Option<u32> {
        let (deadline, last) = self.entries.get_mut(&key)?;
        self.calls += 1;
        self.order.remove(&mem::replace(last, self.calls));
        self.order.insert(self.calls, key);
        Some(*deadline)
    }

    async fn set(&mut self, request: &Request, deadline: u32) {
        self.calls += 1;
        if let Some((_, last)) = self.entries.insert(request.key, (deadline, self.calls)) {
            self.order.remove(&last);
        }
        self.order.insert(self.calls, request.key);
        if self.entries.len() > self.capacity {
            let (_, oldest) = self.order.pop_first().expect("every entry is in the order");
            self.entries.remove(&oldest);
        }
    }
}

/// S3-FIFO by Yang et al., "FIFO queues are all you need for cache eviction" (SOSP 2023). New keys start in a queue
/// with a tenth of the capacity.
#[derive(Default)]
pub(crate) struct S3Fifo {
    capacity: usize,
    /// Deadline and number of hits of each key; hits are counted up to three.
    entries: HashMap<u32, (u32, u8)>,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    /// Evicted keys, with the sequence number of their eviction.
    ghosts: HashMap<u32, usize>,
    ghost_order: VecDeque<(usize, u32)>,
    evicted: usize,
}

impl Candidate for S3Fifo {
    fn new(capacity: usize) -> Self {
        Self { capacity, ..Self::default() }
    }

    async fn get(&mut self, key: u32) -> Option<u32> {
        let (deadline, hits) = self.entries.get_mut(&key)?;
        *hits = 3.min(*hits + 1);
        Some(*deadline)
    }

    async fn set(&mut self, request: &Request, deadline: u32) {
        if let Some((old, _)) = self.entries.get_mut(&request.key) {
            *old = deadline;
            return;
        }
        while self.entries.len() >= self.capacity {
            self.evict();
        }
        let comes_back = self.ghosts.remove(&request.key).is_some();
        let queue = if comes_back { &mut self.main } else { &mut self.small };
        queue.push_back(request.key);
        self.entries.insert(request.key, (deadline, 0));
    }
}

impl S3Fifo {
    /// Evicts the head of a queue, or moves it to the tail of the main queue if it had hits.
    fn evict(&mut self) {
        if self.small.len() * 10 >= self.capacity || self.main.is_empty() {
            let key = self.small.pop_front().expect("the smaller queue is not empty");
            if self.entries[&key].1 > 1 {
                return self.main.push_back(key);
            }
            self.entries.remove(&key);
            self.evicted += 1;
            self.ghosts.insert(key, self.evicted);
            self.ghost_order.push_back((self.evicted, key));
            while self.ghost_order.len() > self.capacity {
                let (nth, key) = self.ghost_order.pop_front().expect("the queue is too long");
                if self.ghosts.get(&key) == Some(&nth) {
                    self.ghosts.remove(&key);
                }
            }
        } else {
            let key = self.main.pop_front().expect("the main queue is not empty");
            let (_, hits) = self.entries.get_mut(&key).expect("queued keys have an entry");
            if *hits > 0 {
                *hits -= 1;
                self.main.push_back(key);
            } else {
                self.entries.remove(&key);
            }
        }
    }
}

/// Returns the hit ratio of Belady's optimum, which evicts the entry that is requested last. Entries that expire before
/// their next request are not stored.
pub(crate) fn optimum(trace: &Trace, capacity: usize) -> f64 {
    let requests = &trace.requests;
    let mut next = vec![usize::MAX; requests.len()];
    let mut coming = HashMap::new();
    for (at, request) in requests.iter().enumerate().rev() {
        next[at] = coming.insert(request.key, at).unwrap_or(usize::MAX);
    }
    // Deadline and next request of each key, and a heap by next request. The heap may contain outdated pairs.
    let mut entries: HashMap<u32, (u32, usize)> = HashMap::new();
    let mut farthest: BinaryHeap<(usize, u32)> = BinaryHeap::new();
    let mut hits = 0;
    for (now, request) in (0_u32..).zip(requests) {
        let deadline = match entries.remove(&request.key) {
            Some((deadline, _)) if deadline > now => {
                hits += 1;
                deadline
            }
            _ if request.ttl == FOREVER => FOREVER,
            _ => now + request.ttl,
        };
        let next = next[now as usize];
        if next >= deadline as usize {
            continue;
        }
        entries.insert(request.key, (deadline, next));
        farthest.push((next, request.key));
        while entries.len() > capacity {
            let (requested, key) = farthest.pop().expect("every entry is in the order");
            if entries.get(&key).is_some_and(|(_, next)| *next == requested) {
                entries.remove(&key);
            }
        }
    }
    100.0 * f64::from(hits) / requests.len() as f64
}
