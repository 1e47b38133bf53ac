// error: the trait `Clone` is not implemented for `Value`

pub struct Value;

pub fn f() -> fleeting::Cache<u64, Value> {
    fleeting::Cache::new()
}
