//! Form of a denial: gRPC or HTTP, and whether caches may store it.

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, Method, Request, header},
    response::IntoResponse,
    routing::{any, get},
};
use fleeting::{Limit, Limited, RateLimitLayer, RateLimiter};

use super::asking::*;

/// A content type is chosen by the client, so it alone must not turn a 429 into a 200.
#[tokio::test(start_paused = true)]
async fn only_a_post_of_a_grpc_content_type_is_denied_by_a_grpc_status() {
    let grpc = [
        "application/grpc",
        "application/grpc+proto",
        "application/grpc;charset=utf-8",
        "application/grpc-web",
        "application/grpc-web+proto",
        "application/grpc-web-text",
        "application/grpc-web-text+proto",
    ];
    let other = [
        "application/grpcx",
        "application/grpc-",
        "application/grpc-webx",
        "application/grpc-web-textual",
        "application/grpc/+",
        "application/json",
        "",
    ];
    let app = Router::new().route("/", any("hello")).layer(RateLimitLayer::new(hourly(1), all));
    let denial = async |method: Method, content_type: &str| {
        let request =
            Request::builder().method(method).uri("/").header("content-type", content_type);
        ask(&app, request.body(Body::empty()).unwrap()).await
    };
    assert_eq!(denial(Method::POST, "application/grpc").await.status(), 200);
    for content_type in grpc {
        let denied = denial(Method::POST, content_type).await;
        assert_eq!(denied.status(), 200, "{content_type}");
        assert_eq!(denied.headers()["grpc-status"], "8", "{content_type}");
        assert_eq!(denied.headers()["content-type"], content_type);
        assert_is_not_stored(denied.headers());
    }
    let methods = [Method::GET, Method::HEAD, Method::PUT, Method::OPTIONS];
    let of_methods = methods.iter().flat_map(|method| grpc.map(|grpc| (method.clone(), grpc)));
    for (method, content_type) in of_methods.chain(other.map(|other| (Method::POST, other))) {
        let denied = denial(method.clone(), content_type).await;
        assert_eq!(denied.status(), 429, "{method} {content_type}");
        assert!(!denied.headers().contains_key("grpc-status"), "{method} {content_type}");
        assert_is_not_stored(denied.headers());
    }
}

#[tokio::test(start_paused = true)]
async fn caches_must_not_store_a_denial() {
    let limiter = hourly(1);
    let by_layer = Router::new()
        .route("/", get("hello"))
        .layer(RateLimitLayer::new(limiter.clone(), all).on_limited(|_, _| "own text"));
    assert!(!ask(&by_layer, get_with(&[])).await.headers().contains_key("cache-control"));
    assert_is_not_stored(ask(&by_layer, get_with(&[])).await.headers());
    let limited: Limited = limiter.check("all").await.unwrap_err();
    assert_is_not_stored(limited.into_response().headers());

    let limiter = RateLimiter::<String>::builder().limit(Limit::per_hour(1)).build();
    let private = RateLimitLayer::new(limiter, all)
        .on_limited(|_, _| ([(header::CACHE_CONTROL, "no-store, private")], "own field"));
    let app = Router::new().route("/", get("hello")).layer(private);
    assert_eq!(text(ask(&app, get_with(&[])).await).await, "hello");
    let denied = ask(&app, get_with(&[])).await;
    assert_eq!(denied.headers()["cache-control"], "no-store, private");
}

fn assert_is_not_stored(headers: &HeaderMap) {
    assert_eq!(headers.get("cache-control").expect("a denial has `Cache-Control`"), "no-store");
}
