// error: this function takes 0 arguments but 1 argument was supplied

pub fn f() -> fleeting::Cache<u64, u64> {
    fleeting::Cache::new(1_000)
}
