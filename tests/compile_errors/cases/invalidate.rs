// warning: use `remove`

pub async fn f(cache: fleeting::Cache<String, u64>) {
    cache.invalidate("ada").await;
}
