//! A cache of tokens, after its migration from moka: `migrate_moka_before` is the same program with moka.

use std::{sync::Arc, time::Duration};

use fleeting::{Cache, Cause};

#[derive(Clone)]
struct Token {
    bearer: Arc<str>,
    expires_in: Duration,
}

async fn log_in(tenant: &str) -> Result<Token, String> {
    Ok(Token { bearer: format!("for {tenant}").into(), expires_in: Duration::from_secs(3_600) })
}

#[tokio::main]
async fn main() -> Result<(), Arc<String>> {
    let tokens = Cache::<String, Token>::builder()
        .max_entries(10_000)
        .publish([Cause::Expired, Cause::Evicted, Cause::Removed])
        .build();
    let mut events = tokens.events_lossless(1_024);
    let listener = tokio::spawn(async move {
        while let Some(event) = events.recv().await {
            println!("token of {}: {:?}", event.key, event.cause);
        }
    });

    // Each token has an expiry time of its own.
    let expires_in = |token: &Token| token.expires_in;
    let token = tokens.get_or_try_set("ada", expires_in, log_in("ada")).await?;
    println!("{}", token.bearer);
    tokens.remove("ada").await;
    // Expired tokens are removed within 100 ms plus the duration of a sweep. This call only ends the stream.
    tokens.shutdown().await;
    listener.await.expect("the listener does not panic");
    Ok(())
}
