//! Sizes of values: the maximum that a client sends, and the connection that a call uses because of its size.

use ::redis::{Arg, Value};

use super::{Client, connection::CommandBatch, large_keys::size, node::Lane};
use crate::redis::Error;

/// Size from which a value would delay small calls on the same connection.
const LARGE: usize = 1 << 20;

impl Client {
    /// Returns this client with the lane for the sizes of `batch`, unless the caller chose a lane.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`] if a key or value is longer than the maximum of this client. The server would close the
    /// connection, and all other calls on it would fail.
    pub(super) fn for_sizes_of(&self, batch: CommandBatch<'_>) -> Result<Lane, Error> {
        let (CommandBatch::One(cmd) | CommandBatch::MultiKey(cmd)) = batch else {
            return Ok(self.lane);
        };
        let (mut total, mut longest) = (0, 0);
        // The source of a script is neither a key nor a value.
        let is_eval = matches!(cmd.args_iter().next(), Some(Arg::Simple(b"EVAL")));
        for (at, arg) in cmd.args_iter().enumerate() {
            if let Arg::Simple(arg) = arg
                && !(is_eval && at == 1)
            {
                total += arg.len();
                longest = longest.max(arg.len());
            }
        }
        let max = self.inner.max_value_bytes;
        if longest > max {
            return Err(Error::TooLarge { bytes: longest, max });
        }
        // A client that tracks changed keys keeps its lane: replies and invalidations are only ordered within one
        // connection.
        if self.lane != Lane::Verbs || self.invalidations().is_some() {
            return Ok(self.lane);
        }
        let keys = &self.inner.large_keys;
        if total > LARGE {
            // Before it is sent: a later write of the key uses the same connection, and is executed after this one,
            // even if the caller does not wait for the reply.
            keys.insert(cmd);
            return Ok(Lane::Large);
        }
        Ok(if keys.contains(cmd) { Lane::Large } else { Lane::Verbs })
    }

    /// Remembers whether the value of a key is large, from the reply to a call on `lane`.
    pub(super) fn record_size(&self, batch: CommandBatch<'_>, lane: Lane, reply: &Value) {
        if let CommandBatch::One(cmd) = batch
            && matches!(lane, Lane::Verbs | Lane::Large)
        {
            let sent =
                || cmd.args_iter().any(|arg| matches!(arg, Arg::Simple(arg) if arg.len() > LARGE));
            match size(reply) > LARGE || lane == Lane::Large && sent() {
                true => self.inner.large_keys.insert(cmd),
                // Only a reply with the whole value shows that it is small: those of most methods are.
                false
                    if lane == Lane::Large
                        && cmd.args_iter().next() == Some(Arg::Simple(b"GET")) =>
                {
                    self.inner.large_keys.remove(cmd);
                }
                false => {}
            }
        }
    }
}
