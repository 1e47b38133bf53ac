//! Purging locks of crashed processes, regardless of the clocks.

use std::{
    fs,
    time::{Duration, SystemTime},
};

use fleeting::dirq::{Element, Purge, Queue, QueueSimple};

use super::{locked::HOUR, tempdir};
use crate::directory::{age, make_old, make_young};

/// Otherwise the element would be locked until that time.
#[tokio::test]
async fn lock_from_the_future_is_reported_and_becomes_stale_after_max_lock() {
    macro_rules! check {
        ($queue:expr, $new:expr) => {{
            let queue = $queue;
            let names = queue.add_many([$new, $new]).await.unwrap();
            let path = |name: &fleeting::dirq::Name| queue.path().join(name.to_string());
            for name in &names {
                assert!(queue.lock(name).await.unwrap());
            }
            let modified = |name| std::fs::metadata(path(name)).unwrap().modified().unwrap();
            // Clocks may differ a little.
            make_young(&path(&names[1]), Duration::from_secs(30));
            make_young(&path(&names[0]), 24 * HOUR);
            let report = queue.purge(Purge::default()).await.unwrap();
            assert_eq!((report.future_locks, report.locks, report.failed), (1, 0, 0));
            assert!(!queue.lock(&names[0]).await.unwrap(), "the lock is kept");
            assert!(modified(&names[0]) <= SystemTime::now() + Duration::from_secs(1));
            assert!(modified(&names[1]) > SystemTime::now() + Duration::from_secs(5));
            let report = queue.purge(Purge::default().max_lock(Duration::ZERO)).await.unwrap();
            assert_eq!((report.future_locks, report.locks), (0, 0));
            make_old(&path(&names[0]), HOUR);
            assert_eq!(queue.purge(Purge::default()).await.unwrap().locks, 1);
            // Without a lock, the age of an element does not matter.
            assert!(queue.dequeue(&names[0]).await.unwrap().is_some());
            queue.unlock(&names[1]).await.unwrap();
            make_young(&path(&names[1]), 24 * HOUR);
            assert_eq!(queue.purge(Purge::default()).await.unwrap().future_locks, 0);
        }};
    }
    let dir = tempdir().unwrap();
    check!(QueueSimple::open(dir.path().join("simple")).await.unwrap(), "x");
    let queue = Queue::builder(dir.path().join("normal")).schema("body:string".parse().unwrap());
    check!(queue.open().await.unwrap(), Element::new().with("body", "x"));
}

/// Otherwise it would be kept until that time, and its directory, too.
#[tokio::test]
async fn temporary_file_from_the_future_becomes_stale_after_max_temp() {
    let purge = Purge::default();
    for normal in [false, true] {
        let dir = tempdir().unwrap();
        let temporary = match normal {
            true => dir.path().join("temporary/00000000000001"),
            false => dir.path().join("00000001/00000000000001.tmp"),
        };
        fs::create_dir_all(temporary.parent().unwrap()).unwrap();
        if normal {
            fs::create_dir(&temporary).unwrap();
        } else {
            fs::write(&temporary, "incomplete").unwrap();
        }
        make_young(&temporary, 24 * HOUR);
        let purge = async || match normal {
            true => Queue::open(dir.path()).await.unwrap().purge(purge).await.unwrap(),
            false => QueueSimple::open(dir.path()).await.unwrap().purge(purge).await.unwrap(),
        };
        let report = purge().await;
        assert_eq!((report.temporary, report.future_locks, report.failed), (0, 0, 0));
        assert!(age(&temporary) < HOUR, "it is as old as this purge");
        let modified = fs::metadata(&temporary).unwrap().modified().unwrap();
        assert!(modified <= SystemTime::now() + Duration::from_secs(1));
        make_old(&temporary, HOUR);
        assert_eq!(purge().await.temporary, 1);
        assert!(!temporary.exists());
    }
}
