//! Routing of commands: to the one server, or to the node of a cluster that serves the key.

use std::sync::Arc;

use ::redis::{RedisError, ServerErrorKind, Value};
use tokio::time::Instant;

use super::{
    cluster::{Cluster, SlotPlace},
    connect::Connector,
    node::{Lane, Node},
    shared_connection::Request,
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

    /// Sends `request` to `node`, or to the server of the command's key if `node` is `None`.
    pub(super) async fn send(
        &self,
        node: Option<&Node>,
        lane: Lane,
        request: Request<'_>,
    ) -> Result<Value, Error> {
        let server = match (self, node) {
            (Self::Cluster(_), Some(node)) => return node.on(lane).send(request, false).await,
            (Self::Cluster(cluster), None) => return cluster.send(lane, request).await,
            (Self::Server(server), _) => server,
        };
        let answer = server.on(lane).send(request, false).await;
        let Err(Error::Unavailable(error)) = answer else { return answer };
        match server_kind(&error) {
            // The server is a node of a cluster, but the client was configured for a single server: retries cannot
            // help.
            Some(ServerErrorKind::Moved | ServerErrorKind::Ask) => {
                return Err(Error::Server(error));
            }
            // The server is a replica. Its address, or its sentinels, may lead to the master by now.
            Some(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown) => server.renew(),
            _ => {}
        }
        Err(Error::Unavailable(error))
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
