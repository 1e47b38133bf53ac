//! Servers of a client: the one server, or the nodes of a cluster.

use std::sync::Arc;

use ::redis::{RedisError, ServerErrorKind};
use tokio::time::Instant;

use super::{
    cluster::{Cluster, SlotPlace},
    connect::Connector,
    node::{Lane, Node},
};
use crate::redis::{Error, error::server_kind};

pub(super) enum Router {
    Server(Node),
    Cluster(Cluster),
}

impl Router {
    /// Returns a router to the same servers over new connections of `connector`.
    pub(super) fn with_connector(&self, connector: Arc<Connector>) -> Self {
        match self {
            Self::Server(node) => Self::Server(node.with_connector(connector)),
            Self::Cluster(cluster) => Self::Cluster(cluster.with_connector(connector)),
        }
    }

    /// Connects to the server, or discovers the nodes of the cluster.
    pub(super) async fn connect(&self) -> Result<(), Error> {
        match self {
            Self::Server(node) => node.on(Lane::Verbs).connect().await,
            Self::Cluster(cluster) => cluster.connect().await,
        }
    }

    /// Returns the error of a call that its server has refused, and replaces the connections if the server may have
    /// another role by now. A cluster does so itself.
    pub(super) fn refused(&self, error: Error) -> Error {
        let (Self::Server(server), Error::Unavailable(cause)) = (self, &error) else {
            return error;
        };
        match server_kind(cause) {
            // The server is a node of a cluster, but the client was configured for a single server: retries cannot
            // help.
            Some(ServerErrorKind::Moved | ServerErrorKind::Ask) => Error::Server(cause.clone()),
            // The server is a replica. Its address, or its sentinels, may lead to the master by now.
            Some(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown) => {
                server.renew();
                error
            }
            _ => error,
        }
    }

    /// Returns all servers that hold keys.
    pub(super) async fn nodes(&self, deadline: Instant) -> Result<Vec<Node>, Error> {
        match self {
            Self::Server(node) => Ok(vec![node.clone()]),
            Self::Cluster(cluster) => cluster.nodes(deadline).await,
        }
    }

    /// Returns the places of the slots of `absent_keys` (see [`Cluster::places`]); empty for a single server.
    pub(super) async fn places(
        &self,
        absent_keys: &[Vec<u8>],
        deadline: Instant,
    ) -> Result<Vec<SlotPlace>, Error> {
        match self {
            Self::Server(_) => Ok(Vec::new()),
            Self::Cluster(cluster) => cluster.places(absent_keys, deadline).await,
        }
    }

    /// Returns the server of `key`; `None` if the nodes of the cluster are not known.
    pub(super) fn node_of(&self, key: &[u8]) -> Option<Node> {
        match self {
            Self::Server(node) => Some(node.clone()),
            Self::Cluster(cluster) => cluster.node_of(key),
        }
    }

    /// Returns the error of a call on `key` if its server has been unreachable for a whole timeout.
    pub(super) fn unreachable(&self, key: &[u8], lane: Lane) -> Option<RedisError> {
        match (self, self.node_of(key)) {
            (_, Some(node)) => node.on(lane).unreachable(),
            (Self::Cluster(cluster), None) => cluster.unreachable(),
            (Self::Server(_), None) => None,
        }
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }
}
