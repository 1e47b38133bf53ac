//! One server, with a connection for each lane.

use std::sync::Arc;

use super::{
    connect::Dial,
    shared_connection::{Link, Route},
};

/// Each has a connection of its own, which is made when it is first used: so that nobody waits behind the answers
/// of another lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// What is about one key.
    Verbs,
    /// What waits for milliseconds at most.
    Limits,
    /// What may be large.
    Batches,
}

/// One of the servers that hold keys. A cheap clone.
#[derive(Clone)]
pub(in crate::redis) struct Node([Link; 3]);

impl Node {
    pub(super) fn new(route: &Route) -> Self {
        Self([(); 3].map(|()| Link::new(route.clone())))
    }

    pub(super) fn on(&self, lane: Lane) -> &Link {
        &self.0[lane as usize]
    }

    /// The same with other connections.
    pub(super) fn by(&self, dial: Arc<Dial>) -> Self {
        Self::new(&Route { dial, to: self.0[0].to().clone() })
    }

    pub(super) fn renew(&self) {
        self.0.iter().for_each(Link::renew);
    }
}
