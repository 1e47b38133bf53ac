//! Replay of a trace, the same for all candidates: each request is a get, and a set after a miss. Time is counted in
//! requests.

use crate::traces::{FOREVER, Request, Trace};

/// A cache with a bounded number of entries. The value of an entry is its deadline, as the number of a request.
pub(crate) trait Candidate {
    fn new(capacity: usize) -> Self;
    async fn get(&mut self, key: u32) -> Option<u32>;
    async fn set(&mut self, request: &Request, deadline: u32);
    /// Advances the clock by one request.
    async fn pass(&mut self) {}
    /// Runs pending tasks; called after every 64 requests.
    async fn settle(&mut self) {}
}

/// Returns the share of hits in percent. Expired entries are misses, also in caches that do not use the deadlines.
pub(crate) async fn replay<S: Candidate>(trace: &Trace, capacity: usize) -> f64 {
    let mut candidate = S::new(capacity);
    let mut hits = 0_u32;
    for (now, request) in (0..).zip(&trace.requests) {
        match candidate.get(request.key).await {
            Some(deadline) if deadline > now => hits += 1,
            _ if request.ttl == FOREVER => candidate.set(request, FOREVER).await,
            _ => candidate.set(request, now + request.ttl).await,
        }
        if trace.has_ttls {
            candidate.pass().await;
        }
        if now % 64 == 63 {
            candidate.settle().await;
        }
    }
    100.0 * f64::from(hits) / trace.requests.len() as f64
}
