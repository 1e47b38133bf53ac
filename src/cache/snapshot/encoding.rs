//! Encoding of a snapshot: copies and encodes entries in the caller's task, and at the same time in helpers.
//!
//! 1. An encoder takes a shard, clones some of its entries at a time under its read lock, and encodes them after the
//!    lock is released. When its block is full, it sends the block to the caller together with the rest of the shard.
//! 2. The caller returns the rest to the others when it receives the block. So a shard has one encoder at a time, and
//!    its blocks are written in the order in which they were copied: `restore` keeps the later of two copies.
//! 3. Helpers are short jobs on the threads that Tokio has for blocking work. A helper ends when enough blocks wait for
//!    the writer. It never waits, because the writer may need its thread, and the caller never waits for a helper to be
//!    started, because all threads may be in use: it encodes too.
//! 4. A helper holds the encoding weakly, and upgrades it for each block. So it ends soon after the caller.

use std::{
    hash::{BuildHasher, Hash},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, Mutex, MutexGuard, Weak},
    thread::{self, available_parallelism},
};

use serde::Serialize;
use tokio::{runtime::Handle, sync::mpsc};

use super::{
    error::SnapshotError,
    format::{Block, RemainingTtl, SealedBlock},
};
use crate::engine::{
    clock::Tick,
    panics,
    shared_state::SharedState,
    store::{EntryCopy, TableCursor},
};

/// Size of encoded entries, in bytes, from which a block is complete: large enough that the frame, the write and the
/// compression cost little per byte.
const BLOCK_SIZE: usize = 128 * 1_024;

/// Size of the memory that a block gets at first: the last entry and the frame of most blocks fit as well.
const BLOCK_CAPACITY: usize = BLOCK_SIZE + 8 * 1_024;

/// Size of the memory of a written block above which it is freed and not used again.
const MAX_SPARE_CAPACITY: usize = 2 * BLOCK_SIZE;

/// Maximum number of helpers, which limits the memory of a snapshot.
const MAX_HELPERS: usize = 3;

/// A snapshot that is being encoded.
pub(super) struct Encoding<K, V, S> {
    shared: Arc<SharedState<K, V, S>>,
    /// Time of the snapshot, to which remaining TTLs are relative.
    start: Tick,
    is_compressed: bool,
    max_helpers: usize,
    progress: Mutex<Progress<K, V>>,
    sender: mpsc::UnboundedSender<thread::Result<Encoded<K, V>>>,
}

/// Receiver of the blocks, in the order in which they are written. Helpers stop when it is dropped.
pub(super) struct Results<K, V>(mpsc::UnboundedReceiver<thread::Result<Encoded<K, V>>>);

struct Progress<K, V> {
    /// First of the shards that no encoder has taken yet.
    next_shard: usize,
    /// Shards that an encoder has begun and returned.
    begun: Vec<ShardCopy<K, V>>,
    /// Number of blocks that are being encoded or wait for the caller.
    blocks: usize,
    /// Memory of written blocks. An allocation of this size makes some allocators tidy up all small ones that were
    /// freed, such as the copies.
    spare: Vec<Vec<u8>>,
    /// Number of helpers that were started and have not ended, or will never run.
    helpers: usize,
}

/// A shard that is being copied.
struct ShardCopy<K, V> {
    cursor: TableCursor,
    /// Entries that are copied and not yet encoded. No more are copied before they are.
    copies: Vec<EntryCopy<K, V>>,
    has_more: bool,
}

/// A block, and the rest of the shard that was copied last.
struct Encoded<K, V> {
    block: Result<SealedBlock, SnapshotError>,
    rest: Option<ShardCopy<K, V>>,
}

impl<K, V, S> Encoding<K, V, S>
where
    K: Hash + Eq + Clone + Send + Sync + Serialize + 'static,
    V: Clone + Send + Sync + Serialize + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    pub(super) fn new(
        shared: Arc<SharedState<K, V, S>>,
        start: Tick,
        is_compressed: bool,
    ) -> (Arc<Self>, Results<K, V>) {
        // The caller and half of the processors. The others stay available to the service.
        let processors = available_parallelism().map_or(1, usize::from);
        let max_helpers = (processors / 2).min(MAX_HELPERS);
        let progress = Mutex::new(Progress::new());
        let (sender, results) = mpsc::unbounded_channel();
        let encoding = Self { shared, start, is_compressed, max_helpers, progress, sender };
        (Arc::new(encoding), Results(results))
    }

    /// Returns the next block to write, `None` after the last. Encodes it if no helper has.
    ///
    /// # Panics
    ///
    /// Panics if the user's code panicked in a helper.
    pub(super) async fn next_block(
        &self,
        results: &mut Results<K, V>,
    ) -> Option<Result<SealedBlock, SnapshotError>> {
        let encoded = match results.0.try_recv() {
            Ok(encoded) => encoded,
            Err(_) => {
                if !self.encode_block(usize::MAX) && self.progress().blocks == 0 {
                    return None;
                }
                // Not always the block encoded here: those that helpers have completed before precede it.
                results.0.recv().await.expect("`self` holds a sender")
            }
        };
        let Encoded { block, rest } = encoded.unwrap_or_else(|panic| resume_unwind(panic));
        let mut progress = self.progress();
        progress.blocks -= 1;
        progress.begun.extend(rest);
        Some(block)
    }

    /// Starts a helper on the threads of `runtime` if there is work for one.
    pub(super) fn start_helper(self: &Arc<Self>, runtime: &Handle) {
        let mut progress = self.progress();
        let shards = progress.begun.len() + self.shared.store.shard_count() - progress.next_shard;
        // One of the shards is for the caller.
        if shards > 1 && progress.helpers < self.max_helpers && progress.blocks < self.max_blocks()
        {
            progress.helpers += 1;
            drop(progress);
            let encoding = Arc::downgrade(self);
            // Not awaited, because it may never start. A runtime that has ended drops it.
            drop(runtime.spawn_blocking(move || help(&encoding)));
        }
    }

    /// Encodes a block and sends it to the caller. Returns false if there are `max_blocks` blocks or nothing to encode.
    fn encode_block(&self, max_blocks: usize) -> bool {
        let Some(shard) = self.begin_block(max_blocks) else { return false };
        let memory = self.progress().spare.pop();
        let encoded = catch_unwind(AssertUnwindSafe(|| {
            let memory = memory.unwrap_or_else(|| Vec::with_capacity(BLOCK_CAPACITY));
            let mut block = Block::new(self.is_compressed, memory);
            match self.fill(&mut block, shard) {
                Ok(rest) => Encoded { block: Ok(block.seal()), rest },
                Err(error) => Encoded { block: Err(error), rest: None },
            }
        }));
        // It fails if the caller has ended.
        let _ = self.sender.send(encoded);
        true
    }

    /// Copies and encodes entries until the block is full or nothing is left. Returns the rest of the last shard.
    fn fill(
        &self,
        block: &mut Block,
        mut shard: ShardCopy<K, V>,
    ) -> Result<Option<ShardCopy<K, V>>, SnapshotError> {
        let SharedState { store, clock, .. } = &*self.shared;
        // The caller may end at any time, and nothing is to be encoded then.
        while !self.sender.is_closed() {
            // In any order, because a part has one copy of a key.
            while let Some(EntryCopy { key, value, deadline, hard_deadline, tags }) =
                shard.copies.pop()
            {
                let tags = tags.as_deref().unwrap_or_default();
                let remaining = RemainingTtl::of(deadline, hard_deadline, self.start);
                block.push(remaining, tags, &key, &value)?;
                if block.len() >= BLOCK_SIZE {
                    return Ok(Some(shard));
                }
            }
            if shard.has_more {
                shard.has_more = store.copy_part(&mut shard.cursor, clock, &mut shard.copies);
            } else {
                let Some(next) = self.progress().next(store.shard_count()) else { break };
                shard = next;
            }
        }
        Ok(None)
    }

    /// Takes a shard for a new block, unless there are `max_blocks` blocks already.
    fn begin_block(&self, max_blocks: usize) -> Option<ShardCopy<K, V>> {
        let mut progress = self.progress();
        if progress.blocks >= max_blocks {
            return None;
        }
        let shard = progress.next(self.shared.store.shard_count())?;
        progress.blocks += 1;
        Some(shard)
    }
}

impl<K, V, S> Encoding<K, V, S> {
    /// Returns the number of blocks at which helpers end: two for each encoder. With fewer, helpers end and are started
    /// again at each block, while the caller waits for its write.
    fn max_blocks(&self) -> usize {
        2 * (self.max_helpers + 1)
    }

    /// Takes the memory of a written block.
    pub(super) fn recycle(&self, memory: Vec<u8>) {
        if memory.capacity() <= MAX_SPARE_CAPACITY {
            self.progress().spare.push(memory);
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress<K, V>> {
        self.progress.lock().expect("no user code runs under this lock")
    }
}

impl<K, V> Progress<K, V> {
    fn new() -> Self {
        Self { next_shard: 0, begun: Vec::new(), blocks: 0, spare: Vec::new(), helpers: 0 }
    }

    /// Takes a shard, preferably one that was begun: the sooner its copy ends, the less it changes.
    fn next(&mut self, shard_count: usize) -> Option<ShardCopy<K, V>> {
        if let Some(shard) = self.begun.pop() {
            return Some(shard);
        }
        let index = self.next_shard;
        (index < shard_count).then(|| {
            self.next_shard += 1;
            ShardCopy { cursor: TableCursor::of(index), copies: Vec::new(), has_more: true }
        })
    }
}

impl<K, V> Drop for ShardCopy<K, V> {
    fn drop(&mut self) {
        // One by one: a panic in one drop must not leak the others, and a second one would abort the process.
        panics::drop_all(self.copies.drain(..));
    }
}

/// Encodes blocks until enough of them wait for the caller, or the caller has ended.
fn help<K, V, S>(encoding: &Weak<Encoding<K, V, S>>)
where
    K: Hash + Eq + Clone + Send + Sync + Serialize + 'static,
    V: Clone + Send + Sync + Serialize + 'static,
    S: BuildHasher + Clone + Send + Sync + 'static,
{
    while let Some(encoding) = encoding.upgrade() {
        if !encoding.encode_block(encoding.max_blocks()) {
            encoding.progress().helpers -= 1;
            return;
        }
    }
}
