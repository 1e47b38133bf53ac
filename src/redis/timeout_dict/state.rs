use std::{sync::Arc, time::Duration};

use ::redis::Value as Reply;
use futures_util::future::join_all;
use tokio::sync::Mutex;

use super::{
    batch_reply::{Batch, Part},
    delivery::{Held, WayBack},
    layout::{Layout, Place, Scripts},
    oldest_first::{Look, few, many, shares},
};
use crate::redis::{
    Client, Error,
    script::{Call, Script},
};

/// What is taken from a record of another type, or can't be decoded, is due again after this.
const AGAIN: Duration = Duration::from_secs(60);

/// A deadline from here on is none: from it on, not each microsecond has a score.
const NEVER: u64 = 1 << 53;

/// In microseconds. All ends are exact, as seconds too, since they tell claims apart.
const LONGEST_LEASE: u64 = 1 << 50;

pub(super) struct Shared {
    pub(super) client: Client,
    pub(super) layout: Layout,
    pub(super) ask_every: Duration,
    /// Who waits for what is due, one behind the other: only the first asks the server.
    pub(super) line: Mutex<()>,
}

/// What is done with what is due.
#[derive(Clone, Copy)]
pub(super) enum Due {
    Take,
    Claim { lease: Duration },
}

impl Shared {
    pub(super) fn call(
        &self,
        place: &Place,
        script: impl FnOnce(&'static Scripts) -> &'static Script,
    ) -> Call<'static> {
        script(self.layout.scripts).call(&[&place.index]).arg(&place.stem)
    }

    /// The same for what is done with one key.
    pub(super) fn call_with(
        &self,
        key: &[u8],
        script: impl FnOnce(&'static Scripts) -> &'static Script,
    ) -> Call<'static> {
        self.call(self.layout.place(key), script).arg(key)
    }

    /// At most `max` of what is due, the oldest first; and in how long the next is.
    pub(super) async fn due(
        self: Arc<Self>,
        due: Due,
        max: usize,
    ) -> Result<(Vec<Held>, Option<Duration>), Error> {
        let shards = self.layout.places().len();
        // Of what became due when this had begun, nothing: so a lease of zero ends it, and so do busy setters.
        let mut latest = vec![NEVER as i64; shards];
        let mut batch = Vec::new();
        loop {
            let room = max - batch.len();
            let (few, many) = (few(room, shards), many(room, shards));
            let (mut looks, mut failure) = self.looks(&latest, few).await;
            let (mut shares_of, mut is_all) = shares(&looks, room);
            if !is_all && few < many && room > 1 {
                (looks, failure) = self.looks(&latest, many).await;
                (shares_of, is_all) = shares(&looks, room);
            }
            let wait = looks.iter().flatten().filter_map(|look| look.wait).min();
            for (latest, look) in latest.iter_mut().zip(&looks) {
                *latest = look.as_ref().map_or(*latest, |look| look.now.min(*latest));
            }
            let takers = self.layout.places().iter().zip(latest.iter().zip(&shares_of));
            let takers = takers.filter(|(_, (_, share))| **share > 0);
            let parts = join_all(
                takers.map(|(place, (latest, share))| self.part(place, due, *latest, *share)),
            );
            let mut got = Vec::new();
            for part in parts.await {
                match part {
                    Ok(part) => got.extend(part),
                    Err(error) => failure = Some(error),
                }
            }
            // Others may have been faster.
            let is_over = is_all || got.is_empty();
            got.sort_by(|(one, _), (other, _)| f64::total_cmp(one, other));
            batch.extend(got.into_iter().map(|(_, held)| held));
            match failure {
                Some(error) if batch.is_empty() => return Err(error),
                Some(error) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::warn!(error, "a shard gave nothing of what is due");
                    return Ok((batch, wait));
                }
                None if is_over || batch.len() >= max => return Ok((batch, wait)),
                None => {}
            }
        }
    }

    /// Looks into each shard.
    async fn looks(&self, latest: &[i64], count: usize) -> (Vec<Option<Look>>, Option<Error>) {
        let looks = self.layout.places().iter().zip(latest).map(async |(place, latest)| {
            let call = self.call(place, |scripts| &scripts.look).arg(*latest).arg(count);
            let answer: Result<Vec<i64>, _> = call.read(&self.client).await;
            match answer {
                Ok(answer) => Ok(Look::new(&answer)),
                Err(error) => Err(self.blame(error, place, None).await),
            }
        });
        let mut failure = None;
        let looks = join_all(looks).await.into_iter().map(|look| match look {
            Ok(look) => look,
            Err(error) => {
                failure = Some(error);
                None
            }
        });
        (looks.collect(), failure)
    }

    /// What a shard has due, with when it was to be.
    async fn part(
        self: &Arc<Self>,
        place: &Place,
        due: Due,
        latest: i64,
        count: usize,
    ) -> Result<Vec<(f64, Held)>, Error> {
        let (call, span) = match due {
            Due::Take => (self.call(place, |scripts| &scripts.take), micros(AGAIN)),
            Due::Claim { lease } => {
                (self.call(place, |scripts| &scripts.claim), lease_micros(lease))
            }
        };
        let answer: Vec<u8> = match call.arg(latest).arg(count).arg(span).change(&self.client).await
        {
            Ok(answer) => answer,
            Err(error) => return Err(self.blame(error, place, None).await),
        };
        let Batch(keys, values, Part(first_end)) = Batch::read(&answer, &place.index)?;
        let mut keys = keys.into_iter();
        let mut entries = Vec::with_capacity(values.len());
        for (Part(value), number) in values.into_iter().zip(1..) {
            let (Some(Part(Reply::BulkString(key))), Some(Part(Reply::BulkString(deadline)))) =
                (keys.next(), keys.next())
            else {
                break;
            };
            let score = std::str::from_utf8(&deadline).ok().and_then(|score| score.parse().ok());
            let way_back = match (&value, &first_end) {
                (Reply::Nil, _) => continue,
                // The script has seen to it.
                (Reply::Int(_), _) => WayBack::None,
                (_, Reply::Int(first)) => {
                    let lease_end = Arc::new(Mutex::new(first + 2 * number));
                    WayBack::Give { lease_end, deadline }
                }
                _ => WayBack::Put { deadline },
            };
            entries.push((score.unwrap_or(0.0), Held::new(self, key, value, way_back)));
        }
        Ok(entries)
    }

    /// Puts back what was taken; without a deadline, to be due again in a while.
    pub(super) async fn put_back(
        &self,
        key: &[u8],
        deadline: &[u8],
        value: &Reply,
    ) -> Result<(), Error> {
        let call = self.call_with(key, |scripts| &scripts.put_back);
        let call = call.arg(deadline).arg(micros(AGAIN)).arg(self.layout.args(value));
        call.change(&self.client).await
    }

    /// Ends a lease.
    pub(super) async fn give_back(
        &self,
        key: &[u8],
        lease_end: i64,
        deadline: &[u8],
    ) -> Result<(), Error> {
        let call = self.call_with(key, |scripts| &scripts.give_back);
        call.arg(lease_end).arg(deadline).read(&self.client).await
    }

    /// Names the key that is of another type than it should be.
    pub(super) async fn blame(&self, error: Error, place: &Place, key: Option<&[u8]>) -> Error {
        if !matches!(error, Error::WrongType { .. }) {
            return error;
        }
        let record = key.map(|key| (self.layout.record(key), self.layout.record_type()));
        for (key, expected) in record.into_iter().chain([(place.index.clone(), "zset")]) {
            let found: Result<String, _> = Call::command("TYPE", &key).read(&self.client).await;
            if found.is_ok_and(|found| found != expected && found != "none") {
                return Error::WrongType { key: String::from_utf8_lossy(&key).into_owned() };
            }
        }
        error
    }
}

/// Rounded up, so that nothing is due too soon.
pub(super) fn micros(span: Duration) -> u64 {
    let micros = span.as_nanos().div_ceil(1_000);
    u64::try_from(micros).unwrap_or(NEVER).min(NEVER)
}

pub(super) fn lease_micros(lease: Duration) -> u64 {
    micros(lease).min(LONGEST_LEASE)
}
