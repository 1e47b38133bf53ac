//! Tests of the example `limit`, over real sockets.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use crate::{
    example::example,
    http::{Client, Response},
};

/// The running example on a free port, killed on drop.
struct Example {
    url: String,
    child: Child,
}

impl Example {
    fn start(args: &[&str]) -> Self {
        let path = example("limit");
        let mut child = Command::new(&path)
            .args(["--listen", "127.0.0.1:0"])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run {}: {error}", path.display()));
        let stdout = child.stdout.take().expect("stdout is piped");
        let mut example = Self { url: String::new(), child };
        let mut lines = BufReader::new(stdout).lines();
        example.url = lines.next().expect("a first line").expect("stdout is UTF-8");
        assert!(
            example.url.starts_with("http://127.0.0.1:"),
            "unexpected first line {}",
            example.url
        );
        for line in lines.take(3) {
            let line = line.expect("stdout is UTF-8");
            assert!(line.contains("curl") && line.contains(&example.url), "{line}");
        }
        example
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        // Both fail if the process has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn limits_apply_in_a_handler_as_a_layer_per_plan_and_by_actual_cost() {
    let example = Example::start(&["--trust", "127.0.0.1"]);
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
