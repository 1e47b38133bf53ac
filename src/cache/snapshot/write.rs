//! Writing a snapshot: a few entries are copied under a lock, and written without one.

use std::hash::{BuildHasher, Hash};

use serde::Serialize;
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    task::{consume_budget, yield_now},
};

use super::{
    error::SnapshotError,
    format::{Block, Head, RemainingTtl},
};
use crate::engine::{
    clock::wall_clock,
    state::SharedState,
    store::{Copied, TableCursor},
};

/// How many bytes make a block: enough that what each costs is little beside them.
const BLOCK: usize = 256 * 1_024;

/// What `Cache::snapshot` and `Cache::snapshot_compressed` do.
pub(super) async fn write<K, V, S>(
    shared: &SharedState<K, V, S>,
    mut writer: impl AsyncWrite + Unpin,
    is_compressed: bool,
) -> Result<u64, SnapshotError>
where
    K: Hash + Eq + Clone + Serialize,
    V: Clone + Serialize,
    S: BuildHasher + Clone,
{
    let now = shared.clock.now();
    let at = wall_clock(shared.clock.instant(now));
    let (mut block, head) = Block::first(Head { at, is_compressed });
    writer.write_all(&head).await.map_err(SnapshotError::Write)?;
    let mut copies = Vec::new();
    for shard in 0..shared.store.shard_count() {
        let mut pass = TableCursor::of(shard);
        let mut has_more = true;
        while has_more {
            consume_budget().await;
            has_more = shared.store.copy_some(&mut pass, &shared.clock, &mut copies);
            for Copied { key, value, deadline, hard_deadline, tags } in copies.drain(..) {
                let tags = tags.as_deref().unwrap_or_default();
                block.push(RemainingTtl::of(deadline, hard_deadline, now), tags, &key, &value)?;
                if block.len() >= BLOCK {
                    writer.write_all(block.seal()).await.map_err(SnapshotError::Write)?;
                    block.clear();
                    // Who writes to memory never waits by itself.
                    yield_now().await;
                }
            }
        }
    }
    if block.len() > 0 {
        writer.write_all(block.seal()).await.map_err(SnapshotError::Write)?;
    }
    let (end, entries) = block.end();
    writer.write_all(&end).await.map_err(SnapshotError::Write)?;
    writer.flush().await.map_err(SnapshotError::Write)?;
    Ok(entries)
}
