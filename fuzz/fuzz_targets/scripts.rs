//! Calls the types on Redis with any arguments, on a real server, and compares the results with what must hold: no call
//! panics, fails or waits forever, the server survives, and an entry that lives for a minute is returned.
//!
//! `FLEETING_FUZZ_REDIS` is the Unix socket of the server, which `scripts/fuzz.sh` starts.
#![no_main]

#[path = "../../tests/common/arguments.rs"]
mod arguments;
#[path = "scripts/cache.rs"]
mod cache;
#[path = "scripts/dict.rs"]
mod dict;
#[path = "scripts/limiter.rs"]
mod limiter;
#[path = "scripts/outcome.rs"]
mod outcome;
#[path = "sequence.rs"]
mod sequence;
#[path = "scripts/server.rs"]
mod server;
#[path = "scripts/set.rs"]
mod set;
#[path = "scripts/values.rs"]
mod values;

use std::time::{Duration, Instant};

use arbitrary::Arbitrary;
use fleeting::redis::{Client, Error};
use libfuzzer_sys::fuzz_target;
use tokio::time::timeout;

use self::{sequence::Sequence, server::Server, values::Key};

/// More calls would make an input too slow.
const MOST_CALLS: usize = 64;
/// Maximum of the bytes of a value: some of the values are longer.
const MAX_VALUE_BYTES: usize = 64 << 10;
/// A machine that is later than this loses connections, which proves nothing.
const ATTEMPTS: usize = 5;
/// A TTL that does not end during an input.
const LONG: Duration = Duration::from_secs(60);

#[derive(Arbitrary, Clone, Debug)]
struct Input {
    name: Key,
    is_resp2: bool,
    calls: Calls,
}

#[derive(Arbitrary, Clone, Debug)]
enum Calls {
    Cache(cache::Settings, Sequence<cache::Call>),
    Limiter(limiter::Settings, Sequence<limiter::Call>),
    Set(set::Settings, Sequence<set::Call>),
    Dict(dict::Settings, Sequence<dict::Call>),
}

fuzz_target!(|input: Input| {
    let server = Server::of_environment();
    for attempt in 1.. {
        // Removes the data of earlier inputs.
        assert!(server.ask("FLUSHALL").starts_with("+OK"));
        let started = Instant::now();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let result = runtime.block_on(run(server, input.clone()));
        assert!(server.ask("PING").starts_with("+PONG"), "the server is not alive");
        match result {
            Ok(()) if started.elapsed() < LONG / 2 => break,
            late => assert!(attempt < ATTEMPTS, "{late:?} after {:?}", started.elapsed()),
        }
    }
});

async fn run(server: &Server, input: Input) -> Result<(), Error> {
    let client = Client::builder(server.url(input.is_resp2))
        // New for each input, because a refresh of an earlier one may not have ended.
        .prefix(server.unused_prefix())
        .timeout(Duration::from_secs(10))
        .max_value_bytes(MAX_VALUE_BYTES)
        .lazy()
        .expect("the address is valid");
    let (client, name) = (&client, &*input.name.0);
    let calls = async {
        match input.calls {
            Calls::Cache(settings, calls) => cache::run(client, name, settings, calls).await,
            Calls::Limiter(settings, calls) => limiter::run(client, name, settings, calls).await,
            Calls::Set(settings, calls) => set::run(client, name, settings, calls).await,
            Calls::Dict(settings, calls) => dict::run(client, name, settings, calls).await,
        }
    };
    timeout(LONG, calls).await.expect("a call waits forever")
}
