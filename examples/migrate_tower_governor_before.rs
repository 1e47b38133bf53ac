//! A limit per address with tower-governor, before its migration: `migrate_tower_governor_after` is the same program
//! with this crate.

use std::{env, error::Error, net::SocketAddr, thread, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_governor::{GovernorLayer, governor::GovernorConfigBuilder};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // One request per minute, and a burst of three.
    let config = GovernorConfigBuilder::default().per_second(60).burst_size(3).finish();
    let config = config.ok_or("a number is 0")?;
    let idle_keys = config.limiter().clone();
    thread::spawn(move || {
        loop {
            thread::sleep(Duration::from_secs(60));
            idle_keys.retain_recent();
        }
    });
    let app = Router::new().route("/", get("hello")).layer(GovernorLayer::new(config));

    let address = env::args().nth(1).unwrap_or("127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(address).await?;
    println!("http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
