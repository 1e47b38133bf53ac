//! What URLs lead to: servers, or the sentinels that know one.

use std::sync::{Arc, atomic::AtomicUsize};

use ::redis::{
    ConnectionInfo, ErrorKind, IntoConnectionInfo, ProtocolVersion, RedisError, RedisResult,
};

use super::sentinel::Sentinels;

#[derive(Clone)]
pub(super) enum Servers {
    /// One server, or nodes of a cluster.
    Plain(Vec<ConnectionInfo>),
    Watched(Arc<Sentinels>),
}

impl Servers {
    pub(super) fn of(urls: &[String]) -> RedisResult<Self> {
        let mut plain = Vec::new();
        let mut watched: Option<Sentinels> = None;
        for url in urls {
            match sentinels_of(url)? {
                None => plain.push(server_of(url)?),
                Some(sentinels) => match &mut watched {
                    None => watched = Some(sentinels),
                    Some(known) if known.service == sentinels.service => {
                        known.addresses.extend(sentinels.addresses);
                    }
                    Some(_) => return Err(wrong("the sentinels are asked for several services")),
                },
            }
        }
        match watched {
            None if plain.is_empty() => Err(wrong("no URL was given")),
            None => Ok(Self::Plain(plain)),
            Some(sentinels) if plain.is_empty() => Ok(Self::Watched(sentinels.into())),
            Some(_) => Err(wrong("some of the URLs are those of sentinels, and some are not")),
        }
    }
}

/// `redis+sentinel://[user:password@]host[:port][,host[:port]...]/service[/db][?...]`; `None` for another scheme.
fn sentinels_of(url: &str) -> RedisResult<Option<Sentinels>> {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let scheme = match scheme {
        "redis+sentinel" => "redis",
        "rediss+sentinel" => "rediss",
        _ => return Ok(None),
    };
    let (rest, query) = rest.split_once('?').map_or((rest, ""), |(rest, query)| (rest, query));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (login, hosts) = match authority.rsplit_once('@') {
        Some((login, hosts)) => (format!("{login}@"), hosts),
        None => (String::new(), authority),
    };
    let (service, database) = path.trim_end_matches('/').split_once('/').unwrap_or((path, ""));
    let service = service.trim_end_matches('/');
    if service.is_empty() {
        return Err(wrong("the URL of a sentinel names no service"));
    }
    // What is said of the sentinels themselves; the rest is said of the server.
    let (mut own, mut others) = ([None, None], Vec::new());
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("sentinel_username", name)) => own[0] = Some(name),
            Some(("sentinel_password", password)) => own[1] = Some(password),
            _ => others.push(pair),
        }
    }
    let login_of_sentinel = match own {
        [name, Some(password)] => format!("{}:{password}@", name.unwrap_or_default()),
        _ => String::new(),
    };
    let query = match &others[..] {
        [] => String::new(),
        others => format!("?{}", others.join("&")),
    };
    let addresses = hosts.split(',').map(|host| {
        // The port of sentinels, where none is named: the last colon may be one of an IPv6 address.
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
        let port = if has_port { "" } else { ":26379" };
        server_of(&format!("{scheme}://{login_of_sentinel}{host}{port}{query}"))
    });
    Ok(Some(Sentinels {
        addresses: addresses.collect::<RedisResult<_>>()?,
        service: service.to_owned(),
        // The host is told by the sentinels.
        master: server_of(&format!("{scheme}://{login}localhost/{database}{query}"))?,
        next: AtomicUsize::new(0),
    }))
}

fn server_of(url: &str) -> RedisResult<ConnectionInfo> {
    let info = url.into_connection_info()?;
    let is_chosen = url.split_once('?').is_some_and(|(_, query)| query.contains("protocol="));
    if is_chosen {
        return Ok(info);
    }
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    Ok(info.set_redis_settings(settings))
}

fn wrong(cause: &'static str) -> RedisError {
    (ErrorKind::InvalidClientConfig, cause).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentinel_url_has_hosts_a_service_and_two_logins() {
        let url = "redis+sentinel://ada:se%40cret@10.0.0.1,[::1]:26380/main/3\
                   ?sentinel_password=other&protocol=2";
        let Ok(Servers::Watched(sentinels)) = Servers::of(&[url.to_owned()]) else {
            panic!("it is a URL")
        };
        let hosts: Vec<_> =
            sentinels.addresses.iter().map(|info| info.addr().to_string()).collect();
        assert_eq!(hosts, ["10.0.0.1:26379", "::1:26380"]);
        assert_eq!(sentinels.service, "main");
        let of_sentinel = sentinels.addresses[0].redis_settings();
        assert_eq!((of_sentinel.username(), of_sentinel.password()), (None, Some("other")));
        let of_master = sentinels.master.redis_settings();
        assert_eq!((of_master.username(), of_master.password()), (Some("ada"), Some("se@cret")));
        assert_eq!((of_master.db(), of_master.protocol()), (3, ProtocolVersion::RESP2));
    }

    #[test]
    fn what_is_no_url_is_refused() {
        let of = |urls: &[&str]| {
            Servers::of(&urls.iter().map(|&url| url.to_owned()).collect::<Vec<_>>()).is_ok()
        };
        assert!(of(&["redis+sentinel://a/s", "redis+sentinel://b:1/s/"]));
        for urls in [
            &[][..],
            &["redis+sentinel://a"],
            &["redis+sentinel://a/"],
            &["redis+sentinel:///s"],
            &["redis+sentinel://a/s/x"],
            &["redis+sentinel://a/s", "redis+sentinel://b/t"],
            &["redis+sentinel://a/s", "redis://b"],
            &["postgres://a"],
            &["nothing"],
        ] {
            assert!(!of(urls), "{urls:?}");
        }
    }
}
