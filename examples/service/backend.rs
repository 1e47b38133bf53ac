//! Backend of sessions and rate limits: in this process, or on a Redis server that is shared by all instances of the
//! service. Both have the same methods; on Redis each call may fail.

use std::{hash::RandomState, pin::Pin, time::Duration};

use axum::body::Bytes;
use futures_util::{Stream, StreamExt};
use serde_json::{Value, json};

use super::{Error, Session};
#[cfg(feature = "redis")]
use fleeting::redis;
use fleeting::{
    Cache, Cause, ClientIp, Lagged, Limit, RateLimitLayer, RateLimiter, TrustedProxies, Ttl, Window,
};

#[cfg(feature = "redis")]
pub(super) use fleeting::redis::Client;

/// Takes the place of the Redis client in a service that was built without Redis. It has no values.
#[cfg(not(feature = "redis"))]
#[derive(Clone, Copy)]
pub(super) enum Client {}

/// Time for which the server keeps expiry events for instances that cannot be reached.
#[cfg(feature = "redis")]
const RETENTION: Duration = Duration::from_secs(3_600);

/// Time that a request waits for the shared limits before its instance decides alone. A late answer is better than one
/// that ignores the other instances.
#[cfg(feature = "redis")]
const LIMIT_TIMEOUT: Duration = Duration::from_millis(500);

/// Memory of an entry without its id and its body, about.
const ENTRY_BYTES: usize = 200;

/// Subscriber group of all instances: each expired session is handled by one of them.
#[cfg(feature = "redis")]
const GROUP: &str = "services";

#[derive(Clone)]
pub(super) enum Sessions {
    Embedded(Cache<String, Session, RandomState>),
    /// A value is the session's TTL in milliseconds, as eight bytes, followed by its body.
    #[cfg(feature = "redis")]
    Shared(redis::Cache<String, Vec<u8>>),
}

/// Rate limit of the requests for one session.
#[derive(Clone)]
pub(super) enum Requests {
    Embedded(RateLimiter<String, RandomState>),
    #[cfg(feature = "redis")]
    Shared(redis::RateLimiter<String>),
}

/// An expired session.
pub(super) struct ExpiredSession {
    pub(super) key: String,
    pub(super) cause: Cause,
    pub(super) lag: Option<Duration>,
}

pub(super) type Expirations = Pin<Box<dyn Stream<Item = Result<ExpiredSession, Lagged>> + Send>>;

impl Sessions {
    /// Returns a store of at most `max_bytes` in this process, or that on the server, whose memory the server bounds.
    pub(super) fn new(client: Option<&Client>, max_bytes: u64) -> Result<Self, Error> {
        Ok(match client {
            None => Self::embedded(max_bytes),
            #[cfg(feature = "redis")]
            Some(client) => Self::shared(client)?,
            #[cfg(not(feature = "redis"))]
            Some(client) => match *client {},
        })
    }

    fn embedded(max_bytes: u64) -> Self {
        let sessions = Cache::builder()
            .name("sessions")
            // Clients choose the number of sessions and their bodies.
            .max_weight(max_bytes, |id: &String, session: &Session| {
                u32::try_from(ENTRY_BYTES + id.len() + session.body.len()).unwrap_or(u32::MAX)
            })
            .publish([Cause::Expired])
            // The dashboard shows the TTL of a session by its id, but never its body.
            .inspect(|id| Some(id.to_owned()))
            // Clients choose the ids, so a hasher without a random seed would allow crafted collisions.
            .hasher(RandomState::new())
            .build();
        Self::Embedded(sessions)
    }

    #[cfg(feature = "redis")]
    fn shared(client: &Client) -> Result<Self, redis::Error> {
        let sessions = redis::Cache::builder(client, "sessions")
            .format(redis::Format::Raw)
            .events(RETENTION)
            .build()?;
        Ok(Self::Shared(sessions))
    }

    /// Stores a session. Returns true if it replaced a live one.
    pub(super) async fn put(&self, id: String, session: Session) -> Result<bool, Error> {
        let ttl = session.ttl;
        Ok(match self {
            Self::Embedded(sessions) => sessions.set_ex(id, session, ttl).await.is_some(),
            #[cfg(feature = "redis")]
            Self::Shared(sessions) => sessions.set_ex(id, pack(&session), ttl).await?.is_some(),
        })
    }

    /// Returns the body of a session, whose TTL restarts.
    pub(super) async fn read(&self, id: &str) -> Result<Option<Bytes>, Error> {
        match self {
            Self::Embedded(sessions) => {
                let session = sessions.get_ex_with(id, |session| session.ttl).await;
                Ok(session.map(|session| session.body))
            }
            #[cfg(feature = "redis")]
            Self::Shared(sessions) => {
                // Two commands, because the TTL to restart is a part of the value.
                let Some(session) = sessions.get(id).await? else { return Ok(None) };
                let session = sessions.get_ex(id, unpack(session).ttl).await?;
                Ok(session.map(|session| unpack(session).body))
            }
        }
    }

    /// Removes a session. Returns false if there was none.
    pub(super) async fn remove(&self, id: &str) -> Result<bool, Error> {
        Ok(match self {
            Self::Embedded(sessions) => sessions.remove(id).await.is_some(),
            #[cfg(feature = "redis")]
            Self::Shared(sessions) => sessions.remove(id).await?.is_some(),
        })
    }

    pub(super) async fn ttl(&self, id: &str) -> Result<Ttl, Error> {
        Ok(match self {
            Self::Embedded(sessions) => sessions.ttl(id).await,
            #[cfg(feature = "redis")]
            Self::Shared(sessions) => sessions.ttl(id).await?,
        })
    }

    /// Returns a stream of all sessions that expire from now on, in all instances.
    pub(super) async fn events(&self) -> Result<Expirations, Error> {
        Ok(match self {
            Self::Embedded(sessions) => {
                sessions.events().map(|event| Ok(ExpiredSession::new(&*event?))).boxed()
            }
            #[cfg(feature = "redis")]
            Self::Shared(sessions) => {
                sessions.events().await?.map(|event| Ok(ExpiredSession::new(&*event?))).boxed()
            }
        })
    }

    /// Calls `handle` for each expired session, in one of the instances, until the cache is shut down.
    pub(super) async fn handle(
        &self,
        mut handle: impl FnMut(ExpiredSession) + Send + 'static,
    ) -> Result<(), Error> {
        match self {
            Self::Embedded(sessions) => {
                let mut events = sessions.events();
                tokio::spawn(async move {
                    while let Some(event) = events.recv().await {
                        event.iter().for_each(|event| handle(ExpiredSession::new(&**event)));
                    }
                });
            }
            #[cfg(feature = "redis")]
            Self::Shared(sessions) => {
                let mut events = sessions.events_lossless(GROUP).await?;
                tokio::spawn(async move {
                    while let Some(event) = events.recv().await {
                        match event {
                            Ok(event) => handle(ExpiredSession::new(&event)),
                            Err(error) => {
                                tracing::warn!(%error, "receiving an expired session failed")
                            }
                        }
                    }
                });
            }
        }
        Ok(())
    }

    /// Returns the statistics as JSON; those of a shared cache cover this instance only.
    #[cfg_attr(not(feature = "redis"), allow(unused_variables))]
    pub(super) fn stats(&self, own_subscribers: usize, handled: u64) -> Value {
        match self {
            Self::Embedded(sessions) => {
                let stats = sessions.stats();
                json!({
                    "entries": stats.resident,
                    "hits": stats.hits,
                    "misses": stats.misses,
                    "hit_ratio": hit_ratio(stats.hits, stats.misses),
                    "expired": stats.expired,
                    "evicted": stats.evicted,
                    "removed": stats.removed,
                    "replaced": stats.replaced,
                    "sweeps": stats.sweeps,
                    "subscribers": stats.subscribers.saturating_sub(own_subscribers),
                })
            }
            #[cfg(feature = "redis")]
            Self::Shared(sessions) => {
                let stats = sessions.stats();
                json!({
                    "hits": stats.hits,
                    "misses": stats.misses,
                    "hit_ratio": hit_ratio(stats.hits, stats.misses),
                    "expired": handled,
                })
            }
        }
    }

    pub(super) async fn shutdown(&self) {
        match self {
            Self::Embedded(sessions) => sessions.shutdown().await,
            #[cfg(feature = "redis")]
            Self::Shared(sessions) => sessions.shutdown().await,
        }
    }
}

impl Requests {
    pub(super) fn new(client: Option<&Client>, per_session: u32) -> Result<Self, Error> {
        Ok(match client {
            None => Self::embedded(per_session),
            #[cfg(feature = "redis")]
            Some(client) => Self::shared(client, per_session)?,
            #[cfg(not(feature = "redis"))]
            Some(client) => match *client {},
        })
    }

    fn embedded(per_session: u32) -> Self {
        let requests = RateLimiter::builder()
            .name("requests")
            .limit(Limit::per_minute(per_session).named("session"))
            .window(Window::Buckets(10))
            // As for the sessions: clients choose the ids.
            .hasher(RandomState::new())
            .build();
        Self::Embedded(requests)
    }

    #[cfg(feature = "redis")]
    fn shared(client: &Client, per_session: u32) -> Result<Self, redis::Error> {
        let requests = redis::RateLimiter::builder(client, "requests")
            .limit(Limit::per_minute(per_session).named("session"))
            .window(Window::Buckets(10))
            .timeout(LIMIT_TIMEOUT)
            .build()?;
        Ok(Self::Shared(requests))
    }

    pub(super) async fn check(&self, id: &str) -> Result<(), Error> {
        match self {
            Self::Embedded(requests) => drop(requests.check(id).await?),
            #[cfg(feature = "redis")]
            Self::Shared(requests) => drop(requests.check(id).await?),
        }
        Ok(())
    }

    pub(super) fn denied(&self) -> u64 {
        match self {
            Self::Embedded(requests) => requests.stats().denied,
            #[cfg(feature = "redis")]
            Self::Shared(requests) => requests.stats().denied,
        }
    }
}

/// Rate limit of the requests of one client address, in this instance or in all.
pub(super) fn by_client(
    client: Option<&Client>,
    per_client: u32,
    trusted: TrustedProxies,
) -> Result<RateLimitLayer<ClientIp>, Error> {
    let limit = Limit::per_minute(per_client).named("client");
    Ok(match client {
        None => {
            let clients = RateLimiter::builder()
                .name("clients")
                .limit(limit)
                // Operators need the address of a client that they want to block. Session ids stay secret.
                .show_keys(|client: &ClientIp| client.to_string())
                .build();
            RateLimitLayer::by_ip(clients, trusted)
        }
        #[cfg(feature = "redis")]
        Some(client) => {
            let clients = redis::RateLimiter::builder(client, "clients")
                .limit(limit)
                .timeout(LIMIT_TIMEOUT)
                .build()?;
            RateLimitLayer::by_ip(clients, trusted)
        }
        #[cfg(not(feature = "redis"))]
        Some(client) => match *client {},
    })
}

/// Returns the share of hits in all reads; `None` before the first read.
fn hit_ratio(hits: u64, misses: u64) -> Option<f64> {
    let reads = hits + misses;
    (reads > 0).then(|| hits as f64 / reads as f64)
}

impl ExpiredSession {
    fn new<V>(event: &fleeting::Event<String, V>) -> Self {
        Self { key: event.key.clone(), cause: event.cause, lag: event.lag() }
    }
}

/// Encodes a session for storage outside of this process.
pub(super) fn pack(session: &Session) -> Vec<u8> {
    let ttl = u64::try_from(session.ttl.as_millis()).unwrap_or(u64::MAX);
    [&ttl.to_be_bytes()[..], &session.body].concat()
}

pub(super) fn unpack(packed: Vec<u8>) -> Session {
    let mut body = Bytes::from(packed);
    // A value of fewer than eight bytes was not written by `pack`: it becomes an empty session that expires now.
    let ttl = body.split_to(body.len().min(8));
    let ttl = <[u8; 8]>::try_from(&ttl[..]).map_or(0, u64::from_be_bytes);
    Session { body, ttl: Duration::from_millis(ttl) }
}

/// Connects to the server of `--redis`, if it was given.
#[cfg(feature = "redis")]
pub(super) async fn connect(urls: &[String]) -> Result<Option<Client>, Box<dyn std::error::Error>> {
    if urls.is_empty() {
        return Ok(None);
    }
    let error = match Client::connect(urls).await {
        Ok(client) => return Ok(Some(client)),
        Err(error) => error,
    };
    let servers: Vec<_> = urls.iter().map(|url| without_password(url)).collect();
    let servers = servers.join(", ");
    let hint = match &error {
        redis::Error::Address(_) => "use redis://HOST:PORT, or rediss:// for TLS",
        _ => "check that it is running and answers: redis-cli -u URL ping",
    };
    let mut message = format!("cannot use the Redis server of --redis {servers}: {error}");
    let mut source = std::error::Error::source(&error);
    while let Some(reason) = source {
        message += &format!(": {reason}");
        source = reason.source();
    }
    Err(format!("{message}; {hint}").into())
}

/// Returns the URL without its password, for error messages.
#[cfg(feature = "redis")]
fn without_password(url: &str) -> String {
    // Splits at the last `@`: passwords often contain one that is not escaped.
    let Some((before, host)) = url.rsplit_once('@') else { return url.to_owned() };
    let scheme = before.split_once("://").map_or("", |(scheme, _)| scheme);
    format!("{scheme}://***@{host}")
}

/// Fails if `--redis` is given, because this service was built without Redis.
#[cfg(not(feature = "redis"))]
pub(super) async fn connect(urls: &[String]) -> Result<Option<Client>, Box<dyn std::error::Error>> {
    match urls {
        [] => Ok(None),
        _ => Err("this service was built without Redis; with it: \
                  cargo run --release --example service --features redis -- --redis URL"
            .into()),
    }
}
