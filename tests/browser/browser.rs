//! Browser controlled by the WebDriver protocol. Its methods panic on any failure, so that tests need not handle
//! errors.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use axum::http::Method;
use fantoccini::{
    Client, ClientBuilder,
    error::CmdError,
    wd::{Capabilities, WebDriverCompatibleCommand},
};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::sleep,
};
use url::{ParseError, Url};

use crate::patience::patience;

/// Limits the number of concurrent browsers, each of which has a dozen processes.
static BROWSERS: Semaphore = Semaphore::const_new(3);

/// Functions for scripts: `card` returns a card of the dashboard, `figure` one of its values, and `word` the text below
/// it.
const FIND: &str = "
    const card = name => [...document.querySelectorAll('article')]
        .find(card => card.querySelector('h3').textContent === name);
    const figure = (name, label) => [...card(name)?.querySelectorAll('dt, th[scope=row]') ?? []]
        .find(dt => dt.textContent === label)?.nextElementSibling?.textContent;
    const word = (name, label) => [...card(name)?.querySelectorAll('dt') ?? []]
        .find(dt => dt.textContent === label)?.parentElement.lastElementChild.textContent;
    const state = document.getElementById('fleeting-state').textContent;
";

pub(crate) struct Browser {
    pub(crate) client: Client,
    driver: Driver,
    _turn: SemaphorePermit<'static>,
}

impl Browser {
    pub(crate) async fn start() -> Self {
        let turn = BROWSERS.acquire().await.expect("the semaphore is never closed");
        let mut driver = Driver::start();
        let capabilities = json!({
            "browserName": "chrome",
            "goog:loggingPrefs": { "browser": "ALL" },
            "goog:chromeOptions": { "args": [
                "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                "--hide-scrollbars", "--window-size=1280,900",
                // A host name that the browser does not treat as local.
                "--host-resolver-rules=MAP elsewhere.test 127.0.0.1",
            ] },
        });
        let Value::Object(capabilities) = capabilities else { unreachable!("a JSON object") };
        let capabilities: Capabilities = capabilities.into_iter().collect();
        let client = ClientBuilder::new(HttpConnector::new())
            .capabilities(capabilities)
            .connect(&format!("http://127.0.0.1:{}", driver.port))
            .await;
        let client = client.expect("Chromium can be started: run scripts/browser.sh");
        let process = client.capabilities().and_then(|all| all.get("goog:processID")?.as_u64());
        driver.browser = process;
        Self { client, driver, _turn: turn }
    }

    pub(crate) async fn open(&self, url: &str) {
        self.client.goto(url).await.unwrap_or_else(|error| panic!("cannot open {url}: {error}"));
    }

    /// Runs `script` and returns its result. It may use `card`, `figure`, `word` and `state`.
    pub(crate) async fn run(&self, script: &str) -> Value {
        let script = format!("{FIND}\n{script}");
        let answer = self.client.execute(&script, Vec::new()).await;
        answer.unwrap_or_else(|error| panic!("{script}\n{error}"))
    }

    /// Returns the result of the promise that `script` evaluates to.
    pub(crate) async fn run_async(&self, script: &str) -> Value {
        let script = format!(
            "const done = arguments[0]; ({script}).then(done, error => done(`${{error}}`));"
        );
        let answer = self.client.execute_async(&script, Vec::new()).await;
        answer.unwrap_or_else(|error| panic!("{script}\n{error}"))
    }

    /// Evaluates `script` until it is `true`.
    pub(crate) async fn until(&self, script: &str) {
        let start = Instant::now();
        // An error counts as false: elements that the script needs may not exist yet.
        let attempt = format!("try {{ return {script} }} catch (error) {{ return `${{error}}` }}");
        while self.run(&attempt).await != true {
            if start.elapsed() > 2 * patience() {
                let seen = self.run("return state + document.body.innerText").await;
                panic!("{script} was never true: {seen}");
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until the page receives live data.
    pub(crate) async fn until_live(&self) {
        self.until("state.startsWith('Live.')").await;
    }

    /// Runs a command of the DevTools protocol.
    pub(crate) async fn devtools(&self, command: &str, parameters: Value) -> Value {
        let body = json!({ "cmd": command, "params": parameters });
        let answer = self.issue(Vendor { path: "goog/cdp/execute", body }).await;
        answer.unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    /// Sets the size of the screen and its color scheme, light or dark.
    pub(crate) async fn on_screen(&self, width: u32, height: u32, scheme: &str) {
        let (scale, mobile) = (1, width < 600);
        let screen = json!({ "width": width, "height": height, "deviceScaleFactor": scale, "mobile": mobile });
        self.devtools("Emulation.setDeviceMetricsOverride", screen).await;
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.devtools("Emulation.setEmulatedMedia", features).await;
    }

    /// Returns the errors and warnings in the browser's log since the last call.
    pub(crate) async fn log_problems(&self) -> Vec<String> {
        let body = json!({ "type": "browser" });
        let log = self.issue(Vendor { path: "se/log", body }).await.expect("the log can be read");
        let log = log.as_array().expect("a list").iter();
        let severe = log.filter(|line| line["level"] == "SEVERE" || line["level"] == "WARNING");
        severe.map(|line| line["message"].to_string()).collect()
    }

    /// Returns the used bytes of the JavaScript heap, after garbage collection.
    pub(crate) async fn heap(&self) -> u64 {
        for _ in 0..3 {
            self.devtools("HeapProfiler.collectGarbage", json!({})).await;
        }
        let usage = self.devtools("Runtime.getHeapUsage", json!({})).await;
        usage["usedSize"].as_f64().expect("a number") as u64
    }

    pub(crate) async fn close(mut self) {
        self.client.clone().close().await.expect("the browser can be closed");
        self.driver.browser = None;
    }

    async fn issue(&self, command: Vendor) -> Result<Value, CmdError> {
        self.client.issue_cmd(command).await
    }
}

/// A command that is not in the WebDriver standard.
#[derive(Debug)]
struct Vendor {
    path: &'static str,
    body: Value,
}

impl WebDriverCompatibleCommand for Vendor {
    fn endpoint(&self, base: &Url, session: Option<&str>) -> Result<Url, ParseError> {
        let session = session.expect("a session");
        base.join(&format!("session/{session}/{}", self.path))
    }

    fn method_and_body(&self, _: &Url) -> (Method, Option<String>) {
        (Method::POST, Some(self.body.to_string()))
    }
}

/// chromedriver, which is killed with its browser on drop.
struct Driver {
    child: Child,
    port: u16,
    /// Process id of the browser, which keeps running after its driver is killed.
    browser: Option<u64>,
}

impl Driver {
    fn start() -> Self {
        let mut child = Command::new("chromedriver")
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("there is no chromedriver: run scripts/browser.sh");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let port = lines.by_ref().map_while(Result::ok).find_map(|line| {
            let (_, port) = line.split_once("started successfully on port ")?;
            port.trim_end_matches('.').parse().ok()
        });
        let port = port.expect("chromedriver prints its port");
        thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Self { child, port, browser: None }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // After a failed test the browser has not been closed.
        if let Some(browser) = self.browser {
            let _ = Command::new("kill").arg(browser.to_string()).status();
        }
        let signaled = Command::new("kill").arg(self.child.id().to_string()).status();
        let start = Instant::now();
        while signaled.is_ok() && start.elapsed() < Duration::from_secs(10) {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
