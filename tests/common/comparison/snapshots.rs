//! Snapshots, restored into the same cache.

use std::time::Duration;

use super::Comparison;
use crate::{calls::Restore, oracle};

const MILLISECOND: Duration = Duration::from_millis(1);

pub(super) struct Snapshot {
    bytes: Vec<u8>,
    content: oracle::Snapshot,
}

impl Comparison {
    pub(super) async fn take_snapshot(&mut self, is_compressed: bool) {
        let mut bytes = Vec::new();
        let written = match is_compressed {
            true => self.cache.snapshot_compressed(&mut bytes).await,
            false => self.cache.snapshot(&mut bytes).await,
        };
        let content = self.oracle.snapshot();
        assert_eq!(written.expect("memory takes all bytes"), content.len() as u64);
        self.snapshot = Some(Snapshot { bytes, content });
    }

    pub(super) async fn restore(&mut self, restore: Restore) {
        let Some(Snapshot { bytes, content }) = self.snapshot.take() else { return };
        match restore {
            Restore::Cut(missing) => {
                let end = bytes.len() - 1 - usize::from(missing) % bytes.len();
                let restored = self.cache.restore(&bytes[..end]).await;
                assert!(restored.is_err(), "{end} of {} bytes were restored", bytes.len());
            }
            Restore::All => {
                // The cache rounds the time since the snapshot to milliseconds.
                let since = self.oracle.now - content.at();
                let rest = Duration::from_nanos(since.as_nanos() as u64 % 1_000_000);
                if !rest.is_zero() {
                    self.advance(MILLISECOND - rest).await;
                }
                let restored = self.cache.restore(&bytes[..]).await;
                assert_eq!(restored.expect("it is complete"), self.oracle.restore(&content));
            }
        }
        self.snapshot = Some(Snapshot { bytes, content });
    }
}
