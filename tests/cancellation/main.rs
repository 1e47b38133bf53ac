//! Calls of the types in memory, cancelled at each place where they may wait: they have the effect that
//! `src/guide/cancel_safety.md` states, and block no other caller.

#[path = "../common/cancel.rs"]
mod cancel;
#[path = "../common/patience.rs"]
mod patience;

mod cache;
mod limiter;
mod loaders;
mod sets;
#[cfg(feature = "serde")]
mod snapshot;
mod timeout_dict;

#[tokio::test(start_paused = true)]
async fn calls_are_dropped_at_each_wait() {
    let set = fleeting::SortedSet::<u32, u32>::new();
    let dropped_after = std::cell::RefCell::new(std::collections::BTreeSet::new());
    cancel::at_each_await(
        async || std::cell::Cell::new(0),
        async |passed| {
            for step in 1..=12 {
                match step % 4 {
                    0 => tokio::task::yield_now().await,
                    1 => tokio::task::consume_budget().await,
                    _ => drop(set.len().await),
                }
                passed.set(step);
            }
        },
        async |passed, reply, _| {
            if reply.is_none() {
                dropped_after.borrow_mut().insert(passed.get());
            }
        },
    )
    .await;
    assert_eq!(dropped_after.into_inner(), (0..12).collect());
}
