//! Graceful shutdown of a service at SIGTERM: requests in flight end, requests that wait for a limit are answered,
//! event streams end, and the spool writes the last events:
//! `cargo run --example graceful_shutdown -- ADDRESS DIRECTORY`.

use std::{error::Error, time::Duration};

use axum::response::{IntoResponse, Response, Sse, sse};
use axum::{Router, extract::Path, extract::State, http::StatusCode, http::header, routing::get};
use fleeting::{Cache, Lagged, Limit, RateLimiter, Spool, dirq::QueueSimple};
use futures_util::{FutureExt, Stream, StreamExt};
use tokio::{net::TcpListener, sync::watch, time::sleep, time::timeout};

type Done = Result<(), Box<dyn Error>>;

const GRACE: Duration = Duration::from_secs(12); // A stream of the dashboard lasts up to 10 s.

#[derive(Clone)]
struct App {
    sessions: Cache<String, ()>,
    reports: RateLimiter<String>,
    stopping: watch::Receiver<bool>,
}

async fn begin_of_shutdown(mut stopping: watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

async fn log_in(State(app): State<App>, Path(user): Path<String>) {
    app.sessions.set(user, ()).await;
}

/// Streams expirations. Without `take_until`, this response would never end, and the server would wait for it.
async fn events(State(app): State<App>) -> Sse<impl Stream<Item = Result<sse::Event, Lagged>>> {
    let events = app.sessions.events().take_until(begin_of_shutdown(app.stopping));
    Sse::new(events.map(|event| Ok(sse::Event::default().data(&event?.key))))
}

/// Writes a report in two seconds, one per minute for each user. A second request waits, but not during a shutdown.
async fn report(State(app): State<App>, Path(user): Path<String>) -> Response {
    let another = (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")]);
    tokio::select! {
        permit = app.reports.until_ready_within(&user, Duration::from_secs(60)) => match permit {
            Ok(_) => sleep(Duration::from_secs(2)).map(|()| "the report\n").await.into_response(),
            Err(limited) => limited.into_response(),
        },
        () = begin_of_shutdown(app.stopping) => another.into_response(),
    }
}

async fn serve(listener: TcpListener, queue: QueueSimple, signal: impl Future) -> Done {
    let sessions = Cache::builder().time_to_live(Duration::from_secs(1)).build();
    let reports = RateLimiter::builder().limit(Limit::per_minute(1)).max_waiting(1).build();
    let spooling = tokio::spawn(Spool::new(queue).run(sessions.events_lossless(1_024)));
    let (stop, stopping) = watch::channel(false);
    let app = Router::new()
        .route("/events", get(events))
        .route("/sessions/{user}", axum::routing::put(log_in))
        .route("/reports/{user}", get(report))
        .with_state(App { sessions: sessions.clone(), reports, stopping: stopping.clone() })
        .nest("/fleeting", fleeting::dashboard());
    let server = axum::serve(listener, app).with_graceful_shutdown(begin_of_shutdown(stopping));
    let server = tokio::spawn(server.into_future());

    signal.await;
    stop.send_replace(true); // 1. No new connections. Waiters are answered, and streams end.
    let _ = timeout(GRACE, server).await; // 2. Requests in flight end.
    sessions.shutdown().await; // 3. Expired entries are removed, and the stream of the spool ends.
    timeout(GRACE, spooling).await??; // 4. The spool writes its last events.
    Ok(())
}

#[tokio::main]
async fn main() -> Done {
    use tokio::signal::unix::{SignalKind, signal};
    let mut args = std::env::args().skip(1);
    let listener = TcpListener::bind(args.next().ok_or("expected an address")?).await?;
    let queue = QueueSimple::open(args.next().ok_or("expected a directory")?).await?;
    let mut terminate = signal(SignalKind::terminate())?;
    println!("http://{}", listener.local_addr()?);
    serve(listener, queue, terminate.recv()).await
}
