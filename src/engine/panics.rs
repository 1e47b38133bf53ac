//! Code that is not ours: values are dropped one by one, and a panic in one harms no other.

use std::{
    mem::needs_drop,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// Drops each of `items`; tells how many of them panicked.
pub(crate) fn drop_all<T>(items: impl IntoIterator<Item = T>) -> usize {
    if !needs_drop::<T>() {
        return 0;
    }
    items.into_iter().map(drop_one).filter(|dropped| !dropped).count()
}

/// Drops `item`; tells whether that went without a panic.
fn drop_one<T>(item: T) -> bool {
    catch_unwind(AssertUnwindSafe(|| drop(item))).is_ok()
}
