//! Restores any bytes, and forged snapshots whose checksums are valid: nothing panics, no more memory is allocated than
//! the file can fill, and a snapshot is restored as a whole or not at all.
#![no_main]

use std::{collections::BTreeMap, time::Duration};

use arbitrary::Arbitrary;
use fleeting::{Cache, Ttl};
use libfuzzer_sys::fuzz_target;

type Key = String;
type Value = (u32, Option<Vec<bool>>);
type Contents = BTreeMap<Key, Value>;

#[derive(Arbitrary, Debug)]
enum Input {
    Bytes(Vec<u8>),
    Forged(Forged),
}

/// Snapshot whose checksums are valid, with lengths and counts that may be wrong.
#[derive(Arbitrary, Debug)]
struct Forged {
    version: Option<u16>,
    flags: Option<u16>,
    is_compressed: bool,
    created_at: u64,
    blocks: Vec<Block>,
    /// Difference of the total number of entries in the end frame.
    more_entries: i8,
    /// Number of bytes that are missing at the end.
    missing: u8,
}

#[derive(Arbitrary, Debug)]
struct Block {
    contents: BlockContents,
    more_entries: i8,
    plain_len: Option<u64>,
    stored_len: Option<u64>,
}

#[derive(Arbitrary, Debug)]
enum BlockContents {
    Bytes(Vec<u8>),
    Entries(Vec<(Option<u64>, u64, Vec<String>, Key, Value)>),
}

fuzz_target!(|input: Input| {
    let bytes = match input {
        Input::Bytes(bytes) => bytes,
        Input::Forged(forged) => forged.bytes(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(check(&bytes));
});

async fn check(bytes: &[u8]) {
    let cache = Cache::new();
    let before = ("a key".to_owned(), (7, None));
    cache.set(before.0.clone(), before.1.clone()).await;
    let Ok(count) = cache.restore(bytes).await else {
        assert_eq!(contents(&cache), Contents::from([before]), "a part was restored");
        return;
    };
    // A snapshot may have a key twice.
    let restored = contents(&cache);
    assert!(restored.len() as u64 <= count + 1);
    assert!(restored.contains_key(&before.0), "an entry was removed");
    for is_compressed in [false, true] {
        let mut written = Vec::new();
        let result = match is_compressed {
            false => cache.snapshot(&mut written).await,
            true => cache.snapshot_compressed(&mut written).await,
        };
        assert_eq!(result.expect("a vector takes all bytes"), restored.len() as u64);
        let copy = Cache::new();
        let count = copy.restore(&written[..]).await.expect("the snapshot is valid");
        let copied = contents(&copy);
        assert_eq!(count, copied.len() as u64);
        // Short TTLs may end by the wall clock in the meantime.
        for (key, value) in &restored {
            let is_short = matches!(cache.ttl(key).await, Ttl::Remaining(ttl) if ttl < Duration::from_secs(60));
            let copy = copied.get(key);
            assert!(copy == Some(value) || copy.is_none() && is_short, "{key:?}: {copy:?}");
        }
        assert!(copied.keys().all(|key| restored.contains_key(key)));
    }
}

fn contents(cache: &Cache<Key, Value>) -> Contents {
    cache.iter().collect()
}

impl Forged {
    fn bytes(self) -> Vec<u8> {
        let mut head = [0; 32];
        head[..8].copy_from_slice(b"fleeting");
        head[8..10].copy_from_slice(&self.version.unwrap_or(2).to_le_bytes());
        head[10..12]
            .copy_from_slice(&self.flags.unwrap_or(self.is_compressed.into()).to_le_bytes());
        head[16..24].copy_from_slice(&self.created_at.to_le_bytes());
        let mut chain = seal(0, &mut head);
        let mut bytes = head.to_vec();
        let mut total = 0_u64;
        for block in &self.blocks {
            let (plain, entries) = block.contents.encoded();
            let stored = match self.is_compressed {
                true => lz4_flex::block::compress(&plain),
                false => plain.clone(),
            };
            let entries = entries.wrapping_add_signed(block.more_entries.into());
            total = total.wrapping_add(entries);
            let stored_len = block.stored_len.unwrap_or(stored.len() as u64);
            let plain_len = block.plain_len.unwrap_or(plain.len() as u64);
            let mut frame = frame(stored_len, plain_len, entries, crc32fast::hash(&stored));
            chain = seal(chain, &mut frame);
            bytes.extend([&frame[..], &stored].concat());
        }
        let mut end = frame(0, 0, total.wrapping_add_signed(self.more_entries.into()), 0);
        seal(chain, &mut end);
        bytes.extend(end);
        bytes.truncate(bytes.len() - usize::from(self.missing % 32));
        bytes
    }
}

impl BlockContents {
    /// Returns the bytes and the number of entries, if there are some.
    fn encoded(&self) -> (Vec<u8>, u64) {
        match self {
            BlockContents::Bytes(bytes) => (bytes.clone(), 1),
            BlockContents::Entries(entries) => {
                let encoded = |entry| rmp_serde::to_vec_named(entry).expect("the entry is valid");
                (entries.iter().flat_map(encoded).collect(), entries.len() as u64)
            }
        }
    }
}

fn frame(stored_len: u64, plain_len: u64, entries: u64, checksum: u32) -> [u8; 32] {
    let mut frame = [0; 32];
    for (at, number) in [stored_len, plain_len, entries].into_iter().enumerate() {
        frame[8 * at..][..8].copy_from_slice(&number.to_le_bytes());
    }
    frame[24..28].copy_from_slice(&checksum.to_le_bytes());
    frame
}

/// Writes the checksum to the end of a frame, and returns it.
fn seal(chain: u32, frame: &mut [u8; 32]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(chain);
    hasher.update(&frame[..28]);
    let checksum = hasher.finalize();
    frame[28..].copy_from_slice(&checksum.to_le_bytes());
    checksum
}
