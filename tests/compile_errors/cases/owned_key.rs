// error: consider borrowing here

pub async fn f(cache: fleeting::Cache<String, u64>, key: String) -> Option<u64> {
    cache.get(key).await
}
