//! Entries, claims, retries and dead letters of the embedded `TimeoutDict` and of `redis::TimeoutDict`.

mod claims;
mod dead_letters;
mod entries;
mod retries;

use std::{fmt::Debug, time::Duration};

use fleeting::{DeadLetter, Ttl, redis};
use futures::FutureExt;

use super::{client, fresh};

type Embedded = fleeting::TimeoutDict<String, u32>;
type OnRedis = redis::TimeoutDict<String, u32>;

on_both! {
    /// Verbs that need no more than their arguments.
    trait Verbs for Embedded, OnRedis {
        fn set(&self, key: String, value: u32, ttl: Duration) -> Option<u32>;
        fn set_nx(&self, key: String, value: u32, ttl: Duration) -> bool;
        fn set_timeout(&self, key: &str, ttl: Duration) -> bool;
        fn remove_timeout(&self, key: &str) -> bool;
        fn get(&self, key: &str) -> Option<u32>;
        fn contains_key(&self, key: &str) -> bool;
        fn ttl(&self, key: &str) -> Ttl;
        fn remove(&self, key: &str) -> Option<u32>;
        fn len(&self) -> usize;
        fn is_empty(&self) -> bool;
        fn clear(&self) -> ();
        fn take_expired(&self, max: usize) -> Vec<(String, u32)>;
        fn next_expired(&self) -> (String, u32);
        fn take_dead(&self, max: usize) -> Vec<(String, u32)>;
        fn dead_len(&self) -> usize;
        fn dead_letters(&self, max: usize) -> Vec<DeadLetter<String, u32>>;
        fn revive(&self, key: &str, ttl: Duration) -> bool;
    }
}

/// All methods of a timeout dictionary that the cases call.
trait Dict: Verbs {
    type Claim: Claim;

    /// Returns an empty dictionary.
    async fn empty() -> Self;

    async fn with_retries(first: Duration, max: Duration, attempts: u32) -> Self;

    fn claim_expired(
        &self,
        max: usize,
        lease: Duration,
    ) -> impl Future<Output = Vec<Self::Claim>> + Send;
    fn next_claim(&self, lease: Duration) -> impl Future<Output = Self::Claim> + Send;
}

/// Methods of a claim. A future may be dropped before its first poll, so it is that of the type itself.
trait Claim: Debug + Send + 'static {
    fn key(&self) -> &String;
    fn value(&self) -> &u32;
    fn attempts(&self) -> u32;
    fn ack(self) -> impl Future<Output = bool> + Send;
    fn retry_in(self, delay: Duration) -> impl Future<Output = bool> + Send;
    fn fail(self, reason: impl Into<String> + Send) -> impl Future<Output = bool> + Send;
    fn release(self) -> impl Future<Output = bool> + Send;
    fn extend(&self, lease: Duration) -> impl Future<Output = bool> + Send;
}

impl Dict for Embedded {
    type Claim = fleeting::Claim<String, u32>;

    async fn empty() -> Self {
        Self::new()
    }

    async fn with_retries(first: Duration, max: Duration, attempts: u32) -> Self {
        Self::builder().backoff(first, max).max_attempts(attempts).build()
    }

    fn claim_expired(
        &self,
        max: usize,
        lease: Duration,
    ) -> impl Future<Output = Vec<Self::Claim>> + Send {
        self.claim_expired(max, lease)
    }

    fn next_claim(&self, lease: Duration) -> impl Future<Output = Self::Claim> + Send {
        self.next_claim(lease)
    }
}

impl Dict for OnRedis {
    type Claim = redis::Claim<String, u32>;

    async fn empty() -> Self {
        Self::new(&client().await, fresh("dict")).unwrap()
    }

    async fn with_retries(first: Duration, max: Duration, attempts: u32) -> Self {
        let builder = Self::builder(&client().await, fresh("retries"));
        builder.backoff(first, max).max_attempts(attempts).build().unwrap()
    }

    fn claim_expired(
        &self,
        max: usize,
        lease: Duration,
    ) -> impl Future<Output = Vec<Self::Claim>> + Send {
        self.claim_expired(max, lease).map(Result::unwrap)
    }

    fn next_claim(&self, lease: Duration) -> impl Future<Output = Self::Claim> + Send {
        self.next_claim(lease).map(Result::unwrap)
    }
}

/// Implements [`Claim`]; `reply` converts the reply of a method to a boolean.
macro_rules! claim {
    ($type:ty, $reply:expr) => {
        impl Claim for $type {
            fn key(&self) -> &String {
                self.key()
            }

            fn value(&self) -> &u32 {
                self.value()
            }

            fn attempts(&self) -> u32 {
                self.attempts()
            }

            fn ack(self) -> impl Future<Output = bool> + Send {
                self.ack().map($reply)
            }

            fn retry_in(self, delay: Duration) -> impl Future<Output = bool> + Send {
                self.retry_in(delay).map($reply)
            }

            fn fail(self, reason: impl Into<String> + Send) -> impl Future<Output = bool> + Send {
                self.fail(reason).map($reply)
            }

            fn release(self) -> impl Future<Output = bool> + Send {
                self.release().map($reply)
            }

            fn extend(&self, lease: Duration) -> impl Future<Output = bool> + Send {
                self.extend(lease).map($reply)
            }
        }
    };
}

claim!(fleeting::Claim<String, u32>, std::convert::identity);
claim!(redis::Claim<String, u32>, Result::unwrap);

const MILLI: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(3_600);
const NONE: [(String, u32); 0] = [];

fn entry(key: &str, value: u32) -> (String, u32) {
    (key.to_owned(), value)
}
