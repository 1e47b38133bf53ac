//! Rate limits in an axum service, four ways: in a handler, as a layer, per plan, and by the actual cost of a call.
//!
//! ```text
//! cargo run --example limit -- --listen 127.0.0.1:3000
//! ```
//!
//! It prints its address, and `curl` lines to try. Behind a proxy, pass the proxy's network: `--trust 10.0.0.0/8`. The
//! client address is then taken from `X-Forwarded-For`, else it is the peer address of the socket.

use std::{
    io::{self, Write},
    net::SocketAddr,
    sync::Arc,
};

use axum::{
    Router,
    extract::Path,
    http::{Method, request::Parts},
    routing::get,
};
use clap::Parser;
use tokio::net::TcpListener;

use fleeting::{Limit, Limited, RateLimitLayer, RateLimiter, TrustedProxies};

/// Rate limits in an axum service.
#[derive(Parser)]
struct Args {
    /// Address to listen on; with port 0, the system chooses a free port.
    #[arg(long, default_value = "127.0.0.1:3000", value_name = "ADDR")]
    listen: String,
    /// Network of trusted proxies, whose X-Forwarded-For field is believed; may be repeated.
    #[arg(long, value_name = "NETWORK")]
    trust: Vec<String>,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let trusted = TrustedProxies::new(&args.trust)?;
    let listener = TcpListener::bind(&args.listen)
        .await
        .map_err(|error| format!("cannot listen on {}: {error}", args.listen))?;
    greet(listener.local_addr()?)?;

    let app = Router::new()
        .merge(in_a_handler())
        .merge(by_plan())
        .merge(by_tokens())
        // The outermost layer, so that a request is charged to its address first.
        .layer(as_a_layer(trusted));
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

/// Two letters per minute for each user. The handler decides what is charged, and to which key.
fn in_a_handler() -> Router {
    let letters =
        RateLimiter::<String>::builder().limit(Limit::per_minute(2).named("letters")).build();
    let send = async move |Path(user): Path<String>| -> Result<String, Limited> {
        let permit = letters.check(&user).await?;
        if user == "unknown" {
            // Nothing was sent, so nothing is charged.
            permit.refund().await;
            return Ok("there is no such user\n".to_owned());
        }
        Ok(format!("letter sent to {user}, {} more allowed now\n", permit.remaining()))
    };
    Router::new().route("/letters/{user}", get(send))
}

/// All routes, by client address: one limit for bursts, and one per hour.
fn as_a_layer(trusted: TrustedProxies) -> RateLimitLayer<fleeting::ClientIp> {
    let requests = RateLimiter::builder()
        .limit(Limit::per_second(20).named("burst"))
        .limit(Limit::per_hour(1_000).named("hourly"))
        .build();
    RateLimitLayer::by_ip(requests, trusted).skip(|request| request.method == Method::OPTIONS)
}

/// Reports by token; a paid plan has a higher quota.
fn by_plan() -> Router {
    let free = Limit::per_minute(1).named("free");
    let paid: Arc<[Limit]> = [Limit::per_minute(5).named("paid")].into();
    let reports = RateLimiter::<String>::builder().limit(free).build();
    let layer = RateLimitLayer::new(reports, |request| Some(token(request).to_owned()))
        // A real service looks the plan up in its sessions.
        .limits(move |_, token| token.starts_with("paid-").then(|| paid.clone()))
        .cost(|request| if request.uri.query() == Some("long") { 2 } else { 1 });
    Router::new().route("/reports", get("a report\n")).route_layer(layer)
}

/// Stories by their actual number of tokens. Tokens beyond the quota become a debt.
fn by_tokens() -> Router {
    let tokens =
        RateLimiter::<String>::builder().limit(Limit::per_minute(100).named("tokens")).build();
    let story = async move |Path((user, length)): Path<(String, u32)>| -> Result<String, Limited> {
        // An estimate: with a cost of 0, any number of concurrent requests would pass.
        let permit = tokens.check_n(&user, 10).await?;
        let story = "once upon a time ".repeat(length.min(1_000) as usize);
        permit.settle(story.split_whitespace().count() as u32).await;
        Ok(story + "\n")
    };
    Router::new().route("/stories/{user}/{length}", get(story))
}

/// Returns the token of a request. All requests without one share the empty token.
fn token(request: &Parts) -> &str {
    request.headers.get("x-token").and_then(|token| token.to_str().ok()).unwrap_or_default()
}

/// Prints the address and the `curl` lines in one write, so that a reader may close the pipe after the first line.
fn greet(address: SocketAddr) -> io::Result<()> {
    let greeting = format!(
        "http://{address}\n\
         for i in 1 2 3; do curl -i 'http://{address}/letters/ada'; done\n\
         for i in 1 2; do curl -i -H 'x-token: free-1' 'http://{address}/reports'; done\n\
         for i in 1 2 3; do curl -i -H 'x-token: paid-1' 'http://{address}/reports?long'; done\n\
         for i in 1 2 3; do curl -i 'http://{address}/stories/ada/20'; done\n"
    );
    let mut out = io::stdout().lock();
    out.write_all(greeting.as_bytes())?;
    out.flush()
}
