//! The connection that all callers share: to one server, or to the nodes of a cluster.

use ::redis::{
    Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value,
    aio::{ConnectionLike, ConnectionManager},
    cluster_async::ClusterConnection,
    cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr},
};

/// A cheap clone: all clones send on the same sockets.
#[derive(Clone)]
pub(super) enum Connection {
    Server(ConnectionManager),
    Cluster(ClusterConnection),
}

/// One of the servers that hold keys, by a slot that it has; `None` where there is no cluster.
#[derive(Clone, Copy, Debug)]
pub(in crate::redis) struct Node(pub(super) Option<u16>);

impl Connection {
    /// To the server that has the command's key.
    pub(super) async fn send(&self, cmd: &Cmd) -> RedisResult<Value> {
        match self {
            Self::Server(server) => server.clone().send_packed_command(cmd).await,
            Self::Cluster(cluster) => {
                let mut cluster = cluster.clone();
                let answer = cluster.req_packed_command(cmd).await;
                match answer {
                    // The client library follows these only where it may retry, which `builder.rs` forbids.
                    // `MOVED` needs nothing: the library has learnt from it when `Client::send` sends again.
                    Err(error) if is_ask(&error) => follow_ask(&mut cluster, cmd, error).await,
                    answer => answer,
                }
            }
        }
    }

    /// To a node of a cluster that was found before; `None` where that is not how to reach it.
    pub(super) async fn send_to(&self, node: Node, cmd: &Cmd) -> Option<RedisResult<Value>> {
        let (Self::Cluster(cluster), Node(Some(slot))) = (self, node) else { return None };
        let route = SingleNodeRoutingInfo::SpecificNode(Route::new(slot, SlotAddr::Master));
        let route = RoutingInfo::SingleNode(route);
        Some(cluster.clone().route_command(cmd.clone(), route).await)
    }
}

/// Sends it to the node to which its slot is being moved. That node answers for the slot only right after
/// `ASKING`, so both go in one pipeline.
async fn follow_ask(
    cluster: &mut ClusterConnection,
    cmd: &Cmd,
    error: RedisError,
) -> RedisResult<Value> {
    let Some((host, port)) = error.redirect_node().and_then(|(node, _)| node.rsplit_once(':'))
    else {
        return Err(error);
    };
    let Ok(port) = port.parse() else { return Err(error) };
    let node = SingleNodeRoutingInfo::ByAddress { host: host.to_owned(), port };
    let mut pipeline = ::redis::pipe();
    pipeline.cmd("ASKING").add_command(cmd.clone());
    let mut answers = cluster.route_pipeline(pipeline, 0, 2, node).await?;
    answers.pop().ok_or(error)?.extract_error()
}

fn is_ask(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::Ask)
}
