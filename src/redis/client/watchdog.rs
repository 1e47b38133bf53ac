//! Detection of silent connections: a `PING` to a connection that sends nothing.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    time::{sleep, timeout},
};

use super::connection::{CommandBatch, Connection};

/// Time without a reply after which a waiting caller has the connection probed.
pub(super) const SILENCE_LIMIT: Duration = Duration::from_millis(400);

/// Time in which a probed connection must answer the `PING`, or anything else. The sum of both limits is below the
/// default timeout of one second, so a caller's next call uses another connection.
pub(super) const PING_TIMEOUT: Duration = Duration::from_millis(400);

/// Interval of the watchdog of a tracked connection, which is probed if nothing was received since the last check.
/// Callers that only use cached answers send nothing, so they would not notice that invalidations are missing.
const WATCHDOG_PERIOD: Duration = Duration::from_millis(500);

/// Sends a `PING` in the background, and calls `retire` if nothing is received.
pub(super) fn probe(
    connection: Arc<Connection>,
    retire: impl FnOnce(&Arc<Connection>) + Send + 'static,
) {
    // A probe needs a runtime; the caller may have been dropped outside of one.
    let Ok(runtime) = Handle::try_current() else { return };
    // A probe that takes longer is assumed stuck on a stopped runtime, and another may begin.
    if !connection.begin_probe(2 * PING_TIMEOUT) {
        return;
    }
    runtime.spawn(async move {
        let before = connection.progress();
        let ping = ::redis::cmd("PING");
        let answer = timeout(PING_TIMEOUT, connection.send(CommandBatch::One(&ping), false)).await;
        connection.end_probe();
        // Any byte counts: the reply to the `PING` may be late because a large reply or request precedes it.
        if !matches!(answer, Ok(Ok(_))) && connection.progress() == before {
            retire(&connection);
        }
    });
}

/// Calls `probe` whenever the connection was silent for a whole period, until the connection is dropped or ends, or
/// `probe` returns `None` because the shared connection was dropped.
pub(super) async fn watchdog(
    connection: Weak<Connection>,
    probe: impl Fn(&Arc<Connection>) -> Option<()>,
) {
    let mut before = 0;
    loop {
        sleep(WATCHDOG_PERIOD).await;
        // Upgraded for one check only: the watchdog must not keep the connection open.
        let Some(connection) = connection.upgrade().filter(|connection| connection.is_open())
        else {
            return;
        };
        if connection.progress() == before && probe(&connection).is_none() {
            return;
        }
        before = connection.progress();
    }
}
