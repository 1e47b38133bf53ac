pub async fn f(cache: &fleeting::Cache<&'static str, u64>) -> Option<u64> {
    cache.get("ada").await
}
