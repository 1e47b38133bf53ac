//! Warning about servers that may evict keys which a type cannot afford to lose.

use std::time::Duration;

use ::redis::FromRedisValue;

use super::{Client, CommandBatch, Resend};

/// Timeout of `INFO`. It delays only the warning, so it is longer than the timeouts of calls.
const INFO_TIMEOUT: Duration = Duration::from_secs(5);

impl Client {
    /// Returns the policy of a server whose settings let it evict keys, for a warning.
    ///
    /// Without the right to `INFO`, it returns `None`.
    pub(in crate::redis) async fn evicting_policy(&self) -> Option<String> {
        let mut info = ::redis::cmd("INFO");
        info.arg("memory");
        for node in self.nodes().await.unwrap_or_default() {
            let deadline = self.deadline(Some(INFO_TIMEOUT));
            let batch = CommandBatch::One(&info);
            let answer = self.send(Some(&node), batch, Resend::Once, deadline).await;
            let Ok(answer) = answer else { continue };
            let text = String::from_redis_value(answer).unwrap_or_default();
            if let Some(policy) = evicting_policy(&text) {
                // One warning is enough.
                return Some(policy.to_owned());
            }
        }
        None
    }
}

/// Returns the policy by which keys with a TTL can be evicted, from the section `memory` of `INFO`.
fn evicting_policy(info: &str) -> Option<&str> {
    let field = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    let policy = field("maxmemory_policy").filter(|policy| *policy != "noeviction")?;
    // Without a bound the memory is never full.
    field("maxmemory").is_some_and(|bytes| bytes != "0").then_some(policy)
}
