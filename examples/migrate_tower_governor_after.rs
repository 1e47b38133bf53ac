//! A limit per address, after its migration from tower-governor: `migrate_tower_governor_before` is the same program
//! with tower-governor.

use std::{env, error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;

use fleeting::{Limit, RateLimitLayer, RateLimiter, TrustedProxies, Window};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // One request per minute, and a burst of three.
    let by_address = RateLimiter::builder()
        .limit(Limit::new(3, Duration::from_secs(3 * 60)))
        .window(Window::Gcra)
        .build();
    let layer = RateLimitLayer::by_ip(by_address, TrustedProxies::none());
    let app = Router::new().route("/", get("hello")).layer(layer);

    let address = env::args().nth(1).unwrap_or("127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
