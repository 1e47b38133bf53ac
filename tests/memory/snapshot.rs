//! Memory used to write a snapshot, in addition to the cache: independent of the number of entries, and at
//! most a few of the values if they are large.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use fleeting::{Cache, Sweep};
use tokio::io::AsyncWrite;

use super::{MEMORY, run_paused, wait_for_turn};

const MB: usize = 1_000_000;

#[test]
fn snapshot_uses_constant_memory() {
    wait_for_turn();
    run_paused(async {
        let few = peak(1_000, 100).await;
        let many = peak(200_000, 100).await;
        assert!(many < few + MB / 2, "{few} bytes for a thousand entries, {many} for 200,000");
        assert!(many < MB, "{many} bytes for 200,000 entries");
        // Of 30 MB: the first copies, made before the size of values is known, and one block.
        let large = peak(30, MB).await;
        assert!(large < 15 * MB, "{large} bytes for 30 values of 1 MB");
    });
}

/// Returns the peak memory of a snapshot of `entries` values of `bytes` bytes each.
async fn peak(entries: usize, bytes: usize) -> usize {
    let cache: Cache<usize, String> = Cache::builder().shards(2).sweep(Sweep::manual()).build();
    for key in 0..entries {
        cache.set(key, "x".repeat(bytes)).await;
    }
    let before = MEMORY.allocated();
    let mut sink = Sink { most: before, bytes: 0 };
    assert_eq!(cache.snapshot(&mut sink).await.expect("the snapshot is written"), entries as u64);
    assert!(sink.bytes > entries * bytes);
    sink.most - before
}

/// Records the allocated memory at each write.
struct Sink {
    most: usize,
    bytes: usize,
}

impl AsyncWrite for Sink {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.most = self.most.max(MEMORY.allocated());
        self.bytes += bytes.len();
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
