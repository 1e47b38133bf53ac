//! Tests of the dashboard in a service of this process: hostile names, and browsers that cannot share a stream.

use std::time::Duration;

use axum::{
    Router,
    extract::Request,
    http::StatusCode,
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
};
use fleeting::{Cache, Limit, RateLimiter};
use tokio::net::TcpListener;

use crate::browser::Browser;

const HOSTILE: [&str; 5] = [
    "<img src=x onerror=\"document.title='hit'\"><script>document.title='hit'</script>",
    "\u{202e}\u{2066}evil\u{2069}\u{202e}drowssap",
    "__proto__",
    "\"},{\"name\":\"]]>\n\ndata: x",
    "\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}",
];

/// Serves the dashboard at `/watch`, and returns its port.
async fn serve(app: Router) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("a local address").port();
    tokio::spawn(axum::serve(listener, app).into_future());
    port
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_names_and_keys_are_shown_as_text() {
    let caches = HOSTILE.map(|name| {
        Cache::<String, u32>::builder()
            .name(name)
            .max_entries(2)
            .inspect(|text| Some(text.to_owned()))
            .build()
    });
    let limiter = RateLimiter::<String>::builder()
        .name(HOSTILE[0])
        .limit(Limit::per_hour(1))
        .show_keys(|key| key.clone())
        .build();
    for key in HOSTILE {
        for _ in 0..3 {
            let _ = limiter.check(key).await;
        }
    }
    let port = serve(Router::new().nest("/watch", fleeting::dashboard())).await;
    let browser = Browser::start().await;
    browser.open(&format!("http://127.0.0.1:{port}/watch")).await;
    browser.until_live().await;
    browser.on_screen(360, 800, "dark").await;
    let names = "[...document.querySelectorAll('h3')].map(name => name.textContent)";
    let expected = serde_json::json!(HOSTILE);
    browser.until(&format!("{expected}.every(name => {names}.includes(name))")).await;
    let keys = "[...document.querySelectorAll('tbody td')].map(key => key.textContent)";
    browser.until(&format!("{expected}.every(key => {keys}.includes(key))")).await;
    for cache in &caches {
        cache.set("x".to_owned(), 1).await;
    }
    browser.until(&format!("{expected}.every(name => figure(name, 'Entries') === '1')")).await;
    let inert = "document.title === 'fleeting' && !document.querySelector('img') \
                 && document.querySelectorAll('script').length === 1";
    assert_eq!(browser.run(&format!("return {inert}")).await, true);
    let wide = browser.run("return document.documentElement.scrollWidth").await;
    assert!(wide.as_u64() <= Some(360), "a name makes the page {wide} px wide");
    assert_eq!(browser.log_problems().await, [""; 0]);
    browser.close().await;
}

/// Without HTTPS, browsers have no Web Locks except on `localhost`. In addition, no stream gets through here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dashboard_polls_if_no_stream_can_be_shared() {
    let cache = Cache::<u32, u32>::builder().name("polled").build();
    let no_streams = async |request: Request, next: Next| -> Response {
        match request.uri().path().ends_with("/stream") {
            true => StatusCode::BAD_GATEWAY.into_response(),
            false => next.run(request).await,
        }
    };
    let dashboard = fleeting::dashboard().layer(from_fn(no_streams));
    let port = serve(Router::new().nest("/watch", dashboard)).await;
    let browser = Browser::start().await;
    for host in ["elsewhere.test", "127.0.0.1"] {
        browser.open(&format!("http://{host}:{port}/watch")).await;
        let has_locks = browser.run("return 'locks' in navigator").await;
        assert_eq!(has_locks, host == "127.0.0.1");
        for entries in 1..=2 {
            cache.set_ex(entries, 0, Duration::MAX).await;
            browser.until(&format!("figure('polled', 'Entries') === '{entries}'")).await;
        }
        cache.clear().await;
    }
    browser.close().await;
}
