//! Sending of commands, with retries and the pauses between them.
//!
//! A command is retried while it certainly was not executed and its timeout has not passed. It is never sent twice if
//! it may have been executed, unless it only reads.

use std::time::Duration;

use ::redis::Value;
use tokio::time::{Instant, sleep};

use super::{
    Client, connection::CommandBatch, invalidations::InFlightCommand, node::Node,
    outage::is_unreachable, router::Router, shared_connection::Request,
};
use crate::redis::{Error, error::is_try_again};

/// First and longest pause between two attempts; each is twice the one before.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));

/// Number of times that a command is sent again after its reply was lost.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::redis) enum Resend {
    Never,
    Once,
}

impl Client {
    /// Sends commands to `node`, or else to the server of their first key, with retries until `deadline`.
    ///
    /// A read of several keys is not retried after `TRYAGAIN` ([`is_try_again`]): its caller reads the keys one by one.
    pub(in crate::redis) async fn send(
        &self,
        node: Option<&Node>,
        batch: CommandBatch<'_>,
        resend: Resend,
        deadline: Instant,
    ) -> Result<Value, Error> {
        self.check_shards(deadline).await?;
        self.send_unchecked(node, batch, resend, deadline).await
    }

    /// Sends commands like [`send`](Client::send), also if those of a cache must wait for its check.
    pub(super) async fn send_unchecked(
        &self,
        node: Option<&Node>,
        batch: CommandBatch<'_>,
        resend: Resend,
        deadline: Instant,
    ) -> Result<Value, Error> {
        let lane = match node {
            None => self.for_sizes_of(batch)?,
            Some(_) => self.lane,
        };
        // Not for tracked reads, whose answers are to be cached.
        let is_tracked = matches!(batch, CommandBatch::Tracked(_));
        let invalidations = self.invalidations().filter(|_| node.is_none() && !is_tracked);
        let _invalidate_on_drop = invalidations
            .map(|invalidations| InFlightCommand { invalidations, cmd: batch.first() });
        let (mut pause, longest) = BACKOFF;
        let (mut resend, only_reads) = (resend, resend == Resend::Once);
        let mut refusal = None;
        loop {
            let request = Request { batch, deadline, may_repeat: resend == Resend::Once };
            let answer = match (&self.inner.router, node) {
                (Router::Cluster(cluster), None) => cluster.send(lane, request).await,
                (_, Some(node)) | (Router::Server(node), None) => {
                    node.on(lane).send(request, false).await
                }
            };
            let answer = answer.map_err(|error| self.inner.router.refused(error));
            self.inner.counters.record(&answer);
            let error = match answer {
                Ok(reply) => {
                    if node.is_none() {
                        self.record_size(batch, lane, &reply);
                    }
                    return Ok(reply);
                }
                Err(error) => error,
            };
            let now = Instant::now();
            match error {
                // Without a pause: the connection that lost the reply is already being replaced.
                Error::Unanswered(_) if resend == Resend::Once && now < deadline => {
                    resend = Resend::Never;
                }
                Error::Unavailable(ref cause)
                    if !matches!(batch, CommandBatch::One(_)) && is_try_again(cause) =>
                {
                    // The keys are on two nodes while their slot is migrated, which may take longer than the timeout.
                    return Err(error);
                }
                // The server has been unreachable for a whole timeout, so no call waits for it.
                Error::Connect(ref cause) if is_unreachable(cause) => return Err(error),
                // Certainly not executed, so a write may be sent again too.
                Error::Connect(_) | Error::Unavailable(_)
                    if error.is_temporary() && now + pause < deadline =>
                {
                    sleep(pause).await;
                    pause = longest.min(2 * pause);
                    refusal = Some(error);
                }
                // The timeout has passed. If no change can have happened, an earlier refusal explains the failure
                // better.
                Error::Unanswered(_) if only_reads => return Err(refusal.unwrap_or(error)),
                Error::Connect(_) if now >= deadline => return Err(refusal.unwrap_or(error)),
                error => return Err(error),
            }
        }
    }
}
