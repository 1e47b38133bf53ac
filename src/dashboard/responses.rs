//! Answers of the dashboard's router: the page with its static files, the metrics as JSON and as a stream, and
//! searches.

use std::{
    convert::Infallible,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use axum::{
    body::Bytes,
    extract::{OriginalUri, State},
    http::{HeaderName, StatusCode, header},
    response::{
        IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
};
use futures_util::{Stream, stream};
use serde::Deserialize;
use serde_json::json;
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use super::sampler::{Sample, Sampler};
use crate::engine::{metrics::read_all, ttl::Ttl};

/// Content security policy: the page runs only its own script and style, connects only to its own server, and cannot be
/// embedded in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    connect-src 'self'; img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'; \
    form-action 'none'";

/// Duration of a stream, after which the page requests it again. An endless response would delay a graceful shutdown,
/// which waits for all responses.
///
/// The server notices the end only when it asks for more of the body, which it does not while the connection is full.
/// So a stream only announces samples: those of its whole duration fit into the buffers of a connection whose client
/// reads nothing.
const STREAM_DURATION: Duration = Duration::from_secs(10);

type ResponseHeaders = [(HeaderName, &'static str); 5];

/// Returns the page, with the title of its router.
pub(super) async fn page(title: Arc<str>, OriginalUri(uri): OriginalUri) -> impl IntoResponse {
    // Relative to the page, whose path may end in the name that it is nested under, or in a slash.
    let last = uri.path().rsplit('/').next().unwrap_or_default();
    let here = match last {
        "" | "index.html" => ".".to_owned(),
        // Escaped, because the client chooses the path.
        last => format!("./{}", last.replace('&', "&amp;").replace('"', "%22").replace('<', "%3C")),
    };
    let title = title.replace('&', "&amp;").replace('<', "&lt;");
    let page = include_str!("page.html").replace("{here}", &here).replace("{title}", &title);
    (fields("text/html; charset=utf-8"), page)
}

pub(super) async fn style() -> impl IntoResponse {
    (fields("text/css; charset=utf-8"), include_str!("style.css"))
}

pub(super) async fn script() -> impl IntoResponse {
    (fields("text/javascript; charset=utf-8"), include_str!("script.js"))
}

/// Returns all current metrics and their history.
pub(super) async fn metrics(State(sampler): State<Arc<Sampler>>) -> impl IntoResponse {
    (fields("application/json"), sampler.all())
}

/// Returns the history of the last hour.
pub(super) async fn hour(State(sampler): State<Arc<Sampler>>) -> impl IntoResponse {
    (fields("application/json"), sampler.hour())
}

/// Returns the last sample.
pub(super) async fn sample(State(sampler): State<Arc<Sampler>>) -> Response {
    let text = sampler.last();
    // It was not serialized if there was no stream.
    let text = if text.is_empty() { sampler.all() } else { text.to_string() };
    (fields("application/json"), text).into_response()
}

/// Streams the number of the last sample, and then that of each new one.
pub(super) async fn stream(State(sampler): State<Arc<Sampler>>) -> impl IntoResponse {
    let mut samples = sampler.subscribe();
    samples.mark_changed();
    let stream_state = SampleStream { samples, sampler, end: Instant::now() + STREAM_DURATION };
    // Asks nginx and others not to buffer the response, which would delay each sample.
    let unbuffered = [(HeaderName::from_static("x-accel-buffering"), "no")];
    (unbuffered, Sse::new(stream_state.events()).keep_alive(KeepAlive::default()))
}

#[derive(Deserialize)]
pub(super) struct Search {
    name: String,
    key: String,
}

/// Returns the TTL of a key in the cache called `name`.
pub(super) async fn ttl(body: Bytes) -> Response {
    let Ok(Search { name, key }) = serde_json::from_slice(&body) else {
        return refuse(
            StatusCode::BAD_REQUEST,
            "invalid search, expected {\"name\": .., \"key\": ..}",
        );
    };
    let found = read_all().into_iter().filter(|reading| reading.name == name);
    let sources = found.flat_map(|reading| reading.sources);
    let mut sources = sources.filter(|source| source.may_be_searched()).peekable();
    if sources.peek().is_none() {
        return refuse(StatusCode::NOT_FOUND, "no cache of this name can be searched");
    }
    // Parsing and hashing a key are user code.
    let Ok(ttls) = catch_unwind(AssertUnwindSafe(|| {
        sources.filter_map(|source| source.ttl_of(&key)).collect::<Vec<_>>()
    })) else {
        return refuse(StatusCode::INTERNAL_SERVER_ERROR, "the search for this key panicked");
    };
    // Several caches may have the same name.
    let live = ttls.iter().find(|ttl| **ttl != Ttl::Missing);
    let answer = match live.or(ttls.first()) {
        None => return refuse(StatusCode::UNPROCESSABLE_ENTITY, "not a valid key of this cache"),
        Some(Ttl::Missing) => json!({ "ttl": "missing" }),
        Some(Ttl::Persistent) => json!({ "ttl": "persistent" }),
        Some(Ttl::Remaining(left)) => json!({ "ttl": "remaining", "ms": left.as_millis() as u64 }),
    };
    (fields("application/json"), answer.to_string()).into_response()
}

struct SampleStream {
    /// Keeps the sender of the samples.
    sampler: Arc<Sampler>,
    samples: watch::Receiver<Sample>,
    end: Instant,
}

impl SampleStream {
    fn events(self) -> impl Stream<Item = Result<Event, Infallible>> {
        stream::unfold(self, |mut stream_state| async {
            let event = stream_state.next().await?;
            Some((Ok(event), stream_state))
        })
    }

    async fn next(&mut self) -> Option<Event> {
        // Ends the stream after its duration. `changed` does not fail, because `self.sampler` holds the sender.
        timeout_at(self.end, self.samples.changed()).await.ok()?.ok()?;
        let number = self.samples.borrow_and_update().number;
        let news = json!({ "boot": self.sampler.boot(), "number": number });
        Some(Event::default().event("sample").data(news.to_string()))
    }
}

fn refuse(status: StatusCode, sentence: &str) -> Response {
    (status, fields("application/json"), json!({ "error": sentence }).to_string()).into_response()
}

fn fields(content_type: &'static str) -> ResponseHeaders {
    [
        (header::CONTENT_TYPE, content_type),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ]
}
