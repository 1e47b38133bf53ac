//! Byte stream of a connection: TCP, TLS or a Unix socket.
//!
//! It is opened here, and not by the client library, so that it can be observed: bytes that arrive, or that the peer
//! accepts, show that it is alive long before a large reply or request is complete, its end is noticed with RESP2, too,
//! and the size of replies is limited.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use ::redis::{
    ConnectionAddr, ErrorKind, RedisError, RedisResult, TlsCertificates,
    io::tcp::socket2::{SockRef, TcpKeepalive},
    parse_redis_value,
};
use futures_util::future::select_ok;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, lookup_host},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::reply_meter::ReplyMeter;
use crate::redis::error::ReplyTooLarge;

/// Idle time after which the kernel probes a silent peer, and the interval of its probes: a lost idle connection is
/// noticed before it is needed.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(2));

/// Time after which the kernel gives up on unacknowledged data. By default it retransmits for about a quarter of an
/// hour.
#[cfg(target_os = "linux")]
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of bytes that the kernel holds back because the network is slower than this process. A few megabytes
/// by default: a large request would be written long before it is sent.
#[cfg(target_os = "linux")]
const MAX_UNSENT: u32 = 128 << 10;

pub(super) struct Stream {
    socket: Socket,
    /// True if the socket accepted no more bytes at the last write.
    is_full: bool,
    traffic: Arc<Traffic>,
    meter: ReplyMeter,
    /// Error of a reply that is too large, for the next read.
    too_large: Option<ReplyTooLarge>,
}

enum Socket {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    #[cfg(unix)]
    Unix(UnixStream),
}

/// View of a stream for other tasks.
#[derive(Default)]
pub(super) struct Traffic {
    progress: AtomicU64,
    has_ended: AtomicBool,
    on_end: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// First line that was received, if it is an error; empty if it is not.
    first_error: OnceLock<Box<[u8]>>,
}

/// Certificates for TLS, and the settings made of them on first use.
#[derive(Default)]
pub(super) struct Tls {
    /// Authority of the servers and certificate of the client; `None` for the defaults.
    pub(super) certificates: Option<TlsCertificates>,
    config: OnceLock<Arc<ClientConfig>>,
}

impl Stream {
    /// Connects to a server. A reply of more than `max_reply` bytes ends the stream with an error.
    pub(super) async fn open(
        to: &ConnectionAddr,
        tls: &Tls,
        max_reply: usize,
    ) -> RedisResult<(Self, Arc<Traffic>)> {
        let socket = match to {
            ConnectionAddr::Tcp(host, port) => Socket::Tcp(connect_tcp(host, *port).await?),
            ConnectionAddr::TcpTls { insecure: true, .. } => {
                let cause = "certificates cannot be left unchecked; remove `#insecure`";
                return Err((ErrorKind::InvalidClientConfig, cause).into());
            }
            ConnectionAddr::TcpTls { host, port, .. } => {
                let connector = TlsConnector::from(tls.config()?);
                let name = ServerName::try_from(host.clone()).map_err(invalid_tls)?;
                let tcp = connect_tcp(host, *port).await?;
                Socket::Tls(Box::new(connector.connect(name, tcp).await?))
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => Socket::Unix(UnixStream::connect(path).await?),
            _ => {
                let cause = "addresses of this kind are not supported";
                return Err((ErrorKind::InvalidClientConfig, cause).into());
            }
        };
        let traffic = Arc::<Traffic>::default();
        let meter = ReplyMeter::new(max_reply);
        let stream =
            Self { socket, is_full: false, traffic: traffic.clone(), meter, too_large: None };
        Ok((stream, traffic))
    }
}

impl Traffic {
    /// Returns a number that increases with each byte received, and each time that the peer accepts a part of a large
    /// request.
    pub(super) fn progress(&self) -> u64 {
        // `Relaxed`: only compared with an earlier number.
        self.progress.load(Relaxed)
    }

    /// Sets the function to call when the stream has ended, which may be now. It may be called twice.
    pub(super) fn set_on_end(&self, on_end: impl Fn() + Send + Sync + 'static) {
        let on_end = self.on_end.get_or_init(|| Box::new(on_end));
        // `SeqCst`, as in `end`: one of the two sees the store of the other.
        if self.has_ended() {
            on_end();
        }
    }

    /// Returns whether the stream has ended. It has when the function of [`set_on_end`](Self::set_on_end) is called.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(SeqCst)
    }

    /// Returns the error that the server sent first. A server that accepts no more clients sends one before any
    /// command, and closes the connection.
    pub(super) fn first_error(&self) -> Option<RedisError> {
        parse_redis_value(self.first_error.get()?).ok()?.extract_error().err()
    }

    fn record_first_line(&self, bytes: &[u8]) {
        self.first_error.get_or_init(|| {
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let line = end.map_or(&[][..], |end| &bytes[..=end]);
            if line.starts_with(b"-") { line.into() } else { Box::default() }
        });
    }

    fn end(&self) {
        if !self.has_ended.swap(true, SeqCst)
            && let Some(on_end) = self.on_end.get()
        {
            on_end();
        }
    }
}

impl Tls {
    pub(super) fn new(certificates: Option<TlsCertificates>) -> Self {
        Self { certificates, config: OnceLock::new() }
    }

    fn config(&self) -> RedisResult<Arc<ClientConfig>> {
        if let Some(config) = self.config.get() {
            return Ok(config.clone());
        }
        let certificates = self.certificates.as_ref();
        let mut roots = RootCertStore::empty();
        match certificates.and_then(|all| all.root_cert.as_ref()) {
            Some(authority) => {
                for certificate in CertificateDer::pem_slice_iter(authority) {
                    roots.add(certificate.map_err(invalid_tls)?).map_err(invalid_tls)?;
                }
            }
            None => {
                // Certificates that cannot be read are skipped: the others may be sufficient.
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        let config = ClientConfig::builder().with_root_certificates(roots);
        let config = match certificates.and_then(|all| all.client_tls.as_ref()) {
            Some(client) => {
                let chain: Result<Vec<_>, _> =
                    CertificateDer::pem_slice_iter(&client.client_cert).collect();
                let key = PrivateKeyDer::from_pem_slice(&client.client_key).map_err(invalid_tls)?;
                config
                    .with_client_auth_cert(chain.map_err(invalid_tls)?, key)
                    .map_err(invalid_tls)?
            }
            None => config.with_no_client_auth(),
        };
        Ok(self.config.get_or_init(|| Arc::new(config)).clone())
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(error) = self.too_large.take() {
            self.traffic.end();
            return Poll::Ready(Err(invalid_data(error)));
        }
        let before = buf.filled().len();
        let read = ready!(match &mut self.socket {
            Socket::Tcp(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Socket::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
            #[cfg(unix)]
            Socket::Unix(unix) => Pin::new(unix).poll_read(cx, buf),
        });
        let bytes = buf.filled().len() - before;
        self.traffic.progress.fetch_add(bytes as u64, Relaxed);
        if read.is_err() || bytes == 0 {
            self.traffic.end();
        } else {
            self.traffic.record_first_line(&buf.filled()[before..]);
        }
        if let Err((in_front, error)) = self.meter.count(&buf.filled()[before..]) {
            // The replies in front of it belong to other calls.
            buf.set_filled(before + in_front);
            if in_front == 0 {
                self.traffic.end();
                return Poll::Ready(Err(invalid_data(error)));
            }
            self.too_large = Some(error);
        }
        Poll::Ready(read)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = match &mut self.socket {
            Socket::Tcp(tcp) => Pin::new(tcp).poll_write(cx, buf),
            Socket::Tls(tls) => Pin::new(tls).poll_write(cx, buf),
            #[cfg(unix)]
            Socket::Unix(unix) => Pin::new(unix).poll_write(cx, buf),
        };
        let was_full = std::mem::replace(&mut self.is_full, written.is_pending());
        match &written {
            // Not each write: the kernel accepts many small ones although the network drops all packets.
            Poll::Ready(Ok(bytes)) if was_full => {
                self.traffic.progress.fetch_add(*bytes as u64, Relaxed);
            }
            Poll::Ready(Err(_)) => self.traffic.end(),
            _ => {}
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.socket {
            Socket::Tcp(tcp) => Pin::new(tcp).poll_flush(cx),
            Socket::Tls(tls) => Pin::new(tls).poll_flush(cx),
            #[cfg(unix)]
            Socket::Unix(unix) => Pin::new(unix).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.socket {
            Socket::Tcp(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Socket::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
            #[cfg(unix)]
            Socket::Unix(unix) => Pin::new(unix).poll_shutdown(cx),
        }
    }
}

/// Connects to the address of a host that answers first.
async fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let addresses: Vec<SocketAddr> = lookup_host((host, port)).await?.collect();
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the host name has no address"));
    }
    let attempts = addresses.into_iter().map(|address| Box::pin(TcpStream::connect(address)));
    let (stream, _) = select_ok(attempts).await?;
    stream.set_nodelay(true)?;
    let (idle, interval) = KEEPALIVE;
    let socket = SockRef::from(&stream);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(idle).with_interval(interval))?;
    #[cfg(target_os = "linux")]
    {
        socket.set_tcp_user_timeout(Some(TCP_USER_TIMEOUT))?;
        socket.set_tcp_notsent_lowat(MAX_UNSENT)?;
    }
    Ok(stream)
}

fn invalid_data(error: ReplyTooLarge) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn invalid_tls(error: impl std::fmt::Display) -> RedisError {
    let cause = "cannot use the authority, client certificate, key or host name for TLS";
    (ErrorKind::InvalidClientConfig, cause, error.to_string()).into()
}
