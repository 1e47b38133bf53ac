//! The directory of a queue is away while an element is locked, as while its file system is unmounted: nothing is
//! created in its place, and a worker does not conclude that it has lost its lock.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use fleeting::dirq::{DirQueueBuilder, Element, Error, Lock, Queue, QueueSimple};
use tempfile::TempDir;

use super::tempdir;
use crate::directory::{all, kind, name, tree};

/// The ends of a lock.
const ENDS: [&str; 7] = ["ack", "ack_all", "unlock", "fail", "release", "retry_in", "drop"];

/// The ways in which an element can be locked: deliveries are counted in all but the first two.
const DELIVERIES: [&str; 5] =
    ["first", "failed before", "counted", "counted before", "dead letter"];

async fn end<T: Send + 'static>(how: &str, job: Lock<T>) -> Option<Result<(), Error>> {
    Some(match how {
        "ack" => job.ack().await,
        "ack_all" => Lock::ack_all([job]).await,
        "unlock" => job.unlock().await,
        "fail" => job.fail("x").await,
        "release" => job.release().await,
        "retry_in" => job.retry_in(Duration::ZERO).await,
        _ => {
            drop(job);
            return None;
        }
    })
}

/// Returns the settings of a queue for a way in which an element is locked.
fn with_retries<S>(builder: DirQueueBuilder<S>, delivery: &str) -> DirQueueBuilder<S> {
    match delivery {
        "counted" | "counted before" => {
            builder.max_attempts(5).backoff(Duration::ZERO, Duration::ZERO)
        }
        "dead letter" => builder.max_attempts(1),
        _ => builder,
    }
}

/// Asserts that an error is that of the directory of the queue.
fn assert_away(result: Result<(), Error>, queue: &Path, context: &str) {
    let error = result.expect_err(context);
    assert_eq!(kind(&error), Some(std::io::ErrorKind::NotFound), "{context}: {error:?}");
    assert!(matches!(&error, Error::Io { path, .. } if path == queue), "{context}: {error:?}");
}

/// A directory that contains another one with the queue, which can be moved away.
struct Place {
    _dir: TempDir,
    parent: PathBuf,
    away: PathBuf,
}

impl Place {
    fn new() -> Self {
        let dir = tempdir().unwrap();
        let (parent, away) = (dir.path().join("mount"), dir.path().join("away"));
        Self { _dir: dir, parent, away }
    }

    fn queue(&self) -> PathBuf {
        self.parent.join("spool/queue")
    }

    fn move_away(&self) {
        fs::rename(&self.parent, &self.away).unwrap();
    }

    /// Moves the queue back. Fails if anything was created in its place.
    fn move_back(&self, context: &str) {
        assert!(!self.parent.exists(), "{context}: created {:?}", tree(&self.parent));
        fs::rename(&self.away, &self.parent).unwrap();
    }
}

macro_rules! lock_can_end {
    ($builder:expr, $content:expr) => {
        for (how, delivery) in ENDS.iter().flat_map(|how| DELIVERIES.map(|way| (*how, way))) {
            let context = format!("{how}, {delivery}");
            let place = Place::new();
            let queue = with_retries($builder(place.queue()), delivery).open().await.unwrap();
            let added = queue.add($content).await.unwrap();
            let next = async || queue.locked().next().await.unwrap().unwrap();
            let job = match delivery {
                "first" | "counted" => next().await,
                "dead letter" => {
                    next().await.fail("dead").await.unwrap();
                    queue.take_dead(1).await.unwrap().remove(0)
                }
                _ => {
                    next().await.retry_in(Duration::ZERO).await.unwrap();
                    next().await
                }
            };
            let before = tree(&place.queue());
            place.move_away();
            if let Some(ended) = end(how, job).await {
                assert_away(ended, queue.path(), &context);
            }
            // Later calls of this process find a drop done.
            assert_eq!(queue.count().await.unwrap(), 0, "{context}");
            place.move_back(&context);
            assert_eq!(tree(&place.queue()), before, "{context}: the element is still locked");
            assert!(!queue.lock(&added).await.unwrap(), "{context}");
        }
    };
}

#[tokio::test]
async fn end_of_a_lock_creates_nothing_while_the_directory_of_the_queue_is_away() {
    lock_can_end!(QueueSimple::builder, "x");
}

#[tokio::test]
async fn end_of_a_lock_of_a_normal_queue_creates_nothing_while_its_directory_is_away() {
    let builder = |path| Queue::builder(path).schema("body:string".parse().unwrap());
    lock_can_end!(builder, Element::new().with("body", "x"));
}

/// Such as the mount point of a file system that is not mounted.
#[tokio::test]
async fn end_of_a_lock_creates_nothing_in_an_empty_directory_in_place_of_the_queue() {
    for (how, delivery) in ENDS.iter().flat_map(|how| ["first", "counted"].map(|way| (*how, way))) {
        let place = Place::new();
        let builder = with_retries(QueueSimple::builder(place.queue()), delivery);
        let queue = builder.open().await.unwrap();
        queue.add("x").await.unwrap();
        let job = queue.locked().next().await.unwrap().unwrap();
        place.move_away();
        fs::create_dir_all(place.queue()).unwrap();
        let ended = end(how, job).await;
        assert!(ended.is_none_or(|ended| ended.is_err()), "{how}, {delivery}");
        assert_eq!(queue.count().await.unwrap(), 0, "{how}, {delivery}");
        assert_eq!(tree(&place.queue()), Vec::<String>::new(), "{how}, {delivery}");
    }
}

#[tokio::test]
async fn methods_for_a_locked_element_report_that_the_directory_of_the_queue_is_away() {
    let place = Place::new();
    let simple = QueueSimple::open(place.queue()).await.unwrap();
    let added = simple.add("x").await.unwrap();
    assert!(simple.lock(&added).await.unwrap());
    place.move_away();
    assert_away(simple.unlock(&added).await, simple.path(), "unlock");
    assert_away(simple.remove(&added).await, simple.path(), "remove");
    assert_away(simple.get(&added).await.map(drop), simple.path(), "get");
    assert_away(simple.get_path(&added).await.map(drop), simple.path(), "get_path");
    place.move_back("simple");
    simple.remove(&added).await.unwrap();

    let place = Place::new();
    let schema = "body:string".parse().unwrap();
    let normal = Queue::builder(place.queue()).schema(schema).open().await.unwrap();
    let added = normal.add(Element::new().with("body", "x")).await.unwrap();
    assert!(normal.lock(&added).await.unwrap());
    place.move_away();
    assert_away(normal.unlock(&added).await, normal.path(), "unlock");
    assert_away(normal.remove(&added).await, normal.path(), "remove");
    assert_away(normal.get(&added).await.map(drop), normal.path(), "get");
    place.move_back("normal");
    normal.remove(&added).await.unwrap();
}

#[tokio::test]
async fn missing_element_of_a_present_queue_is_not_locked() {
    for delivery in ["first", "counted"] {
        for how in ENDS {
            let place = Place::new();
            let builder = with_retries(QueueSimple::builder(place.queue()), delivery);
            let queue = builder.open().await.unwrap();
            let added = queue.add("x").await.unwrap();
            let Some(job) = queue.locked().next().await else { unreachable!("it was added") };
            fs::remove_dir_all(queue.path().join(&added.to_string()[..8])).unwrap();
            let ended = end(how, job.unwrap()).await;
            let is_lost = ended
                .as_ref()
                .is_none_or(|ended| matches!(ended.as_ref().unwrap_err(), Error::NotLocked { .. }));
            assert!(is_lost, "{how}, {delivery}: {ended:?}");
            // Without its element, a record has no meaning.
            let has_records = queue.path().join("retries").exists();
            assert_eq!(has_records, delivery == "counted", "{how}, {delivery}");
            assert_eq!(all(queue.names()).await, [], "{how}, {delivery}");
        }
    }
    let place = Place::new();
    let queue = QueueSimple::open(place.queue()).await.unwrap();
    let unlocked = queue.unlock(&name("00000001/00000000000001")).await;
    assert!(matches!(unlocked, Err(Error::NotLocked { .. })), "{unlocked:?}");
}

/// The queue is in the top directory of its disk, so that its path leads to the mount point.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn nothing_is_created_at_the_mount_point_of_an_unmounted_disk() {
    // Once is enough: the disk is the same in both runs.
    for delivery in ["first", "counted"].into_iter().filter(|_| !super::IN_MEMORY) {
        let Some(disk) = crate::disk::Disk::mount(8 << 20) else { return };
        let builder = with_retries(QueueSimple::builder(disk.path()), delivery);
        let queue = builder.open().await.unwrap();
        queue.add_many(ENDS).await.unwrap();
        let mut jobs = queue.locked();
        let mut locked = Vec::new();
        for how in ENDS {
            locked.push((how, jobs.next().await.unwrap().unwrap()));
        }
        disk.unmount();
        for (how, job) in locked {
            if let Some(ended) = end(how, job).await {
                assert_away(ended, queue.path(), how);
            }
        }
        assert_eq!(queue.count().await.unwrap(), 0, "{delivery}");
        assert_eq!(tree(&disk.path()), Vec::<String>::new(), "{delivery}");
    }
}
