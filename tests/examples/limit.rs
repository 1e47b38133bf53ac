//! The example `limit`, through real sockets.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use crate::{
    example::example,
    http::{Client, Response},
};

/// The example on a free port, killed when this is dropped.
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
            .unwrap_or_else(|error| panic!("{} can't be run: {error}", path.display()));
        let stdout = child.stdout.take().expect("stdout is piped");
        let mut example = Self { url: String::new(), child };
        let mut lines = BufReader::new(stdout).lines();
        example.url = lines.next().expect("it says nothing").expect("it says no text");
        assert!(example.url.starts_with("http://127.0.0.1:"), "its first line is {}", example.url);
        for line in lines.take(3) {
            let line = line.expect("it says no text");
            assert!(line.contains("curl") && line.contains(&example.url), "{line}");
        }
        example
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        // Both fail where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn it_limits_in_all_four_ways() {
    let example = Example::start(&["--trust", "127.0.0.1"]);
    let client = Client::new();
    let ask = async |path: &str, client_ip: &str, token: &str| -> Response {
        let request = client.get(format!("{}{path}", example.url));
        let request = request.header("x-forwarded-for", client_ip).header("x-token", token);
        request.send().await
    };
    let told = |response: &Response| {
        response.headers()["ratelimit-policy"].to_str().expect("it is text").to_owned()
    };

    // In the handler: by user. What was not sent is not charged.
    for (path, status) in [
        ("/letters/ada", 200),
        ("/letters/ada", 200),
        ("/letters/ada", 429),
        ("/letters/grace", 200),
        ("/letters/nobody", 200),
        ("/letters/nobody", 200),
        ("/letters/nobody", 200),
    ] {
        assert_eq!(ask(path, "192.0.2.1", "").await.status(), status, "{path}");
    }

    // By plan, and by what a request costs.
    for (path, token, status, policy) in [
        ("/reports", "free-1", 200, r#""free";q=1;w=60"#),
        ("/reports", "free-1", 429, r#""free";q=1;w=60"#),
        ("/reports", "free-2", 200, r#""free";q=1;w=60"#),
        ("/reports?long", "paid-1", 200, r#""paid";q=5;w=60"#),
        ("/reports?long", "paid-1", 200, r#""paid";q=5;w=60"#),
        ("/reports?long", "paid-1", 429, r#""paid";q=5;w=60"#),
        ("/reports", "paid-1", 200, r#""paid";q=5;w=60"#),
    ] {
        let response = ask(path, "192.0.2.2", token).await;
        assert_eq!(response.status(), status, "{path} {token}");
        assert!(told(&response).starts_with(policy), "{}", told(&response));
    }

    // By what it turns out to take: 80 tokens of 100, and then more than there are.
    for status in [200, 200, 429] {
        assert_eq!(ask("/stories/ada/20", "192.0.2.4", "").await.status(), status);
    }
    assert_eq!(ask("/stories/grace/1", "192.0.2.4", "").await.status(), 200);

    // As a layer: by address, for all that there is.
    let response = ask("/elsewhere", "192.0.2.3", "").await;
    assert_eq!(response.status(), 404);
    assert_eq!(told(&response), r#""burst";q=20;w=1, "hourly";q=1000;w=3600"#);
    let left = response.headers()["ratelimit"].to_str().expect("it is text");
    assert!(left.contains(r#""hourly";r=999;t="#), "{left}");
}

#[test]
fn a_network_that_is_none_is_a_sentence() {
    let output = Command::new(example("limit"))
        .args(["--listen", "127.0.0.1:0", "--trust", "10.0.0.0/33"])
        .output()
        .expect("the example can't be run");
    assert!(!output.status.success());
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(complaint.contains("10.0.0.0/33"), "it says {complaint:?}");
}
