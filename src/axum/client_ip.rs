//! Who a request is from: the connection's peer or, behind proxies that are trusted, whom they name.

use std::{
    fmt,
    hash::{Hash, Hasher},
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use ::axum::{
    extract::{ConnectInfo, FromRequestParts, connect_info::MockConnectInfo},
    http::{HeaderMap, HeaderName, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use ipnet::{IpNet, Ipv4Net};

use super::forwarded::{address, forwarded_for, from_right};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Who a request is from: an IPv4 address, or the network of an IPv6 one.
///
/// It is a key for a [`RateLimiter`](crate::RateLimiter), and an extractor. Two are equal where their
/// networks are: all of an IPv4 address, but only the [prefix](TrustedProxies::ipv6_prefix) of an IPv6
/// one, 64 bits by default, as who has one address of such a network has all of them. An IPv4 address that
/// is mapped into IPv6 is the IPv4 address. Shown is the network, `192.0.2.1` or `2001:db8:0:1::/64`.
///
/// The extractor takes the address of the connection's peer. Only where an outer layer
/// `Extension(TrustedProxies)` trusts the peer, it takes what that writes of the client: see
/// [`TrustedProxies`].
///
/// # Errors
///
/// [`ClientIpRejection`] where the peer is unknown, as the router is not served by
/// `into_make_service_with_connect_info::<SocketAddr>()`. In tests, axum's `MockConnectInfo` does, too.
///
/// # Examples
///
/// ```
/// use axum::{Router, body::Body, extract::connect_info::MockConnectInfo, http::Request, routing::get};
/// use fleeting::{ClientIp, Limit, Limited, RateLimiter};
/// use std::net::SocketAddr;
/// use tower::ServiceExt;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let limiter = RateLimiter::builder().limit(Limit::per_minute(1)).build();
/// let handler = async move |client: ClientIp| -> Result<String, Limited> {
///     limiter.check(&client).await?;
///     Ok(client.to_string())
/// };
/// let app = Router::new()
///     .route("/", get(handler))
///     .layer(MockConnectInfo(SocketAddr::from(([192, 0, 2, 1], 1337))));
///
/// let first = app.clone().oneshot(Request::new(Body::empty())).await.unwrap();
/// assert_eq!(first.status(), 200);
/// let second = app.oneshot(Request::new(Body::empty())).await.unwrap();
/// assert_eq!(second.status(), 429);
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ClientIp {
    addr: IpAddr,
    /// How many bits of the address tell clients apart.
    prefix: u8,
}

/// The proxies whose word counts, and which of their fields has it. A cheap clone.
///
/// A proxy adds the address that it was asked from at the right end of `X-Forwarded-For` or, with
/// [`forwarded`](TrustedProxies::forwarded), `Forwarded` (RFC 7239). All to the left of it came with the
/// request, so anybody can have written it. The client is found from the right: as long as an address is
/// a trusted proxy's, the next one to the left counts, over all lines of the field. The first that is not
/// is the client. Empty elements count for nothing; at what is no address (`unknown`, `_hidden`, nonsense) the search
/// ends, and the last address before it is taken.
///
/// The field of a peer that is not trusted is not looked at.
///
/// # Which proxies to trust
///
/// Those of your own, by the addresses from which they connect. In a network that is trusted everybody can
/// claim to be anybody; with `0.0.0.0/0` that is the whole world.
///
/// # Which field
///
/// Only the one that your proxies write. They pass on the other as it came, so it is never looked at, and
/// who adds it gains nothing. But nothing here can know what your proxies do: where they write `Forwarded`
/// alone, say so by [`forwarded`](TrustedProxies::forwarded), and where they write one of their own, by
/// [`header`](TrustedProxies::header); or clients choose their own address.
///
/// Where a peer writes the field and is not trusted, all that come through it are one client. A warning of tracing says
/// so: once of a peer in a private network, where proxies mostly are, and once of one in the Internet, which may be a CDN's
/// proxy, or anybody.
///
/// # Examples
///
/// ```
/// use axum::http::HeaderMap;
/// use fleeting::TrustedProxies;
///
/// let trusted = TrustedProxies::new(["10.0.0.0/8", "::1"])?;
/// let mut headers = HeaderMap::new();
/// headers.append("x-forwarded-for", "203.0.113.7, 198.51.100.2, 10.1.1.1".parse()?);
///
/// // The client wrote 203.0.113.7 itself.
/// let client = trusted.client_ip("10.2.2.2".parse()?, &headers);
/// assert_eq!(client.to_string(), "198.51.100.2");
/// // No proxy of ours: the field is not looked at.
/// let client = trusted.client_ip("192.0.2.1".parse()?, &headers);
/// assert_eq!(client.to_string(), "192.0.2.1");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "it does nothing until a request is asked about"]
pub struct TrustedProxies {
    networks: Arc<[IpNet]>,
    field: Field,
    unix_socket: bool,
    ipv6_prefix: u8,
    /// Whether it was said that a proxy may be missing: of a peer in the Internet, and of one in a private network. Apart,
    /// as anybody may bring about the first.
    is_told: Arc<[AtomicBool; 2]>,
}

/// Which field of a request has the proxies' word.
#[derive(Clone, Debug)]
enum Field {
    XForwardedFor,
    Forwarded,
    /// One address, and nothing else.
    Single(HeaderName),
}

/// A text that is neither an address nor a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is neither an address nor a network")]
pub struct BadNetwork {
    text: String,
}

/// Nothing tells who the peer of a request is. As a response it is a 500: the server is set up wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the peer's address is unknown, serve the router by \
     `into_make_service_with_connect_info::<SocketAddr>()`"
)]
#[non_exhaustive]
pub struct ClientIpRejection;

impl ClientIp {
    /// The address itself, of which only the network counts.
    pub fn addr(&self) -> IpAddr {
        self.addr
    }

    /// What tells clients apart.
    fn network(&self) -> (IpAddr, u8) {
        match self.addr {
            IpAddr::V4(_) => (self.addr, 32),
            IpAddr::V6(addr) => {
                let host_bits = u32::from(128 - self.prefix);
                let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
                (Ipv6Addr::from_bits(addr.to_bits() & mask).into(), self.prefix)
            }
        }
    }
}

impl PartialEq for ClientIp {
    fn eq(&self, other: &Self) -> bool {
        self.network() == other.network()
    }
}

impl Eq for ClientIp {}

impl Hash for ClientIp {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self.network() {
            (IpAddr::V4(addr), _) => state.write_u32(addr.to_bits()),
            (IpAddr::V6(addr), _) => state.write_u128(addr.to_bits()),
        }
    }
}

impl fmt::Display for ClientIp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.network() {
            (addr @ IpAddr::V4(_), _) => addr.fmt(f),
            (addr, prefix) => write!(f, "{addr}/{prefix}"),
        }
    }
}

/// As it is shown; so a limiter on Redis can have it for a key.
#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
impl serde::Serialize for ClientIp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for ClientIp {
    type Rejection = ClientIpRejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ClientIpRejection> {
        static NONE: LazyLock<TrustedProxies> = LazyLock::new(TrustedProxies::none);

        match parts.extensions.get::<TrustedProxies>() {
            Some(trusted) => trusted.client_of(parts),
            None => NONE.client_of(parts),
        }
    }
}

impl TrustedProxies {
    /// None: the client is the peer.
    pub fn none() -> Self {
        let field = Field::XForwardedFor;
        let is_told = Arc::default();
        Self { networks: [].into(), field, unix_socket: false, ipv6_prefix: 64, is_told }
    }

    /// Those of these networks, such as `10.0.0.0/8`, and with these addresses.
    ///
    /// # Errors
    ///
    /// [`BadNetwork`] with the first text that is neither.
    pub fn new<T: AsRef<str>>(networks: impl IntoIterator<Item = T>) -> Result<Self, BadNetwork> {
        let network = |text: T| {
            let text = text.as_ref().trim();
            network(text).ok_or_else(|| BadNetwork { text: text.to_owned() })
        };
        let networks = networks.into_iter().map(network).collect::<Result<_, _>>()?;
        Ok(Self { networks, ..Self::none() })
    }

    /// Whether the proxies write `Forwarded` (RFC 7239). Defaults to `false`: they write `X-Forwarded-For`.
    pub fn forwarded(mut self, forwarded: bool) -> Self {
        self.field = if forwarded { Field::Forwarded } else { Field::XForwardedFor };
        self
    }

    /// A field of the proxies' own, which has the client's address and nothing else: `cf-connecting-ip`,
    /// `fly-client-ip`, `x-real-ip`. Defaults to none: they write `X-Forwarded-For`.
    ///
    /// Only for proxies that write it in each request, in the place of what the client may have written.
    pub fn header(mut self, name: HeaderName) -> Self {
        self.field = Field::Single(name);
        self
    }

    /// The router is served on a Unix socket, where peers have no address: what asks there is a proxy that is trusted.
    /// A request without an address in the proxies' field is answered by [`ClientIpRejection`]. Defaults to `false`:
    /// each request without a peer's address is.
    pub fn unix_socket(mut self, unix_socket: bool) -> Self {
        self.unix_socket = unix_socket;
        self
    }

    /// How many bits of an IPv6 address are the client's network. Defaults to 64, the least that a client
    /// is given; many have 56 or 48.
    ///
    /// # Panics
    ///
    /// Where `bits` is above 128.
    pub fn ipv6_prefix(mut self, bits: u8) -> Self {
        assert!(bits <= 128, "ipv6_prefix must be 0 to 128, got {bits}");
        self.ipv6_prefix = bits;
        self
    }

    /// Who a request with these headers is from that `peer` has sent.
    pub fn client_ip(&self, peer: IpAddr, headers: &HeaderMap) -> ClientIp {
        let peer = peer.to_canonical();
        if !self.trusts(peer) {
            self.warn_of_proxy(peer, headers);
            return self.client(peer);
        }
        self.client(self.behind(peer, self.claims(headers)))
    }

    /// The address that the last trusted proxy was asked from, of those behind `addr`, which is trusted.
    fn behind(&self, mut addr: IpAddr, claims: impl Iterator<Item = Option<IpAddr>>) -> IpAddr {
        for claim in claims.map_while(|claim| claim) {
            addr = claim;
            if !self.trusts(addr) {
                break;
            }
        }
        addr
    }

    /// Says once that what seems to be a proxy is taken for the client.
    fn warn_of_proxy(&self, peer: IpAddr, headers: &HeaderMap) {
        let names_clients = || {
            let own = matches!(&self.field, Field::Single(name) if headers.contains_key(name));
            own || headers.contains_key(&X_FORWARDED_FOR)
                || headers.contains_key(&header::FORWARDED)
        };
        let told = &self.is_told[usize::from(is_local(peer))];
        if !told.load(Relaxed) && names_clients() && !told.swap(true, Relaxed) {
            tracing::warn!(
                %peer,
                "a peer that is not trusted names its clients: if it is a proxy of yours, they all share one key; \
                 trust it by `TrustedProxies::new`"
            );
        }
    }

    fn client(&self, addr: IpAddr) -> ClientIp {
        ClientIp { addr, prefix: self.ipv6_prefix }
    }

    pub(super) fn client_of(&self, parts: &Parts) -> Result<ClientIp, ClientIpRejection> {
        let real = parts.extensions.get().map(|ConnectInfo::<SocketAddr>(peer)| peer);
        let mock = || parts.extensions.get().map(|MockConnectInfo::<SocketAddr>(peer)| peer);
        if let Some(peer) = real.or_else(mock) {
            return Ok(self.client_ip(peer.ip(), &parts.headers));
        }
        let mut claims = self.claims(&parts.headers).filter(|_| self.unix_socket);
        let first = claims.next().flatten().ok_or(ClientIpRejection)?;
        let addr = if self.trusts(first) { self.behind(first, claims) } else { first };
        Ok(self.client(addr))
    }

    fn trusts(&self, addr: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(&addr))
    }

    /// What the proxies say, the nearest first; `None` for what is no address.
    fn claims(&self, headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
        let (name, claim): (_, fn(&[u8]) -> _) = match &self.field {
            Field::XForwardedFor => (&X_FORWARDED_FOR, address),
            Field::Forwarded => (&header::FORWARDED, forwarded_for),
            Field::Single(name) => (name, address),
        };
        let most = if matches!(self.field, Field::Single(_)) { 1 } else { usize::MAX };
        let lines = headers.get_all(name).iter().rev();
        let elements = lines.flat_map(|line| from_right(line.as_bytes(), b','));
        // Empty ones count for nothing (RFC 9110, 5.6.1.2).
        elements.filter(|element| !element.trim_ascii().is_empty()).map(claim).take(most)
    }
}

impl Default for TrustedProxies {
    fn default() -> Self {
        Self::none()
    }
}

impl IntoResponse for ClientIpRejection {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, self.to_string()).into_response()
    }
}

/// Whether an address is of this machine or of a private network, as those of proxies in front of a service are.
fn is_local(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(addr) => addr.is_loopback() || addr.is_private() || addr.is_link_local(),
        IpAddr::V6(addr) => {
            addr.is_loopback() || addr.is_unique_local() || addr.is_unicast_link_local()
        }
    }
}

fn network(text: &str) -> Option<IpNet> {
    let network = match text.parse::<IpAddr>() {
        Ok(addr) => IpNet::from(addr),
        Err(_) => text.parse().ok()?,
    };
    // Addresses are looked at as IPv4 ones where they are such.
    match (network, network.addr().to_canonical()) {
        (IpNet::V6(mapped), IpAddr::V4(addr)) if mapped.prefix_len() >= 96 => {
            Ipv4Net::new(addr, mapped.prefix_len() - 96).ok().map(IpNet::V4)
        }
        _ => Some(network),
    }
}
