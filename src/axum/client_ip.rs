//! Client address of a request, as the key of a limiter, and how many bits of it identify a client. `trusted_proxies`
//! finds it, and extracts it for handlers.

use std::{
    fmt,
    hash::{Hash, Hasher},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ::axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};

/// Default numbers of leading bits that identify a client.
pub(super) const IPV4_PREFIX: u8 = 32;
pub(super) const IPV6_PREFIX: u8 = 64;

/// Address of a client: the key to limit anonymous clients by, and an extractor for your handlers.
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
///
/// # Networks
///
/// A `ClientIp` is an IPv4 address, or the network of an IPv6 address. Two values are equal if their networks are
/// equal.
///
/// * For IPv4, the network is the whole address, unless you set a [prefix](crate::TrustedProxies::ipv4_prefix).
/// * For IPv6, it is the [prefix](crate::TrustedProxies::ipv6_prefix), 64 bits by default, because a client with one
///   address of such a network usually has all of them.
/// * An IPv4-mapped IPv6 address is the IPv4 address.
///
/// `Display` writes the network: `192.0.2.1` or `2001:db8:0:1::/64`.
///
/// # Behind proxies
///
/// The extractor returns the address of the connection's peer. If an outer layer `Extension(TrustedProxies)` trusts the
/// peer, the extractor returns the client address that the peer reports: see [`TrustedProxies`](crate::TrustedProxies).
/// Without such a layer, but below a layer of [`by_ip`](crate::RateLimitLayer::by_ip), it returns the address by which
/// the innermost of them limits requests.
///
/// # Errors
///
/// Extraction fails with [`ClientIpRejection`] if the peer address is unknown because the router is not served by
/// `into_make_service_with_connect_info::<SocketAddr>()`. In your tests, axum's `MockConnectInfo` can provide the
/// address.
#[derive(Clone, Copy, Debug)]
pub struct ClientIp {
    pub(super) addr: IpAddr,
    /// Number of leading bits of the address that identify the client.
    pub(super) prefix: u8,
}

/// Rejection of a request whose peer address is unknown. As a response it is a 500, because the server is
/// misconfigured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "peer address is unknown; serve the router with \
     `into_make_service_with_connect_info::<SocketAddr>()`"
)]
#[non_exhaustive]
pub struct ClientIpRejection;

impl ClientIp {
    /// Returns the full address; only its network counts for equality.
    ///
    /// ```
    /// # use axum::http::HeaderMap;
    /// # use std::net::IpAddr;
    /// # use fleeting::TrustedProxies;
    /// let peer: IpAddr = "2001:db8:0:1::7".parse().unwrap();
    /// let client = TrustedProxies::none().client_ip(peer, &HeaderMap::new());
    /// assert_eq!(client.to_string(), "2001:db8:0:1::/64", "counted by its network");
    /// assert_eq!(client.addr(), peer, "for a log");
    /// ```
    pub fn addr(&self) -> IpAddr {
        self.addr
    }

    /// Returns the network that identifies the client, and the length of its prefix.
    fn network(&self) -> (IpAddr, u8) {
        match self.addr {
            IpAddr::V4(addr) => {
                let host_bits = u32::from(32 - self.prefix);
                // As below.
                let mask = u32::MAX.checked_shl(host_bits).unwrap_or(0);
                (Ipv4Addr::from_bits(addr.to_bits() & mask).into(), self.prefix)
            }
            IpAddr::V6(addr) => {
                let host_bits = u32::from(128 - self.prefix);
                // A prefix of 0 shifts by 128 bits, which a plain shift does not allow.
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
        // Without the prefix: equal values have equal hashes anyway.
        match self.network() {
            (IpAddr::V4(addr), _) => state.write_u32(addr.to_bits()),
            (IpAddr::V6(addr), _) => state.write_u128(addr.to_bits()),
        }
    }
}

impl fmt::Display for ClientIp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.network() {
            (addr @ IpAddr::V4(_), 32) => addr.fmt(f),
            (addr, prefix) => write!(f, "{addr}/{prefix}"),
        }
    }
}

/// Serialized as displayed, so that it can be a key of a limiter on Redis.
#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
impl serde::Serialize for ClientIp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl IntoResponse for ClientIpRejection {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, self.to_string()).into_response()
    }
}
