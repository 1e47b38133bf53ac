//! A queue of either kind, as the target of a spool.

use std::{path::Path, sync::Arc};

use super::record::SpoolRecord;
use crate::dirq::{Error, Purge, Queue, QueueSimple};

/// A queue of either kind. `pub` because [`Spool::new`](crate::Spool::new) takes it.
#[derive(Debug)]
pub enum AnyQueue {
    Simple(QueueSimple),
    Normal(Queue),
}

impl AnyQueue {
    /// Checks that the queue accepts elements of the spool.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self {
            Self::Simple(_) => Ok(()),
            Self::Normal(queue) => {
                let no_schema = || Error::NoSchema { path: queue.path().to_owned() };
                queue.schema().ok_or_else(no_schema)?.check(&SpoolRecord::sample().element())
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Simple(queue) => queue.path(),
            Self::Normal(queue) => queue.path(),
        }
    }

    /// Returns `None` if the number of elements is not bounded.
    pub(super) fn max_elements(&self) -> Option<u64> {
        match self {
            Self::Simple(queue) => queue.max_elements(),
            Self::Normal(queue) => queue.max_elements(),
        }
    }

    pub(super) async fn purge(&self, purge: Purge) -> Result<(), Error> {
        match self {
            Self::Simple(queue) => queue.purge(purge).await.map(drop),
            Self::Normal(queue) => queue.purge(purge).await.map(drop),
        }
    }

    /// Adds as many records as possible, in order. Returns the number that are in the queue now.
    pub(super) async fn add(&self, records: &[Arc<SpoolRecord>]) -> (usize, Result<(), Error>) {
        let records = records.iter();
        let added = match self {
            Self::Simple(queue) => queue.add_many(records.map(|record| record.body())).await,
            Self::Normal(queue) => queue.add_many(records.map(|record| record.element())).await,
        };
        match added {
            Ok(names) => (names.len(), Ok(())),
            // The first events are in the queue. Writing them again would duplicate them.
            Err(Error::Partial { names, source }) => (names.len(), Err(*source)),
            Err(error) => (0, Err(error)),
        }
    }
}

impl From<QueueSimple> for AnyQueue {
    fn from(queue: QueueSimple) -> Self {
        Self::Simple(queue)
    }
}

impl From<Queue> for AnyQueue {
    fn from(queue: Queue) -> Self {
        Self::Normal(queue)
    }
}
