//! fleeting, through its public API. A request takes a millisecond of the paused clock.

use std::time::Duration;

use fleeting::Cache;

use crate::{
    replay::Candidate,
    scans::{self, Scannable, Setup},
    traces::{FOREVER, Request},
};

const REQUEST: Duration = Duration::from_millis(1);

pub(crate) struct Fleeting(Cache<u32, u32>);

impl Candidate for Fleeting {
    fn new(capacity: usize) -> Self {
        Self(Cache::builder().max_entries(capacity).build())
    }

    async fn get(&mut self, key: u32) -> Option<u32> {
        self.0.get(&key).await
    }

    async fn set(&mut self, request: &Request, deadline: u32) {
        if request.ttl == FOREVER {
            self.0.set(request.key, deadline).await;
        } else {
            self.0.set_ex(request.key, deadline, REQUEST * request.ttl).await;
        }
    }

    async fn pass(&mut self) {
        tokio::time::advance(REQUEST).await;
    }
}

impl Scannable for Fleeting {
    fn set_up(setup: Setup) -> Self {
        let builder = match setup.is_weighed {
            true => Cache::builder().max_weight(setup.limit(), |key, _| scans::weight(*key)),
            false => Cache::builder().max_entries(setup.bound as usize),
        };
        Self(match setup.shards {
            Some(shards) => builder.shards(shards).build(),
            None => builder.build(),
        })
    }

    async fn has(&mut self, key: u32) -> bool {
        self.0.contains_key(&key).await
    }

    async fn set_all(&mut self, requests: &[Request]) {
        self.0.set_many(requests.iter().map(|request| (request.key, FOREVER)), None).await;
    }

    async fn load(&mut self, request: &Request) {
        self.0.get_or_set_with(&request.key, None, || async { FOREVER }).await;
    }
}
