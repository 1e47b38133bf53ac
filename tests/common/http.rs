//! HTTP client for tests. Every error fails the test with a message, so callers need no error handling.

// Each test binary compiles this module again and uses only a part of it.
#![allow(dead_code)]

use std::{fmt::Debug, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::{self, HeaderMap, HeaderName, HeaderValue, Method, StatusCode, request},
};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::patience::patience;

#[derive(Clone)]
pub(crate) struct Client {
    inner: legacy::Client<HttpConnector, Full<Bytes>>,
}

impl Client {
    pub(crate) fn new() -> Self {
        let mut builder = legacy::Client::builder(TokioExecutor::new());
        // The example service ends a connection that is idle for 10 s, and a request may just then be on its way.
        builder.pool_idle_timeout(Duration::from_secs(3));
        Self { inner: builder.build_http() }
    }

    /// Creates a client that makes a new connection for each request.
    pub(crate) fn without_reuse() -> Self {
        let mut builder = legacy::Client::builder(TokioExecutor::new());
        Self { inner: builder.pool_max_idle_per_host(0).build_http() }
    }

    pub(crate) fn get(&self, url: impl AsRef<str>) -> Request {
        self.request(Method::GET, url)
    }

    pub(crate) fn request(&self, method: Method, url: impl AsRef<str>) -> Request {
        let description = format!("{method} {}", url.as_ref());
        let parts = http::Request::builder().method(method).uri(url.as_ref());
        Request { client: self.clone(), description, parts, body: Bytes::new() }
    }
}

#[must_use]
pub(crate) struct Request {
    client: Client,
    description: String,
    parts: request::Builder,
    body: Bytes,
}

impl Request {
    pub(crate) fn header<V>(mut self, name: impl AsRef<str>, value: V) -> Self
    where
        V: TryInto<HeaderValue, Error: Debug>,
    {
        let name: HeaderName = name.as_ref().parse().expect("the header name is valid");
        self.parts = self.parts.header(name, value.try_into().expect("the header value is valid"));
        self
    }

    pub(crate) fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    pub(crate) async fn send(self) -> Response {
        let description = self.description;
        let request = self.parts.body(self.body.into()).expect("the request is valid");
        let answer = timeout(patience(), self.client.inner.request(request)).await;
        let answer = answer
            .unwrap_or_else(|_| panic!("{description} got no response within {:?}", patience()));
        let answer = answer.unwrap_or_else(|error| panic!("{description} failed: {error:?}"));
        Response { description, inner: answer.map(Body::new) }
    }
}

pub(crate) struct Response {
    description: String,
    inner: http::Response<Body>,
}

impl Response {
    pub(crate) fn status(&self) -> StatusCode {
        self.inner.status()
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        self.inner.headers()
    }

    pub(crate) async fn bytes(self) -> Bytes {
        let description = self.description;
        let body = timeout(patience(), self.inner.into_body().collect()).await;
        let body = body.unwrap_or_else(|_| {
            panic!("the body of {description} did not end within {:?}", patience())
        });
        body.unwrap_or_else(|error| panic!("the body of {description} broke off: {error:?}"))
            .to_bytes()
    }

    pub(crate) async fn text(self) -> String {
        String::from_utf8(self.bytes().await.into()).expect("the body is valid UTF-8")
    }

    pub(crate) async fn json<T: DeserializeOwned>(self) -> T {
        let description = self.description.clone();
        let body = self.bytes().await;
        serde_json::from_slice(&body).unwrap_or_else(|error| {
            panic!("{description} did not return the expected JSON: {error}: {body:?}")
        })
    }

    /// Returns the next chunk of a streamed body; `None` at its end.
    pub(crate) async fn chunk(&mut self) -> Option<Bytes> {
        let frame = self.inner.body_mut().frame().await?;
        let frame =
            frame.unwrap_or_else(|error| panic!("{} broke off: {error:?}", self.description));
        Some(frame.into_data().unwrap_or_default())
    }
}
