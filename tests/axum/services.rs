//! The layer together with tower-http's layers, tonic's services and any body type.

use std::{convert::Infallible, time::Duration};

use axum::{
    Router,
    body::{Body, Bytes, HttpBody},
    http::{Request, Response, StatusCode, header, uri::PathAndQuery},
    routing::get,
};
use bytes::{Buf, BufMut};
use fleeting::{Limit, RateLimitLayer, RateLimiter};
use http_body_util::{BodyExt, Empty, Full, combinators::BoxBody};
use tokio::time::{advance, sleep};
use tonic::{
    Code, Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_http::{compression::CompressionLayer, timeout::TimeoutLayer, trace::TraceLayer};

use super::asking::*;

fn layer(limiter: &RateLimiter<String>) -> RateLimitLayer<String> {
    RateLimitLayer::new(limiter.clone(), all)
}

async fn read<B>(body: B) -> Bytes
where
    B: HttpBody<Data = Bytes, Error: std::fmt::Debug>,
{
    body.collect().await.expect("the body is complete").to_bytes()
}

/// A body type that has no constructor, and is not `Clone`, `Default` or `Sync`.
#[tokio::test(start_paused = true)]
async fn denial_fits_a_service_with_any_body() {
    let limiter = hourly(1);
    let service = service_fn(async |_: Request<Empty<Bytes>>| {
        let body: BoxBody<Bytes, Infallible> = Full::from("hello").boxed();
        Ok::<_, Infallible>(Response::new(body))
    });
    let mut service = layer(&limiter).layer(service);
    let mut call = async || {
        let request = Request::new(Empty::new());
        service.ready().await.unwrap().call(request).await.unwrap()
    };
    let first = call().await;
    assert!(!first.body().is_end_stream());
    assert_eq!(first.body().size_hint().exact(), Some(5));
    assert_eq!(read(first.into_body()).await, "hello");
    let denied = call().await;
    let headers = denied.headers().clone();
    let size = denied.body().size_hint().exact();
    assert!(!denied.body().is_end_stream());
    let body = read(denied.into_body()).await;
    assert_eq!(size, Some(body.len() as u64));
    assert_is_denial(1, &headers, str::from_utf8(&body).unwrap());
}

/// Inside and outside each of them. The timeout layer builds responses of its own, and needs an empty body.
#[tokio::test(start_paused = true)]
async fn layer_works_with_tower_http_layers() {
    let timeout = || TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, 10 * SECOND);
    let handler = service_fn(async |request: Request<Body>| {
        if request.uri().path() == "/slow" {
            sleep(60 * SECOND).await;
        }
        Ok::<_, Infallible>(Response::new(Body::from("hello ".repeat(1_000))))
    });
    let limiter = hourly(3);
    let outside = ServiceBuilder::new()
        .layer(layer(&limiter))
        .layer(TraceLayer::new_for_http())
        .layer(CompressionLayer::new())
        .layer(timeout())
        .service(handler);
    let other = hourly(3);
    let inside = ServiceBuilder::new()
        .layer(TraceLayer::new_for_http())
        .layer(CompressionLayer::new())
        .layer(timeout())
        .layer(layer(&other))
        .service(handler);
    let ask = |path: &str| {
        let request = Request::get(path).header(header::ACCEPT_ENCODING, "gzip");
        request.body(Body::empty()).unwrap()
    };
    for slow in [false, true, false, false] {
        let path = if slow { "/slow" } else { "/" };
        let (outer, inner) = tokio::join!(
            async {
                let response = outside.clone().oneshot(ask(path)).await.unwrap();
                let (parts, body) = response.into_parts();
                (parts, read(body.map_err(|error| error.to_string())).await)
            },
            async {
                let response = inside.clone().oneshot(ask(path)).await.unwrap();
                let (parts, body) = response.into_parts();
                (parts, read(body.map_err(|error| error.to_string())).await)
            }
        );
        for (parts, body) in [outer, inner] {
            match parts.status {
                StatusCode::OK => {
                    assert_eq!(parts.headers[header::CONTENT_ENCODING], "gzip");
                    assert!((1..6_000).contains(&body.len()), "{}", body.len());
                }
                StatusCode::REQUEST_TIMEOUT => assert!(slow && body.is_empty()),
                status => {
                    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
                    assert!(!body.is_empty());
                }
            }
        }
    }
    assert_eq!((limiter.stats().admitted, limiter.stats().denied), (3, 1));
    assert_eq!((other.stats().admitted, other.stats().denied), (3, 1));
}

/// In a router, which converts the body to its own type.
#[tokio::test(start_paused = true)]
async fn layer_works_with_tower_http_layers_in_a_router() {
    let limiter = hourly(1);
    let layers = ServiceBuilder::new()
        .layer(TraceLayer::new_for_http())
        .layer(CompressionLayer::new())
        .layer(layer(&limiter))
        .layer(TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, SECOND));
    let app = Router::new().route("/", get("hello")).layer(layers);
    assert_eq!(text(ask(&app, get_with(&[])).await).await, "hello");
    assert_eq!(ask(&app, get_with(&[])).await.status(), 429);
}

const SECOND: Duration = Duration::from_secs(1);

/// Codec of messages that are bytes.
#[derive(Clone, Copy, Default)]
struct Plain;

impl Codec for Plain {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Plain {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Plain {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut item = vec![0; from.remaining()];
        from.copy_to_slice(&mut item);
        Ok(Some(item))
    }
}

/// A method that returns its request.
#[derive(Clone)]
struct Echo;

impl tonic::server::UnaryService<Vec<u8>> for Echo {
    type Response = Vec<u8>;
    type Future = std::future::Ready<Result<tonic::Response<Vec<u8>>, Status>>;

    fn call(&mut self, request: tonic::Request<Vec<u8>>) -> Self::Future {
        std::future::ready(Ok(tonic::Response::new(request.into_inner())))
    }
}

#[tokio::test(start_paused = true)]
async fn tonic_client_gets_resource_exhausted_with_the_fields() {
    let limiter: RateLimiter<String> =
        RateLimiter::builder().limit(Limit::per_minute(1).named("100%")).build();
    let grpc = service_fn(async |request: Request<tonic::body::Body>| {
        let mut server = tonic::server::Grpc::new(Plain);
        Ok::<_, Infallible>(server.unary(Echo, request).await)
    });
    let service = layer(&limiter).layer(grpc);
    let mut client = tonic::client::Grpc::new(service);
    let mut call = async |text: &str| {
        client.ready().await.unwrap();
        let path = PathAndQuery::from_static("/echo.Echo/Say");
        let request = tonic::Request::new(text.as_bytes().to_vec());
        client.unary(request, path, Plain).await.map(tonic::Response::into_inner)
    };
    assert_eq!(call("hello").await.unwrap(), b"hello");
    let status = call("hello").await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(status.message(), "the quota of 100% is exceeded");
    assert_eq!(status.metadata().get("retry-after").unwrap(), "60");
    // As encoded by protoc: a `google.rpc.Status` with one detail, of which the delay is the end.
    let details = status.details();
    assert!(details.starts_with(b"\x08\x08\x12\x1dthe quota of 100% is exceeded\x1a\x30"));
    let name = b"\x0a\x28type.googleapis.com/google.rpc.RetryInfo".as_slice();
    assert!(details.ends_with(&[name, b"\x12\x04\x0a\x02\x08\x3c"].concat()), "{details:?}");
    assert_eq!(status.metadata().get("ratelimit").unwrap(), r#""100%";r=0;t=60"#);
    advance(60 * SECOND).await;
    assert_eq!(call("again").await.unwrap(), b"again");
}
