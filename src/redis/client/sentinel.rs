//! Discovery of the master through Redis Sentinel: `redis+sentinel://`.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use ::redis::{ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, RedisResult, Value, cmd};

use super::{
    connect::{Connector, NewConnection},
    first_ok::first_ok,
};
use crate::redis::error::is_refusal;

/// Sentinels, and the name of the service that they monitor.
pub(super) struct Sentinels {
    pub(super) addresses: Vec<ConnectionInfo>,
    pub(super) service: String,
    /// Login and settings for the master; the sentinels supply its address.
    pub(super) master: ConnectionInfo,
    /// Index of the sentinel to ask first. It rotates, so that one outdated sentinel does not answer every time.
    pub(super) next: AtomicUsize,
}

impl Sentinels {
    /// Connects to the master that the sentinels report, within `timeout`.
    ///
    /// One attempt per sentinel: it ends with a connection to a master, since a sentinel that lags behind a failover
    /// reports a server that is a replica by now, is down, or is silent.
    pub(super) async fn connect(
        &self,
        connector: &Connector,
        timeout: Duration,
    ) -> RedisResult<NewConnection> {
        // Not a division by zero: a sentinel URL has at least one host.
        let first = self.next.fetch_add(1, Relaxed) % self.addresses.len();
        let mut all = self.addresses.clone();
        all.rotate_left(first);
        let attempts = all.into_iter().map(async |sentinel| {
            let (host, port) =
                self.master_address(connector, sentinel).await.map_err(|error| (false, error))?;
            self.connect_to_master(connector, host, port).await.map_err(|error| (true, error))
        });
        // The error of a server explains more than that of a sentinel. A refused login is permanent only if no other
        // server may accept it.
        let rank = |(of_server, error): &(bool, RedisError)| (*of_server, !is_refusal(error));
        first_ok(attempts, timeout, rank).await.map_err(|error| {
            let if_empty = (ErrorKind::EmptySentinelList, "no sentinel address given");
            error.map_or_else(|| if_empty.into(), |(_, error)| error)
        })
    }

    /// Connects to the server that a sentinel reports, and checks that it is a master.
    async fn connect_to_master(
        &self,
        connector: &Connector,
        host: String,
        port: u16,
    ) -> RedisResult<NewConnection> {
        let address = with_address(&self.master, host, port);
        let mut connection = connector.connect_to_server(&address).await?;
        let role = match cmd("ROLE").query_async::<Vec<Value>>(&mut connection.connection).await {
            Err(error) if matches!(error.kind(), ErrorKind::Io | ErrorKind::Parse) => {
                return Err(error);
            }
            // A user without the right to `ROLE` has to trust the sentinels.
            role => role.unwrap_or_default(),
        };
        match &role[..] {
            [Value::BulkString(role), ..] if role != b"master" => {
                let cause = "the server that a sentinel reports is not a master";
                Err((ErrorKind::Client, cause).into())
            }
            _ => Ok(connection),
        }
    }

    async fn master_address(
        &self,
        connector: &Connector,
        sentinel: ConnectionInfo,
    ) -> RedisResult<(String, u16)> {
        let has_login = sentinel.redis_settings().password().is_some();
        let changed = connector.with_credentials(&sentinel).filter(|_| has_login);
        // Kept until the reply: its drop ends the connection.
        let mut connection = match (connector.connect(sentinel).await, changed) {
            // Its login of the URL is outdated, and may be that of the master.
            (Err(error), Some(changed)) if is_refusal(&error) => connector.connect(changed).await?,
            (connection, _) => connection?,
        };
        let mut query = cmd("SENTINEL");
        query.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.service);
        let master: Option<(String, u16)> = query.query_async(&mut connection.connection).await?;
        master.ok_or_else(|| {
            let cause = "the sentinels do not monitor a service of this name";
            RedisError::from((ErrorKind::MasterNameNotFoundBySentinel, cause))
        })
    }
}

/// Returns the connection settings of `like` with another host and port.
pub(super) fn with_address(like: &ConnectionInfo, host: String, port: u16) -> ConnectionInfo {
    like.clone().set_addr(match like.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => ConnectionAddr::Tcp(host, port),
    })
}
