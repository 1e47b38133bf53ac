//! fleeting, through its public API. A request takes a millisecond of the paused clock.

use std::time::Duration;

use fleeting::Cache;

use crate::{
    replay::Candidate,
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
