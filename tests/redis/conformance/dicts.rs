//! Timeout dictionaries with retries: in memory, and on the server shared by concurrent tests.

pub(super) mod embedded {
    use std::time::Duration;

    pub(crate) type Dict = fleeting::TimeoutDict<String, u32>;
    pub(crate) type Claim = fleeting::Claim<String, u32>;
    pub(crate) type Guard = ();

    pub(crate) async fn make(first: Duration, max: Duration, attempts: u32) -> (Dict, Guard) {
        (Dict::builder().backoff(first, max).max_attempts(attempts).build(), ())
    }

    pub(crate) async fn run(case: impl AsyncFn()) {
        case().await;
    }

    pub(crate) fn reply<T>(answer: T) -> T {
        answer
    }
}

pub(super) mod on_redis {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering::Relaxed},
        },
        time::Duration,
    };

    use fleeting::redis;

    pub(crate) use crate::clock::in_time as run;
    use crate::servers::{Server, connect};

    pub(crate) type Dict = redis::TimeoutDict<String, u32>;
    pub(crate) type Claim = redis::Claim<String, u32>;
    pub(crate) type Guard = Arc<Server>;

    /// Returns a guard, too: the server shared by concurrent tests runs while a test holds it. Names are unique.
    pub(crate) async fn make(first: Duration, max: Duration, attempts: u32) -> (Dict, Guard) {
        static NAMES: AtomicU32 = AtomicU32::new(0);
        let server = Server::shared();
        let client = connect(server.url()).await;
        let name = format!("retries-{}", NAMES.fetch_add(1, Relaxed));
        let builder = Dict::builder(&client, name).backoff(first, max).max_attempts(attempts);
        (builder.build().unwrap(), server)
    }

    pub(crate) fn reply<T>(answer: Result<T, redis::Error>) -> T {
        answer.unwrap()
    }
}
