//! Calls of the embedded `ExpiringSet` and of `redis::ExpiringSet`.

use std::time::{Duration, SystemTime};

use fleeting::redis;
use rand::RngExt;
use tokio::time::Instant;

use super::{Clock, Outcome, Sequence, Sides, Subject, data::Data, same, same_items};

struct Pair<'a, T> {
    sides: &'a Sides,
    embedded: fleeting::ExpiringSet<T>,
    on_server: redis::ExpiringSet<T>,
    members: Vec<T>,
}

macro_rules! compare {
    ($pair:ident, $set:ident => $call:expr) => {{
        let embedded = {
            let $set = &$pair.embedded;
            $pair.sides.embedded.block_on(async { $call.await })
        };
        let on_server = {
            let $set = &$pair.on_server;
            $pair.sides.real.block_on(async { $call.await })
        };
        same(embedded, on_server)
    }};
}

#[derive(Debug)]
pub(super) struct Set;

impl Subject for Set {
    fn run<T: Data, V: Data>(&self, sequence: &mut Sequence<'_>) -> Outcome {
        let sides = sequence.sides;
        let ttl = sides.units(31);
        let embedded = sides.embedded.block_on(async { fleeting::ExpiringSet::new(ttl) });
        let builder = redis::ExpiringSet::builder(&sides.client, &*sequence.name, ttl);
        let on_server = builder.format(sequence.format).build().unwrap();
        let members = (0..6).map(|_| T::random(&mut sequence.random).as_read()).collect();
        let pair = Pair { sides, embedded, on_server, members };
        sequence.run(|sequence| pair.step(sequence))
    }
}

impl<T: Data> Pair<'_, T> {
    fn step(&self, sequence: &mut Sequence<'_>) -> Outcome {
        if sequence.is_one_in(2) {
            let units = 2 * sequence.random.random_range(1..8);
            sequence.log(("pass", units));
            self.sides.pass(units);
        }
        let member = self.members[sequence.random.random_range(0..self.members.len())].clone();
        // An even number, so that a member does not expire at the time of a call.
        let offset = self.sides.units(2 * sequence.random.random_range(0..20));
        let is_past = sequence.random.random::<bool>();
        let which = sequence.random.random_range(0..16);
        sequence.log((which, &member, offset, is_past));
        match which {
            0..4 => compare!(self, set => set.push(member.clone())),
            // Equal scores need a clock that stands still.
            5 if !self.sides.is_stopped() => Ok(()),
            4 | 5 => {
                let (instant, time) = self.at(offset, is_past, 0.5);
                let Self { sides, embedded, on_server, .. } = self;
                if which == 4 {
                    sides.embedded.block_on(embedded.push_at(member.clone(), instant));
                    sides.real.block_on(on_server.push_at(member, time)).unwrap();
                } else {
                    sides.embedded.block_on(embedded.push_unique_at(member.clone(), instant));
                    sides.real.block_on(on_server.push_unique_at(member, time)).unwrap();
                }
                Ok(())
            }
            6 => {
                let members = [member, self.members[0].clone(), self.members[1].clone()];
                compare!(self, set => set.extend(members.clone()))
            }
            7 => compare!(self, set => set.pop()),
            8 => compare!(self, set => set.peek()),
            9 => compare!(self, set => set.remove(&member)),
            10 => compare!(self, set => set.contains(&member)),
            11 => {
                compare!(self, set => set.len())?;
                compare!(self, set => set.is_empty())
            }
            12 => self.compare_score(&member),
            13 => {
                let (instant, time) = self.at(offset, is_past, 0.25);
                let Self { sides, embedded, on_server, .. } = self;
                let range = sides.real.block_on(on_server.range(time..));
                same(sides.embedded.block_on(embedded.range(instant..)), range)
            }
            14 if sequence.is_one_in(4) => {
                let (instant, time) = self.at(offset, is_past, 0.25);
                let Self { sides, embedded, on_server, .. } = self;
                let removed = sides.real.block_on(on_server.remove_range(..time));
                same(sides.embedded.block_on(embedded.remove_range(..instant)), removed)
            }
            15 if sequence.is_one_in(8) => compare!(self, set => set.clear()),
            _ => self.compare_elements(),
        }
    }

    /// Compares the elements in their order, and finds each of them again.
    fn compare_elements(&self) -> Outcome {
        let Self { sides, embedded, on_server, .. } = self;
        let elements = sides.real.block_on(on_server.elements()).unwrap();
        for member in &elements {
            let found = sides.real.block_on(on_server.contains(member));
            same(true, found).map_err(|difference| format!("{member:?}: {difference}"))?;
        }
        let expected = sides.embedded.block_on(embedded.elements());
        same_items(expected.clone(), Ok(elements.clone()))?;
        same(expected, Ok(elements))
    }

    fn compare_score(&self, member: &T) -> Outcome {
        let Self { sides, embedded, on_server, .. } = self;
        let (now, server_now) = self.at(Duration::ZERO, false, 0.0);
        let score = sides.embedded.block_on(embedded.score(member));
        let on_server = sides.real.block_on(on_server.score(member)).unwrap();
        // Relative to now, in units: both may be before it.
        let unit = sides.unit().as_secs_f64();
        let score = score.map(|score| match score.checked_duration_since(now) {
            Some(later) => later.as_secs_f64() / unit,
            None => -((now - score).as_secs_f64() / unit),
        });
        let on_server = on_server.map(|score| match score.duration_since(server_now) {
            Ok(later) => later.as_secs_f64() / unit,
            Err(earlier) => -(earlier.duration().as_secs_f64() / unit),
        });
        match (score, on_server) {
            (Some(left), Some(right)) if (left - right).abs() <= 1.0 => Ok(()),
            (left, right) => same(left, Ok(right)),
        }
    }

    /// Returns a time as both sides have it. If the server's clock does not stand still, the time is a `share` of a
    /// unit away from that of a call, because the order of almost equal times would depend on the duration of the
    /// calls.
    fn at(&self, offset: Duration, is_past: bool, share: f64) -> (Instant, SystemTime) {
        let instant = self.sides.embedded.block_on(async { Instant::now() });
        let (time, offset) = match *self.sides.clock.borrow() {
            Clock::Stopped(now) => (SystemTime::UNIX_EPOCH + Duration::from_micros(now), offset),
            Clock::Ahead(ahead) => {
                (SystemTime::now() + ahead, offset + self.sides.unit().mul_f64(share))
            }
        };
        if is_past { (instant - offset, time - offset) } else { (instant + offset, time + offset) }
    }
}
