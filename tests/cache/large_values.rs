//! Values that are large by themselves, not behind a pointer: the guide promises that those of 16 KiB need less stack
//! than a thread has. More aborts the process.

use std::{thread, time::Duration};

use fleeting::{Cache, Op, Sweep};
use tokio::runtime;

const HOUR: Duration = Duration::from_secs(3_600);
const SIZE: usize = 16 << 10;
/// Size of the stacks of Tokio's workers, and of threads by default.
const STACK: usize = 2 << 20;

type Large = [u8; SIZE];

/// Runs calls in a thread, one after the other, each in a future of its own. Returns the first byte of the value of key
/// 1 after each.
fn run<F: Future<Output = ()>>(calls: impl FnOnce(Cache<u32, Large>) -> F + Send + 'static) -> u8 {
    let body = move || {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let cache = Cache::builder().sweep(Sweep::manual()).max_entries(10).build();
            cache.set(1, [1; SIZE]).await;
            Box::pin(calls(cache.clone())).await;
            cache.get(&1).await.map_or(0, |value| value[0])
        })
    };
    thread::Builder::new().stack_size(STACK).spawn(body).unwrap().join().unwrap()
}

#[test]
fn values_of_16_kib_are_set_changed_and_removed_in_2_mib_of_stack() {
    assert_eq!(run(async |cache| _ = cache.set_ex(1, [2; SIZE], HOUR).await), 2);
    assert_eq!(run(async |cache| assert!(cache.set_nx(2, [3; SIZE], Some(HOUR)).await)), 1);
    assert_eq!(run(async |cache| _ = cache.set_tagged(1, [4; SIZE], HOUR, ["tag"]).await), 4);
    assert_eq!(run(async |cache| cache.set_many([(1, [5; SIZE])], None).await), 5);
    assert_eq!(run(async |cache| _ = cache.update(&1, |value| value[0] = 6).await), 6);
    assert_eq!(run(async |cache| _ = cache.compute(&1, |_| Op::Set([7; SIZE])).await), 7);
    let change = async |_| Op::Set([8; SIZE]);
    assert_eq!(run(async move |cache| _ = cache.compute_with(&1, change).await), 8);
    assert_eq!(run(async |cache| _ = cache.remove(&1).await), 0);
    assert_eq!(run(async |cache| _ = cache.get_ex(&1, HOUR).await), 1);
}

#[test]
fn values_of_16_kib_are_loaded_in_2_mib_of_stack() {
    assert_eq!(
        run(async |cache| {
            cache.remove(&1).await;
            cache.get_or_set(&1, HOUR, async { [2; SIZE] }).await;
        }),
        2
    );
    assert_eq!(
        run(async |cache| {
            cache.remove(&1).await;
            cache.get_or_set_with(&1, HOUR, async || [3; SIZE]).await;
        }),
        3
    );
    assert_eq!(
        run(async |cache| {
            cache.remove(&1).await;
            let load = async || Ok::<_, String>([4; SIZE]);
            cache.get_or_try_set_with(&1, HOUR, load).await.unwrap();
        }),
        4
    );
    assert_eq!(run(async |cache| _ = cache.refresh_with(&1, HOUR, async || [5; SIZE]).await), 5);
    assert_eq!(
        run(async |cache| {
            cache.remove(&1).await;
            let load = async |_| vec![(1, [6; SIZE])];
            cache.get_many_or_set_with([1], HOUR, load).await;
        }),
        6
    );
}
