//! Tests of the example `limit`, over real sockets.

use std::process::Command;

use crate::{
    example::example,
    http::{Client, Response},
    server::Server,
};

/// Starts the example on a free port.
fn start(args: &[&str]) -> Server {
    let mut example = Server::start("limit", &[&["--listen", "127.0.0.1:0"], args].concat());
    for line in example.lines.by_ref().take(3) {
        let line = line.expect("stdout is UTF-8");
        assert!(line.contains("curl") && line.contains(&example.url), "{line}");
    }
    example
}

#[tokio::test]
async fn limits_apply_in_a_handler_as_a_layer_per_plan_and_by_actual_cost() {
    let example = start(&["--trust", "127.0.0.1"]);
    let client = Client::new();
    let send = async |path: &str, client_ip: &str, token: &str| -> Response {
        let request = client.get(format!("{}{path}", example.url));
        let request = request.header("x-forwarded-for", client_ip).header("x-token", token);
        request.send().await
    };
    let policy_of = |response: &Response| {
        response.headers()["ratelimit-policy"].to_str().expect("header fields are ASCII").to_owned()
    };

    // In the handler, per user. A letter that was not sent is not charged.
    for (path, status) in [
        ("/letters/ada", 200),
        ("/letters/ada", 200),
        ("/letters/ada", 429),
        ("/letters/grace", 200),
        ("/letters/unknown", 200),
        ("/letters/unknown", 200),
        ("/letters/unknown", 200),
    ] {
        assert_eq!(send(path, "192.0.2.1", "").await.status(), status, "{path}");
    }

    // Per plan, with a cost per request.
    for (path, token, status, policy) in [
        ("/reports", "free-1", 200, r#""free";q=1;w=60"#),
        ("/reports", "free-1", 429, r#""free";q=1;w=60"#),
        ("/reports", "free-2", 200, r#""free";q=1;w=60"#),
        ("/reports?long", "paid-1", 200, r#""paid";q=5;w=60"#),
        ("/reports?long", "paid-1", 200, r#""paid";q=5;w=60"#),
        ("/reports?long", "paid-1", 429, r#""paid";q=5;w=60"#),
        ("/reports", "paid-1", 200, r#""paid";q=5;w=60"#),
    ] {
        let response = send(path, "192.0.2.2", token).await;
        assert_eq!(response.status(), status, "{path} {token}");
        assert!(policy_of(&response).starts_with(policy), "{}", policy_of(&response));
    }

    // By actual cost: 80 of 100 tokens, then a debt.
    for status in [200, 200, 429] {
        assert_eq!(send("/stories/ada/20", "192.0.2.4", "").await.status(), status);
    }
    assert_eq!(send("/stories/grace/1", "192.0.2.4", "").await.status(), 200);

    // As a layer around all routes, per address.
    let response = send("/elsewhere", "192.0.2.3", "").await;
    assert_eq!(response.status(), 404);
    assert_eq!(policy_of(&response), r#""burst";q=20;w=1, "hourly";q=1000;w=3600"#);
    let fields = response.headers()["ratelimit"].to_str().expect("header fields are ASCII");
    assert!(fields.contains(r#""hourly";r=999;t="#), "{fields}");
}

#[test]
fn invalid_trusted_network_is_reported() {
    let output = Command::new(example("limit"))
        .args(["--listen", "127.0.0.1:0", "--trust", "10.0.0.0/33"])
        .output()
        .expect("the example runs");
    assert!(!output.status.success());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("10.0.0.0/33"), "{stderr}");
}
