//! Snapshots of `Cache`: an incomplete one is refused, and a restore that has begun to add entries completes.

use std::{
    fs,
    future::poll_fn,
    task::Poll,
    time::{Duration, Instant},
};

use fleeting::{Cache, Sweep};
use futures::lock::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, duplex},
    time::sleep,
};

use crate::{cancel::at_each_await, patience::patience};

const ENTRIES: u32 = 500;

async fn filled() -> Cache<u32, u32> {
    let cache = Cache::builder().sweep(Sweep::manual()).build();
    cache.set_many((0..ENTRIES).map(|key| (key, key)), None).await;
    cache
}

fn empty() -> Cache<u32, u32> {
    Cache::builder().sweep(Sweep::manual()).build()
}

#[tokio::test(start_paused = true)]
async fn cancelled_snapshot_is_refused_by_restore() {
    for is_compressed in [false, true] {
        at_each_await(
            async || (filled().await, Mutex::new(Vec::new())),
            async |(cache, file)| {
                // A pipe of a few bytes, so that each write waits.
                let (mut writer, mut reader) = duplex(700);
                let copy = async {
                    let file = &mut *file.lock().await;
                    while reader.read_buf(file).await.expect("a pipe does not fail") > 0 {}
                };
                let write = async {
                    let result = match is_compressed {
                        true => cache.snapshot_compressed(&mut writer).await,
                        false => cache.snapshot(&mut writer).await,
                    };
                    writer.shutdown().await.expect("a pipe does not fail");
                    result.expect("a pipe does not fail")
                };
                tokio::join!(write, copy).0
            },
            async |(cache, file), reply, schedule| {
                let file = file.into_inner();
                let restored = empty();
                let result = restored.restore(&file[..]).await;
                match reply {
                    Some(count) => {
                        assert_eq!(
                            (count, result.ok()),
                            (u64::from(ENTRIES), Some(count)),
                            "{schedule:?}"
                        );
                    }
                    // A whole file may have been written before the call completed.
                    None => assert!(
                        result.is_err() || restored.len() == ENTRIES as usize,
                        "{schedule:?}"
                    ),
                }
                assert_eq!(cache.len(), ENTRIES as usize);
                assert!([0, ENTRIES as usize].contains(&restored.len()), "{schedule:?}");
            },
        )
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_restore_adds_nothing_or_all() {
    let mut file = Vec::new();
    filled().await.snapshot(&mut file).await.expect("memory does not fail");
    at_each_await(
        async || empty(),
        async |cache| {
            let (mut writer, reader) = duplex(700);
            let write = async {
                // Refused if the reader is dropped first.
                let _ = writer.write_all(&file).await;
                drop(writer);
            };
            tokio::join!(cache.restore(reader), write).0.expect("the file is complete")
        },
        async |cache, reply, schedule| {
            let len = cache.len();
            assert!(len == ENTRIES as usize || len == 0 && reply.is_none(), "{schedule:?}: {len}");
        },
    )
    .await;
}

/// In real time, because threads for blocking work write and read the file.
#[tokio::test]
async fn cancelled_snapshot_to_leaves_a_complete_file_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("entries");
    empty().snapshot_to(&path).await.unwrap();
    let cache = filled().await;
    for polls in 1.. {
        let written = up_to(polls, cache.snapshot_to(&path)).await;
        let begin = Instant::now();
        // A thread for blocking work removes the new file.
        while fs::read_dir(folder.path()).unwrap().count() > 1 {
            assert!(begin.elapsed() < patience(), "a file is left after {polls} polls");
            sleep(Duration::from_millis(1)).await;
        }
        let restored = empty();
        let count = restored.restore_from(&path).await.unwrap();
        assert!(count == 0 || count == u64::from(ENTRIES), "{count} after {polls} polls");
        if let Some(written) = written {
            assert_eq!(written.unwrap(), u64::from(ENTRIES));
            assert!(polls > 3, "the call never waited");
            break;
        }
    }
    for polls in 1.. {
        let cache = empty();
        let restored = up_to(polls, cache.restore_from(&path)).await;
        let len = cache.len() as u64;
        assert!(len == 0 || len == u64::from(ENTRIES), "{len} after {polls} polls");
        if let Some(restored) = restored {
            assert_eq!(restored.unwrap(), len);
            assert!(polls > 1, "the call never waited");
            break;
        }
    }
}

/// Polls `call` up to `polls` times, and drops it.
async fn up_to<T>(polls: usize, call: impl Future<Output = T>) -> Option<T> {
    let (mut call, mut count) = (Box::pin(call), 0);
    poll_fn(|cx| {
        count += 1;
        match call.as_mut().poll(cx) {
            Poll::Ready(reply) => Poll::Ready(Some(reply)),
            Poll::Pending if count == polls => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
