//! Tests of the page: its values are those of the API, it is accessible, and it shows all input as text.

use std::{
    env, fs,
    path::Path,
    time::{Duration, Instant},
};

use axum::http::Method;
use serde_json::Value;
use tokio::time::sleep;

use crate::{browser::Browser, example::Service, http::Client};

#[tokio::test]
async fn page_shows_the_values_of_the_api() {
    let service = Service::start_with(&["--per-session", "5"]);
    let client = Client::new();
    let put = async |id: &str, query: &str| {
        let url = format!("{}/sessions/{id}{query}", service.url);
        assert_eq!(client.request(Method::PUT, url).body("x").send().await.status(), 201);
    };
    let browser = Browser::start().await;
    browser.open(&format!("{}/?utm_source=a%20link", service.url)).await;
    browser.until_live().await;
    for n in 0..20 {
        put(&format!("long{n}"), "?ttl=1000").await;
    }
    for n in 0..7 {
        put(&format!("short{n}"), "?ttl=0.05").await;
    }
    for _ in 0..8 {
        client.get(format!("{}/sessions/long0", service.url)).send().await;
    }
    browser.until("word('sessions', 'Expired/s') === '7 total'").await;
    browser.until("figure('sessions', 'Entries') === '20'").await;
    browser.until("word('requests', 'Denied/s') === '4 total'").await;
    browser.until("figure('sessions', 'Hit ratio') === '100.0 %'").await;
    // The service sweeps with the default settings: within 100 ms.
    browser.until("figure('sessions', 'Event lag, p99').endsWith('s')").await;
    let bound = "Max. expiry delay by the settings of sweeps";
    browser.until(&format!("figure('sessions', '{bound}') === '100 ms'")).await;
    browser
        .until("figure('sessions', 'Full') === '0.0 %' && word('sessions', 'Full') === 'of 256M'")
        .await;
    let stats: Value = client.get(format!("{}/stats", service.url)).send().await.json().await;
    assert_eq!((&stats["entries"], &stats["expired"]), (&20.into(), &7.into()), "{stats}");
    assert_eq!((&stats["hits"], &stats["limited"]), (&4.into(), &4.into()), "{stats}");
    browser.until("figure('sessions', 'Hits') === '4' && figure('sessions', 'Set') === '27'").await;
    // Keys of sessions are shown as hashes, because ids are secret. Clients are shown by their address.
    let key =
        browser.run("return card('requests').querySelector('table tbody td').textContent").await;
    let key = key.as_str().expect("a string");
    assert!(key.starts_with("# ") && key.len() == 14, "{key}");
    // A chart has a text alternative with its numbers.
    browser
        .until(
            "card('sessions').querySelectorAll('figcaption')[1].textContent.includes('Now: expired 0, peak ')",
        )
        .await;

    // A cache with `inspect` can be searched by key.
    let search = "const form = card('sessions').querySelector('form'); form.elements.key.value = 'long3'; \
                  form.requestSubmit(); return true";
    browser.run(search).await;
    let found = "card('sessions').querySelector('output').textContent";
    browser.until(&format!("{found}.startsWith('long3 expires in')")).await;
    let seconds = browser.run(&format!("return {found}.match(/in (.*) ms|in (.*) s/)[2]")).await;
    let seconds: u64 =
        seconds.as_str().and_then(|text| text.replace(',', "").parse().ok()).expect("seconds");
    assert!((100..=1_000).contains(&seconds), "{seconds}");
    browser.run(&search.replace("long3", "unknown")).await;
    browser.until(&format!("{found} === 'unknown has no live value.'")).await;

    // The form puts, reads and deletes sessions.
    let press = |verb: &str, id: &str| {
        format!(
            "const form = document.getElementById('session'); form.elements.id.value = '{id}'; \
             form.elements.ttl.value = '60'; \
             form.requestSubmit(form.querySelector('[value={verb}]')); return true"
        )
    };
    let answered =
        |what: &str| format!("document.querySelector('#session output').textContent === '{what}'");
    for (verb, answer) in [
        ("put", "Created: a/b?, TTL 60 s."),
        ("read", "a/b?: hello"),
        ("delete", "Deleted: a/b?."),
        ("read", "there is no session \"a/b?\""),
    ] {
        browser.run(&press(verb, "a/b?")).await;
        browser.until(&answered(answer)).await;
    }
    assert_eq!(client.get(format!("{}/sessions/a%2Fb%3F", service.url)).send().await.status(), 404);

    // The browser logs the 404 of the deleted session by itself. There must be no other problem.
    let problems = browser.log_problems().await;
    assert!(problems.iter().all(|line| line.contains("404")), "{problems:#?}");
    for (width, scheme) in [(1_280, "light"), (1_280, "dark"), (390, "light"), (390, "dark")] {
        browser.on_screen(width, 900, scheme).await;
        assert_accessible(&browser, &format!("{width} wide, {scheme}")).await;
        let wide = browser.run("return document.documentElement.scrollWidth").await;
        assert!(
            wide.as_u64() <= Some(width.into()),
            "the page is {wide} px wide on a screen of {width} px"
        );
    }
    assert_the_heap_stays(&browser, &service).await;
    browser.close().await;
}

/// Asserts that axe-core finds no violation of its accessibility rules.
pub(crate) async fn assert_accessible(browser: &Browser, case: &str) {
    let axe = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/axe/axe.min.js");
    let axe = fs::read_to_string(&axe)
        .unwrap_or_else(|error| panic!("{}: {error}: run scripts/browser.sh", axe.display()));
    // Opened, so that axe-core also checks their content.
    browser
        .run("document.querySelectorAll('details').forEach(details => details.open = true)")
        .await;
    browser.run(&format!("{axe};\nreturn true")).await;
    let found = browser
        .run_async(
            "axe.run().then(found => found.violations.map(({ id, help, nodes }) =>
        ({ id, help, nodes: nodes.map(node => node.html + ' ' + node.failureSummary) })))",
        )
        .await;
    let found = found.as_array().unwrap_or_else(|| panic!("axe-core failed: {found}"));
    assert!(found.is_empty(), "{case}: {found:#?}");
}

async fn assert_the_heap_stays(browser: &Browser, service: &Service) {
    let seconds =
        env::var("FLEETING_BROWSER_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let (client, length) = (Client::new(), Duration::from_secs(seconds.unwrap_or(2)));
    let load = async |length| {
        let start = Instant::now();
        for n in 0.. {
            if start.elapsed() > length {
                break;
            }
            let url = format!("{}/sessions/load{n}?ttl=0.1", service.url);
            client.request(Method::PUT, url).send().await;
            sleep(Duration::from_millis(5)).await;
        }
    };
    // In a long run, the first half fills all charts and lists.
    load(length / 2).await;
    let before = browser.heap().await;
    load(length / 2).await;
    let after = browser.heap().await;
    assert!(after < before + 1_000_000, "the heap grew from {before} to {after} in {length:?}");
}

#[tokio::test]
async fn hostile_ids_are_shown_as_text() {
    let service = Service::start();
    let client = Client::new();
    let browser = Browser::start().await;
    browser.open(&service.url).await;
    browser.until_live().await;
    browser.on_screen(390, 900, "light").await;
    let emoji = "\u{1f600}".repeat(64);
    let hostile = [
        "<img src=x onerror=\"document.title='hit'\"><script>document.title='hit'</script>",
        "\u{202e}\u{2066}evil\u{2069}\u{202e}drowssap",
        &emoji,
        "</td></table><h1>x</h1>",
        "&lt;b&gt;\n\t\u{0}\u{7f}",
    ];
    for id in hostile {
        let id: String = url::form_urlencoded::byte_serialize(id.as_bytes()).collect();
        let url = format!("{}/sessions/{}?ttl=0.2", service.url, id.replace('+', "%20"));
        assert_eq!(client.request(Method::PUT, url).send().await.status(), 201);
    }
    let listed =
        "[...document.querySelectorAll('#events td:first-child')].map(td => td.textContent)";
    let count = hostile.len();
    browser
        .until(&format!(
            "{listed}.filter(text => text.trim() && text !== 'None.').length === {count}"
        ))
        .await;
    let seen = browser.run(&format!("return {listed}")).await;
    let seen: Vec<String> = serde_json::from_value(seen).expect("strings");
    for id in hostile {
        assert!(seen.iter().any(|other| other == id), "{id:?} is not in {seen:?}");
    }
    // The same in the forms.
    for id in hostile {
        let id = Value::from(id);
        let fill = format!(
            "for (const form of document.forms) {{ const field = form.elements.id ?? form.elements.key; \
             field.value = {id}; form.requestSubmit(); }} return true"
        );
        browser.run(&fill).await;
        browser
            .until("document.querySelector('#session output').textContent.includes(', TTL ')")
            .await;
        browser.until("!!card('sessions').querySelector('output').textContent.trim()").await;
    }
    let inert = "document.title === 'fleeting sessions' && !document.querySelector('img, td h1, b') \
                 && document.querySelectorAll('script').length === 2";
    assert_eq!(browser.run(&format!("return {inert}")).await, true);
    let wide = browser.run("return document.documentElement.scrollWidth").await;
    assert!(wide.as_u64() <= Some(390), "an id makes the page {wide} px wide");
    assert_eq!(browser.log_problems().await, [""; 0]);
    browser.close().await;
}
