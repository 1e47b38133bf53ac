//! Behaviours that tower-sessions expects of a store, with this store alone and as the cache of a slower store.

use axum::http::{StatusCode, header};
use tokio::time::advance;
use tower_sessions::{
    CachingSessionStore,
    cookie::{Cookie, SameSite},
};

use super::*;

/// Well-formed, but of no session.
const UNKNOWN_ID: &str = "AAAAAAAAAAAAAAAAAAAAAA";

#[tokio::test(start_paused = true)]
async fn request_that_does_not_use_its_session_gets_no_cookie() {
    for app in services(idle_for_an_hour()) {
        let answer = send(&app, "/", None).await;
        assert_eq!((answer.status, answer.cookie), (StatusCode::OK, None));
    }
}

/// A client must not be able to choose the id of its session.
#[tokio::test(start_paused = true)]
async fn unknown_id_is_replaced() {
    for app in services(idle_for_an_hour()) {
        let answer = send(&app, "/put", Some(UNKNOWN_ID)).await;
        assert_eq!(answer.status, StatusCode::OK);
        let id = answer.id();
        assert_ne!(id, UNKNOWN_ID);
        assert_eq!(send(&app, "/read", Some(UNKNOWN_ID)).await.body, "None");
        assert_eq!(send(&app, "/read", Some(&id)).await.body, "Some(\"Ulm\")");
    }
}

#[tokio::test(start_paused = true)]
async fn malformed_id_is_served_and_its_cookie_is_deleted() {
    for app in services(idle_for_an_hour()) {
        let answer = send(&app, "/", Some("not an id")).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert!(answer.deletes_the_cookie());
    }
}

#[tokio::test(start_paused = true)]
async fn cookie_of_a_new_session_is_protected_and_lasts_as_long_as_the_session() {
    for app in services(idle_for_an_hour()) {
        let cookie = send(&app, "/put", None).await.cookie.expect("a new session has a cookie");
        assert_eq!((cookie.name(), cookie.path()), ("id", Some("/")));
        assert_eq!((cookie.http_only(), cookie.secure()), (Some(true), Some(true)));
        assert_eq!(cookie.same_site(), Some(SameSite::Strict));
        assert_eq!(cookie.max_age(), Some(time::Duration::hours(1)));
    }
}

/// Without an expiry, the cookie lasts until the browser is closed, and the session for the two weeks of
/// tower-sessions.
#[tokio::test(start_paused = true)]
async fn session_without_an_expiry_has_a_cookie_without_an_age() {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    for app in services(None) {
        let answer = send(&app, "/put", None).await;
        let id = answer.id();
        assert_eq!(answer.cookie.and_then(|cookie| cookie.max_age()), None);
        advance(13 * DAY).await;
        assert_eq!(send(&app, "/read", Some(&id)).await.body, "Some(\"Ulm\")");
        advance(DAY).await;
        assert_eq!(send(&app, "/read", Some(&id)).await.body, "None");
    }
}

#[tokio::test(start_paused = true)]
async fn value_is_found_by_the_next_request_of_its_session_only() {
    for app in services(idle_for_an_hour()) {
        let id = send(&app, "/put", None).await.id();
        assert_eq!(send(&app, "/read", Some(&id)).await.body, "Some(\"Ulm\")");
        assert_eq!(send(&app, "/read", None).await.body, "None");
    }
}

#[tokio::test(start_paused = true)]
async fn removal_of_the_last_value_keeps_the_session() {
    for app in services(idle_for_an_hour()) {
        let id = send(&app, "/put", None).await.id();
        assert_eq!(send(&app, "/remove", Some(&id)).await.id(), id);
        assert_eq!(send(&app, "/read", Some(&id)).await.body, "None");
        assert_eq!(send(&app, "/put", Some(&id)).await.id(), id);
    }
}

#[tokio::test(start_paused = true)]
async fn new_id_keeps_the_values_and_ends_the_old_id() {
    for app in services(idle_for_an_hour()) {
        let old = send(&app, "/put", None).await.id();
        let new = send(&app, "/cycle_id", Some(&old)).await.id();
        assert_ne!(old, new);
        assert_eq!(send(&app, "/read", Some(&new)).await.body, "Some(\"Ulm\")");
        assert_eq!(send(&app, "/read", Some(&old)).await.body, "None");
    }
}

#[tokio::test(start_paused = true)]
async fn flushed_session_loses_its_cookie_and_values() {
    for app in services(idle_for_an_hour()) {
        let id = send(&app, "/put", None).await.id();
        assert!(send(&app, "/flush", Some(&id)).await.deletes_the_cookie());
        assert_eq!(send(&app, "/read", Some(&id)).await.body, "None");
    }
}

/// The time is Tokio's, so that a test of your service needs no real hour.
#[tokio::test(start_paused = true)]
async fn session_expires_an_hour_after_it_was_last_saved() {
    for app in services(idle_for_an_hour()) {
        let id = send(&app, "/put", None).await.id();
        for _ in 0..3 {
            advance(Duration::from_secs(59 * 60)).await;
            send(&app, "/save", Some(&id)).await;
        }
        advance(Duration::from_secs(59 * 60)).await;
        assert_eq!(send(&app, "/read", Some(&id)).await.body, "Some(\"Ulm\")");
        // A read alone does not save the session.
        advance(Duration::from_secs(60)).await;
        assert_eq!(send(&app, "/read", Some(&id)).await.body, "None");
    }
}

/// The store on moka reads and then writes, so that one of two sessions may overwrite the other.
#[tokio::test(start_paused = true)]
async fn session_that_draws_the_id_of_another_gets_a_new_one() {
    let store = Store(Cache::new());
    let (mut first, mut second) = (record("Ulm"), record("Rome"));
    second.id = first.id;
    let drawn = first.id;
    store.create(&mut first).await.unwrap();
    store.create(&mut second).await.unwrap();
    assert_eq!(first.id, drawn);
    assert_ne!(second.id, drawn);
    for record in [first, second] {
        assert_eq!(store.load(&record.id).await.unwrap(), Some(record));
    }
}

#[tokio::test(start_paused = true)]
async fn session_that_has_already_expired_is_created_and_not_found() {
    let store = Store(Cache::new());
    let mut expired = record("Ulm");
    expired.expiry_date = OffsetDateTime::now_utc() - time::Duration::SECOND;
    store.create(&mut expired).await.unwrap();
    assert_eq!(store.load(&expired.id).await.unwrap(), None);
}

fn record(city: &str) -> Record {
    let data = [("city".to_owned(), city.into())].into();
    let expiry_date = OffsetDateTime::now_utc() + time::Duration::hours(1);
    Record { id: Id::default(), data, expiry_date }
}

fn idle_for_an_hour() -> Option<Expiry> {
    Some(Expiry::OnInactivity(time::Duration::hours(1)))
}

/// Returns a service on this store, and one on a `CachingSessionStore` that keeps its copies in it.
fn services(expiry: Option<Expiry>) -> [Router; 2] {
    let store = || Store(Cache::new());
    [service(store(), expiry), service(CachingSessionStore::new(store(), store()), expiry)]
}

/// Returns a service of which each path calls one method of its session.
fn service(store: impl SessionStore + Clone, expiry: Option<Expiry>) -> Router {
    let mut layer = SessionManagerLayer::new(store);
    if let Some(expiry) = expiry {
        layer = layer.with_expiry(expiry);
    }
    let read = |session: Session| async move {
        format!("{:?}", session.get::<String>("city").await.expect("the store answers"))
    };
    let put = |session: Session| async move {
        session.insert("city", "Ulm").await.expect("the store answers");
    };
    let remove = |session: Session| async move {
        session.remove::<String>("city").await.expect("the store answers");
    };
    let save = |session: Session| async move {
        session.save().await.expect("the store answers");
    };
    let cycle_id = |session: Session| async move {
        session.cycle_id().await.expect("the store answers");
    };
    let flush = |session: Session| async move {
        session.flush().await.expect("the store answers");
    };
    Router::new()
        .route("/", get(|_: Session| async {}))
        .route("/put", get(put))
        .route("/read", get(read))
        .route("/remove", get(remove))
        .route("/save", get(save))
        .route("/cycle_id", get(cycle_id))
        .route("/flush", get(flush))
        .layer(layer)
}

struct Answer {
    status: StatusCode,
    cookie: Option<Cookie<'static>>,
    body: String,
}

impl Answer {
    /// Returns the id of the session that the answer names.
    fn id(&self) -> String {
        self.cookie.as_ref().expect("the answer sets a cookie").value().to_owned()
    }

    fn deletes_the_cookie(&self) -> bool {
        let deleted = Some(("", Some(time::Duration::ZERO)));
        self.cookie.as_ref().map(|cookie| (cookie.value(), cookie.max_age())) == deleted
    }
}

/// Sends a request with the id of a session.
async fn send(app: &Router, path: &str, id: Option<&str>) -> Answer {
    let mut request = Request::get(path);
    if let Some(id) = id {
        request = request.header(header::COOKIE, format!("id={id}"));
    }
    let request = request.body(Body::empty()).expect("the request is valid");
    let answer = app.clone().oneshot(request).await.expect("the service does not fail");
    let cookie = answer.headers().get(header::SET_COOKIE).map(|cookie| {
        let cookie = cookie.to_str().expect("the cookie is ASCII").to_owned();
        Cookie::parse(cookie).expect("the cookie is valid")
    });
    let status = answer.status();
    let body = to_bytes(answer.into_body(), 1_024).await.expect("the body is short");
    Answer { status, cookie, body: String::from_utf8_lossy(&body).into_owned() }
}
