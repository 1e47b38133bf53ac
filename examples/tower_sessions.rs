//! A session store for tower-sessions, backed by a cache: bounded, sessions end on time, and their end is an event.
//!
//! ```text
//! cargo run --example tower_sessions
//! ```
//!
//! The program sends requests to its own service. Tokio's clock is paused, so half an hour without a request takes no
//! time.

use std::{error::Error, sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::{
    Router,
    body::{Body, to_bytes},
    http::{
        HeaderValue, Request, StatusCode,
        header::{COOKIE, SET_COOKIE},
    },
    routing::get,
};
use tokio::time::sleep;
use tower::ServiceExt;
use tower_sessions::{
    Expiry, Session, SessionManagerLayer, SessionStore,
    cookie::time::{self, OffsetDateTime},
    session::{Id, Record},
    session_store,
};

use fleeting::{Cache, Event};

#[cfg(test)]
#[path = "tower_sessions/tests.rs"]
mod tests;

/// Session store of tower-sessions. A `fleeting::redis::Cache` has the same methods, and is shared by many instances.
#[derive(Clone, Debug)]
struct Store(Cache<Id, Record>);

#[async_trait]
impl SessionStore for Store {
    async fn create(&self, record: &mut Record) -> session_store::Result<()> {
        // Another session may have drawn the same id; if so, draw again.
        while !self.0.set_nx(record.id, record.clone(), Some(remaining_ttl(record))).await {
            record.id = Id::default();
        }
        Ok(())
    }

    async fn save(&self, record: &Record) -> session_store::Result<()> {
        self.0.set_ex(record.id, record.clone(), remaining_ttl(record)).await;
        Ok(())
    }

    async fn load(&self, id: &Id) -> session_store::Result<Option<Record>> {
        Ok(self.0.get(id).await)
    }

    async fn delete(&self, id: &Id) -> session_store::Result<()> {
        self.0.remove(id).await;
        Ok(())
    }
}

/// Returns the time until the session's expiry date. Both are wall-clock times, as cookies have them.
fn remaining_ttl(record: &Record) -> Duration {
    (record.expiry_date - OffsetDateTime::now_utc()).try_into().unwrap_or_default()
}

/// Counts the visits of a session.
async fn visit(session: Session) -> Result<String, StatusCode> {
    let failed = |_| StatusCode::INTERNAL_SERVER_ERROR;
    let visits = session.get::<u64>("visits").await.map_err(failed)?.unwrap_or_default() + 1;
    session.insert("visits", visits).await.map_err(failed)?;
    Ok(format!("visit {visits}"))
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), Box<dyn Error>> {
    // Bounded: clients that never send their cookie, and so create a session per request, cannot fill the memory.
    let sessions = Cache::builder().name("sessions").max_entries(100_000).build();
    sessions.on_expired(async |gone: Arc<Event<Id, Record>>| {
        println!("session expired after {} visits", gone.value.data["visits"]);
    });
    let layer = SessionManagerLayer::new(Store(sessions.clone()))
        .with_expiry(Expiry::OnInactivity(time::Duration::minutes(30)));
    let app = Router::new().route("/", get(visit)).layer(layer);

    let mut cookie = None;
    for minutes in [0, 20, 20, 31] {
        sleep(Duration::from_secs(60 * minutes)).await;
        ask(&app, &mut cookie).await?;
    }
    println!("live sessions: {}", sessions.live_len());
    Ok(())
}

/// Sends a request with the last cookie received, as a browser does.
async fn ask(app: &Router, cookie: &mut Option<HeaderValue>) -> Result<(), Box<dyn Error>> {
    let mut request = Request::new(Body::empty());
    if let Some(cookie) = cookie {
        request.headers_mut().insert(COOKIE, cookie.clone());
    }
    let answer = app.clone().oneshot(request).await?;
    if let Some(given) = answer.headers().get(SET_COOKIE) {
        let pair = given.to_str()?.split(';').next().unwrap_or_default();
        *cookie = Some(pair.parse()?);
    }
    let body = to_bytes(answer.into_body(), 1_024).await?;
    println!("{}", String::from_utf8_lossy(&body));
    Ok(())
}
