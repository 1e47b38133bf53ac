//! Writing of a snapshot: the caller's task writes the blocks that it and a few helpers encode.

use std::{
    hash::{BuildHasher, Hash},
    sync::Arc,
};

use serde::Serialize;
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    runtime::Handle,
    task::yield_now,
};

use super::{
    encoding::Encoding,
    error::SnapshotError,
    format::{Frames, Head},
};
use crate::engine::{clock::wall_clock, shared_state::SharedState};

/// Implements `Cache::snapshot` and `Cache::snapshot_compressed`.
pub(super) async fn write<K, V, S>(
    shared: &Arc<SharedState<K, V, S>>,
    mut writer: impl AsyncWrite + Unpin,
    is_compressed: bool,
) -> Result<u64, SnapshotError>
where
    K: Hash + Eq + Clone + Send + Sync + Serialize + 'static,
    V: Clone + Send + Sync + Serialize + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    let now = shared.clock.now();
    let created_at = wall_clock(shared.clock.instant(now));
    let (mut frames, head) = Frames::new(Head { created_at, is_compressed });
    writer.write_all(&head).await.map_err(SnapshotError::Write)?;
    // Helpers stop when these are dropped: if this call returns, fails or is cancelled.
    let (encoding, mut results) = Encoding::new(shared.clone(), now, is_compressed);
    // The caller's runtime, which is in use; outside of a runtime, that of the cache.
    let runtime = Handle::try_current().unwrap_or_else(|_| shared.runtime.clone());
    while let Some(block) = encoding.next_block(&mut results).await {
        // Before the write, so that a helper encodes in the meantime.
        encoding.start_helper(&runtime);
        let block = block?;
        if !block.is_empty() {
            let block = frames.add(block);
            writer.write_all(&block).await.map_err(SnapshotError::Write)?;
            encoding.recycle(block);
        }
        // A writer to memory never waits, so without this a large snapshot would block its worker.
        yield_now().await;
    }
    let (end_frame, entries) = frames.end();
    writer.write_all(&end_frame).await.map_err(SnapshotError::Write)?;
    writer.flush().await.map_err(SnapshotError::Write)?;
    Ok(entries)
}
