// error: must outlive `'static`

pub async fn f(cache: &fleeting::Cache<&str, u64>) -> Option<u64> {
    cache.get("ada").await
}
