//! The nodes of a cluster, and which of them has which slots.
//!
//! The map is asked for when there is none, and again when it turned out wrong: once for all who noticed. Calls go by
//! the old one meanwhile, and to where nodes point (`MOVED`, `ASK`). A node that is away or silent keeps nobody from
//! the others.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use ::redis::{
    ConnectionAddr, ConnectionInfo, ErrorKind, FromRedisValue, RedisResult, ServerErrorKind, Value,
};
use futures_util::future::try_join_all;
use tokio::time::{Instant, timeout_at};

use super::{
    connect::Dial,
    first_ok::any_answer,
    node::{Lane, Node},
    sentinel::at,
    shared_connection::{Asked, Destination, Request, Route},
    single_flight::{Joint, Outcome},
};
use crate::redis::{
    Error,
    error::{key_bytes, server_kind},
    keyspace::slot,
};

/// How often the map is asked for, at most, because it was wrong.
const LOOK_EVERY: Duration = Duration::from_millis(50);

pub(super) struct Cluster(Arc<State>);

struct State {
    dial: Arc<Dial>,
    /// Where the cluster was found; all else that there is to know of a node than its address is as of the first.
    seeds: Vec<ConnectionInfo>,
    map: RwLock<Arc<[Range]>>,
    /// Those that are known, so that they keep their connections when the map changes.
    nodes: Mutex<HashMap<Address, Node>>,
    look: Joint<RedisResult<()>>,
    looked: Mutex<Option<Instant>>,
    /// Who is asked first the next time: not always the one that is wrong.
    next: AtomicUsize,
}

/// Host and port.
pub(in crate::redis) type Address = (String, u16);

/// Where a slot is.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::redis) struct SlotPlace {
    pub(in crate::redis) master: Address,
    /// Some of its keys may be on another master.
    pub(in crate::redis) is_moving: bool,
}

/// Slots that one master has.
struct Range {
    first: u16,
    last: u16,
    address: Address,
    node: Node,
}

impl Cluster {
    pub(super) fn new(dial: Arc<Dial>, seeds: Vec<ConnectionInfo>) -> Self {
        // Nodes that are silent are asked one soon after the other.
        let look = Joint::new(dial.timeout.saturating_mul(2));
        Self(Arc::new(State {
            dial,
            seeds,
            map: RwLock::new([].into()),
            nodes: Mutex::default(),
            look,
            looked: Mutex::default(),
            next: AtomicUsize::new(0),
        }))
    }

    pub(super) async fn connect(&self) -> Result<(), Error> {
        let gone = |_| Err((ErrorKind::Io, "the runtime that connected is gone").into());
        self.look().await.unwrap_or_else(gone).map_err(Error::Connect)
    }

    /// To the node that has the key of what is asked.
    pub(super) async fn send(&self, lane: Lane, request: Request<'_>) -> Result<Value, Error> {
        let slot = slot(key_bytes(request.asked.first()));
        let map = self.map(request.deadline).await?;
        let Some(range) = range_of(&map, slot) else {
            self.look_again();
            return Err(no_node());
        };
        let answer = range.node.on(lane).send(request, false).await;
        let Err(error) = &answer else { return answer };
        let (kind, points_to) = match error {
            Error::Unavailable(cause) => {
                (server_kind(cause), cause.redirect_node().map(|(node, _)| node))
            }
            _ => (None, None),
        };
        match (error, kind) {
            // The slot is being moved, and the map is as right as it can be.
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
            ) => self.look_again(),
            _ => {}
        }
        let Some(address) = points_to.and_then(|node| address_of(node, &range.address.0)) else {
            return answer;
        };
        let node = self.0.node(address);
        node.on(lane).send(request, kind == Some(ServerErrorKind::Ask)).await
    }

    /// The same with other connections.
    pub(super) fn by(&self, dial: Arc<Dial>) -> Self {
        Self::new(dial, self.0.seeds.clone())
    }

    /// All masters.
    pub(super) async fn nodes(&self, deadline: Instant) -> Result<Vec<Node>, Error> {
        // As it is now; as it was, where nobody can be asked.
        let _ = timeout_at(deadline, self.look()).await;
        let map = self.map(deadline).await?;
        // A master that has several ranges is one node: asked twice, it would be scanned twice.
        let masters: HashMap<_, _> =
            map.iter().map(|range| (&range.address, &range.node)).collect();
        Ok(masters.into_values().cloned().collect())
    }

    /// Where the slots of these keys are now; of keys that there can't be. A master that gives a slot away points to where
    /// it goes for each key that it has not.
    pub(super) async fn places(
        &self,
        absent: &[Vec<u8>],
        deadline: Instant,
    ) -> Result<Vec<SlotPlace>, Error> {
        // As it is now; as it was, where nobody can be asked.
        let _ = timeout_at(deadline, self.look()).await;
        let map = self.map(deadline).await?;
        let places = absent.iter().map(async |key| {
            let range = range_of(&map, slot(key)).ok_or_else(no_node)?;
            let get = ::redis::cmd("GET").arg(key).to_owned();
            let request = Request { asked: Asked::One(&get), deadline, may_repeat: true };
            let answer = range.node.on(Lane::Verbs).send(request, false).await;
            Ok(SlotPlace { master: range.address.clone(), is_moving: answer.is_err() })
        });
        try_join_all(places).await
    }

    /// The map that there is; the first one is waited for.
    async fn map(&self, deadline: Instant) -> Result<Arc<[Range]>, Error> {
        let map = self.0.map();
        if !map.is_empty() {
            return Ok(map);
        }
        match timeout_at(deadline, self.connect()).await {
            Ok(found) => found?,
            Err(_) => {
                let cause = "no node of the cluster in time";
                return Err(Error::Connect((ErrorKind::Io, cause).into()));
            }
        }
        Ok(self.0.map())
    }

    fn look_again(&self) {
        let mut looked = self.0.looked.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if looked.is_some_and(|last| now < last + LOOK_EVERY) {
            return;
        }
        *looked = Some(now);
        drop(looked);
        drop(self.look());
    }

    fn look(&self) -> Outcome<RedisResult<()>> {
        let state = self.0.clone();
        self.0.look.join(|| async move {
            let map = state.ask_all().await?;
            state.put(map);
            Ok(())
        })
    }
}

impl State {
    /// Asks the masters, and the seeds, until one of them tells which slots there are.
    async fn ask_all(&self) -> RedisResult<Vec<Range>> {
        let map = self.map();
        let mut all: Vec<Address> = map.iter().map(|range| range.address.clone()).collect();
        all.sort_unstable();
        all.dedup();
        let seeds = self.seeds.iter().filter_map(|seed| match seed.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Some((host.clone(), *port))
            }
            _ => None,
        });
        // The seeds come last: their names may lead to nodes that are in the map already.
        let first = self.next.fetch_add(1, Relaxed) % all.len().max(1);
        all.rotate_left(first);
        let all: Vec<Address> = all.into_iter().chain(seeds).collect();
        let nobody = (ErrorKind::InvalidClientConfig, "no node of a cluster is known").into();
        any_answer(all.into_iter().map(|address| self.ask(address)), nobody).await
    }

    async fn ask(&self, address: Address) -> RedisResult<Vec<Range>> {
        let mut slots = ::redis::cmd("CLUSTER");
        slots.arg("SLOTS");
        let deadline = Instant::now() + self.dial.timeout;
        let request = Request { asked: Asked::One(&slots), deadline, may_repeat: true };
        let node = self.node(address.clone());
        let answer = node.on(Lane::Verbs).send(request, false).await;
        let answer = answer.map_err(|error| match error {
            Error::Connect(cause)
            | Error::Unanswered(cause)
            | Error::Unavailable(cause)
            | Error::Server(cause) => cause,
            _ => (ErrorKind::Client, "a node does not know the cluster").into(),
        })?;
        // A range is its first and last slot, its master, and the replicas.
        let ranges: Vec<Vec<Value>> = FromRedisValue::from_redis_value(answer)?;
        let mut map: Vec<Range> =
            ranges.iter().filter_map(|range| self.range(range, &address.0)).collect();
        if map.is_empty() {
            return Err((ErrorKind::Client, "a node of the cluster knows no slots").into());
        }
        map.sort_unstable_by_key(|range| range.last);
        Ok(map)
    }

    fn range(&self, range: &[Value], asked: &str) -> Option<Range> {
        let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = range else {
            return None;
        };
        let [host, Value::Int(port), ..] = &master[..] else { return None };
        let host = match host {
            Value::BulkString(host) if !host.is_empty() => str::from_utf8(host).ok()?,
            // It knows no address of its own: the one at which it was asked.
            _ => asked,
        };
        // It has no name, and is to be known by it.
        if host == "?" {
            return None;
        }
        let address = (host.to_owned(), u16::try_from(*port).ok()?);
        let node = self.node(address.clone());
        let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
        Some(Range { first, last, address, node })
    }

    fn put(&self, map: Vec<Range>) {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let is_gone = |address: &Address| map.iter().all(|range| range.address != *address);
        let gone: Vec<Node> =
            nodes.extract_if(|address, _| is_gone(address)).map(|(_, node)| node).collect();
        drop(nodes);
        let old = {
            let mut present = self.map.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *present, map.into())
        };
        let slots = |map: &[Range]| -> Vec<_> {
            map.iter().map(|range| (range.first, range.last, range.address.clone())).collect()
        };
        if !gone.is_empty() || slots(&old) != slots(&self.map()) {
            self.dial.is_left();
        }
        // Their connections end here, where nobody waits on them: not under a lock.
        drop((old, gone));
    }

    fn node(&self, address: Address) -> Node {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes
            .entry(address)
            .or_insert_with_key(|(host, port)| {
                let server = at(&self.seeds[0], host.clone(), *port);
                let to = Destination::Server(Arc::new(server));
                Node::new(&Route { dial: self.dial.clone(), to })
            })
            .clone()
    }

    fn map(&self) -> Arc<[Range]> {
        self.map.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn range_of(map: &[Range], slot: u16) -> Option<&Range> {
    let at = map.partition_point(|range| range.last < slot);
    map.get(at).filter(|range| range.first <= slot)
}

fn no_node() -> Error {
    let kind = ErrorKind::Server(ServerErrorKind::ClusterDown);
    Error::Unavailable((kind, "no node has the slot").into())
}

/// Where a node points to; without a host it is that of the node.
fn address_of(points_to: &str, host: &str) -> Option<Address> {
    let (named, port) = points_to.rsplit_once(':')?;
    let host = if named.is_empty() { host } else { named };
    Some((host.to_owned(), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_a_name_is_where_it_was_asked() {
        let address = |host: &str, port| Some((host.to_owned(), port));
        assert_eq!(address_of("10.0.0.2:6380", "10.0.0.1"), address("10.0.0.2", 6380));
        assert_eq!(address_of("::1:6380", "10.0.0.1"), address("::1", 6380));
        assert_eq!(address_of(":6380", "10.0.0.1"), address("10.0.0.1", 6380));
        assert_eq!(address_of("nobody", "10.0.0.1"), None);
    }
}
