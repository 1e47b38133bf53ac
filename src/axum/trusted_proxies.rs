//! Trusted proxies, and the client address that they report.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use ::axum::{
    extract::{ConnectInfo, FromRequestParts, connect_info::MockConnectInfo},
    http::{Extensions, HeaderMap, HeaderName, header, request::Parts},
};
use ipnet::{IpNet, Ipv4Net};

use super::{
    client_ip::{ClientIp, ClientIpRejection, IPV4_PREFIX, IPV6_PREFIX},
    forwarded::{address, forwarded_for, from_right},
};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Trusted proxies, and the header field in which they report the client, to find your clients behind load balancers.
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
/// // Not a trusted proxy: the field is ignored.
/// let client = trusted.client_ip("192.0.2.1".parse()?, &headers);
/// assert_eq!(client.to_string(), "192.0.2.1");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Give it to [`RateLimitLayer::by_ip`](crate::RateLimitLayer::by_ip), or add it as an `Extension` layer for the
/// extractor [`ClientIp`]. Cloning it is cheap.
///
/// # Search for the client
///
/// A proxy appends the address of its own peer at the right end of `X-Forwarded-For` or, with
/// [`forwarded`](TrustedProxies::forwarded), `Forwarded` (RFC 7239). Everything to the left of it arrived with the
/// request and may be forged. The addresses are therefore examined from right to left, over all lines of the field. The
/// client is the first address that does not belong to a trusted proxy; if all addresses belong to trusted proxies, it
/// is the leftmost one. Empty elements are skipped. The search ends at an element that is not an address (such as
/// `unknown` or `_hidden`), and the client is then the last address examined before it.
///
/// The field is ignored if the peer is not trusted.
///
/// # Choice of proxies
///
/// Trust only your own proxies, by the addresses from which they connect. Any host of a trusted network can claim any
/// client address; with `0.0.0.0/0`, every host on the Internet can.
///
/// # Choice of the field
///
/// Only one field is read, by default `X-Forwarded-For`. It must be one that your proxies write: they pass all other
/// fields through unchanged, so a client can forge those. The crate cannot detect which field your proxies write. If
/// they write only `Forwarded`, call [`forwarded`](TrustedProxies::forwarded); if they write a field of their own, call
/// [`header`](TrustedProxies::header).
///
/// A proxy that writes `Forwarded` must quote what it copies from the request, such as `host`. Otherwise a client adds
/// an element of its own by a comma in its `Host`, and no reader can detect that. Prefer `X-Forwarded-For` then.
///
/// If a proxy is not trusted, all clients behind it count as one. A warning is logged when an untrusted peer sends such
/// a field, at most twice per `TrustedProxies` and its clones: for the first such peer in a private network, where most
/// proxies are, and for the first on the Internet, which may be the proxy of a CDN or any client.
#[derive(Clone, Debug)]
#[must_use = "it has no effect until it is given to a layer"]
pub struct TrustedProxies {
    networks: Arc<[IpNet]>,
    field: ForwardField,
    unix_socket: bool,
    ipv4_prefix: u8,
    ipv6_prefix: u8,
    peer: Option<PeerFn>,
    /// Set when the warning about a possibly missing proxy was logged: for a peer on the Internet, and for one in a
    /// private network. They are separate because any client can trigger the first.
    has_warned: Arc<[AtomicBool; 2]>,
}

/// Function that returns the peer of a request.
#[derive(Clone)]
struct PeerFn(Arc<PeerOf>);

type PeerOf = dyn Fn(&Extensions) -> Option<IpAddr> + Send + Sync;

impl fmt::Debug for PeerFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerFn(..)")
    }
}

/// Header field in which the proxies report the client.
#[derive(Clone, Debug)]
enum ForwardField {
    XForwardedFor,
    Forwarded,
    /// A field with exactly one address.
    Single(HeaderName),
}

/// Error for a text that is neither an IP address nor a network. Returned by [`TrustedProxies::new`], which has an
/// example.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is neither an IP address nor a network such as 10.0.0.0/8")]
pub struct BadNetwork {
    text: String,
}

/// Client by which an outer layer limits a request, as an extension; `None` if it found none, and admitted the request
/// without one.
#[derive(Clone, Copy)]
struct LayerClient(Option<ClientIp>);

impl<S: Send + Sync> FromRequestParts<S> for ClientIp {
    type Rejection = ClientIpRejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ClientIpRejection> {
        static NONE: LazyLock<TrustedProxies> = LazyLock::new(TrustedProxies::none);

        if let Some(trusted) = parts.extensions.get::<TrustedProxies>() {
            return trusted.client_of(parts);
        }
        match parts.extensions.get::<LayerClient>() {
            Some(LayerClient(client)) => client.ok_or(ClientIpRejection),
            None => NONE.client_of(parts),
        }
    }
}

impl TrustedProxies {
    /// Creates a configuration that trusts no proxy: the client is the peer.
    ///
    /// ```
    /// # use axum::{Router, routing::get};
    /// # use fleeting::{Limit, RateLimitLayer, RateLimiter, TrustedProxies};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// // The server is on the Internet, without a proxy: nothing that a client writes is believed.
    /// let limiter = RateLimiter::new(Limit::per_minute(100));
    /// let app: Router = Router::new()
    ///     .route("/", get("hello"))
    ///     .layer(RateLimitLayer::by_ip(limiter, TrustedProxies::none()));
    /// # }
    /// ```
    pub fn none() -> Self {
        let field = ForwardField::XForwardedFor;
        let has_warned = Arc::default();
        Self {
            networks: [].into(),
            field,
            unix_socket: false,
            ipv4_prefix: IPV4_PREFIX,
            ipv6_prefix: IPV6_PREFIX,
            peer: None,
            has_warned,
        }
    }

    /// Creates a configuration that trusts the given networks, such as `10.0.0.0/8`, and addresses.
    ///
    /// # Errors
    ///
    /// Returns [`BadNetwork`] with the first text that is neither a network nor an address.
    ///
    /// # Examples
    ///
    /// ```
    /// # use fleeting::TrustedProxies;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let trusted = TrustedProxies::new(["10.0.0.0/8", "2001:db8::17"])?;
    /// let error = TrustedProxies::new(["10.0.0.0/33"]).unwrap_err();
    /// assert_eq!(error.to_string(), r#""10.0.0.0/33" is neither an IP address nor a network such as 10.0.0.0/8"#);
    /// # Ok(()) }
    /// ```
    pub fn new<T: AsRef<str>>(networks: impl IntoIterator<Item = T>) -> Result<Self, BadNetwork> {
        let network = |text: T| {
            let text = text.as_ref().trim();
            network(text).ok_or_else(|| BadNetwork { text: text.to_owned() })
        };
        let networks = networks.into_iter().map(network).collect::<Result<_, _>>()?;
        Ok(Self { networks, ..Self::none() })
    }

    /// Sets whether the proxies write `Forwarded` (RFC 7239). Defaults to `false`: `X-Forwarded-For` is read.
    ///
    /// ```
    /// # use axum::http::HeaderMap;
    /// # use fleeting::TrustedProxies;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let trusted = TrustedProxies::new(["10.0.0.0/8"])?.forwarded(true);
    /// let mut headers = HeaderMap::new();
    /// headers.insert("forwarded", "for=198.51.100.2;proto=https".parse()?);
    /// let client = trusted.client_ip("10.0.0.1".parse()?, &headers);
    /// assert_eq!(client.to_string(), "198.51.100.2");
    /// # Ok(()) }
    /// ```
    pub fn forwarded(mut self, forwarded: bool) -> Self {
        self.field = if forwarded { ForwardField::Forwarded } else { ForwardField::XForwardedFor };
        self
    }

    /// Sets the header field in which the proxies report the client's address and nothing else, such as
    /// `cf-connecting-ip`, `fly-client-ip` or `x-real-ip`. By default, `X-Forwarded-For` is read.
    ///
    /// Use it only for proxies that write the field in every request, replacing the value that the client may have
    /// sent.
    ///
    /// ```
    /// # use axum::http::{HeaderMap, HeaderName};
    /// # use fleeting::TrustedProxies;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let real_ip = HeaderName::from_static("x-real-ip");
    /// let trusted = TrustedProxies::new(["10.0.0.0/8"])?.header(real_ip);
    /// let mut headers = HeaderMap::new();
    /// headers.insert("x-real-ip", "198.51.100.2".parse()?);
    /// let client = trusted.client_ip("10.0.0.1".parse()?, &headers);
    /// assert_eq!(client.to_string(), "198.51.100.2");
    /// # Ok(()) }
    /// ```
    pub fn header(mut self, name: HeaderName) -> Self {
        self.field = ForwardField::Single(name);
        self
    }

    /// Declares that the router is served on a Unix socket, where peers have no address. Every peer is then a trusted
    /// proxy, and a request without an address in the proxies' field is answered by [`ClientIpRejection`]. Defaults to
    /// `false`: every request without a peer address is rejected.
    ///
    /// ```
    /// # use axum::{Router, body::Body, http::Request, routing::get};
    /// # use fleeting::{Limit, RateLimitLayer, RateLimiter, TrustedProxies};
    /// # use tower::ServiceExt;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// // nginx forwards requests to a Unix socket, with the client in X-Forwarded-For.
    /// let trusted = TrustedProxies::none().unix_socket(true);
    /// let limiter = RateLimiter::new(Limit::per_minute(1));
    /// let app = Router::new().route("/", get("hello")).layer(RateLimitLayer::by_ip(limiter, trusted));
    /// # let ask = |client| {
    /// #     let request = Request::get("/").header("x-forwarded-for", client);
    /// #     app.clone().oneshot(request.body(Body::empty()).unwrap())
    /// # };
    /// for (client, status) in [("192.0.2.1", 200), ("192.0.2.1", 429), ("192.0.2.2", 200)] {
    ///     assert_eq!(ask(client).await.unwrap().status(), status);
    /// }
    /// # }
    /// ```
    pub fn unix_socket(mut self, unix_socket: bool) -> Self {
        self.unix_socket = unix_socket;
        self
    }

    /// Sets a function that returns the peer of a request from its extensions. Defaults to axum's
    /// `ConnectInfo<SocketAddr>`, which is then not read.
    ///
    /// Needed by servers that insert another type: tonic's own server inserts a `TcpConnectInfo`, and a router behind
    /// the PROXY protocol a type of its own. A request for which the function returns `None` counts as one without a
    /// peer address.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::net::SocketAddr;
    /// use axum::{Router, body::Body, extract::Extension, http::Request, routing::get};
    /// use fleeting::{Limit, RateLimitLayer, RateLimiter, TrustedProxies};
    /// # use tower::ServiceExt;
    ///
    /// /// What the server inserts, such as tonic's `TcpConnectInfo`.
    /// #[derive(Clone)]
    /// struct ConnectInfo { remote_addr: Option<SocketAddr> }
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let trusted = TrustedProxies::none()
    ///     .peer(|extensions| Some(extensions.get::<ConnectInfo>()?.remote_addr?.ip()));
    /// let limiter = RateLimiter::builder().limit(Limit::per_minute(1)).build();
    /// let app = Router::new().route("/", get("hello")).layer(RateLimitLayer::by_ip(limiter, trusted));
    /// # let remote_addr = Some(SocketAddr::from(([192, 0, 2, 1], 1337)));
    /// # let app = app.layer(Extension(ConnectInfo { remote_addr }));
    /// # for status in [200, 429] {
    /// #     let answer = app.clone().oneshot(Request::new(Body::empty())).await.unwrap();
    /// #     assert_eq!(answer.status(), status);
    /// # }
    /// # }
    /// ```
    pub fn peer(
        mut self,
        peer: impl Fn(&Extensions) -> Option<IpAddr> + Send + Sync + 'static,
    ) -> Self {
        self.peer = Some(PeerFn(Arc::new(peer)));
        self
    }

    /// Sets the number of leading bits of an IPv4 address that identify a client. Defaults to 32, the whole address.
    /// With 24, the 256 addresses of a network count as one client, for example those of a hoster.
    ///
    /// # Panics
    ///
    /// Panics if `bits` is above 32.
    ///
    /// # Examples
    ///
    /// ```
    /// # use axum::http::HeaderMap;
    /// # use fleeting::TrustedProxies;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let trusted = TrustedProxies::none().ipv4_prefix(24);
    /// let client = trusted.client_ip("192.0.2.77".parse()?, &HeaderMap::new());
    /// assert_eq!(client.to_string(), "192.0.2.0/24");
    /// # Ok(()) }
    /// ```
    pub fn ipv4_prefix(mut self, bits: u8) -> Self {
        assert!(bits <= 32, "ipv4_prefix must be 0 to 32, got {bits}");
        self.ipv4_prefix = bits;
        self
    }

    /// Sets the number of leading bits of an IPv6 address that identify a client. Defaults to 64, the smallest network
    /// that is usually assigned to a client; many clients have a /56 or a /48.
    ///
    /// # Panics
    ///
    /// Panics if `bits` is above 128.
    ///
    /// # Examples
    ///
    /// ```
    /// # use axum::http::HeaderMap;
    /// # use fleeting::TrustedProxies;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let trusted = TrustedProxies::none().ipv6_prefix(48);
    /// let one = trusted.client_ip("2001:db8:1:2::3".parse()?, &HeaderMap::new());
    /// let other = trusted.client_ip("2001:db8:1:9::4".parse()?, &HeaderMap::new());
    /// assert_eq!(one, other, "they share a quota");
    /// # Ok(()) }
    /// ```
    pub fn ipv6_prefix(mut self, bits: u8) -> Self {
        assert!(bits <= 128, "ipv6_prefix must be 0 to 128, got {bits}");
        self.ipv6_prefix = bits;
        self
    }

    /// Returns the client of a request with these headers that came from `peer`.
    ///
    /// ```
    /// # use axum::http::HeaderMap;
    /// # use fleeting::TrustedProxies;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let trusted = TrustedProxies::new(["10.0.0.0/8"])?;
    /// let mut headers = HeaderMap::new();
    /// headers.insert("x-forwarded-for", "198.51.100.2".parse()?);
    /// let client = trusted.client_ip("10.0.0.1".parse()?, &headers);
    /// assert_eq!(client.to_string(), "198.51.100.2");
    /// # Ok(()) }
    /// ```
    pub fn client_ip(&self, peer: IpAddr, headers: &HeaderMap) -> ClientIp {
        // An IPv6 socket reports IPv4 peers as IPv4-mapped addresses, which would not match IPv4 networks.
        let peer = peer.to_canonical();
        if !self.trusts(peer) {
            self.warn_of_proxy(peer, headers);
            return self.with_prefix(peer);
        }
        self.with_prefix(self.client_behind(peer, self.claims(headers)))
    }

    /// Follows the reported addresses from the trusted proxy `addr` to the first that is not trusted, or to the last.
    fn client_behind(
        &self,
        mut addr: IpAddr,
        claims: impl Iterator<Item = Option<IpAddr>>,
    ) -> IpAddr {
        for claim in claims.map_while(|claim| claim) {
            addr = claim;
            if !self.trusts(addr) {
                break;
            }
        }
        addr
    }

    /// Warns once if a peer that is taken for a client seems to be a proxy.
    fn warn_of_proxy(&self, peer: IpAddr, headers: &HeaderMap) {
        let names_clients = || {
            let own =
                matches!(&self.field, ForwardField::Single(name) if headers.contains_key(name));
            own || headers.contains_key(&X_FORWARDED_FOR)
                || headers.contains_key(&header::FORWARDED)
        };
        let has_warned = &self.has_warned[usize::from(is_local(peer))];
        // Read before it is swapped: after the warning, requests only read the shared flag. The swap decides between
        // concurrent requests.
        if !has_warned.load(Relaxed) && names_clients() && !has_warned.swap(true, Relaxed) {
            tracing::warn!(
                %peer,
                "untrusted peer sent a forwarding header, all its clients share one key"
            );
        }
    }

    fn with_prefix(&self, addr: IpAddr) -> ClientIp {
        let prefix = if addr.is_ipv4() { self.ipv4_prefix } else { self.ipv6_prefix };
        ClientIp { addr, prefix }
    }

    pub(super) fn client_of(&self, parts: &Parts) -> Result<ClientIp, ClientIpRejection> {
        if let Some(peer) = self.peer_of(&parts.extensions) {
            return Ok(self.client_ip(peer, &parts.headers));
        }
        // Without a peer address, only the proxy's field is left, and it is read only if every peer is a proxy.
        let mut claims = self.claims(&parts.headers).filter(|_| self.unix_socket);
        let first = claims.next().flatten().ok_or(ClientIpRejection)?;
        let addr = if self.trusts(first) { self.client_behind(first, claims) } else { first };
        Ok(self.with_prefix(addr))
    }

    /// Returns the client, and adds it to the extensions for extractors further inside.
    pub(super) fn record_client(&self, parts: &mut Parts) -> Result<ClientIp, ClientIpRejection> {
        let client = self.client_of(parts);
        // Without a proxy, extractors find the same client, and need no extension, which costs an allocation.
        let is_found = self.networks.is_empty()
            && self.peer.is_none()
            && !self.unix_socket
            && (self.ipv4_prefix, self.ipv6_prefix) == (IPV4_PREFIX, IPV6_PREFIX);
        if !is_found || parts.extensions.get::<LayerClient>().is_some() {
            parts.extensions.insert(LayerClient(client.as_ref().ok().copied()));
        }
        client
    }

    fn peer_of(&self, extensions: &Extensions) -> Option<IpAddr> {
        if let Some(PeerFn(peer)) = &self.peer {
            return peer(extensions);
        }
        let real = extensions.get().map(|ConnectInfo::<SocketAddr>(peer)| peer.ip());
        let mock = || extensions.get().map(|MockConnectInfo::<SocketAddr>(peer)| peer.ip());
        real.or_else(mock)
    }

    fn trusts(&self, addr: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(&addr))
    }

    /// Returns the addresses in the proxies' field, the nearest first; `None` for an element that is not an address.
    fn claims(&self, headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
        let (name, claim): (_, fn(&[u8]) -> _) = match &self.field {
            ForwardField::XForwardedFor => (&X_FORWARDED_FOR, address),
            ForwardField::Forwarded => (&header::FORWARDED, forwarded_for),
            ForwardField::Single(name) => (name, address),
        };
        // The nearest element only: the proxy replaces such a field, so it has no further hops.
        let most = if matches!(self.field, ForwardField::Single(_)) { 1 } else { usize::MAX };
        let lines = headers.get_all(name).iter().rev();
        let elements = lines.flat_map(|line| from_right(line.as_bytes(), b','));
        // Empty elements are ignored (RFC 9110, 5.6.1.2).
        elements.filter(|element| !element.trim_ascii().is_empty()).map(claim).take(most)
    }
}

impl Default for TrustedProxies {
    fn default() -> Self {
        Self::none()
    }
}

/// Returns `true` for addresses of this machine or of a private network, where the proxies of a service mostly are.
fn is_local(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(addr) => addr.is_loopback() || addr.is_private() || addr.is_link_local(),
        IpAddr::V6(addr) => {
            addr.is_loopback() || addr.is_unique_local() || addr.is_unicast_link_local()
        }
    }
}

fn network(text: &str) -> Option<IpNet> {
    // The address is parsed by the standard library, which refuses leading zeros: `010.0.0.0` is 8.0.0.0 to programs
    // that read them as octal numbers.
    let network = match text.split_once('/') {
        None => IpNet::from(text.parse::<IpAddr>().ok()?),
        Some((addr, bits)) => IpNet::new(addr.parse().ok()?, prefix_len(bits)?).ok()?,
    };
    // Peers are compared as IPv4 addresses if they are IPv4-mapped, so mapped networks become IPv4 ones.
    match (network, network.addr().to_canonical()) {
        (IpNet::V6(mapped), IpAddr::V4(addr)) if mapped.prefix_len() >= 96 => {
            Ipv4Net::new(addr, mapped.prefix_len() - 96).ok().map(IpNet::V4)
        }
        _ => Some(network),
    }
}

/// Parses the length of a prefix, without a sign or leading zeros.
fn prefix_len(text: &str) -> Option<u8> {
    let bits: u8 = text.parse().ok()?;
    (bits.to_string() == text).then_some(bits)
}
