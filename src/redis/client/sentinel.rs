//! Who is the master, by those who watch over it: `redis+sentinel://`.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use ::redis::{ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, RedisResult, Value, cmd};

use super::{
    connect::{Dial, Dialled},
    first_ok::any_answer,
};

/// Sentinels, and the service that they are asked for.
pub(super) struct Sentinels {
    pub(super) addresses: Vec<ConnectionInfo>,
    pub(super) service: String,
    /// How to log in to the master; the address is told.
    pub(super) master: ConnectionInfo,
    /// Who is asked first the next time: not always the one that knows nothing.
    pub(super) next: AtomicUsize,
}

impl Sentinels {
    /// Connects to the master that they name.
    pub(super) async fn connect(
        &self,
        dial: &Dial,
        on_end: impl Fn() + Clone + Send + Sync + 'static,
    ) -> RedisResult<Dialled> {
        let first = self.next.fetch_add(1, Relaxed) % self.addresses.len();
        let mut all = self.addresses.clone();
        all.rotate_left(first);
        let nobody = (ErrorKind::EmptySentinelList, "no sentinel was given").into();
        let asked = all.into_iter().map(|sentinel| self.ask(dial, sentinel));
        let (host, port) = any_answer(asked, nobody).await?;
        let mut dialled = dial.server(&at(&self.master, host, port), on_end).await?;
        // They may be behind: the one that they name may know that it is none any more.
        let role = cmd("ROLE").query_async::<Vec<Value>>(&mut dialled.connection).await;
        match role.as_deref() {
            Ok([Value::BulkString(role), ..]) if role != b"master" => {
                Err((ErrorKind::Client, "the master that the sentinels name is none").into())
            }
            // Who may not ask has to believe it.
            _ => Ok(dialled),
        }
    }

    async fn ask(&self, dial: &Dial, sentinel: ConnectionInfo) -> RedisResult<(String, u16)> {
        let mut connection = dial.connect(sentinel, || ()).await?.connection;
        let mut ask = cmd("SENTINEL");
        ask.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.service);
        let master: Option<(String, u16)> = ask.query_async(&mut connection).await?;
        master.ok_or_else(|| {
            let cause = "the sentinels know no such service";
            RedisError::from((ErrorKind::MasterNameNotFoundBySentinel, cause))
        })
    }
}

/// The same at another address.
pub(super) fn at(like: &ConnectionInfo, host: String, port: u16) -> ConnectionInfo {
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
