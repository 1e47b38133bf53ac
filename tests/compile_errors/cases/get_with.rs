// warning: use `get_or_set`, or `get_or_set_with` for a loader that may run in the background

pub async fn f(cache: fleeting::Cache<u64, u64>) -> u64 {
    cache.get_with(&1, async { 2 }).await
}
