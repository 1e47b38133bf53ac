//! Which subjects this process has denied most often of late.

use std::{hash::BuildHasher, sync::Arc};

use tokio::time::Instant;

use super::super::keyspace::key_of_tagged;
use crate::{
    engine::{clock::Tick, hasher::DefaultHasher, metrics::DeniedKey},
    rate_limit::hot,
};

pub(super) struct Hot {
    subjects: hot::Hot<Vec<u8>>,
    hasher: DefaultHasher,
    begun: Instant,
}

impl Hot {
    /// Told by their hashes, or as the server has them.
    pub(super) fn new(are_shown: bool) -> Self {
        let show = are_shown.then(|| -> hot::ShowKey<Vec<u8>> {
            Arc::new(|subject| String::from_utf8_lossy(key_of_tagged(subject)).into_owned())
        });
        Self {
            subjects: hot::Hot::new(show),
            hasher: DefaultHasher::default(),
            begun: Instant::now(),
        }
    }

    pub(super) fn note(&self, subject: &[u8]) {
        let hash = self.hasher.hash_one(subject);
        self.subjects.note(hash, self.now(), || subject.to_owned());
    }

    pub(super) fn read(&self) -> Vec<DeniedKey> {
        self.subjects.read(self.now())
    }

    fn now(&self) -> Tick {
        Tick::from_nanoseconds(self.begun.elapsed().as_nanos() as u64)
    }
}
