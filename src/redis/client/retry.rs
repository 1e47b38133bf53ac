//! Retries of commands and the pauses between them.
//!
//! A command is retried while it certainly was not executed and its timeout has not passed. It is never sent twice if
//! it may have been executed, unless it only reads.

use std::time::Duration;

use ::redis::Value;
use tokio::time::{Instant, sleep};

use super::{
    Client,
    node::Node,
    outage::is_unreachable,
    shared_connection::{CommandBatch, Request},
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
    pub(super) async fn send_until(
        &self,
        node: Option<&Node>,
        batch: CommandBatch<'_>,
        resend: Resend,
        deadline: Instant,
    ) -> Result<Value, Error> {
        let (mut pause, longest) = BACKOFF;
        let (mut resend, only_reads) = (resend, resend == Resend::Once);
        let mut refusal = None;
        loop {
            let request = Request { batch, deadline, may_repeat: resend == Resend::Once };
            let answer = self.inner.router.send(node, self.lane, request).await;
            self.inner.counters.record(&answer);
            let Err(error) = answer else { return answer };
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
