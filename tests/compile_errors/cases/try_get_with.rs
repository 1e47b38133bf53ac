// warning: use `get_or_try_set`, or `get_or_try_set_with` for a loader that may run in the background

pub async fn f(cache: fleeting::Cache<u64, u64>) -> u64 {
    cache.try_get_with(&1, async { "2".parse::<u64>() }).await.unwrap()
}
