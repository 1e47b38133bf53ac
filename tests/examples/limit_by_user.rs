//! Tests of the example `limit_by_user`, over real sockets.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
};

use crate::{
    http::{Client, Response},
    patience::patience,
    server::Server,
};

#[tokio::test]
async fn each_user_has_a_quota_and_failed_logins_have_one_per_address() {
    let server = Server::start("limit_by_user", &["127.0.0.1:0"]);
    let client = Client::new();
    let send = async |token: &str| -> Response {
        client.get(&server.url).header("authorization", format!("Bearer {token}")).send().await
    };

    for left in [2, 1, 0] {
        let greeting = send("token-of-ada").await.text().await;
        assert_eq!(greeting, format!("hello ada, {left} more requests now\n"));
    }
    let denied = send("token-of-ada").await;
    assert_eq!(denied.status(), 429);
    let seconds = denied.headers()["retry-after"].to_str().expect("ASCII").parse::<u64>();
    assert!((1..=60).contains(&seconds.expect("a number")));
    assert_eq!(send("token-of-bob").await.status(), 200, "another user at the same address");

    for _ in 0..5 {
        assert_eq!(send("a guess").await.status(), 401);
    }
    assert_eq!(send("a guess").await.status(), 429);
}

/// Users behind one address share the limit of failed logins, and must not deny each other's valid requests.
#[test]
fn more_valid_requests_are_in_flight_than_failed_logins_are_allowed() {
    let server = Server::start("limit_by_user", &["127.0.0.1:0"]);
    let address = server.url.strip_prefix("http://").expect("the URL is that of a host");
    let read_line = |connection: &mut BufReader<TcpStream>| {
        let mut line = String::new();
        connection.read_line(&mut line).expect("the server responds");
        line.trim().to_owned()
    };
    let mut uploads: Vec<_> = ["ada", "bob", "ada", "bob", "ada", "bob"]
        .into_iter()
        .map(|user| {
            let stream = TcpStream::connect(address).expect("the server listens");
            stream.set_read_timeout(Some(patience())).expect("the timeout is not zero");
            let mut connection = BufReader::new(stream);
            // The server asks for the body when the handler reads it, so that the request has passed all limits.
            write!(
                connection.get_mut(),
                "POST / HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer token-of-{user}\r\n\
                 content-length: 4\r\nexpect: 100-continue\r\nconnection: close\r\n\r\n"
            )
            .expect("the request is sent");
            assert_eq!(read_line(&mut connection), "HTTP/1.1 100 Continue", "{user}");
            assert_eq!(read_line(&mut connection), "");
            connection
        })
        .collect();
    for upload in &mut uploads {
        upload.get_mut().write_all(b"file").expect("the body is sent");
        assert_eq!(read_line(upload), "HTTP/1.1 200 OK");
    }
}
