//! Tests of the example `limit_by_user`, over real sockets.

use crate::{
    http::{Client, Response},
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
