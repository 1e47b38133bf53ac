//! Numbers of elements of a queue, for the dashboard.

use std::sync::{Arc, Weak};

use super::{metrics::Measure, protocol::Protocol, records::Records};
use crate::engine::metrics::QueueDepth;

/// Returns a function that measures the queue as long as it exists.
pub(super) fn measure<P: Protocol>(queue: &Arc<P>) -> Measure {
    let queue: Weak<P> = Arc::downgrade(queue);
    Box::new(move || queue.upgrade().and_then(|queue| depth(&*queue)))
}

/// Counts the elements of a queue, directory by directory. Returns `None` if it cannot be read.
fn depth<P: Protocol>(queue: &P) -> Option<QueueDepth> {
    let mut depth = QueueDepth::default();
    for directory in queue.root().directories().ok()? {
        let length = queue.elements(directory).ok()?.len() as u64;
        depth.length += length;
        depth.locked += queue.locked_in(directory).ok()?.min(length);
    }
    let records = Records::snapshot(queue.root()).ok()?;
    depth.dead = records.map_or(0, |records| records.dead_len() as u64);
    Some(depth)
}
