//! A live page of all caches, limiters, dictionaries, sets, queues, spools and connections to Redis of the process,
//! mounted by the user in any router. The page uses only relative addresses.

mod groups;
mod history;
mod responses;
mod sampler;

use std::sync::Arc;

use axum::{
    Router,
    extract::DefaultBodyLimit,
    routing::{get, post},
};

use self::sampler::Sampler;

/// Maximum size of the body of a search, which holds a cache name and a key.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// Returns a router with a live page of all caches, limiters, timeout dictionaries, expiring sets, directory queues,
/// spools and connections to Redis of the process (feature `dashboard`).
///
/// The page shows their sizes and rates, also over the last five minutes and the last hour: hits, expirations,
/// evictions, the lag of events, entries that are due, leased or dead, the lengths of queues, the backlog of spools,
/// and the keys that limiters deny most often. Values above a threshold are marked. Keys are shown as hashes, unless
/// [`show_keys`](crate::RateLimiterBuilder::show_keys) allows their names. A cache with an
/// [`inspect`](crate::Builder::inspect) function can be searched for the TTL of a key; values are never shown. Caches
/// and limiters on Redis are shown by the calls of this process, and dictionaries on Redis as the server has them.
/// Objects of the same kind and name are shown as one.
///
/// The router can be nested anywhere, also behind a proxy that strips a prefix: the page has only relative addresses
/// and loads nothing from other origins. **It is visible to everyone who can reach it**: mount it behind a login, as
/// the [guide](crate::guide::dashboard) shows. With `nest("/ops", ..)` the page is available at `/ops` and
/// `/ops/index.html`, with `nest_service("/ops", ..)` also at `/ops/`. A router with its own state nests it after its
/// `with_state`.
///
/// # Cost
///
/// A thread (`fleeting-dashboard`) reads all metrics once per second while a router from this function exists. Each
/// object costs some microseconds per second, and about ten kilobytes of memory for its last hour. A limiter takes one
/// of its eight locks for each call that it denies. Directory queues and dictionaries on Redis are
/// measured as [for their metrics](crate::guide::metrics). Each browser holds two connections, no matter how many tabs
/// show the page: a stream announces each sample, and the page requests it. The stream ends after ten seconds and is
/// then requested again, so an open page delays a graceful shutdown by at most ten seconds, even if its browser does
/// not read. (Like every response, the metrics themselves delay it while a client has requested them and does not
/// read.)
///
/// # Examples
///
/// ```
/// use axum::{Router, body::Body, http::Request, routing::get};
/// use fleeting::Cache;
/// use tower::ServiceExt;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let sessions: Cache<String, u64> = Cache::builder()
///     .name("sessions")
///     .inspect(|text| Some(text.to_owned()))
///     .build();
///
/// let app: Router = Router::new()
///     .route("/", get(async || "hello"))
///     .nest("/fleeting", fleeting::dashboard());
///
/// let page = app.oneshot(Request::get("/fleeting").body(Body::empty()).unwrap()).await.unwrap();
/// assert_eq!(page.status(), 200);
/// # }
/// ```
pub fn dashboard() -> Router {
    Dashboard::new().into_router()
}

/// The [dashboard](dashboard) with settings.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let app: axum::Router = axum::Router::new()
///     .nest("/fleeting", fleeting::Dashboard::new().title("checkout, Berlin").into_router());
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "it is served by the router of `into_router`"]
pub struct Dashboard {
    title: Arc<str>,
}

impl Dashboard {
    /// Returns a dashboard with the title `fleeting`.
    pub fn new() -> Self {
        Self { title: "fleeting".into() }
    }

    /// Sets the title of the page, by which operators tell apart the pages of several services. The page shows the name
    /// of the machine, the process id and the version in any case.
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into().into();
        self
    }

    /// Returns the router, as [`dashboard`] describes it.
    pub fn into_router(self) -> Router {
        let page = move |uri| responses::page(self.title.clone(), uri);
        Router::new()
            .route("/", get(page.clone()))
            .route("/index.html", get(page))
            .route("/style.css", get(responses::style))
            .route("/script.js", get(responses::script))
            .route("/metrics", get(responses::metrics))
            .route("/hour", get(responses::hour))
            .route("/sample", get(responses::sample))
            .route("/stream", get(responses::stream))
            .route("/ttl", post(responses::ttl))
            .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
            .with_state(Sampler::shared())
    }
}

impl Default for Dashboard {
    fn default() -> Self {
        Self::new()
    }
}
