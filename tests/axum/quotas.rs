//! Quotas by client: all connections of a client share one even with forged fields, and other clients do not.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{
    Extension, Router,
    extract::Path,
    http::{Method, StatusCode},
    routing::{any, get},
};
use fleeting::{ClientIp, Limit, Limited, RateLimitLayer, RateLimiter, TrustedProxies, Window};
use futures::future::join_all;

use super::asking::*;
use crate::http::Client;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_connections_of_a_client_get_exactly_one_quota() {
    for window in [Window::Log, Window::Buckets(10), Window::Gcra] {
        // A long window, so that no unit of GCRA is free again while the test runs.
        let limit = Limit::new(10, Duration::from_secs(HOUR)).named("hourly");
        let limiter = RateLimiter::builder().limit(limit).window(window).build();
        let layer = RateLimitLayer::by::<ClientIp>(limiter);
        let reached = Arc::new(AtomicUsize::new(0));
        let handler = {
            let reached = reached.clone();
            async move || reached.fetch_add(1, Relaxed).to_string()
        };
        let router = || Router::new().route("/", get(handler.clone())).layer(layer.clone());
        let servers = [serve(router()).await, serve(router()).await];

        let client = Client::without_reuse();
        let requests = (0..64).map(|i| client.get(&servers[i % 2]).send());
        let (mut passed, mut denied) = (0, 0);
        for response in join_all(requests).await {
            match response.status().as_u16() {
                200 => {
                    passed += 1;
                    assert_eq!(left(response.headers())[0].0, "hourly");
                }
                429 => {
                    denied += 1;
                    let headers = response.headers().clone();
                    let body = response.text().await;
                    assert_is_denial(10, &headers, &body);
                }
                status => panic!("{status}"),
            }
        }
        assert_eq!((passed, denied, reached.load(Relaxed)), (10, 54, 10), "{window:?}");
    }
}

#[tokio::test]
async fn limited_is_returned_by_a_question_mark_in_a_handler() {
    let limiter = hourly(1);
    let handler = async move |Path(user): Path<String>| -> Result<String, Limited> {
        Ok(limiter.check(&user).await?.remaining().to_string())
    };
    let url = serve(Router::new().route("/{user}", get(handler))).await;
    let client = Client::without_reuse();
    let first = client.get(format!("{url}ada")).send().await;
    assert_eq!((first.status(), first.text().await), (StatusCode::OK, "0".to_owned()));
    let second = client.get(format!("{url}ada")).send().await;
    assert_eq!(second.status(), 429);
    assert_is_denial(1, &second.headers().clone(), &second.text().await);
    assert_eq!(client.get(format!("{url}grace")).send().await.status(), 200);
}

#[tokio::test]
async fn forged_headers_do_not_give_a_second_quota() {
    let forged: &[&[(&str, &str)]] = &[
        &[],
        &[("x-forwarded-for", "203.0.113.1")],
        &[("x-forwarded-for", "203.0.113.2"), ("x-forwarded-for", "203.0.113.3")],
        &[("x-forwarded-for", "203.0.113.4, 203.0.113.5")],
        &[("x-forwarded-for", "\"")],
        &[("x-forwarded-for", "nonsense,,unknown")],
        &[("forwarded", "for=203.0.113.6")],
        &[("forwarded", "for=\"203.0.113.7")],
        &[("x-real-ip", "203.0.113.8"), ("x-client-ip", "203.0.113.9"), ("via", "1.1 203.0.113.9")],
    ];
    let quota = forged.len() as u32;
    let limiter = || RateLimiter::builder().limit(Limit::per_hour(quota)).build();
    let hello = || Router::new().route("/", get("hello"));
    // No peer is trusted, or not this one: the headers are ignored.
    let elsewhere = TrustedProxies::new(["10.0.0.0/8", "::1"]).expect("the networks are valid");
    let layers = [
        RateLimitLayer::by::<ClientIp>(limiter()),
        RateLimitLayer::by_ip(limiter(), TrustedProxies::none()),
        RateLimitLayer::by_ip(limiter(), elsewhere.clone()),
        RateLimitLayer::by_ip(limiter(), elsewhere.forwarded(true)),
    ];
    for layer in layers {
        let url = serve(hello().layer(layer)).await;
        let mut passed = 0;
        for _ in 0..2 {
            for headers in forged {
                let request = Client::without_reuse().get(&url);
                let request =
                    headers.iter().fold(request, |request, (k, v)| request.header(*k, *v));
                passed += u32::from(request.send().await.status() == 200);
            }
        }
        assert_eq!(passed, quota);
    }

    // The peer is a trusted proxy, which appends the client to the last line, or adds a line.
    for forwarded in [false, true] {
        let trusted = TrustedProxies::new(["127.0.0.0/8"]).expect("the network is valid");
        let layer = RateLimitLayer::by_ip(limiter(), trusted.forwarded(forwarded));
        let url = serve(hello().layer(layer)).await;
        let (name, client_of_proxy) = match forwarded {
            false => ("x-forwarded-for", "192.0.2.1"),
            true => ("forwarded", "for=192.0.2.1"),
        };
        let mut passed = 0;
        for own_line in [false, true] {
            for headers in forged {
                let mut headers: Vec<_> =
                    headers.iter().map(|(name, value)| (*name, value.to_string())).collect();
                match headers.iter_mut().rev().find(|(sent, _)| *sent == name) {
                    Some((_, value)) if !own_line => *value += &format!(", {client_of_proxy}"),
                    _ => headers.push((name, client_of_proxy.to_owned())),
                }
                let request = Client::without_reuse().get(&url);
                let request = headers.iter().fold(request, |request, (k, v)| request.header(*k, v));
                passed += u32::from(request.send().await.status() == 200);
            }
        }
        assert_eq!(passed, quota, "{name}");
        // Another client of the proxy has its own quota.
        let other = client_of_proxy.replace("192.0.2.1", "192.0.2.2");
        assert_eq!(
            Client::without_reuse().get(&url).header(name, other).send().await.status(),
            200
        );
    }
}

#[tokio::test]
async fn ipv6_network_has_one_quota() {
    let limiter = RateLimiter::builder().limit(Limit::per_hour(1)).build();
    let trusted = TrustedProxies::new(["127.0.0.1"]).expect("the address is valid");
    // As an extension, outside of the layer.
    let app = Router::new()
        .route("/", get("hello"))
        .layer(RateLimitLayer::by::<ClientIp>(limiter))
        .layer(Extension(trusted));
    let url = serve(app).await;
    let from = async |addr: &str| {
        Client::without_reuse()
            .get(&url)
            .header("x-forwarded-for", addr)
            .send()
            .await
            .status()
            .as_u16()
    };
    assert_eq!(from("2001:db8:0:1::1").await, 200);
    assert_eq!(from("2001:db8:0:1:ffff:ffff:ffff:ffff").await, 429);
    assert_eq!(from("2001:db8:0:2::1").await, 200);
    assert_eq!(from("192.0.2.1").await, 200);
    assert_eq!(from("::ffff:192.0.2.1").await, 429);
    assert_eq!(from("192.0.2.2").await, 200);
}

#[tokio::test]
async fn unknown_peer_address_is_answered_by_500_with_the_remedy() {
    let limiter = RateLimiter::builder().limit(Limit::per_hour(1)).build();
    for layer in [
        RateLimitLayer::by::<ClientIp>(limiter.clone()),
        RateLimitLayer::by_ip(limiter, TrustedProxies::none()),
    ] {
        let app = Router::new().route("/", get("hello")).layer(layer);
        let response = ask(&app, get_with(&[])).await;
        assert_eq!(response.status(), 500);
        assert!(text(response).await.contains("into_make_service_with_connect_info"));
    }
}

#[tokio::test]
async fn skipped_preflights_are_not_counted() {
    let layer =
        RateLimitLayer::new(hourly(2), all).skip(|request| request.method == Method::OPTIONS);
    let url = serve(Router::new().route("/", any("hello")).layer(layer)).await;
    let client = Client::without_reuse();
    let preflight = || {
        let request = client.request(Method::OPTIONS, &url);
        request.header("origin", "https://x").header("access-control-request-method", "GET")
    };
    assert_eq!(statuses(5, preflight).await, [200; 5]);
    assert_eq!(statuses(3, || client.get(&url)).await, [200, 200, 429]);
    let skipped = preflight().send().await;
    assert_eq!(skipped.status(), 200);
    assert!(!skipped.headers().contains_key("ratelimit"));
}
