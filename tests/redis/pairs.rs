//! The table of docs/crossings.md, on a Redis server.

use std::{cell::Cell as Counter, collections::BTreeSet, time::Duration};

use fleeting::{
    Tagged, Ttl, When,
    redis::{Cache, CacheBuilder},
};
use futures::StreamExt;
use tokio::time::Instant;

use crate::{
    clock::in_time,
    pairs_table::{
        Backend, Cell, Column, DUE, HOUR, KEY, Load, OLD, Observed, State, TAG, VERB, VERB_TTL,
        call_verb, methods, play_all,
    },
    servers::{Server, connect},
};

type OnRedis = Cache<String, u64>;

#[tokio::test]
async fn each_method_wins_or_yields_as_the_table_says() {
    // Its own, because `clear` and `iter` scan all keys of the server.
    let server = Server::start();
    let client = connect(server.url()).await;
    let methods = methods("src/redis/cache");
    let names = Counter::new(0);
    let builder = || {
        names.set(names.get() + 1);
        Cache::builder(&client, &format!("cell-{}", names.get()))
    };
    // With events, the methods send other commands.
    for has_events in [false, true] {
        in_time(async || {
            play_all(|cell| {
                let builder = if has_events { builder().events(HOUR) } else { builder() };
                exists(cell, &methods).then(|| new(cell, builder))
            })
            .await;
        })
        .await;
    }
}

fn exists(cell: &Cell, methods: &BTreeSet<String>) -> bool {
    use Column::{BulkLoad, ExplicitRefresh, IdleTime};
    let is_embedded = [ExplicitRefresh, BulkLoad, IdleTime, Column::Bound, Column::Snapshot];
    methods.contains(cell.method()) && !is_embedded.contains(&cell.column)
}

fn new(cell: &Cell, builder: CacheBuilder<String, u64>) -> OnRedis {
    let builder = match cell.column {
        Column::BackgroundRefresh | Column::StaleWindow => builder.stale_while_revalidate(HOUR),
        Column::RefreshAhead => builder.refresh_ahead(DUE),
        Column::KeptError => builder.negative_ttl(HOUR),
        _ => builder,
    };
    builder.build().unwrap()
}

macro_rules! reply {
    ($call:expr) => {
        $call.await.expect("the server replies")
    };
}

impl Backend for OnRedis {
    const SIDE: usize = 1;
    const CONCURRENT_CELLS: usize = 16;

    async fn call(self, verb: String) -> Option<u64> {
        let (cache, verb) = (self, verb.as_str());
        call_verb!(cache, verb, reply, call_on_redis(cache, verb).await)
    }

    async fn load(self, _column: Column, Load { ttl_and_tags, loader }: Load) -> Option<u64> {
        let ttl = Tagged::by(ttl_and_tags);
        reply!(self.get_or_try_set_with(KEY, ttl, move || loader)).ok()
    }

    async fn state(&self) -> State {
        State::of(reply!(self.get_with_ttl(KEY)))
    }

    async fn observe(&self, _column: Column, _verb: &str) -> Observed {
        unreachable!("this column does not exist on Redis")
    }
}

async fn call_on_redis(cache: OnRedis, verb: &str) -> Option<u64> {
    match verb {
        "iter" => cache.iter().next().await.map(|entry| entry.unwrap().1),
        "keys" => cache.keys().next().await.map(|key| (key.unwrap(), OLD).1),
        "values" => cache.values().next().await.map(Result::unwrap),
        "len" => (reply!(cache.len()) > 0).then_some(OLD),
        "is_empty" => (!reply!(cache.is_empty())).then_some(OLD),
        _ => panic!("unknown method {verb}"),
    }
}
