// error: argument #3 is missing

pub async fn f(cache: fleeting::Cache<u64, u64>) -> u64 {
    cache.get_or_set_with(&1, async || 2).await
}
