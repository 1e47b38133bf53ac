//! Responses of the dashboard, at any mount point. Its behaviour in a browser is tested in tests/browser.

use std::time::{Duration, SystemTime};

use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode, header},
    response::Response,
};
use fleeting::{
    Cache, Limit, RateLimiter,
    dirq::{Element, Queue, QueueSimple, Schema},
};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpSocket},
    sync::oneshot,
    time::{Instant, sleep, timeout},
};
use tower::ServiceExt;

use crate::patience::patience;

async fn ask(app: &Router, request: Request<Body>) -> Response {
    app.clone().oneshot(request).await.expect("a router has no errors")
}

async fn get(app: &Router, path: &str) -> Response {
    ask(app, Request::get(path).body(Body::empty()).unwrap()).await
}

async fn text(response: Response) -> String {
    let body = response.into_body().collect().await.expect("the body is complete").to_bytes();
    String::from_utf8(body.into()).expect("the body is text")
}

/// Waits until the group of this name is as wanted, and returns it.
async fn shown(app: &Router, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    // With the real clock: a thread samples once per second.
    let start = std::time::Instant::now();
    loop {
        let metrics: Value = serde_json::from_str(&text(get(app, "/metrics").await).await).unwrap();
        let groups = metrics["groups"].as_array().expect("the groups are a list").iter();
        let group = groups.clone().find(|group| group["name"] == name);
        if let Some(group) = group.filter(|group| wanted(group)) {
            return group.clone();
        }
        assert!(start.elapsed() < patience(), "timed out waiting for {name}: {group:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[tokio::test]
async fn page_and_its_resources_are_found_by_relative_urls() {
    let mounted = [
        (Router::new().nest("/ops", fleeting::dashboard()), "/ops"),
        (Router::new().nest("/ops", fleeting::dashboard()), "/ops/index.html"),
        (Router::new().nest("/a/{tenant}/ops", fleeting::dashboard()), "/a/b:%22&/ops?x=1"),
        (Router::new().nest("/a/{tenant}", fleeting::dashboard()), "/a/b:%22&%3C"),
        (Router::new().nest_service("/ops", fleeting::dashboard()), "/ops"),
        (Router::new().nest_service("/ops", fleeting::dashboard()), "/ops/"),
        (Router::new().nest("/a", Router::new().nest("/ops", fleeting::dashboard())), "/a/ops"),
        (fleeting::dashboard(), "/"),
    ];
    for (app, address) in mounted {
        let page = get(&app, address).await;
        assert_eq!(page.status(), StatusCode::OK, "{address}");
        assert_eq!(page.headers()[header::CONTENT_TYPE], "text/html; charset=utf-8");
        let policy = page.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"));
        assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
        let page = text(page).await;
        for (kind, content_type) in [("href", "text/css"), ("src", "text/javascript")] {
            let (_, rest) =
                page.split_once(&format!("{kind}=\"./")).expect("the page has the link");
            let (link, _) = rest.split_once('"').expect("the link ends");
            // As a browser resolves it: relative to the page.
            let address = address.split('?').next().unwrap();
            let folder = &address[..=address.rfind('/').unwrap()];
            let found = get(&app, &format!("{folder}{}", link.replace("&amp;", "&"))).await;
            assert_eq!(found.status(), StatusCode::OK, "{link} of {address}");
            let found_type = found.headers()[header::CONTENT_TYPE].to_str().unwrap();
            assert!(found_type.starts_with(content_type), "{found_type}");
            assert_eq!(found.headers()[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
            let found = text(found).await;
            for danger in ["http:", "https:", "url(", "@import", "innerHTML", "eval("] {
                let found = found.replace("http://www.w3.org/2000/svg", "");
                assert!(!found.contains(danger), "{link} contains {danger}");
            }
        }
        for danger in ["style=", "<style", "onload", "http:", "https:"] {
            assert!(!page.contains(danger), "the page contains {danger}");
        }
    }
}

#[tokio::test]
async fn page_has_the_title_and_names_the_process() {
    let app = Router::new()
        .nest("/plain", fleeting::dashboard())
        .nest("/shop", fleeting::Dashboard::new().title("<shop> & Co").into_router());
    let title = async |path| text(get(&app, path).await).await;
    assert!(title("/plain").await.contains("<title>fleeting</title>"));
    let shop = title("/shop").await;
    for element in ["title", "h1"] {
        assert!(shop.contains(&format!("<{element}>&lt;shop> &amp; Co</{element}>")), "{shop}");
    }
    let metrics: Value = serde_json::from_str(&title("/shop/metrics").await).unwrap();
    let process = &metrics["process"];
    assert_eq!(process["id"], std::process::id());
    assert!(process["host"].as_str().is_some_and(|host| !host.is_empty()), "{process}");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
    let since = u128::from(process["since_ms"].as_u64().unwrap());
    assert!((now - 600_000..=now).contains(&since), "{process}");
}

#[tokio::test]
async fn dashboard_shows_caches_and_limiters_by_name() {
    let app = fleeting::dashboard();
    let name = "shown <b>&\u{202e}";
    let cache = Cache::<u32, u32>::builder().name(name).max_entries(10).build();
    let limiter = RateLimiter::<u32>::builder().name("shown").limit(Limit::per_hour(1)).build();
    // Rates count only events between two samples.
    shown(&app, name, |_| true).await;
    shown(&app, "shown", |_| true).await;
    for n in 0..15 {
        cache.set(n, n).await;
    }
    cache.get(&14).await;
    for _ in 0..4 {
        let _ = limiter.check(&7).await;
    }
    let of_cache = shown(&app, name, |group| group["counts"]["evicted"] == 5).await;
    assert_eq!(of_cache["kind"], "cache");
    assert_eq!(of_cache["levels"]["entries"], 10.0);
    assert_eq!(of_cache["counts"]["hits"], 1);
    assert_eq!(of_cache["recent"]["hit_ratio"], 1.0);
    assert_eq!(of_cache["recent"]["lag_p99_ms"], Value::Null);
    assert_eq!(
        (&of_cache["levels"]["limit"], &of_cache["levels"]["delay_bound_ms"]),
        (&10.0.into(), &100.0.into())
    );
    let evicted = of_cache["history"]["evicted"].as_array().expect("the history is a list");
    assert!(evicted.iter().any(|rate| rate.as_f64() > Some(0.0)), "{evicted:?}");
    let of_limiter = shown(&app, "shown", |group| group["counts"]["denied"] == 3).await;
    assert_eq!(of_limiter["recent"]["denied_ratio"], 0.75);
    let key = &of_limiter["denied_keys"][0];
    assert_eq!((&key["plain"], &key["denials"]), (&false.into(), &3.into()), "{of_limiter}");
    assert_eq!(key["key"].as_str().map(str::len), Some(12), "{key}");

    // Dropped caches and limiters are not shown.
    drop(cache);
    let start = std::time::Instant::now();
    while text(get(&app, "/metrics").await).await.contains("shown <b>") {
        assert!(start.elapsed() < patience(), "the dropped cache is still shown");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[tokio::test]
async fn queues_are_shown_by_their_length_on_the_disk() {
    let app = fleeting::dashboard();
    let folder = tempfile::tempdir().unwrap();
    let simple = QueueSimple::builder(folder.path().join("simple")).max_attempts(1);
    let simple = simple.open().await.unwrap();
    let schema = Schema::new([("body", "string")]).unwrap();
    let normal = Queue::builder(folder.path().join("normal")).schema(schema).open().await.unwrap();
    let names = simple.add_many(["one", "two", "three", "four"]).await.unwrap();
    assert!(simple.lock(&names[0]).await.unwrap());
    // An attempt that ends without an `ack` has failed.
    drop(simple.locked().next().await.unwrap().unwrap());
    let first = normal.add(Element::new().with("body", "one")).await.unwrap();
    normal.add(Element::new().with("body", "two")).await.unwrap();
    assert!(normal.lock(&first).await.unwrap());

    let levels = async |name: &str, length: f64| {
        let name = folder.path().join(name).display().to_string();
        let group = shown(&app, &name, |group| group["levels"]["length"] == length).await;
        assert_eq!(group["kind"], "queue");
        ["locked", "dead", "waiting"].map(|level| group["levels"][level].as_f64().unwrap())
    };
    assert_eq!(levels("simple", 4.0).await, [1.0, 1.0, 2.0]);
    assert_eq!(levels("normal", 2.0).await, [1.0, 0.0, 1.0]);
    // Other processes change queues, too.
    let other = QueueSimple::open(folder.path().join("simple")).await.unwrap();
    other.add("five").await.unwrap();
    assert_eq!(levels("simple", 5.0).await, [1.0, 1.0, 3.0]);
}

#[tokio::test]
async fn history_of_an_hour_has_its_own_route() {
    let app = fleeting::dashboard();
    let _cache = Cache::<u32, u32>::builder().name("an hour").build();
    shown(&app, "an hour", |_| true).await;
    let start = std::time::Instant::now();
    loop {
        let response = get(&app, "/hour").await;
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
        let hour: Value = serde_json::from_str(&text(response).await).unwrap();
        let groups = hour["groups"].as_array().expect("the groups are a list");
        let group = groups.iter().find(|group| group["name"] == "an hour").expect("the cache");
        assert!(group.get("counts").is_none(), "{group}");
        if group["history"]["hits"]
            .as_array()
            .is_some_and(|points| points.first().is_some_and(|point| *point == 0.0))
        {
            break;
        }
        assert!(start.elapsed() < patience(), "no point of an hour: {group}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[tokio::test]
async fn denied_keys_are_shown_in_plain_with_show_keys() {
    let app = fleeting::dashboard();
    let limiter = RateLimiter::<String>::builder()
        .name("plain")
        .limit(Limit::per_hour(1))
        .show_keys(|key| format!("user {key}"))
        .build();
    for (key, times) in [("ada", 9), ("eve", 30), ("bob", 2), ("joe", 1)] {
        for _ in 0..times {
            let _ = limiter.check(key).await;
        }
    }
    let group = shown(&app, "plain", |group| group["counts"]["denied"] == 38).await;
    let key = |key: &str, denials: u64| json!({ "key": key, "plain": true, "denials": denials });
    let expected = json!([key("user eve", 29), key("user ada", 8), key("user bob", 1)]);
    assert_eq!(group["denied_keys"], expected);
}

#[tokio::test(start_paused = true)]
async fn event_stream_announces_samples_and_ends() {
    let app = fleeting::dashboard();
    let cache = Cache::<u32, u32>::builder().name("streamed").build();
    shown(&app, "streamed", |_| true).await;
    let (start, response) = (Instant::now(), get(&app, "/stream").await);
    assert_eq!(response.headers()[header::CONTENT_TYPE], "text/event-stream");
    // The clock is paused, so it advances to the end of the stream as soon as all tasks are idle.
    let events = text(response).await;
    assert_eq!(start.elapsed(), Duration::from_secs(10));
    assert!(events.starts_with("event: sample\ndata: {"), "{events}");
    let metrics: Value = serde_json::from_str(&text(get(&app, "/metrics").await).await).unwrap();
    assert!(events.contains(metrics["boot"].as_str().unwrap()), "{events}");
    drop(cache);
}

/// A stream is noticed to have ended only when the server asks for more of it, which it does not while its client reads
/// nothing and the connection is full.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn page_that_is_not_read_does_not_delay_a_graceful_shutdown() {
    // So many objects that their metrics fill the buffers of a connection.
    let caches: Vec<Cache<u32, u32>> =
        (0..300).map(|n| Cache::builder().name(format!("unread {n}")).build()).collect();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new().nest("/ops", fleeting::dashboard());
    let (stop, stopped) = oneshot::channel::<()>();
    let server =
        axum::serve(listener, app).with_graceful_shutdown(async { stopped.await.unwrap() });
    let server = tokio::spawn(server.into_future());

    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut unread = socket.connect(address).await.unwrap();
    unread.write_all(b"GET /ops/stream HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    // The head has arrived, and nothing is read from here on.
    unread.readable().await.unwrap();
    sleep(Duration::from_secs(3)).await;
    stop.send(()).unwrap();
    // Ten seconds are promised; the patience is for a busy machine.
    timeout(Duration::from_secs(10) + patience() / 8, server)
        .await
        .expect("the server ends although a page is not read")
        .unwrap()
        .unwrap();
    drop((unread, caches));
}

#[tokio::test]
async fn announced_samples_have_increasing_numbers_and_are_returned() {
    let app = fleeting::dashboard();
    let cache = Cache::<u32, u32>::builder().name("followed").build();
    let mut body = get(&app, "/stream").await.into_body();
    let mut numbers = Vec::new();
    while numbers.len() < 3 {
        // A stream ends after ten seconds, and is requested again.
        let Some(frame) = body.frame().await.transpose().expect("the stream is complete") else {
            body = get(&app, "/stream").await.into_body();
            continue;
        };
        let event =
            String::from_utf8(frame.into_data().expect("the frame is data").into()).unwrap();
        // A comment line keeps the connection alive.
        let Some(data) = event.split("data: ").nth(1) else { continue };
        let news: Value = serde_json::from_str(data.trim_end()).expect("the data is JSON");
        numbers.push(news["number"].as_u64().expect("the sample has a number"));
        let sample: Value = serde_json::from_str(&text(get(&app, "/sample").await).await).unwrap();
        assert_eq!(sample["boot"], news["boot"]);
        assert!(sample["number"].as_u64() >= news["number"].as_u64(), "{sample}");
        let groups = sample["groups"].as_array().expect("the groups are a list");
        // The first sample after the stream began may be from before it.
        if numbers.len() > 2 {
            assert!(groups.iter().any(|group| group["name"] == "followed"), "{sample}");
            assert!(groups.iter().all(|group| group.get("history").is_none()), "{sample}");
        }
        cache.set(7, 7).await;
    }
    assert!(numbers.windows(2).all(|two| two[1] > two[0]), "{numbers:?}");
}

#[tokio::test(start_paused = true)]
async fn key_search_needs_inspect() {
    let cache = Cache::<u32, u32>::builder()
        .name("searched")
        .inspect(|text| {
            assert_ne!(text, "666", "panic in user code");
            text.parse().ok()
        })
        .build();
    let closed = Cache::<u32, u32>::builder().name("closed").build();
    cache.set_ex(1, 1, Duration::from_millis(1_500)).await;
    cache.set(2, 2).await;
    closed.set(1, 1).await;
    let app = Router::new().nest("/ops", fleeting::dashboard());
    let search = async |body: String| {
        let response = ask(&app, Request::post("/ops/ttl").body(body.into()).unwrap()).await;
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
        let status = response.status().as_u16();
        (status, serde_json::from_str::<Value>(&text(response).await).expect("the data is JSON"))
    };
    let by =
        async |name: &str, key: &str| search(json!({ "name": name, "key": key }).to_string()).await;
    assert_eq!(by("searched", "1").await, (200, json!({ "ttl": "remaining", "ms": 1_500 })));
    assert_eq!(by("searched", "2").await, (200, json!({ "ttl": "persistent" })));
    assert_eq!(by("searched", "3").await, (200, json!({ "ttl": "missing" })));
    tokio::time::advance(Duration::from_millis(1_500)).await;
    assert_eq!(by("searched", "1").await, (200, json!({ "ttl": "missing" })));
    let refused = async |(status, answer): (u16, Value), expected: u16, part: &str| {
        assert_eq!(status, expected, "{answer}");
        assert!(answer["error"].as_str().is_some_and(|error| error.contains(part)), "{answer}");
    };
    refused(by("searched", "x").await, 422, "not a valid key").await;
    refused(by("searched", "666").await, 500, "panicked").await;
    refused(by("closed", "1").await, 404, "can be searched").await;
    refused(by("nothing", "1").await, 404, "can be searched").await;
    refused(search("x".to_owned()).await, 400, "invalid search").await;
    // The search works after a panic.
    assert_eq!(by("searched", "2").await.0, 200);
    let long = ask(&app, Request::post("/ops/ttl").body("x".repeat(100_000).into()).unwrap()).await;
    assert_eq!(long.status(), StatusCode::PAYLOAD_TOO_LARGE);
}

/// A page lists keys by name, so a key that two limiters of one name deny is one of them.
#[tokio::test]
async fn key_denied_by_two_limiters_of_one_name_is_one_row() {
    let app = fleeting::dashboard();
    let limiter = |hour: bool| {
        let limit = if hour { Limit::per_hour(1) } else { Limit::per_minute(1) };
        RateLimiter::<String>::builder().name("one of two").limit(limit).build()
    };
    let limiters = [limiter(true), limiter(false)];
    for _ in 0..3 {
        for limiter in &limiters {
            let _ = limiter.check("ada").await;
        }
    }
    let group = shown(&app, "one of two", |group| group["counts"]["denied"] == 4).await;
    let keys = group["denied_keys"].as_array().expect("the keys are a list");
    assert_eq!(keys.len(), 1, "{keys:?}");
    assert_eq!(keys[0]["denials"], 4);
}

#[tokio::test]
async fn denied_keys_are_cut_at_256_bytes() {
    let app = fleeting::dashboard();
    let limiter = RateLimiter::<String>::builder()
        .name("long keys")
        .limit(Limit::per_hour(1))
        .show_keys(|key| key.clone())
        .build();
    let key = "k".repeat(100_000);
    for _ in 0..2 {
        let _ = limiter.check(&key).await;
    }
    let group = shown(&app, "long keys", |group| group["counts"]["denied"] == 1).await;
    assert_eq!(group["denied_keys"][0]["key"], "k".repeat(256));
}
