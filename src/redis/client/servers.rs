//! Parsing of URLs into servers, or into the sentinels of a master.

use std::{
    fmt::Write,
    sync::{Arc, atomic::AtomicUsize},
};

use ::redis::{
    ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo, ProtocolVersion, RedisError,
    RedisResult,
};

use super::sentinel::Sentinels;

#[derive(Clone)]
pub(super) enum Servers {
    /// One server, or nodes of a cluster.
    Direct(Vec<ConnectionInfo>),
    Sentinels(Arc<Sentinels>),
}

impl Servers {
    pub(super) fn parse(urls: &[String]) -> RedisResult<Self> {
        let mut direct = Vec::new();
        let mut all_sentinels: Option<Sentinels> = None;
        for url in urls {
            match parse_sentinels(url)? {
                None => direct.push(parse_server(url)?),
                Some(sentinels) => match &mut all_sentinels {
                    None => all_sentinels = Some(sentinels),
                    Some(known) if known.service == sentinels.service => {
                        known.addresses.extend(sentinels.addresses);
                    }
                    Some(_) => return Err(invalid("all sentinel URLs must name the same service")),
                },
            }
        }
        match all_sentinels {
            None if direct.is_empty() => Err(invalid("no URL given")),
            None => Ok(Self::Direct(direct)),
            Some(sentinels) if direct.is_empty() => Ok(Self::Sentinels(sentinels.into())),
            Some(_) => Err(invalid("URLs of sentinels and of servers cannot be mixed")),
        }
    }

    /// Returns a text that is the same for the same URLs, without their credentials.
    pub(super) fn id(&self) -> String {
        let (service, servers, database) = match self {
            Self::Direct(servers) => ("", servers, &servers[0]),
            Self::Sentinels(of) => (&of.service[..], &of.addresses, &of.master),
        };
        let addresses: Vec<_> = servers.iter().map(|server| server.addr().to_string()).collect();
        format!("{service}@{}/{}", addresses.join(","), database.redis_settings().db())
    }
}

/// Parses `redis+sentinel://[user:password@]host[:port][,host[:port]...]/service[/db][?...]`. Returns `None` for
/// another scheme.
fn parse_sentinels(url: &str) -> RedisResult<Option<Sentinels>> {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let scheme = match scheme {
        "redis+sentinel" => "redis",
        "rediss+sentinel" => "rediss",
        _ => return Ok(None),
    };
    let (rest, query) = rest.split_once('?').map_or((rest, ""), |(rest, query)| (rest, query));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    // The last one, as a password may contain others.
    let (login, hosts) = match authority.rsplit_once('@') {
        Some((login, hosts)) => (format!("{login}@"), hosts),
        None => (String::new(), authority),
    };
    let (service, database) = path.trim_end_matches('/').split_once('/').unwrap_or((path, ""));
    let service = service.trim_end_matches('/');
    if service.is_empty() {
        return Err(invalid(
            "a sentinel URL needs a service name, as in redis+sentinel://host/service",
        ));
    }
    // The login of the sentinels; all other parameters apply to the master.
    let (mut sentinel_login, mut others) = ([None, None], Vec::new());
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("sentinel_username", name)) => sentinel_login[0] = Some(name),
            Some(("sentinel_password", password)) => sentinel_login[1] = Some(password),
            _ => others.push(pair),
        }
    }
    let sentinel_login = match sentinel_login {
        [name, Some(password)] => {
            format!("{}:{}@", escape(name.unwrap_or_default()), escape(password))
        }
        _ => String::new(),
    };
    let query = match &others[..] {
        [] => String::new(),
        others => format!("?{}", others.join("&")),
    };
    let addresses = hosts.split(',').map(|host| {
        // The default port of sentinels is 26379. The last colon may be part of an IPv6 address.
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
        let port = if has_port { "" } else { ":26379" };
        parse_server(&format!("{scheme}://{sentinel_login}{host}{port}{query}"))
    });
    Ok(Some(Sentinels {
        addresses: addresses.collect::<RedisResult<_>>()?,
        service: service.to_owned(),
        // A placeholder: the sentinels supply host and port.
        master: parse_server(&format!("{scheme}://{login}localhost/{database}{query}"))?,
        next: AtomicUsize::new(0),
    }))
}

/// Escapes the value of a parameter for use as a username or password of a URL, where fewer characters may be literal.
/// Escapes that it contains already stay.
fn escape(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'%' => {
                escaped.push(byte.into());
            }
            _ => write!(escaped, "%{byte:02X}").expect("writing to a string does not fail"),
        }
    }
    escaped
}

/// Parses the URL of a server. RESP3 is the default, because only with it the client library reports disconnections and
/// invalidations.
fn parse_server(url: &str) -> RedisResult<ConnectionInfo> {
    let info = url.into_connection_info()?;
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let query = query.split_once('#').map_or(query, |(query, _)| query);
    let names = || {
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        pairs.map(|pair| pair.split_once('=').map_or(pair, |(name, _)| name))
    };
    // The client library ignores other parameters.
    let known: &[&str] = match info.addr() {
        ConnectionAddr::Unix(_) => &["db", "user", "pass", "protocol"],
        _ => &["protocol"],
    };
    if names().any(|name| !known.contains(&name)) {
        return Err(invalid("unknown parameter in a URL; see `Urls` for those that are supported"));
    }
    if names().any(|name| name == "protocol") {
        return Ok(info);
    }
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    Ok(info.set_redis_settings(settings))
}

fn invalid(cause: &'static str) -> RedisError {
    (ErrorKind::InvalidClientConfig, cause).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentinel_url_has_hosts_a_service_and_two_logins() {
        let url = "redis+sentinel://ada:se%40cret@10.0.0.1,[::1]:26380/main/3\
                   ?sentinel_password=other&protocol=2";
        let Ok(Servers::Sentinels(sentinels)) = Servers::parse(&[url.to_owned()]) else {
            panic!("the URL is valid")
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
    fn sentinel_login_may_contain_any_character_but_an_ampersand() {
        for (given, expected) in
            [("a/b+c==", "a/b+c=="), ("a%2Fb%26c%25", "a/b&c%"), ("p@ss:w?rd#[é]", "p@ss:w?rd#[é]")]
        {
            let url = format!(
                "redis+sentinel://10.0.0.1/main?sentinel_username={given}&sentinel_password={given}"
            );
            let Ok(Servers::Sentinels(sentinels)) = Servers::parse(&[url]) else {
                panic!("the URL is valid: {given}")
            };
            let login = sentinels.addresses[0].redis_settings();
            assert_eq!((login.username(), login.password()), (Some(expected), Some(expected)));
            assert_eq!(sentinels.addresses[0].addr().to_string(), "10.0.0.1:26379");
        }
    }

    #[test]
    fn invalid_urls_are_refused() {
        let is_valid = |urls: &[&str]| {
            Servers::parse(&urls.iter().map(|&url| url.to_owned()).collect::<Vec<_>>()).is_ok()
        };
        assert!(is_valid(&["redis+sentinel://a/s", "redis+sentinel://b:1/s/"]));
        for url in [
            "redis://u:p%3F@a/1?protocol=resp2",
            "unix:///run/redis.sock?db=1&user=u&pass=p&protocol=3",
            "redis+sentinel://a/s?&sentinel_username=u&sentinel_password=a?b&protocol=3",
        ] {
            assert!(is_valid(&[url]), "{url}");
        }
        for urls in [
            &[][..],
            &["redis+sentinel://a"],
            &["redis+sentinel://a/"],
            &["redis+sentinel:///s"],
            &["redis+sentinel://a/s/x"],
            &["redis+sentinel://a/s", "redis+sentinel://b/t"],
            &["redis+sentinel://a/s", "redis://b"],
            &["postgres://a"],
            &["redis://a?protocl=2"],
            &["redis://a?db=1"],
            &["redis://a?timeout=5&protocol=3"],
            &["rediss://a/1?protocol"],
            &["redis+sentinel://a/s?sentinel_pasword=x"],
            &["redis+sentinel://a/s?sentinel_password"],
            &["unix:///run/redis.sock?password=x"],
            &["nothing"],
        ] {
            assert!(!is_valid(urls), "{urls:?}");
        }
    }
}
