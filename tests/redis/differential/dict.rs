//! Calls of the embedded `TimeoutDict` and of `redis::TimeoutDict`.

use std::{cell::RefCell, time::Duration};

use fleeting::redis;
use rand::RngExt;

use super::{Outcome, Sequence, Sides, Subject, data::Data, same, same_items};

struct Pair<'a, K, V> {
    sides: &'a Sides,
    embedded: fleeting::TimeoutDict<K, V>,
    on_server: redis::TimeoutDict<K, V>,
    keys: Vec<K>,
    claims: RefCell<Vec<Claims<K, V>>>,
}

/// Claims of one entry, embedded and on the server.
type Claims<K, V> = (fleeting::Claim<K, V>, redis::Claim<K, V>);

macro_rules! both {
    ($pair:ident, $dict:ident => $call:expr) => {{
        let embedded = {
            let $dict = &$pair.embedded;
            $pair.sides.embedded.block_on(async { $call.await })
        };
        let on_server = {
            let $dict = &$pair.on_server;
            $pair.sides.real.block_on(async { $call.await })
        };
        (embedded, on_server)
    }};
}

macro_rules! compare {
    ($pair:ident, $dict:ident => $call:expr) => {{
        let (embedded, on_server) = both!($pair, $dict => $call);
        same(embedded, on_server)
    }};
}

#[derive(Debug)]
pub(super) struct Dict;

impl Subject for Dict {
    fn run<K: Data, V: Data>(&self, sequence: &mut Sequence<'_>) -> Outcome {
        let sides = sequence.sides;
        let embedded =
            fleeting::TimeoutDict::<K, V>::builder().backoff(Duration::ZERO, Duration::ZERO);
        let embedded = sides.embedded.block_on(async { embedded.max_attempts(3).build() });
        let builder = redis::TimeoutDict::builder(&sides.client, &*sequence.name);
        let builder = builder.backoff(Duration::ZERO, Duration::ZERO).max_attempts(3);
        let on_server =
            sides.real.block_on(async { builder.format(sequence.format).build() }).unwrap();
        let keys = (0..5).map(|_| K::random(&mut sequence.random).as_read()).collect();
        let pair = Pair { sides, embedded, on_server, keys, claims: RefCell::default() };
        let outcome = sequence.run(|sequence| pair.step(sequence));
        // A dropped claim sends its failure from a task.
        let _real = sides.real.enter();
        drop(pair);
        outcome
    }
}

impl<K: Data, V: Data> Pair<'_, K, V> {
    fn step(&self, sequence: &mut Sequence<'_>) -> Outcome {
        if sequence.is_one_in(3) {
            let units = 2 * sequence.random.random_range(1..8);
            sequence.log(("pass", units));
            self.sides.pass(units);
        }
        let key = self.keys[sequence.random.random_range(0..self.keys.len())].clone();
        let value = V::random(&mut sequence.random).as_read();
        let (which, ttl) = (sequence.random.random_range(0..24), sequence.ttl());
        sequence.log((which, &key, &value, ttl));
        match which {
            0..4 => compare!(self, dict => dict.set(key.clone(), value.clone(), ttl)),
            4 => compare!(self, dict => dict.set_nx(key.clone(), value.clone(), ttl)),
            5 => compare!(self, dict => dict.set_timeout(&key, ttl)),
            6 => compare!(self, dict => dict.remove_timeout(&key)),
            7 | 8 => {
                compare!(self, dict => dict.get(&key))?;
                compare!(self, dict => dict.contains_key(&key))
            }
            9 => {
                let (embedded, on_server) = both!(self, dict => dict.ttl(&key));
                self.sides.same_ttl(embedded, on_server)
            }
            10 => compare!(self, dict => dict.remove(&key)),
            11 => {
                compare!(self, dict => dict.len())?;
                compare!(self, dict => dict.is_empty())?;
                compare!(self, dict => dict.dead_len())
            }
            12 => {
                let (embedded, on_server) = both!(self, dict => dict.take_expired(9));
                same_items(embedded, on_server)
            }
            // A lease of zero ends while the clock stands still, or not.
            13..17 => self.claim(ttl.max(self.sides.units(1))),
            17 => {
                let (embedded, on_server) = both!(self, dict => dict.take_dead(9));
                same_items(embedded, on_server)
            }
            18 => compare!(self, dict => dict.revive(&key, ttl)),
            19 => {
                let (embedded, on_server) = both!(self, dict => dict.dead_letters(9));
                let text = |letters: Vec<fleeting::DeadLetter<K, V>>| {
                    let text = |it: &fleeting::DeadLetter<K, V>| {
                        format!("{:?} {:?} {} {:?}", it.key, it.value, it.attempts, it.reason)
                    };
                    letters.iter().map(text).collect::<Vec<_>>()
                };
                same_items(text(embedded), on_server.map(text))
            }
            20 if sequence.is_one_in(4) => compare!(self, dict => dict.clear()),
            _ => self.end_claim(sequence, ttl),
        }
    }

    /// Claims all due entries, and finds them by the keys of their claims.
    fn claim(&self, lease: Duration) -> Outcome {
        let (mut embedded, on_server) = both!(self, dict => dict.claim_expired(9, lease));
        let mut on_server = on_server.unwrap();
        embedded.sort_by_key(|claim| format!("{:?}", claim.key()));
        on_server.sort_by_key(|claim| format!("{:?}", claim.key()));
        let parts = embedded.iter().map(|it| (it.key().clone(), it.value().clone(), it.attempts()));
        let parts_on_server =
            on_server.iter().map(|it| (it.key().clone(), it.value().clone(), it.attempts()));
        same(parts.collect::<Vec<_>>(), Ok(parts_on_server.collect()))?;
        for claim in &on_server {
            let found = self.sides.real.block_on(self.on_server.get(claim.key()));
            same(Some(claim.value().clone()), found)?;
        }
        self.claims.borrow_mut().extend(embedded.into_iter().zip(on_server));
        Ok(())
    }

    fn end_claim(&self, sequence: &mut Sequence<'_>, ttl: Duration) -> Outcome {
        let mut claims = self.claims.borrow_mut();
        if claims.is_empty() {
            return Ok(());
        }
        let at = sequence.random.random_range(0..claims.len());
        let how = sequence.random.random_range(0..5);
        sequence.log(("claim", how, claims[at].0.key()));
        let Sides { embedded: memory, real, .. } = self.sides;
        if how == 0 {
            let (embedded, on_server) = &claims[at];
            let lease = ttl.max(self.sides.units(1));
            return same(
                memory.block_on(embedded.extend(lease)),
                real.block_on(on_server.extend(lease)),
            );
        }
        let (embedded, on_server) = claims.swap_remove(at);
        match how {
            1 => same(memory.block_on(embedded.ack()), real.block_on(on_server.ack())),
            2 => same(
                memory.block_on(embedded.retry_in(ttl)),
                real.block_on(on_server.retry_in(ttl)),
            ),
            3 => same(memory.block_on(embedded.release()), real.block_on(on_server.release())),
            _ => same(memory.block_on(embedded.fail("no")), real.block_on(on_server.fail("no"))),
        }
    }
}
