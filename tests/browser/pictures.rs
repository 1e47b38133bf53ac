//! Writes the pictures of the README, of the service under load, if `FLEETING_PICTURES` is a number of seconds.

use std::{env, f64::consts::PI, fs, path::Path, time::Duration};

use axum::http::Method;
use tokio::time::{Instant, sleep};

use crate::{browser::Browser, example::Service, http::Client};

#[tokio::test]
async fn page_pictures_are_written_if_requested() {
    let Ok(seconds) = env::var("FLEETING_PICTURES") else { return };
    let length =
        Duration::from_secs(seconds.parse().expect("FLEETING_PICTURES is a number of seconds"));
    let service = Service::start_with(&["--per-client", "1000000", "--per-session", "60"]);
    let browser = Browser::start().await;
    browser.open(&service.url).await;
    browser.until_live().await;
    let url = service.url.clone();
    let load = tokio::spawn(async move { send_load(&url).await });
    sleep(length).await;
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    for (name, width, height, scheme) in [
        ("dashboard-light.png", 1_100, 1_500, "light"),
        ("dashboard-dark.png", 1_100, 1_500, "dark"),
        ("dashboard-phone.png", 390, 844, "dark"),
    ] {
        browser.on_screen(width, height, scheme).await;
        sleep(Duration::from_millis(1_500)).await;
        let picture = browser.client.screenshot().await.expect("a screenshot");
        fs::write(docs.join(name), picture).expect("docs/ can be written");
    }
    load.abort();
    browser.close().await;
}

/// Sends a load with TTLs in waves, a mass expiration every minute, and some clients above their limit.
async fn send_load(url: &str) {
    let (client, start) = (Client::new(), Instant::now());
    for n in 0_u32.. {
        let seconds = start.elapsed().as_secs_f64();
        let wave = 5.0 + 4.0 * (seconds * PI / 40.0).sin();
        let ttl = if n.is_multiple_of(3) { 60.5 - seconds % 60.0 } else { wave };
        let put = format!("{url}/sessions/user-{}?ttl={ttl:.3}", n % 5_000);
        client.request(Method::PUT, put).body("x").send().await;
        for id in [n.wrapping_sub(300) % 5_000, n % 3] {
            client.get(format!("{url}/sessions/user-{id}")).send().await;
        }
        sleep(Duration::from_millis(3)).await;
    }
}
