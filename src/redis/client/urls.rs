//! What [`Client`](super::Client) takes as addresses: one URL is a server, several are the nodes of a cluster.

/// One URL, or several: those of a cluster's nodes. `redis://`, and `rediss://` for TLS; a path, `unix:///run/redis.sock`;
/// or `redis+sentinel://[user:password@]host[:port][,host[:port]...]/service[/db]`, with `rediss+sentinel://` for TLS, for
/// the master that these sentinels know by the name `service`. The login is that of the master; the sentinels' own is
/// `?sentinel_password=...`, with `sentinel_username=...`.
pub trait Urls {
    /// The URLs, and whether they are those of a cluster.
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
