//! Hints from which a subscriber knows whether a shard may have events, without sending a script to each shard. Each
//! shard has two hints. One command reads all of them; in a cluster, one command per shard. A script is sent to shards
//! whose hints announce events, and periodically to each shard in turn.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{super::Error, commands::Commands, event_record::ClockPair};

/// Interval of the periodic scripts to a shard without news. They are needed because an expired lease changes no hint,
/// and a hint may be lost. With 16 shards, an idle subscriber sends fewer than two scripts per second.
pub(super) const CHECK_EVERY: Duration = Duration::from_secs(10);

/// Pause before the next poll if a reply without an event announces more: the script has only removed entries whose
/// events are lost, ten thousand at a time. A server that always announces more would otherwise keep a processor busy.
const PAUSE_WITHOUT_EVENTS: Duration = Duration::from_millis(5);

pub(super) struct ShardHints {
    shards: Vec<ShardHint>,
    /// Clocks at the last reply of a script.
    clock: Option<ClockPair>,
}

#[derive(Default)]
struct ShardHint {
    /// Earliest deadline, in the server's milliseconds.
    earliest_deadline: Option<u64>,
    /// Version of the stream, which changes whenever events are added; and its version when it was last read to the
    /// end.
    stream_version: Vec<u8>,
    read_version: Vec<u8>,
    has_more: bool,
    /// When the next periodic script is due; `None` before the first.
    check_at: Option<Instant>,
}

/// Returns the pause before the next poll, after replies that may announce more and may have contained events; zero if
/// the next events can be read immediately.
pub(super) fn pause_after(has_more: bool, has_events: bool, poll_every: Duration) -> Duration {
    match (has_more, has_events) {
        (true, true) => Duration::ZERO,
        (true, false) => PAUSE_WITHOUT_EVENTS.min(poll_every),
        (false, _) => poll_every,
    }
}

impl ShardHints {
    pub(super) fn new(commands: &Commands) -> Self {
        let shards = commands.keyspace.shards().map(|_| ShardHint::default());
        Self { shards: shards.collect(), clock: None }
    }

    /// Reads the hints. Returns whether any could be read, and the last of the errors.
    pub(super) async fn refresh(&mut self, commands: &Commands) -> (bool, Option<Error>) {
        // In a cluster, each shard has its own slot, so that one command cannot read them all.
        let shards = self.shard_count();
        let (each, requests) = match commands.client.is_cluster() {
            true => (1, shards),
            false => (shards, 1),
        };
        let requests = (0..requests).map(async |request| {
            let call = commands.shard_hints(request * each..(request + 1) * each);
            call.send_idempotent::<Vec<Option<Vec<u8>>>>(&commands.client).await
        });
        let answers = join_all(requests).await;
        let (mut is_any, mut failure) = (false, None);
        for (shards, answer) in self.shards.chunks_mut(each.into()).zip(answers) {
            let hints = match answer {
                Ok(hints) => hints,
                Err(error) => {
                    failure = Some(error);
                    continue;
                }
            };
            is_any = true;
            let (hints, _) = hints.as_chunks::<2>();
            for (shard, [earliest_deadline, stream_version]) in shards.iter_mut().zip(hints) {
                let earliest_deadline =
                    earliest_deadline.as_deref().and_then(|at| std::str::from_utf8(at).ok());
                shard.earliest_deadline =
                    earliest_deadline.and_then(|hint| hint.split(' ').next()?.parse().ok());
                shard.stream_version = stream_version.clone().unwrap_or_default();
            }
        }
        (is_any, failure)
    }

    /// Returns whether to send a script to the shard.
    pub(super) fn needs_read(&self, shard: u16) -> bool {
        let ShardHint { earliest_deadline, stream_version, read_version, has_more, .. } =
            &self.shards[usize::from(shard)];
        // Before the first reply, the server's time is unknown, and every deadline counts as reached.
        let now = self.clock.map_or(u64::MAX, ClockPair::now_on_server);
        *has_more
            || stream_version != read_version
            || earliest_deadline.is_some_and(|at| at <= now)
            || self.needs_check(shard)
    }

    /// Returns whether the periodic script to the shard is due, regardless of the hints.
    pub(super) fn needs_check(&self, shard: u16) -> bool {
        self.shards[usize::from(shard)].check_at.is_none_or(|at| Instant::now() >= at)
    }

    /// Records the result of a script. The next periodic one is due after `next_check` at the latest.
    pub(super) fn record_read(
        &mut self,
        shard: u16,
        clock: ClockPair,
        stream_version: String,
        has_more: bool,
        next_check: Duration,
    ) {
        self.clock = Some(clock);
        let shards = self.shard_count();
        let hint = &mut self.shards[usize::from(shard)];
        // The first checks were all due at once; from then on, the shards are spread over the interval.
        let turn = match hint.check_at {
            Some(_) => shards,
            None => shard + 1,
        };
        let needs_check = hint.check_at.is_none_or(|at| clock.local >= at);
        let check_at = clock.local + next_check * u32::from(turn) / u32::from(shards);
        hint.check_at = match hint.check_at {
            Some(at) if !needs_check => Some(at.min(check_at)),
            _ => Some(check_at),
        };
        // Outdated by the script that has just moved due entries, until the next `refresh`.
        hint.earliest_deadline = None;
        hint.stream_version = stream_version.into_bytes();
        hint.read_version.clone_from(&hint.stream_version);
        hint.has_more = has_more;
    }

    fn shard_count(&self) -> u16 {
        self.shards.len() as u16
    }
}
