//! Addresses of a [`Client`](super::Client): one URL for a server, several for the nodes of a cluster.

/// One URL of a server, or several URLs of the nodes of a cluster.
///
/// ```no_run
/// # use fleeting::redis::Client;
/// # async fn f() -> Result<(), fleeting::redis::Error> {
/// let client = Client::connect("rediss://user:password@cache.example.com").await?;
/// let cluster = Client::connect(["redis://10.0.0.1", "redis://10.0.0.2"]).await?;
/// # Ok(())
/// # }
/// ```
///
/// | URL | connects to |
/// | --- | --- |
/// | `redis://[user:password@]host[:port][/db]` | a server |
/// | `rediss://...` | the same over TLS |
/// | `unix:///run/redis.sock` | a server on a Unix socket |
/// | `redis+sentinel://[user:password@]host[:port][,host[:port]...]/service[/db]` | the master that the sentinels monitor as `service` |
/// | `rediss+sentinel://...` | the same over TLS |
///
/// `?protocol=2` requests RESP2. The URL of a Unix socket may also have the parameters `db`, `user` and `pass`. Any
/// other parameter is an error.
///
/// The login in a sentinel URL is that of the master. The login of the sentinels is given by the parameters
/// `?sentinel_password=...` and `sentinel_username=...`. Their values may contain any character, but `&` and `%` must
/// be escaped as `%26` and `%25`.
pub trait Urls {
    /// Returns the URLs, and whether they belong to a cluster.
    #[doc(hidden)]
    fn into_urls(self) -> (Vec<String>, bool);
}

impl Urls for &str {
    fn into_urls(self) -> (Vec<String>, bool) {
        (vec![self.to_owned()], false)
    }
}

impl Urls for String {
    fn into_urls(self) -> (Vec<String>, bool) {
        (vec![self], false)
    }
}

impl Urls for &String {
    fn into_urls(self) -> (Vec<String>, bool) {
        (vec![self.clone()], false)
    }
}

impl<U: AsRef<str>> Urls for &[U] {
    fn into_urls(self) -> (Vec<String>, bool) {
        (self.iter().map(|url| url.as_ref().to_owned()).collect(), self.len() > 1)
    }
}

impl<U: AsRef<str>> Urls for Vec<U> {
    fn into_urls(self) -> (Vec<String>, bool) {
        self[..].into_urls()
    }
}

impl<U: AsRef<str>> Urls for &Vec<U> {
    fn into_urls(self) -> (Vec<String>, bool) {
        self[..].into_urls()
    }
}

impl<U: AsRef<str>, const N: usize> Urls for [U; N] {
    fn into_urls(self) -> (Vec<String>, bool) {
        self[..].into_urls()
    }
}

impl<U: AsRef<str>, const N: usize> Urls for &[U; N] {
    fn into_urls(self) -> (Vec<String>, bool) {
        self[..].into_urls()
    }
}
