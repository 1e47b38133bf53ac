//! Where sessions are, and what counts their requests: in this process, or on a Redis server that all
//! instances of the service share. The verbs are the same; on Redis each may fail.

use std::{hash::RandomState, pin::Pin, time::Duration};

use axum::body::Bytes;
use futures_util::{Stream, StreamExt};
use serde_json::{Value, json};

use super::{Error, Session};
#[cfg(feature = "redis")]
use fleeting::redis;
use fleeting::{
    Cache, Cause, ClientIp, Lagged, Limit, RateLimitLayer, RateLimiter, Sweep, TrustedProxies, Ttl,
    Window,
};

#[cfg(feature = "redis")]
pub(super) use fleeting::redis::Client;

/// Stands where a client of a server would, in a service that was built without.
#[cfg(not(feature = "redis"))]
#[derive(Clone, Copy)]
pub(super) enum Client {}

/// For how long the server keeps what expires for instances that can't be told at once.
#[cfg(feature = "redis")]
const RETENTION: Duration = Duration::from_secs(3_600);

/// How long a request waits for the shared limits, before its instance decides alone: rather late than wrong.
#[cfg(feature = "redis")]
const LIMIT_TIMEOUT: Duration = Duration::from_millis(500);

/// The instances that handle what expires, each session by one of them.
#[cfg(feature = "redis")]
const GROUP: &str = "services";

#[derive(Clone)]
pub(super) enum Sessions {
    Here(Cache<String, Session, RandomState>),
    /// A session is the milliseconds of its TTL, in eight bytes, and its body.
    #[cfg(feature = "redis")]
    Shared(redis::Cache<String, Vec<u8>>),
}

/// Limits the requests for one session.
#[derive(Clone)]
pub(super) enum Requests {
    Here(RateLimiter<String, RandomState>),
    #[cfg(feature = "redis")]
    Shared(redis::RateLimiter<String>),
}

/// A session that has expired.
pub(super) struct Gone {
    pub(super) key: String,
    pub(super) cause: Cause,
    pub(super) lag: Option<Duration>,
}

pub(super) type Expirations = Pin<Box<dyn Stream<Item = Result<Gone, Lagged>> + Send>>;

impl Sessions {
    pub(super) fn new(client: Option<&Client>) -> Result<Self, Error> {
        Ok(match client {
            None => Self::here(),
            #[cfg(feature = "redis")]
            Some(client) => Self::shared(client)?,
            #[cfg(not(feature = "redis"))]
            Some(client) => match *client {},
        })
    }

    fn here() -> Self {
        let sessions = Cache::builder()
            .name("sessions")
            // A quarter of the sessions ten times a second: none stays dead for much over 0.4 s.
            .sweep(Sweep::default().every(Duration::from_millis(100)).sample(0.25))
            .publish([Cause::Expired])
            // An operator may ask how long a session lives, and sees no body.
            .inspect(|id| Some(id.to_owned()))
            // The ids are the clients' choice, so collisions could be too.
            .hasher(RandomState::new())
            .build();
        Self::Here(sessions)
    }

    #[cfg(feature = "redis")]
    fn shared(client: &Client) -> Result<Self, redis::Error> {
        let sessions = redis::Cache::builder(client, "sessions")
            .format(redis::Format::Raw)
            .events(RETENTION)
            .build()?;
        Ok(Self::Shared(sessions))
    }

    /// Whether it replaced a live one.
    pub(super) async fn put(&self, id: String, session: Session) -> Result<bool, Error> {
        let ttl = session.ttl;
        Ok(match self {
            Self::Here(sessions) => sessions.set_ex(id, session, ttl).await.is_some(),
            #[cfg(feature = "redis")]
            Self::Shared(sessions) => sessions.set_ex(id, pack(&session), ttl).await?.is_some(),
        })
    }

    /// The body; the session may live for its TTL anew.
    pub(super) async fn read(&self, id: &str) -> Result<Option<Bytes>, Error> {
        match self {
            Self::Here(sessions) => {
                let session = sessions.get_ex_with(id, |session| session.ttl).await;
                Ok(session.map(|session| session.body))
            }
            #[cfg(feature = "redis")]
            Self::Shared(sessions) => {
                let Some(session) = sessions.get(id).await? else { return Ok(None) };
                let session = sessions.get_ex(id, unpack(session).ttl).await?;
                Ok(session.map(|session| unpack(session).body))
            }
        }
    }

    /// Whether there was one.
    pub(super) async fn remove(&self, id: &str) -> Result<bool, Error> {
        Ok(match self {
            Self::Here(sessions) => sessions.remove(id).await.is_some(),
            #[cfg(feature = "redis")]
            Self::Shared(sessions) => sessions.remove(id).await?.is_some(),
        })
    }

    pub(super) async fn ttl(&self, id: &str) -> Result<Ttl, Error> {
        Ok(match self {
            Self::Here(sessions) => sessions.ttl(id).await,
            #[cfg(feature = "redis")]
            Self::Shared(sessions) => sessions.ttl(id).await?,
        })
    }

    /// What expires from now on, in all instances.
    pub(super) async fn events(&self) -> Result<Expirations, Error> {
        Ok(match self {
            Self::Here(sessions) => sessions.events().map(|event| Ok(Gone::new(&*event?))).boxed(),
            #[cfg(feature = "redis")]
            Self::Shared(sessions) => {
                sessions.events().await?.map(|event| Ok(Gone::new(&*event?))).boxed()
            }
        })
    }

    /// What expires, each session by one instance, until the cache is shut down.
    pub(super) async fn handle(
        &self,
        mut handle: impl FnMut(Gone) + Send + 'static,
    ) -> Result<(), Error> {
        match self {
            Self::Here(sessions) => {
                let mut events = sessions.events();
                tokio::spawn(async move {
                    while let Some(event) = events.recv().await {
                        event.iter().for_each(|event| handle(Gone::new(&**event)));
                    }
                });
            }
            #[cfg(feature = "redis")]
            Self::Shared(sessions) => {
                let mut events = sessions.events_lossless(GROUP).await?;
                tokio::spawn(async move {
                    while let Some(event) = events.recv().await {
                        match event {
                            Ok(event) => handle(Gone::new(&event)),
                            Err(error) => tracing::warn!(%error, "what expires can't be read"),
                        }
                    }
                });
            }
        }
        Ok(())
    }

    /// Figures, as JSON; of a shared cache, those of this instance.
    #[cfg_attr(not(feature = "redis"), allow(unused_variables))]
    pub(super) fn stats(&self, own_subscribers: usize, handled: u64) -> Value {
        match self {
            Self::Here(sessions) => {
                let stats = sessions.stats();
                json!({
                    "entries": stats.resident,
                    "hits": stats.hits,
                    "misses": stats.misses,
                    "hit_ratio": stats.hit_ratio(),
                    "expired": stats.expired,
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
                    "hit_ratio": stats.hits as f64 / (stats.hits + stats.misses).max(1) as f64,
                    "expired": handled,
                })
            }
        }
    }

    pub(super) async fn shutdown(&self) {
        match self {
            Self::Here(sessions) => sessions.shutdown().await,
            #[cfg(feature = "redis")]
            Self::Shared(sessions) => sessions.shutdown().await,
        }
    }
}

impl Requests {
    pub(super) fn new(client: Option<&Client>, per_session: u32) -> Result<Self, Error> {
        Ok(match client {
            None => Self::here(per_session),
            #[cfg(feature = "redis")]
            Some(client) => Self::shared(client, per_session)?,
            #[cfg(not(feature = "redis"))]
            Some(client) => match *client {},
        })
    }

    fn here(per_session: u32) -> Self {
        let requests = RateLimiter::builder()
            .name("requests")
            .limit(Limit::per_minute(per_session).named("session"))
            .window(Window::Buckets(10))
            .hasher(RandomState::new())
            .build();
        Self::Here(requests)
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
            Self::Here(requests) => drop(requests.check(id).await?),
            #[cfg(feature = "redis")]
            Self::Shared(requests) => drop(requests.check(id).await?),
        }
        Ok(())
    }

    pub(super) fn denied(&self) -> u64 {
        match self {
            Self::Here(requests) => requests.stats().denied,
            #[cfg(feature = "redis")]
            Self::Shared(requests) => requests.stats().denied,
        }
    }
}

/// Limits the requests of one client address, in this instance or in all.
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
                // An operator who is to do something about a client must know which. An id of a session stays secret.
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

impl Gone {
    fn new<V>(event: &fleeting::Event<String, V>) -> Self {
        Self { key: event.key.clone(), cause: event.cause, lag: event.lag() }
    }
}

/// As it is kept outside of this process.
pub(super) fn pack(session: &Session) -> Vec<u8> {
    let ttl = u64::try_from(session.ttl.as_millis()).unwrap_or(u64::MAX);
    [&ttl.to_be_bytes()[..], &session.body].concat()
}

pub(super) fn unpack(packed: Vec<u8>) -> Session {
    let mut body = Bytes::from(packed);
    // What is shorter is not ours: an empty session that dies now.
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
        redis::Error::Address(_) => "it is written as redis://HOST:PORT, rediss:// for TLS",
        _ => "see whether it runs and answers there (redis-cli -u URL ping)",
    };
    let mut sentence = format!("can't use the Redis server of --redis {servers}: {error}");
    let mut source = std::error::Error::source(&error);
    while let Some(reason) = source {
        sentence += &format!(": {reason}");
        source = reason.source();
    }
    Err(format!("{sentence}; {hint}").into())
}

/// For a log, which is no place for passwords.
#[cfg(feature = "redis")]
fn without_password(url: &str) -> String {
    // The last one: passwords are often not written as they should be.
    let Some((before, host)) = url.rsplit_once('@') else { return url.to_owned() };
    let scheme = before.split_once("://").map_or("", |(scheme, _)| scheme);
    format!("{scheme}://***@{host}")
}

/// Refuses `--redis`: this service was built without.
#[cfg(not(feature = "redis"))]
pub(super) async fn connect(urls: &[String]) -> Result<Option<Client>, Box<dyn std::error::Error>> {
    match urls {
        [] => Ok(None),
        _ => Err("this service was built without Redis; with it: \
                  cargo run --release --example service --features redis -- --redis URL"
            .into()),
    }
}
