// error: `{integer}` is not a TTL
// error: `None` is the default TTL of the cache

pub async fn f(cache: fleeting::Cache<u64, u64>) -> u64 {
    cache.get_or_set_with(&1, 60, async || 2).await
}
