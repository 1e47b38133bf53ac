//! Single flight of loaders that are async and of those that are not, in both directions.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Barrier,
        atomic::{AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::Duration,
};

use fleeting::Cache;
use tokio::sync::oneshot;

use crate::{MINUTE, patience::patience, wait_until::wait_until};

fn cache() -> Cache<u64, u64> {
    Cache::builder().background_thread().build()
}

/// Returns a thread that loads 99 by a loader that is not async, unless another caller loads the key.
fn sync_caller(cache: &Cache<u64, u64>) -> thread::JoinHandle<u64> {
    let cache = cache.clone();
    thread::spawn(move || cache.sync().get_or_set_with(&1, MINUTE, || 99))
}

#[test]
fn thread_waits_for_the_load_of_a_task() {
    let cache = cache();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let (finish, finished) = oneshot::channel();
    let (begin, begun) = mpsc::channel();
    let task = runtime.spawn({
        let cache = cache.clone();
        async move {
            let load = async move || {
                begin.send(()).expect("the test waits");
                finished.await.expect("the test lets it finish")
            };
            cache.get_or_set_with(&1, MINUTE, load).await
        }
    });
    begun.recv_timeout(patience()).expect("the load begins");
    let waits = sync_caller(&cache);
    thread::sleep(Duration::from_millis(10));
    assert!(!waits.is_finished(), "the thread did not wait for the load");
    finish.send(42).expect("the load waits");
    assert_eq!(waits.join().expect("the thread does not panic"), 42);
    assert_eq!(runtime.block_on(task).expect("the task does not panic"), 42);
}

#[test]
fn task_waits_for_the_load_of_a_thread() {
    let cache = cache();
    let (begin, begun) = mpsc::channel();
    let (finish, finished) = mpsc::channel();
    let leads = thread::spawn({
        let cache = cache.clone();
        move || {
            cache.sync().get_or_set_with(&1, MINUTE, || {
                begin.send(()).expect("the test waits");
                finished.recv_timeout(patience()).expect("the test lets it finish")
            })
        }
    });
    begun.recv_timeout(patience()).expect("the load begins");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let waits = runtime.block_on(async {
        let waits = tokio::spawn({
            let cache = cache.clone();
            async move { cache.get_or_set_with(&1, MINUTE, async || 99).await }
        });
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        finish.send(42).expect("the load waits");
        waits.await.expect("the task does not panic")
    });
    assert_eq!((waits, leads.join().expect("the thread does not panic")), (42, 42));
}

#[test]
fn waiters_take_over_from_a_load_that_is_cancelled_or_panics() {
    let cache = cache();
    // A task is cancelled, and a thread takes over.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let (begin, begun) = mpsc::channel();
    let cancelled = runtime.spawn({
        let cache = cache.clone();
        async move {
            let load = async move || {
                begin.send(()).expect("the test waits");
                std::future::pending().await
            };
            cache.get_or_set_with(&1, MINUTE, load).await
        }
    });
    begun.recv_timeout(patience()).expect("the load begins");
    let waits = sync_caller(&cache);
    thread::sleep(Duration::from_millis(5));
    cancelled.abort();
    assert_eq!(waits.join().expect("the thread does not panic"), 99);

    // A loader of a thread panics, and another thread takes over.
    cache.sync().remove(&1);
    let barrier = Arc::new(Barrier::new(2));
    let panics = thread::spawn({
        let (cache, barrier) = (cache.clone(), barrier.clone());
        move || {
            let load = || {
                barrier.wait();
                thread::sleep(Duration::from_millis(5));
                panic!("as intended")
            };
            let call = || cache.sync().get_or_set_with(&1, MINUTE, load);
            catch_unwind(AssertUnwindSafe(call)).is_err()
        }
    });
    barrier.wait();
    assert_eq!(sync_caller(&cache).join().expect("only the other thread panics"), 99);
    assert!(panics.join().expect("the panic was caught"));
}

#[test]
fn errors_are_shared_and_kept() {
    let cache = Cache::builder().negative_ttl(MINUTE).background_thread().build();
    let loads = AtomicU64::new(0);
    let load = || {
        cache.sync().get_or_try_set_with(&1_u64, MINUTE, || {
            loads.fetch_add(1, SeqCst);
            Err::<u64, _>("not found")
        })
    };
    assert_eq!(*load().expect_err("the load fails"), "not found");
    assert_eq!(*load().expect_err("the error is kept"), "not found");
    assert_eq!(loads.load(SeqCst), 1);
    cache.sync().set(1, 42);
    assert_eq!(load(), Ok(42));
}

#[test]
fn loader_may_borrow_call_the_cache_and_ask_for_its_own_key() {
    let cache = cache();
    let (sync, mut calls) = (cache.sync(), std::rc::Rc::new(0));
    let value = sync.get_or_set_with(&1, MINUTE, || {
        *std::rc::Rc::get_mut(&mut calls).expect("there is one owner") += 1;
        let inner = sync.get_or_set_with(&2, MINUTE, || 20);
        // The inner call runs its own loader and does not store the result.
        inner + sync.get_or_set_with(&1, MINUTE, || 3)
    });
    assert_eq!((value, *calls), (23, 1));
    assert_eq!((sync.get(&1), sync.get(&2)), (Some(23), Some(20)));
}

/// An expired value within its window is loaded by the caller, since a loader that borrows cannot run later.
#[test]
fn stale_value_is_loaded_by_the_caller() {
    let cache = Cache::builder().background_thread().stale_while_revalidate(MINUTE).build();
    cache.sync().set_ex(1, 1, Duration::from_millis(1));
    wait_until("the value expires", || cache.sync().get(&1).is_none());
    assert_eq!(cache.sync().get_or_set_with(&1, MINUTE, || 2), 2);
}

#[cfg(debug_assertions)]
#[test]
fn wait_on_a_thread_that_drives_a_runtime_is_a_panic_in_place_of_a_deadlock() {
    let cache = cache();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let task = tokio::spawn({
            let cache = cache.clone();
            async move { cache.get_or_set_with(&1, MINUTE, std::future::pending::<u64>).await }
        });
        tokio::task::yield_now().await;
        // A key that no one loads is loaded here.
        assert_eq!(cache.sync().get_or_set_with(&2, MINUTE, || 2), 2);
        let call = || cache.sync().get_or_set_with(&1, MINUTE, || 99);
        let panic = catch_unwind(AssertUnwindSafe(call)).expect_err("the wait would never end");
        let text = panic.downcast_ref::<String>().map_or("", |text| text);
        let text = panic.downcast_ref::<&str>().unwrap_or(&text);
        assert!(text.contains("spawn_blocking"), "{text}");
        task.abort();
        assert!(task.await.expect_err("it never ends").is_cancelled());
    });
    assert_eq!(sync_caller(&cache).join().expect("the thread loads the value"), 99);
}

/// Threads and tasks load the same keys in rounds, and remove them: at most one load of a key runs at a time, every
/// caller gets a value, and none waits forever.
#[test]
fn threads_and_tasks_load_the_same_keys() {
    const ROUNDS: u64 = 2_000;
    let cache = cache();
    let running: Arc<[AtomicU64; 3]> = Arc::default();
    let loads = Arc::new(AtomicU64::new(0));
    let enter = |running: &[AtomicU64; 3], loads: &AtomicU64, key: u64| {
        let others = running[key as usize].fetch_add(1, SeqCst);
        assert_eq!(others, 0, "two loads of key {key}");
        loads.fetch_add(1, SeqCst)
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let tasks: Vec<_> = (0..2_u64)
        .map(|seed| {
            let (cache, running, loads) = (cache.clone(), running.clone(), loads.clone());
            runtime.spawn(async move {
                for round in 0..ROUNDS {
                    let key = (round * 7 + seed) % 3;
                    let (running, loads) = (running.clone(), loads.clone());
                    let load = async move || {
                        let value = enter(&running, &loads, key);
                        tokio::task::yield_now().await;
                        running[key as usize].fetch_sub(1, SeqCst);
                        value
                    };
                    cache.get_or_set_with(&key, MINUTE, load).await;
                    if round % 5 == seed {
                        cache.expire_now(&key).await;
                    }
                }
            })
        })
        .collect();
    thread::scope(|scope| {
        for seed in 0..2_u64 {
            let (cache, running, loads) = (cache.sync(), &running, &loads);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let key = (round * 5 + seed) % 3;
                    cache.get_or_set_with(&key, MINUTE, || {
                        let value = enter(running, loads, key);
                        thread::yield_now();
                        running[key as usize].fetch_sub(1, SeqCst);
                        value
                    });
                    if round % 4 == seed {
                        cache.expire_now(&key);
                    }
                }
            });
        }
    });
    for task in tasks {
        runtime.block_on(task).expect("the task does not panic");
    }
    assert!(loads.load(SeqCst) > 100, "the keys were hardly ever loaded");
}
