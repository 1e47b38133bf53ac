//! A page that shows all caches and limiters of the process, live. It is mounted by whoever serves it, and asks for
//! nothing by any other than relative addresses.

mod answers;
mod groups;
mod sampler;
mod track;

use axum::{
    Router,
    extract::DefaultBodyLimit,
    routing::{get, post},
};

use self::sampler::Sampler;

/// The longest body of a search.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// A page for operators: every cache and limiter of the process that has a name, live (feature `dashboard`).
///
/// It shows entries, the hit ratio, expirations and evictions a second and over the last five minutes, how late events
/// are, what sweeps do, and whom limiters deny most often: by hashes, unless
/// [`show_keys`](crate::RateLimiterBuilder::show_keys) tells their names. Caches with an
/// [`inspect`](crate::Builder::inspect) may be searched for a key's TTL; no value is ever shown. Those on Redis are
/// shown by what this process asks of them. Things of one kind and name are one.
///
/// The router is nested anywhere, also behind a proxy that takes a prefix away: the page has relative addresses only,
/// and loads nothing from elsewhere. **Whoever reaches it sees it**: mount it behind a login, as the
/// [guide](crate::guide::dashboard) shows. By `nest("/ops", ..)` the page is at `/ops` and `/ops/index.html`, by
/// `nest_service("/ops", ..)` also at `/ops/`; a router that has a state nests it after its `with_state`.
///
/// # Cost
///
/// A thread (`fleeting-dashboard`) reads all figures once a second, as long as a router of this is held: some
/// microseconds for each cache and limiter, and some kilobytes for the last five minutes of each. A limiter takes a lock for
/// each call that it denies, of which it has eight. Each browser holds one connection, however many tabs show the page; an answer on it
/// ends after ten seconds and is asked for anew, so that no open page holds up a graceful shutdown for longer.
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
    Router::new()
        .route("/", get(answers::page))
        .route("/index.html", get(answers::page))
        .route("/style.css", get(answers::style))
        .route("/script.js", get(answers::script))
        .route("/figures", get(answers::figures))
        .route("/stream", get(answers::stream))
        .route("/ttl", post(answers::ttl))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(Sampler::shared())
}
