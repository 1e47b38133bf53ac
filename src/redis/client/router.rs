//! To where all callers send: one server, or the nodes of a cluster.

use std::sync::Arc;

use ::redis::{ServerErrorKind, Value};
use tokio::time::Instant;

use super::{
    cluster::{Cluster, SlotPlace},
    connect::Dial,
    node::{Lane, Node},
    shared_connection::Request,
};
use crate::redis::{Error, error::server_kind};

pub(super) enum Connection {
    Server(Node),
    Cluster(Cluster),
}

impl Connection {
    /// The same with other connections.
    pub(super) fn by(&self, dial: Arc<Dial>) -> Self {
        match self {
            Self::Server(node) => Self::Server(node.by(dial)),
            Self::Cluster(cluster) => Self::Cluster(cluster.by(dial)),
        }
    }

    /// Connects to a server, or finds the nodes of the cluster.
    pub(super) async fn connect(&self) -> Result<(), Error> {
        match self {
            Self::Server(node) => node.on(Lane::Verbs).connect().await,
            Self::Cluster(cluster) => cluster.connect().await,
        }
    }

    /// To the server that has the command's key; or to this `node`.
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
            // It belongs to a cluster, of which nobody told us: it stays so.
            Some(ServerErrorKind::Moved | ServerErrorKind::Ask) => {
                return Err(Error::Server(error));
            }
            // It is a replica. Its address, or its sentinels, may lead to the master by now.
            Some(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown) => server.renew(),
            _ => {}
        }
        Err(Error::Unavailable(error))
    }

    /// All servers that hold keys.
    pub(super) async fn nodes(&self, deadline: Instant) -> Result<Vec<Node>, Error> {
        match self {
            Self::Server(node) => Ok(vec![node.clone()]),
            Self::Cluster(cluster) => cluster.nodes(deadline).await,
        }
    }

    /// Where the slots of keys are, of a cluster.
    pub(super) async fn places(
        &self,
        absent: &[Vec<u8>],
        deadline: Instant,
    ) -> Result<Vec<SlotPlace>, Error> {
        match self {
            Self::Server(_) => Ok(Vec::new()),
            Self::Cluster(cluster) => cluster.places(absent, deadline).await,
        }
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }
}
