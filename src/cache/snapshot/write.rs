//! Writing of a snapshot: some entries at a time are cloned under a lock, and written after it is released.

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
    store::{EntryCopy, TableCursor},
};

/// Size of encoded entries, in bytes, from which a block is written: large enough that the frame, the write and the
/// compression cost little per byte.
const BLOCK_SIZE: usize = 256 * 1_024;

/// Implements `Cache::snapshot` and `Cache::snapshot_compressed`.
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
    let created_at = wall_clock(shared.clock.instant(now));
    let (mut block, head) = Block::new(Head { created_at, is_compressed });
    writer.write_all(&head).await.map_err(SnapshotError::Write)?;
    let mut copies = Vec::new();
    for shard in 0..shared.store.shard_count() {
        let mut cursor = TableCursor::of(shard);
        let mut has_more = true;
        while has_more {
            consume_budget().await;
            has_more = shared.store.copy_part(&mut cursor, &shared.clock, &mut copies);
            for EntryCopy { key, value, deadline, hard_deadline, tags } in copies.drain(..) {
                let tags = tags.as_deref().unwrap_or_default();
                block.push(RemainingTtl::of(deadline, hard_deadline, now), tags, &key, &value)?;
                if block.len() >= BLOCK_SIZE {
                    writer.write_all(block.seal()).await.map_err(SnapshotError::Write)?;
                    block.clear();
                    // A writer to memory never waits, so without this a large snapshot would block its worker.
                    yield_now().await;
                }
            }
        }
    }
    if block.len() > 0 {
        writer.write_all(block.seal()).await.map_err(SnapshotError::Write)?;
    }
    let (end_frame, entries) = block.into_end_frame();
    writer.write_all(&end_frame).await.map_err(SnapshotError::Write)?;
    writer.flush().await.map_err(SnapshotError::Write)?;
    Ok(entries)
}
