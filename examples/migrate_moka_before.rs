//! A cache of tokens with moka, before its migration: `migrate_moka_after` is the same program with this crate.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use moka::{Expiry, future::Cache};

#[derive(Clone)]
struct Token {
    bearer: Arc<str>,
    expires_in: Duration,
}

async fn log_in(tenant: &str) -> Result<Token, String> {
    Ok(Token { bearer: format!("for {tenant}").into(), expires_in: Duration::from_secs(3_600) })
}

/// Each token has an expiry time of its own.
struct ByToken;

impl Expiry<String, Token> for ByToken {
    fn expire_after_create(&self, _: &String, token: &Token, _: Instant) -> Option<Duration> {
        Some(token.expires_in)
    }
}

#[tokio::main]
async fn main() -> Result<(), Arc<String>> {
    let tokens = Cache::builder()
        .max_capacity(10_000)
        .expire_after(ByToken)
        .eviction_listener(|tenant, _, cause| println!("token of {tenant}: {cause:?}"))
        .build();

    let token: Token = tokens.try_get_with_by_ref("ada", log_in("ada")).await?;
    println!("{}", token.bearer);
    tokens.invalidate("ada").await;
    // Expired tokens are removed, and their listener called, only if the cache is used.
    tokens.run_pending_tasks().await;
    Ok(())
}
