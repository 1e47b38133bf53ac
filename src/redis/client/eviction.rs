//! Whether a server may evict what has to stay.

use std::time::Duration;

use ::redis::FromRedisValue;

use super::{Asked, Client, Resend};

/// Nobody waits for longer to be warned.
const PATIENCE: Duration = Duration::from_secs(5);

impl Client {
    /// Writes to the log where a server's settings let it evict keys of `name`; `loss` says what is lost with one.
    ///
    /// Who may not ask (`INFO` is a right) is told nothing.
    pub(in crate::redis) async fn warn_of_eviction(&self, name: &str, loss: &str) {
        let mut info = ::redis::cmd("INFO");
        info.arg("memory");
        for node in self.nodes().await.unwrap_or_default() {
            let deadline = self.deadline(Some(PATIENCE));
            let answer =
                self.send_until(Some(&node), Asked::One(&info), Resend::Once, deadline).await;
            let Ok(answer) = answer else { continue };
            let text = String::from_redis_value(answer).unwrap_or_default();
            if let Some(policy) = evicts(&text) {
                tracing::warn!(
                    name,
                    policy,
                    "the server evicts keys when its memory is full, and {loss}; maxmemory-policy should be noeviction"
                );
                return;
            }
        }
    }
}

/// The policy by which keys with a TTL can be evicted, as the section `memory` of `INFO` tells.
fn evicts(info: &str) -> Option<&str> {
    let field = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    let policy = field("maxmemory_policy").filter(|policy| *policy != "noeviction")?;
    // Without a bound the memory is never full.
    field("maxmemory").is_some_and(|bytes| bytes != "0").then_some(policy)
}
