//! One way to ask for all: each request is a get; after a miss, a set. Time is counted in requests.

use crate::traces::{FOREVER, Request, Trace};

/// A cache with room for so many entries. A value is its own deadline, the number of a request.
pub(crate) trait Subject {
    fn new(room: usize) -> Self;
    async fn get(&mut self, key: u32) -> Option<u32>;
    async fn set(&mut self, request: &Request, deadline: u32);
    /// The time of one request goes by.
    async fn pass(&mut self) {}
    /// After each 64 requests: what has a queue of its own to work through, does.
    async fn settle(&mut self) {}
}

/// The share of hits in percent. What is dead is a miss, also for who knows no deadlines.
pub(crate) async fn replay<S: Subject>(trace: &Trace, room: usize) -> f64 {
    let mut subject = S::new(room);
    let mut hits = 0_u32;
    for (now, request) in (0..).zip(&trace.requests) {
        match subject.get(request.key).await {
            Some(deadline) if deadline > now => hits += 1,
            _ if request.ttl == FOREVER => subject.set(request, FOREVER).await,
            _ => subject.set(request, now + request.ttl).await,
        }
        if trace.has_ttls {
            subject.pass().await;
        }
        if now % 64 == 63 {
            subject.settle().await;
        }
    }
    100.0 * f64::from(hits) / trace.requests.len() as f64
}
