//! Subjects that this process has recently denied most often.

use std::{hash::BuildHasher, sync::Arc};

use tokio::time::Instant;

use super::super::keyspace::key_of_tagged;
use crate::{
    engine::{clock::Tick, hasher::DefaultHasher, metrics::DeniedKey},
    rate_limit::top_denied,
};

pub(super) struct TopDenied {
    subjects: top_denied::TopDenied<Vec<u8>>,
    hasher: DefaultHasher,
    created_at: Instant,
}

impl TopDenied {
    /// Creates counters that show the keys as written on the server if `are_keys_shown`, and their hashes otherwise.
    pub(super) fn new(are_keys_shown: bool) -> Self {
        let show = are_keys_shown.then(|| -> top_denied::ShowKey<Vec<u8>> {
            Arc::new(|subject| String::from_utf8_lossy(key_of_tagged(subject)).into_owned())
        });
        Self {
            subjects: top_denied::TopDenied::new(show),
            hasher: DefaultHasher::default(),
            created_at: Instant::now(),
        }
    }

    pub(super) fn note(&self, subject: &[u8]) {
        let hash = self.hasher.hash_one(subject);
        let shown = || top_denied::shown_hash(key_of_tagged(subject));
        self.subjects.note(hash, self.now(), shown, || subject.to_owned());
    }

    pub(super) fn read(&self) -> Vec<DeniedKey> {
        self.subjects.read(self.now())
    }

    fn now(&self) -> Tick {
        Tick::from_nanoseconds(self.created_at.elapsed().as_nanos() as u64)
    }
}
