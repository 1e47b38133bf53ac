//! A limit per authenticated user: a layer authenticates each request and stores its user in the request extensions,
//! from which the rate limit takes its key. Another layer limits the failed logins of each address.
//!
//! ```text
//! cargo run --example limit_by_user -- 127.0.0.1:3000
//! curl -i -H 'authorization: Bearer token-of-ada' http://127.0.0.1:3000
//! ```

use std::{env, error::Error, net::SocketAddr, time::Duration};

use axum::{
    Extension, Router,
    body::Bytes,
    extract::{Request, State},
    http::{StatusCode, header::AUTHORIZATION},
    middleware::{Next, from_fn_with_state},
    response::Response,
    routing::get,
};
use tokio::net::TcpListener;

use fleeting::{Cache, Limit, RateLimitLayer, RateLimiter, Standing, TrustedProxies};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct User(String);

/// Finds the user of a token, and stores it where the rate limit and the handlers find it.
async fn authenticate(
    State(tokens): State<Cache<String, User>>,
    mut request: Request,
    next: Next,
) -> Result<Response, StatusCode> {
    let field = request.headers().get(AUTHORIZATION).and_then(|field| field.to_str().ok());
    let token = field.and_then(|field| field.strip_prefix("Bearer "));
    let user = tokens.get(token.unwrap_or_default()).await.ok_or(StatusCode::UNAUTHORIZED)?;
    request.extensions_mut().insert(user);
    Ok(next.run(request).await)
}

async fn hello(Extension(user): Extension<User>, Extension(quota): Extension<Standing>) -> String {
    format!("hello {}, {} more requests now\n", user.0, quota.remaining())
}

/// In flight for as long as the client sends.
async fn upload(Extension(user): Extension<User>, file: Bytes) -> String {
    format!("{} bytes from {}\n", file.len(), user.0)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let tokens = Cache::builder().max_entries(100_000).build();
    for user in ["ada", "bob"] {
        let day = Duration::from_secs(86_400);
        tokens.set_ex(format!("token-of-{user}"), User(user.to_owned()), day).await;
    }

    let by_user = RateLimiter::builder().limit(Limit::per_minute(3)).build();
    let failed_logins = RateLimiter::builder().limit(Limit::per_minute(5)).build();
    let app = Router::new()
        .route("/", get(hello).post(upload))
        // Layers added later run first: failed logins are limited by address, outside of authentication. They are
        // charged by the response: `charge_when` would count each request until then, so that a few slow uploads of one
        // address would keep its other users out.
        .layer(RateLimitLayer::by_extension::<User>(by_user))
        .layer(from_fn_with_state(tokens, authenticate))
        .layer(
            RateLimitLayer::by_ip(failed_logins, TrustedProxies::none())
                .charge_failures(|response| response.status() == StatusCode::UNAUTHORIZED),
        );

    let address = env::args().nth(1).unwrap_or("127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("http://{}", listener.local_addr()?);
    // With connect info: without it, the address of a client is unknown.
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
