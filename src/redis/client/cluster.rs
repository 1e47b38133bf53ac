//! The nodes of a cluster and the slot map, which assigns slots to masters.
//!
//! The map is fetched on first use, and again when it turns out to be outdated, once for all callers that noticed. In
//! the meantime calls use the old map and follow redirections (`MOVED`, `ASK`). A node that is down or silent does not
//! delay calls to other nodes.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError, RwLock, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use ::redis::{
    ConnectionAddr, ConnectionInfo, ErrorKind, FromRedisValue, RedisError, RedisResult,
    ServerErrorKind, Value,
};
use futures_util::future::try_join_all;
use tokio::time::{Instant, timeout_at};

use super::{
    connect::Connector,
    connection::CommandBatch,
    first_ok::first_ok,
    node::{Lane, Node},
    sentinel::with_address,
    shared_connection::{Destination, Request, Route, SharedConnection},
    single_flight::{SharedResult, SingleFlight},
};
use crate::{
    engine::coop,
    redis::{
        Error,
        error::{key_bytes, server_kind},
        keyspace::slot,
    },
};

/// Minimum time between two fetches of the map because it was outdated.
const REFRESH_INTERVAL: Duration = Duration::from_millis(50);

pub(super) struct Cluster(Arc<State>);

struct State {
    /// Requests a refresh of the map, for nodes that are unreachable.
    find_successor: Arc<dyn Fn() + Send + Sync>,
    connector: Arc<Connector>,
    /// Servers of the URLs. Nodes are connected to with the login and settings of the first.
    seeds: Vec<ConnectionInfo>,
    map: RwLock<Arc<[SlotRange]>>,
    /// Known nodes by address, so that they keep their connections when the map changes.
    nodes: Mutex<HashMap<Address, Node>>,
    refresh: SingleFlight<RedisResult<()>>,
    /// Time of the last refresh because of an outdated map.
    refreshed_at: Mutex<Option<Instant>>,
    /// Index of the node to ask first for the map. It rotates, so that one outdated node does not answer every time.
    next: AtomicUsize,
}

/// Host and port.
pub(in crate::redis) type Address = (String, u16);

/// Current place of a slot.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::redis) struct SlotPlace {
    pub(in crate::redis) master: Address,
    /// True if the slot is being migrated, so that some of its keys may be on another master.
    pub(in crate::redis) is_moving: bool,
}

/// Range of slots that one master serves.
struct SlotRange {
    first: u16,
    last: u16,
    address: Address,
    node: Node,
}

impl Cluster {
    pub(super) fn new(connector: Arc<Connector>, seeds: Vec<ConnectionInfo>) -> Self {
        // Twice the timeout of one node: if nodes are silent, `first_ok` soon starts with the next.
        let refresh = SingleFlight::new(connector.timeout.saturating_mul(2));
        Self(Arc::new_cyclic(|state: &Weak<State>| {
            let state = state.clone();
            let find_successor = move || {
                if let Some(state) = state.upgrade() {
                    Self(state).request_refresh();
                }
            };
            State {
                find_successor: Arc::new(find_successor),
                connector,
                seeds,
                map: RwLock::new([].into()),
                nodes: Mutex::default(),
                refresh,
                refreshed_at: Mutex::default(),
                next: AtomicUsize::new(0),
            }
        }))
    }

    pub(super) async fn connect(&self) -> Result<(), Error> {
        let gone = |_| Err((ErrorKind::Io, "the runtime that connected was shut down").into());
        self.refresh().await.unwrap_or_else(gone).map_err(Error::Connect)
    }

    /// Sends `request` to the node that serves its first key, and follows one redirection.
    pub(super) async fn send(&self, lane: Lane, request: Request<'_>) -> Result<Value, Error> {
        let slot = slot(key_bytes(request.batch.first()));
        let map = self.map(request.deadline).await?;
        let Some(range) = range_of(&map, slot) else {
            self.request_refresh();
            return Err(no_node());
        };
        let answer = range.node.on(lane).send(request, false).await;
        let Err(error) = &answer else { return answer };
        let (kind, redirect) = match error {
            Error::Unavailable(cause) => {
                (server_kind(cause), cause.redirect_node().map(|(node, _)| node))
            }
            _ => (None, None),
        };
        match (error, kind) {
            // The slot is being migrated: the map stays right until the migration ends.
            (_, Some(ServerErrorKind::Ask)) => {}
            (Error::Connect(_) | Error::Unanswered(_), _)
            | (
                _,
                Some(
                    ServerErrorKind::Moved
                    | ServerErrorKind::ReadOnly
                    | ServerErrorKind::ClusterDown
                    | ServerErrorKind::MasterDown,
                ),
            ) => self.request_refresh(),
            _ => {}
        }
        let Some(address) = redirect.and_then(|node| redirect_address(node, &range.address.0))
        else {
            return answer;
        };
        let node = self.0.node(address);
        // A second redirection is returned as an error, after which the client retries with a pause.
        node.on(lane).send(request, kind == Some(ServerErrorKind::Ask)).await
    }

    /// Returns the same cluster over new connections of `connector`.
    pub(super) fn with_connector(&self, connector: Arc<Connector>) -> Self {
        Self::new(connector, self.0.seeds.clone())
    }

    /// Returns all masters.
    pub(super) async fn nodes(&self, deadline: Instant) -> Result<Vec<Node>, Error> {
        let map = self.new_map(deadline).await?;
        // By address: a master with several ranges must not be scanned twice.
        let masters: HashMap<_, _> =
            map.iter().map(|range| (&range.address, &range.node)).collect();
        Ok(masters.into_values().cloned().collect())
    }

    /// Returns the current places of the slots of `absent_keys`, which are keys that cannot exist.
    ///
    /// Absent, because a master whose slot is being migrated redirects only for keys that it does not hold.
    pub(super) async fn places(
        &self,
        absent_keys: &[Vec<u8>],
        deadline: Instant,
    ) -> Result<Vec<SlotPlace>, Error> {
        let map = self.new_map(deadline).await?;
        let places = absent_keys.iter().map(async |key| {
            let range = range_of(&map, slot(key)).ok_or_else(no_node)?;
            let get = ::redis::cmd("GET").arg(key).to_owned();
            let request = Request { batch: CommandBatch::One(&get), deadline, may_repeat: true };
            let answer = range.node.on(Lane::Verbs).send(request, false).await;
            Ok(SlotPlace { master: range.address.clone(), is_moving: answer.is_err() })
        });
        try_join_all(places).await
    }

    /// Returns the node that serves `key`, if the map contains it.
    pub(super) fn node_of(&self, key: &[u8]) -> Option<Node> {
        range_of(&self.0.map(), slot(key)).map(|range| range.node.clone())
    }

    /// Returns the error of a call if no node is connected, and one has been unreachable for a whole timeout.
    ///
    /// Attempts to connect to the others are in progress: a fetch of the map soon begins with the next node if one is
    /// silent.
    pub(super) fn unreachable(&self) -> Option<RedisError> {
        let addresses = self.0.masters().into_iter().chain(self.0.seeds());
        let nodes: Vec<Node> = addresses.map(|address| self.0.node(address)).collect();
        let mut connections = nodes.iter().map(|node| node.on(Lane::Verbs));
        if connections.clone().any(SharedConnection::is_connected) {
            return None;
        }
        connections.find_map(SharedConnection::unreachable)
    }

    /// Returns the last map that was fetched. Waits for the first one.
    async fn map(&self, deadline: Instant) -> Result<Arc<[SlotRange]>, Error> {
        let map = self.0.map();
        if !map.is_empty() {
            return Ok(map);
        }
        self.new_map(deadline).await
    }

    /// Fetches the map.
    async fn new_map(&self, deadline: Instant) -> Result<Arc<[SlotRange]>, Error> {
        if let Some(error) = self.unreachable() {
            // A task that makes calls without a pause would keep its worker from the attempts in flight.
            coop::proceed().await;
            return Err(Error::Connect(error));
        }
        match timeout_at(deadline, self.connect()).await {
            Ok(found) => found?,
            Err(_) => {
                let cause = "no node of the cluster answered within the timeout";
                let error = (ErrorKind::Io, cause).into();
                return Err(Error::Connect(self.unreachable().unwrap_or(error)));
            }
        }
        Ok(self.0.map())
    }

    /// Fetches the map in the background, unless it was just fetched.
    fn request_refresh(&self) {
        let mut refreshed_at = self.0.refreshed_at.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if refreshed_at.is_some_and(|last| now < last + REFRESH_INTERVAL) {
            return;
        }
        // Before the fetch, so that callers which fail in the meantime do not request another one.
        *refreshed_at = Some(now);
        drop(refreshed_at);
        // It runs in a task of its own.
        drop(self.refresh());
    }

    fn refresh(&self) -> SharedResult<RedisResult<()>> {
        let state = self.0.clone();
        self.0.refresh.join(|| async move {
            let map = state.fetch_map().await?;
            state.replace_map(map);
            Ok(())
        })
    }
}

impl State {
    /// Returns the addresses of the known masters.
    fn masters(&self) -> Vec<Address> {
        let mut all: Vec<_> = self.map().iter().map(|range| range.address.clone()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Returns the addresses of the URLs.
    fn seeds(&self) -> impl Iterator<Item = Address> {
        self.seeds.iter().filter_map(|seed| match seed.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Some((host.clone(), *port))
            }
            _ => None,
        })
    }

    /// Fetches the map from the known masters or the seeds, whichever answers first.
    async fn fetch_map(&self) -> RedisResult<Vec<SlotRange>> {
        let mut all = self.masters();
        // The seeds come last: their host names may resolve to nodes that are in the map already.
        let first = self.next.fetch_add(1, Relaxed) % all.len().max(1);
        all.rotate_left(first);
        all.extend(self.seeds());
        let fetches = all.into_iter().map(|address| self.fetch_map_from(address));
        first_ok(fetches, self.connector.timeout, |_| ()).await.map_err(|error| {
            let if_empty = (ErrorKind::InvalidClientConfig, "no address of a cluster node given");
            error.unwrap_or_else(|| if_empty.into())
        })
    }

    async fn fetch_map_from(&self, address: Address) -> RedisResult<Vec<SlotRange>> {
        let mut slots = ::redis::cmd("CLUSTER");
        slots.arg("SLOTS");
        let deadline = Instant::now() + self.connector.timeout;
        let request = Request { batch: CommandBatch::One(&slots), deadline, may_repeat: true };
        let node = self.node(address.clone());
        let answer = node.on(Lane::Verbs).send(request, false).await;
        let answer = answer.map_err(|error| match error {
            Error::Connect(cause)
            | Error::Unanswered(cause)
            | Error::Unavailable(cause)
            | Error::Server(cause) => cause,
            _ => (ErrorKind::Client, "a node did not return the slots of its cluster").into(),
        })?;
        // Each range is an array: first slot, last slot, master, replicas.
        let ranges: Vec<Vec<Value>> = FromRedisValue::from_redis_value(answer)?;
        let mut map: Vec<SlotRange> =
            ranges.iter().filter_map(|range| self.parse_range(range, &address.0)).collect();
        if map.is_empty() {
            return Err((ErrorKind::Client, "a node of the cluster returned no slots").into());
        }
        // For the binary search in `range_of`.
        map.sort_unstable_by_key(|range| range.last);
        Ok(map)
    }

    fn parse_range(&self, range: &[Value], asked_host: &str) -> Option<SlotRange> {
        let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = range else {
            return None;
        };
        let [host, Value::Int(port), ..] = &master[..] else { return None };
        let host = match host {
            Value::BulkString(host) if !host.is_empty() => str::from_utf8(host).ok()?,
            // A node that does not know its own address has the one at which it was reached.
            _ => asked_host,
        };
        // The node prefers host names (`cluster-preferred-endpoint-type`), but has none configured.
        if host == "?" {
            return None;
        }
        let address = (host.to_owned(), u16::try_from(*port).ok()?);
        let node = self.node(address.clone());
        let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
        Some(SlotRange { first, last, address, node })
    }

    fn replace_map(&self, map: Vec<SlotRange>) {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let is_unused = |address: &Address| map.iter().all(|range| range.address != *address);
        let unused: Vec<Node> =
            nodes.extract_if(|address, _| is_unused(address)).map(|(_, node)| node).collect();
        // Never locked together with the map.
        drop(nodes);
        let old = {
            let mut current = self.map.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *current, map.into())
        };
        let slots = |map: &[SlotRange]| -> Vec<_> {
            map.iter().map(|range| (range.first, range.last, range.address.clone())).collect()
        };
        // Another node serves some slots: invalidations of its keys may have been missed.
        if !unused.is_empty() || slots(&old) != slots(&self.map()) {
            self.connector.on_connection_retired();
        }
        // After unlock: without waiters, this closes their connections.
        drop((old, unused));
    }

    fn node(&self, address: Address) -> Node {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes
            .entry(address)
            .or_insert_with_key(|(host, port)| {
                let server = with_address(&self.seeds[0], host.clone(), *port);
                let destination = Destination::Server(Arc::new(server));
                let connector = self.connector.clone();
                let find_successor = Some(self.find_successor.clone());
                Node::new(&Route { connector, destination, find_successor })
            })
            .clone()
    }

    fn map(&self) -> Arc<[SlotRange]> {
        self.map.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Returns the range that contains `slot`, in a map sorted by last slot.
fn range_of(map: &[SlotRange], slot: u16) -> Option<&SlotRange> {
    let at = map.partition_point(|range| range.last < slot);
    map.get(at).filter(|range| range.first <= slot)
}

fn no_node() -> Error {
    let kind = ErrorKind::Server(ServerErrorKind::ClusterDown);
    Error::Unavailable((kind, "the slot map of the cluster has no node for the slot").into())
}

/// Returns the address of a redirection. If it has no host, it has that of the node that redirected.
fn redirect_address(redirect: &str, host: &str) -> Option<Address> {
    let (named, port) = redirect.rsplit_once(':')?;
    let host = if named.is_empty() { host } else { named };
    Some((host.to_owned(), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirection_without_a_host_keeps_the_host() {
        let address = |host: &str, port| Some((host.to_owned(), port));
        assert_eq!(redirect_address("10.0.0.2:6380", "10.0.0.1"), address("10.0.0.2", 6380));
        assert_eq!(redirect_address("::1:6380", "10.0.0.1"), address("::1", 6380));
        assert_eq!(redirect_address(":6380", "10.0.0.1"), address("10.0.0.1", 6380));
        assert_eq!(redirect_address("no-port", "10.0.0.1"), None);
    }
}
