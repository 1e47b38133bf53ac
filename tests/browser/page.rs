//! What the page shows is what there is; and everybody can use it.

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
async fn figures_are_those_of_the_api() {
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
    browser.until("figure('sessions', 'Event lag, p50').endsWith('s')").await;
    let stats: Value = client.get(format!("{}/stats", service.url)).send().await.json().await;
    assert_eq!((&stats["entries"], &stats["expired"]), (&20.into(), &7.into()), "{stats}");
    assert_eq!((&stats["hits"], &stats["limited"]), (&4.into(), &4.into()), "{stats}");
    browser.until("figure('sessions', 'Hits') === '4' && figure('sessions', 'Set') === '27'").await;
    // By a hash, as ids are secret; clients by their address.
    let key =
        browser.ask("return card('requests').querySelector('table tbody td').textContent").await;
    let key = key.as_str().expect("it is a text");
    assert!(key.starts_with("# ") && key.len() == 14, "{key}");
    // A chart has a text, with the numbers that it shows.
    browser
        .until(
            "card('sessions').querySelector('figcaption').textContent.includes('Now: expired 0')",
        )
        .await;

    // What may be searched is found by its key.
    let search = "const form = card('sessions').querySelector('form'); form.elements.key.value = 'long3'; \
                  form.requestSubmit(); return true";
    browser.ask(search).await;
    let found = "card('sessions').querySelector('output').textContent";
    browser.until(&format!("{found}.startsWith('long3 expires in')")).await;
    let seconds = browser.ask(&format!("return {found}.match(/in (.*) ms|in (.*) s/)[2]")).await;
    let seconds: u64 =
        seconds.as_str().and_then(|text| text.replace(',', "").parse().ok()).expect("seconds");
    assert!((100..=1_000).contains(&seconds), "{seconds}");
    browser.ask(&search.replace("long3", "nobody")).await;
    browser.until(&format!("{found} === 'nobody has no live value.'")).await;

    // Sessions are put, read and deleted.
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
        ("put", "New: a/b? lives for 60 s."),
        ("read", "a/b?: hello"),
        ("delete", "Deleted: a/b?."),
        ("read", "there is no session \"a/b?\""),
    ] {
        browser.ask(&press(verb, "a/b?")).await;
        browser.until(&answered(answer)).await;
    }
    assert_eq!(client.get(format!("{}/sessions/a%2Fb%3F", service.url)).send().await.status(), 404);

    // The one complaint is of the session that is not there, which the browser makes by itself.
    let complaints = browser.complaints().await;
    assert!(complaints.iter().all(|line| line.contains("404")), "{complaints:#?}");
    for (width, scheme) in [(1_280, "light"), (1_280, "dark"), (390, "light"), (390, "dark")] {
        browser.on_screen(width, 900, scheme).await;
        assert_everybody_can_use(&browser, &format!("{width} wide, {scheme}")).await;
        let wide = browser.ask("return document.documentElement.scrollWidth").await;
        assert!(wide.as_u64() <= Some(width.into()), "it is {wide} wide on {width}");
    }
    assert_the_heap_stays(&browser, &service).await;
    browser.close().await;
}

/// By the rules of axe-core.
async fn assert_everybody_can_use(browser: &Browser, case: &str) {
    let axe = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/axe/axe.min.js");
    let axe = fs::read_to_string(&axe)
        .unwrap_or_else(|error| panic!("{}: {error}: run scripts/browser.sh", axe.display()));
    // Open, so that what is within is looked at.
    browser
        .ask("document.querySelectorAll('details').forEach(details => details.open = true)")
        .await;
    browser.ask(&format!("{axe};\nreturn true")).await;
    let found = browser
        .await_for(
            "axe.run().then(found => found.violations.map(({ id, help, nodes }) =>
        ({ id, help, nodes: nodes.map(node => node.html + ' ' + node.failureSummary) })))",
        )
        .await;
    let found = found.as_array().unwrap_or_else(|| panic!("axe fails: {found}"));
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
    // All lines that there may be, at last, where it is to last.
    load(length / 2).await;
    let before = browser.heap().await;
    load(length / 2).await;
    let after = browser.heap().await;
    assert!(after < before + 1_000_000, "the heap grew from {before} to {after} in {length:?}");
}

#[tokio::test]
async fn ids_are_texts_whatever_is_in_them() {
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
    let seen = browser.ask(&format!("return {listed}")).await;
    let seen: Vec<String> = serde_json::from_value(seen).expect("they are texts");
    for id in hostile {
        assert!(seen.iter().any(|other| other == id), "{id:?} is not in {seen:?}");
    }
    // Also where they are typed.
    for id in hostile {
        let id = Value::from(id);
        let fill = format!(
            "for (const form of document.forms) {{ const field = form.elements.id ?? form.elements.key; \
             field.value = {id}; form.requestSubmit(); }} return true"
        );
        browser.ask(&fill).await;
        browser
            .until("document.querySelector('#session output').textContent.includes('lives for')")
            .await;
        browser.until("!!card('sessions').querySelector('output').textContent.trim()").await;
    }
    let inert = "document.title === 'fleeting sessions' && !document.querySelector('img, td h1, b') \
                 && document.querySelectorAll('script').length === 2";
    assert_eq!(browser.ask(&format!("return {inert}")).await, true);
    let wide = browser.ask("return document.documentElement.scrollWidth").await;
    assert!(wide.as_u64() <= Some(390), "an id makes the page {wide} wide");
    assert_eq!(browser.complaints().await, [""; 0]);
    browser.close().await;
}
