//! What the field is measured against: exact LRU, S3-FIFO as its paper has it, and Belady's optimum.

use std::{
    collections::{BTreeMap, BinaryHeap, HashMap, VecDeque},
    mem,
};

use crate::{
    replay::Subject,
    traces::{FOREVER, Request, Trace},
};

#[derive(Default)]
pub(crate) struct Lru {
    room: usize,
    /// The deadline of each key, and which call asked for it last.
    entries: HashMap<u32, (u32, usize)>,
    /// Who was asked for by which call.
    order: BTreeMap<usize, u32>,
    calls: usize,
}

impl Subject for Lru {
    fn new(room: usize) -> Self {
        Self { room, ..Self::default() }
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
        if self.entries.len() > self.room {
            let (_, oldest) = self.order.pop_first().expect("each entry is in it");
            self.entries.remove(&oldest);
        }
    }
}

/// Yang et al., "FIFO queues are all you need for cache eviction" (SOSP 2023): a tenth of the room is for what is new.
#[derive(Default)]
pub(crate) struct S3Fifo {
    room: usize,
    /// The deadline of each key, and how often it was asked for, up to three.
    entries: HashMap<u32, (u32, u8)>,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    /// Who was evicted, and as the how manieth.
    ghosts: HashMap<u32, usize>,
    ghost_order: VecDeque<(usize, u32)>,
    evicted: usize,
}

impl Subject for S3Fifo {
    fn new(room: usize) -> Self {
        Self { room, ..Self::default() }
    }

    async fn get(&mut self, key: u32) -> Option<u32> {
        let (deadline, hits) = self.entries.get_mut(&key)?;
        *hits = 3.min(*hits + 1);
        Some(*deadline)
    }

    async fn set(&mut self, request: &Request, deadline: u32) {
        if let Some((died, _)) = self.entries.get_mut(&request.key) {
            *died = deadline;
            return;
        }
        while self.entries.len() >= self.room {
            self.evict();
        }
        let comes_back = self.ghosts.remove(&request.key).is_some();
        let queue = if comes_back { &mut self.main } else { &mut self.small };
        queue.push_back(request.key);
        self.entries.insert(request.key, (deadline, 0));
    }
}

impl S3Fifo {
    /// Lets one leave, or gives one another chance.
    fn evict(&mut self) {
        if self.small.len() * 10 >= self.room || self.main.is_empty() {
            let key = self.small.pop_front().expect("the smaller queue is not empty");
            if self.entries[&key].1 > 1 {
                return self.main.push_back(key);
            }
            self.entries.remove(&key);
            self.evicted += 1;
            self.ghosts.insert(key, self.evicted);
            self.ghost_order.push_back((self.evicted, key));
            while self.ghost_order.len() > self.room {
                let (nth, key) = self.ghost_order.pop_front().expect("it is too long");
                if self.ghosts.get(&key) == Some(&nth) {
                    self.ghosts.remove(&key);
                }
            }
        } else {
            let key = self.main.pop_front().expect("it is not empty");
            let (_, hits) = self.entries.get_mut(&key).expect("what is queued is there");
            if *hits > 0 {
                *hits -= 1;
                self.main.push_back(key);
            } else {
                self.entries.remove(&key);
            }
        }
    }
}

/// Who is asked for last, or dies before it is, leaves: nobody can do better.
pub(crate) fn optimum(trace: &Trace, room: usize) -> f64 {
    let requests = &trace.requests;
    let mut next = vec![usize::MAX; requests.len()];
    let mut coming = HashMap::new();
    for (at, request) in requests.iter().enumerate().rev() {
        next[at] = coming.insert(request.key, at).unwrap_or(usize::MAX);
    }
    // The deadline of each key, and when it is asked for next; the farthest of these first, also what is no longer so.
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
        while entries.len() > room {
            let (asked, key) = farthest.pop().expect("each entry is in it");
            if entries.get(&key).is_some_and(|(_, next)| *next == asked) {
                entries.remove(&key);
            }
        }
    }
    100.0 * f64::from(hits) / requests.len() as f64
}
