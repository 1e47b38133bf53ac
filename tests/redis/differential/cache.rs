//! Calls of the embedded `Cache` and of `redis::Cache`.

use std::{sync::Arc, thread::sleep, time::Duration};

use fleeting::{Cause, Sweep, When, redis};
use futures::{FutureExt, TryStreamExt};
use rand::RngExt;
use tokio::time::{Instant, timeout};

use super::{Outcome, Sequence, Sides, Subject, data::Data, same, same_items};
use crate::patience::patience;

/// Settings of the cache on the server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cache {
    Plain,
    WithEvents,
    Near,
}

struct Pair<'a, K, V> {
    sides: &'a Sides,
    embedded: fleeting::Cache<K, V>,
    on_server: redis::Cache<K, V>,
    settings: Cache,
    keys: Vec<K>,
}

/// Makes a call on both sides, and returns both replies.
macro_rules! both {
    ($pair:ident, $cache:ident => $call:expr) => {{
        let embedded = {
            let $cache = &$pair.embedded;
            $pair.sides.embedded.block_on(async { $call.await })
        };
        let on_server = {
            let $cache = &$pair.on_server;
            $pair.sides.real.block_on(async { $call.await })
        };
        (embedded, on_server)
    }};
}

macro_rules! compare {
    ($pair:ident, $cache:ident => $call:expr) => {{
        let (embedded, on_server) = both!($pair, $cache => $call);
        same(embedded, on_server)
    }};
}

impl Subject for Cache {
    fn run<K: Data, V: Data>(&self, sequence: &mut Sequence<'_>) -> Outcome {
        let (sides, settings) = (sequence.sides, *self);
        let sweep = Sweep::manual();
        let embedded = sides.embedded.block_on(async {
            fleeting::Cache::<K, V>::builder().sweep(sweep).publish([Cause::Expired]).build()
        });
        let builder = redis::Cache::builder(&sides.client, &sequence.name).format(sequence.format);
        let builder = match settings {
            Cache::Plain => builder,
            Cache::WithEvents => {
                builder.events(sides.units(1_000_000)).poll_every(Duration::from_millis(5))
            }
            Cache::Near => builder.near(1_000),
        };
        let on_server = sides.real.block_on(async { builder.build() }).unwrap();
        let keys = (0..5).map(|_| K::random(&mut sequence.random).as_read()).collect();
        let pair = Pair { sides, embedded, on_server, settings, keys };
        let events = pair.embedded.events();
        let on_server = match settings {
            Cache::WithEvents => {
                Some(sides.real.block_on(pair.on_server.events_lossless("g")).unwrap())
            }
            _ => None,
        };
        sequence.run(|sequence| pair.step(sequence))?;
        match on_server {
            Some(on_server) => {
                let compared = pair.compare_events(events, on_server);
                compared.map_err(|difference| sequence.describe(&difference))
            }
            None => Ok(()),
        }
    }
}

impl<K: Data, V: Data> Pair<'_, K, V> {
    fn step(&self, sequence: &mut Sequence<'_>) -> Outcome {
        if sequence.is_one_in(3) {
            self.pass(sequence);
        }
        match sequence.random.random_range(0..10) {
            0..4 => self.read(sequence),
            4..7 => self.write(sequence),
            7..9 => self.change_deadline(sequence),
            _ => self.call_for_several(sequence),
        }
    }

    fn pass(&self, sequence: &mut Sequence<'_>) {
        let units = 2 * sequence.random.random_range(1..8);
        // A near cache also uses the clock of its process, which is not ahead of the server's.
        if self.settings == Cache::Near && !self.sides.is_stopped() {
            return;
        }
        sequence.log(("pass", units));
        self.sides.pass(units);
        if self.settings == Cache::Near {
            sleep(self.sides.units(units));
        }
    }

    fn key(&self, sequence: &mut Sequence<'_>) -> K {
        self.keys[sequence.random.random_range(0..self.keys.len())].clone()
    }

    fn read(&self, sequence: &mut Sequence<'_>) -> Outcome {
        let (which, key, ttl) =
            (sequence.random.random_range(0..8), self.key(sequence), sequence.ttl());
        sequence.log(("read", which, &key, ttl));
        match which {
            0..2 => compare!(self, cache => cache.get(&key)),
            2 => compare!(self, cache => cache.contains_key(&key)),
            3 => {
                let (embedded, on_server) = both!(self, cache => cache.ttl(&key));
                self.sides.same_ttl(embedded, on_server)
            }
            4 => compare!(self, cache => cache.get_ex(&key, ttl)),
            5 => {
                let (embedded, on_server) = both!(self, cache => cache.get_with_ttl(&key));
                let (value, ttl) = embedded.unzip();
                let (value_on_server, ttl_on_server) = on_server.unwrap().unzip();
                same(value, Ok(value_on_server))?;
                match (ttl, ttl_on_server) {
                    (Some(ttl), Some(on_server)) => self.sides.same_ttl(ttl, Ok(on_server)),
                    _ => Ok(()),
                }
            }
            6 => self.iterate(),
            _ => {
                // The embedded `len` and `is_empty` count expired entries that no sweep has removed yet.
                let len = self.embedded.live_len();
                same(len, self.sides.real.block_on(self.on_server.len()))?;
                same(len == 0, self.sides.real.block_on(self.on_server.is_empty()))
            }
        }
    }

    fn iterate(&self) -> Outcome {
        let Self { sides, embedded, on_server, .. } = self;
        let all = sides.real.block_on(on_server.iter().try_collect());
        same_items(embedded.iter().collect::<Vec<(K, V)>>(), all)?;
        // A key that is returned is found again.
        let keys: Vec<K> = sides.real.block_on(on_server.keys().try_collect()).unwrap();
        for key in &keys {
            let found = sides.real.block_on(on_server.contains_key(key));
            same(true, found).map_err(|difference| format!("{key:?} of `keys`: {difference}"))?;
        }
        same_items(embedded.keys().collect(), Ok(keys))?;
        let values = sides.real.block_on(on_server.values().try_collect());
        same_items(embedded.values().collect(), values)
    }

    fn write(&self, sequence: &mut Sequence<'_>) -> Outcome {
        let (which, key, ttl) =
            (sequence.random.random_range(0..12), self.key(sequence), sequence.ttl());
        let value = V::random(&mut sequence.random).as_read();
        sequence.log(("write", which, &key, &value, ttl));
        let some_ttl = sequence.random.random::<bool>().then_some(ttl);
        match which {
            0 => compare!(self, cache => cache.set(key.clone(), value.clone())),
            1..4 => compare!(self, cache => cache.set_ex(key.clone(), value.clone(), ttl)),
            4 => compare!(self, cache => cache.set_nx(key.clone(), value.clone(), some_ttl)),
            5 => compare!(self, cache => cache.set_keep_ttl(key.clone(), value.clone())),
            6 => {
                let tag = ["a", "", "{}"][sequence.random.random_range(0..3)];
                compare!(self, cache => cache.set_tagged(key.clone(), value.clone(), ttl, [tag]))
            }
            7 => compare!(self, cache => cache.remove(&key)),
            8 => {
                let change = |old: &mut V| std::mem::replace(old, value.clone());
                compare!(self, cache => cache.update(&key, change))
            }
            9 => {
                // The value of the caller whose loader runs, and of the next caller.
                for value in [value, V::random(&mut sequence.random)] {
                    let value = value.as_read();
                    compare!(self, cache => {
                        let value = value.clone();
                        cache.get_or_set_with(&key, ttl, async move || value)
                    })?;
                }
                Ok(())
            }
            10 => {
                let (embedded, on_server) = both!(self, cache =>
                    cache.get_or_try_set_with(&key, ttl, async || Err::<V, _>("no")));
                let message = |error: Arc<&str>| error.to_string();
                same(embedded.map_err(message), on_server.map(|loaded| loaded.map_err(message)))
            }
            _ => {
                let tag = ["a", "", "{}"][sequence.random.random_range(0..3)];
                compare!(self, cache => cache.remove_tag(tag))
            }
        }
    }

    fn change_deadline(&self, sequence: &mut Sequence<'_>) -> Outcome {
        let (which, key, ttl) =
            (sequence.random.random_range(0..8), self.key(sequence), sequence.ttl());
        sequence.log(("change deadline", which, &key, ttl));
        match which {
            0..2 => compare!(self, cache => cache.expire(&key, ttl)),
            2 | 3 => {
                let when = [When::NoTtl, When::HasTtl, When::Later, When::Sooner];
                let when = when[sequence.random.random_range(0..4)];
                sequence.log(when);
                // On a server, a part of a millisecond is not sooner than one.
                let ttl = if ttl.is_zero() { ttl } else { ttl.max(self.sides.units(1)) };
                compare!(self, cache => cache.expire_if(&key, ttl, when))
            }
            4 => {
                let ahead = self.sides.units(2 * sequence.random.random_range(0..20_u32) + 1);
                let is_past = sequence.is_one_in(4);
                sequence.log((ahead, is_past));
                let deadline = || {
                    let now = Instant::now();
                    if is_past { now - ahead } else { now + ahead }
                };
                compare!(self, cache => cache.expire_at(&key, deadline()))
            }
            5 => {
                // An even number of units, so that the deadline stays at an odd one.
                let more = self.sides.units(2 * sequence.random.random_range(0..20_u32));
                let more = if sequence.is_one_in(8) { Duration::MAX } else { more };
                sequence.log(more);
                compare!(self, cache => cache.extend(&key, more))
            }
            6 => compare!(self, cache => cache.persist(&key)),
            _ => compare!(self, cache => cache.expire_now(&key)),
        }
    }

    fn call_for_several(&self, sequence: &mut Sequence<'_>) -> Outcome {
        let count = sequence.random.random_range(0..6);
        let keys: Vec<K> = (0..count).map(|_| self.key(sequence)).collect();
        let (which, ttl) = (sequence.random.random_range(0..8), sequence.ttl());
        sequence.log(("several", which, &keys, ttl));
        match which {
            0..3 => compare!(self, cache => cache.get_many(&keys)),
            3..6 => {
                let value = |key: &K| (key.clone(), V::random(&mut sequence.random).as_read());
                let entries: Vec<(K, V)> = keys.iter().map(value).collect();
                let ttl = (which < 5).then_some(ttl);
                compare!(self, cache => cache.set_many(entries.clone(), ttl))
            }
            6 => compare!(self, cache => cache.remove_many(&keys)),
            _ if sequence.is_one_in(3) => {
                let (embedded, on_server) = both!(self, cache => cache.clear());
                same(embedded, on_server)
            }
            _ => Ok(()),
        }
    }

    /// Lets all values with a TTL expire, and compares the events of the sequence.
    fn compare_events(
        &self,
        mut embedded: fleeting::Events<K, V>,
        mut on_server: redis::LosslessEvents<K, V>,
    ) -> Outcome {
        let Self { sides, .. } = self;
        sides.pass(1_000);
        let mut expected = sides.embedded.block_on(async {
            self.embedded.shutdown().await;
            let mut events = Vec::new();
            while let Some(event) = embedded.recv().now_or_never().flatten() {
                let event = event.expect("the stream has room for all events");
                events.push(format!("{:?} {:?}", event.key, event.value));
            }
            events
        });
        let mut received = sides.real.block_on(async {
            let mut events = Vec::new();
            while events.len() < expected.len() {
                let event = timeout(patience(), on_server.recv()).await;
                let Ok(Some(event)) = event else { break };
                let event = event.unwrap();
                events.push(format!("{:?} {:?}", event.key, event.value));
            }
            let more = timeout(Duration::from_millis(30), on_server.recv()).await;
            events.extend(more.ok().flatten().map(|event| format!("surplus {event:?}")));
            events
        });
        expected.sort();
        received.sort();
        same(expected, Ok(received))
    }
}
