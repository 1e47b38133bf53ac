//! Tests of the behaviour that embedded and Redis types share: run in memory with a paused clock, and on a real server.
//!
//! Each case is a generic function over a trait of the type's verbs. `cases!` registers it for both sides.

/// Declares a trait of methods that a type has in memory, and on Redis in a `Result`, and implements it for both.
/// An error of the server fails the test.
macro_rules! on_both {
    (
        $(#[$doc:meta])*
        trait $trait:ident for $embedded:ty, $on_redis:ty {
            $(fn $method:ident(&self $(, $arg:ident: $type:ty)*) -> $reply:ty;)*
        }
    ) => {
        $(#[$doc])*
        pub(super) trait $trait: Clone + Send + Sync + 'static {
            $(fn $method(&self $(, $arg: $type)*) -> impl Future<Output = $reply> + Send;)*
        }

        impl $trait for $embedded {
            $(fn $method(&self $(, $arg: $type)*) -> impl Future<Output = $reply> + Send {
                self.$method($($arg),*)
            })*
        }

        impl $trait for $on_redis {
            $(fn $method(&self $(, $arg: $type)*) -> impl Future<Output = $reply> + Send {
                // The future of the type itself, so that a case may drop it before its first poll.
                futures::FutureExt::map(self.$method($($arg),*), |reply| reply.expect("the server replies"))
            })*
        }
    };
}

/// Registers cases: in a module `embedded` with a paused clock, and in each other module on a real server.
macro_rules! cases {
    ($($backend:ident: $type:ty),+ => $cases:tt) => {
        $(cases!(@ $backend, $type, $cases);)+
    };
    (@ embedded, $type:ty, { $($case:ident),+ $(,)? }) => {
        mod embedded {
            use super::*;

            $(#[tokio::test(start_paused = true)]
            async fn $case() {
                super::$case::<$type>().await;
            })+
        }
    };
    (@ $backend:ident, $type:ty, { $($case:ident),+ $(,)? }) => {
        mod $backend {
            use super::*;

            $(#[tokio::test]
            async fn $case() {
                crate::clock::in_time(super::$case::<$type>).await;
            })+
        }
    };
}

mod cache;
mod dict;
mod expiring_set;
mod rate_limiter;

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use fleeting::redis::Client;

use crate::servers::{Server, connect};

/// Returns a client of the server shared by all tests, which runs while a test holds it.
async fn client() -> Client {
    thread_local! {
        static HELD: RefCell<Option<Arc<Server>>> = const { RefCell::new(None) };
    }

    let server = Server::shared();
    let url = server.url();
    HELD.set(Some(server));
    connect(url).await
}

/// Returns a unique name, also for repeated attempts of a test.
fn fresh(case: &str) -> String {
    static NAMES: AtomicU32 = AtomicU32::new(0);
    format!("{case} {}", NAMES.fetch_add(1, Relaxed))
}
