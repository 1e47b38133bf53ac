//! What a subscriber knows of the shards without a script to each: two notes of each, which one command reads, or in a
//! cluster one a shard. A script is sent where they say that there is something to be had, and now and then to each in turn.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{
    super::{Error, keyspace::SHARDS},
    commands::Commands,
    event_record::ClockPair,
};

/// How long a shard goes without a look at it where its notes say nothing: a lease that is over writes none, and a note
/// may be lost. So an idle subscriber sends less than two scripts a second.
pub(super) const CHECK_EVERY: Duration = Duration::from_secs(10);

pub(super) struct Watch {
    shards: Vec<ShardWatch>,
    /// Of the last answer of a script.
    clock: Option<ClockPair>,
}

#[derive(Default)]
struct ShardWatch {
    /// The soonest deadline, in the server's milliseconds, as its note says.
    soonest: Option<u64>,
    /// What changes with each news, as its note says; and as it was when all of them had been read.
    news: Vec<u8>,
    known: Vec<u8>,
    has_more: bool,
    /// None at first: nothing is known then.
    check_at: Option<Instant>,
}

impl Watch {
    pub(super) fn new() -> Self {
        let shards = (0..SHARDS).map(|_| ShardWatch::default());
        Self { shards: shards.collect(), clock: None }
    }

    /// Reads the notes: tells whether any could be read, and one of the errors.
    pub(super) async fn look(&mut self, commands: &Commands) -> (bool, Option<Error>) {
        // In a cluster each shard has its own slot.
        let (each, asks) = match commands.client.is_cluster() {
            true => (1, SHARDS),
            false => (SHARDS, 1),
        };
        let asks = (0..asks).map(async |ask| {
            let call = commands.notes(ask * each..(ask + 1) * each);
            call.send_idempotent::<Vec<Option<Vec<u8>>>>(&commands.client).await
        });
        let answers = join_all(asks).await;
        let (mut is_any, mut failure) = (false, None);
        for (shards, answer) in self.shards.chunks_mut(each.into()).zip(answers) {
            let notes = match answer {
                Ok(notes) => notes,
                Err(error) => {
                    failure = Some(error);
                    continue;
                }
            };
            is_any = true;
            let (notes, _) = notes.as_chunks::<2>();
            for (shard, [soonest, news]) in shards.iter_mut().zip(notes) {
                let soonest = soonest.as_deref().and_then(|at| std::str::from_utf8(at).ok());
                shard.soonest = soonest.and_then(|note| note.split(' ').next()?.parse().ok());
                shard.news = news.clone().unwrap_or_default();
            }
        }
        (is_any, failure)
    }

    /// Whether a script is to look at the shard.
    pub(super) fn is_due(&self, shard: u16) -> bool {
        let ShardWatch { soonest, news, known, has_more, .. } = &self.shards[usize::from(shard)];
        let now = self.clock.map_or(u64::MAX, ClockPair::now_on_server);
        *has_more || news != known || soonest.is_some_and(|at| at <= now) || self.is_check(shard)
    }

    /// Whether one is to, whatever the notes say.
    pub(super) fn is_check(&self, shard: u16) -> bool {
        self.shards[usize::from(shard)].check_at.is_none_or(|at| Instant::now() >= at)
    }

    /// A script has looked; after `again` another does, at the latest.
    pub(super) fn looked(
        &mut self,
        shard: u16,
        clock: ClockPair,
        news: String,
        has_more: bool,
        again: Duration,
    ) {
        self.clock = Some(clock);
        let watch = &mut self.shards[usize::from(shard)];
        // At first all were due at once: from then on, one after the other.
        let turn = match watch.check_at {
            Some(_) => SHARDS,
            None => shard + 1,
        };
        let is_check = watch.check_at.is_none_or(|at| clock.local >= at);
        let check_at = clock.local + again * u32::from(turn) / u32::from(SHARDS);
        watch.check_at = match watch.check_at {
            Some(at) if !is_check => Some(at.min(check_at)),
            _ => Some(check_at),
        };
        watch.soonest = None;
        watch.news = news.into_bytes();
        watch.known.clone_from(&watch.news);
        watch.has_more = has_more;
    }
}
