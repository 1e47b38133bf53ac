//! A client of HTTP. Whatever is in its way fails the test, so that no caller has to ask.

// Each test binary compiles this module anew, and uses its share of it.
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

/// How long an answer may take, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub(crate) struct Client {
    inner: legacy::Client<HttpConnector, Full<Bytes>>,
}

impl Client {
    pub(crate) fn new() -> Self {
        Self { inner: legacy::Client::builder(TokioExecutor::new()).build_http() }
    }

    /// Makes a connection for each request.
    pub(crate) fn without_reuse() -> Self {
        let mut builder = legacy::Client::builder(TokioExecutor::new());
        Self { inner: builder.pool_max_idle_per_host(0).build_http() }
    }

    pub(crate) fn get(&self, url: impl AsRef<str>) -> Request {
        self.request(Method::GET, url)
    }

    pub(crate) fn request(&self, method: Method, url: impl AsRef<str>) -> Request {
        let what = format!("{method} {}", url.as_ref());
        let parts = http::Request::builder().method(method).uri(url.as_ref());
        Request { client: self.clone(), what, parts, body: Bytes::new() }
    }
}

#[must_use]
pub(crate) struct Request {
    client: Client,
    what: String,
    parts: request::Builder,
    body: Bytes,
}

impl Request {
    pub(crate) fn header<V>(mut self, name: impl AsRef<str>, value: V) -> Self
    where
        V: TryInto<HeaderValue, Error: Debug>,
    {
        let name: HeaderName = name.as_ref().parse().expect("it is the name of a header");
        self.parts = self.parts.header(name, value.try_into().expect("a header may have it"));
        self
    }

    pub(crate) fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    pub(crate) async fn send(self) -> Response {
        let what = self.what;
        let request = self.parts.body(self.body.into()).expect("it is a request");
        let answer = timeout(PATIENCE, self.client.inner.request(request)).await;
        let answer = answer.unwrap_or_else(|_| panic!("{what} is not answered in {PATIENCE:?}"));
        let answer = answer.unwrap_or_else(|error| panic!("{what} fails: {error:?}"));
        Response { what, inner: answer.map(Body::new) }
    }
}

pub(crate) struct Response {
    what: String,
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
        let what = self.what;
        let body = timeout(PATIENCE, self.inner.into_body().collect()).await;
        let body = body.unwrap_or_else(|_| panic!("the body of {what} takes over {PATIENCE:?}"));
        body.unwrap_or_else(|error| panic!("the body of {what} breaks off: {error:?}")).to_bytes()
    }

    pub(crate) async fn text(self) -> String {
        String::from_utf8(self.bytes().await.into()).expect("the body is text")
    }

    pub(crate) async fn json<T: DeserializeOwned>(self) -> T {
        let what = self.what.clone();
        let body = self.bytes().await;
        serde_json::from_slice(&body)
            .unwrap_or_else(|error| panic!("{what} sends no JSON: {error}: {body:?}"))
    }

    /// The next piece of a body that comes bit by bit; `None` at its end.
    pub(crate) async fn chunk(&mut self) -> Option<Bytes> {
        let frame = self.inner.body_mut().frame().await?;
        let frame = frame.unwrap_or_else(|error| panic!("{} breaks off: {error:?}", self.what));
        Some(frame.into_data().unwrap_or_default())
    }
}
