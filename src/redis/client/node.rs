//! One server, with one shared connection per lane.

use std::sync::Arc;

use super::{
    connect::Connector,
    shared_connection::{Route, SharedConnection},
};

/// Lane of a command. Each lane has its own connection, made on first use, so that no command waits behind the replies
/// of another lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Commands on single keys.
    Verbs,
    /// Rate limit checks, whose callers wait for milliseconds at most.
    Limits,
    /// Commands with replies that may be large.
    Batches,
    /// Single values above a mebibyte.
    Large,
}

/// One of the servers that hold keys. A cheap clone.
#[derive(Clone)]
pub(in crate::redis) struct Node([SharedConnection; 4]);

impl Node {
    pub(super) fn new(route: &Route) -> Self {
        // One per lane, by which `on` indexes them.
        let outage = route.outage();
        let lanes = [Lane::Verbs, Lane::Limits, Lane::Batches, Lane::Large];
        Self(
            lanes.map(|lane| {
                SharedConnection::new(route.clone(), outage.clone(), lane == Lane::Large)
            }),
        )
    }

    pub(super) fn on(&self, lane: Lane) -> &SharedConnection {
        &self.0[lane as usize]
    }

    /// Returns a node for the same single server over new connections of `connector`.
    pub(super) fn with_connector(&self, connector: Arc<Connector>) -> Self {
        let destination = self.0[0].destination().clone();
        Self::new(&Route { connector, destination, find_successor: None })
    }

    pub(super) fn renew(&self) {
        // All lanes: they lead to the same address.
        self.0.iter().for_each(SharedConnection::renew);
    }
}
