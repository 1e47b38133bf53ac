// warning: use `max_entries`, or `max_weight` with a weigher

pub fn f(entries: u64) -> fleeting::Cache<u64, u64> {
    fleeting::Cache::builder().max_capacity(entries).build()
}
