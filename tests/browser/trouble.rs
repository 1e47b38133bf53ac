//! Tests of failures: the page names each problem, and recovers without a reload.

use std::time::Duration;

use axum::{Router, http::Method};
use fleeting::TimeoutDict;

use crate::{
    browser::Browser, example::Service, http::Client, mounted::serve, page::assert_accessible,
    proxy::Proxy,
};

const BAD_GATEWAY: &str =
    "HTTP/1.1 502 Bad Gateway\r\ncontent-length: 3\r\nconnection: close\r\n\r\nbad";
const LOG_IN: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\
    connection: close\r\n\r\nlog in";

#[tokio::test]
async fn page_recovers_after_a_restart_and_after_a_502() {
    let first = Service::start();
    let proxy = Proxy::to(first.address()).await;
    let browser = Browser::start().await;
    // The dashboard alone, with and without a trailing slash.
    for path in ["/fleeting/", "/fleeting"] {
        browser.open(&format!("{}{path}", proxy.url)).await;
        browser.until_live().await;
    }
    browser.until("figure('sessions', 'Entries') === '0'").await;

    drop(first);
    let is_dimmed = "document.getElementById('fleeting').classList.contains('stale')";
    assert_eq!(browser.run(&format!("return {is_dimmed}")).await, false);
    let colour = "return getComputedStyle(card('sessions').querySelector('.big')).color";
    let lively = browser.run(colour).await;
    browser.until("state.startsWith('The service is unreachable.')").await;
    assert_eq!(browser.run(&format!("return {is_dimmed}")).await, true);
    assert_ne!(browser.run(colour).await, lively);
    assert_accessible(&browser, "while the connection is lost").await;
    // The message stays at the top of a page that is scrolled.
    browser.on_screen(390, 300, "dark").await;
    browser.run("scrollTo(0, 200); return true").await;
    let top = "return Math.round(document.querySelector('header').getBoundingClientRect().top)";
    assert_eq!(browser.run(top).await, 0);
    browser.on_screen(1_280, 900, "light").await;
    // It asks again every two seconds at most, however long it lasts, so that the end of a restart is noticed within 3
    // s: pauses that double would be at 8 s by now.
    let next_try = "return Number(state.match(/Next try in (\\d+) s/)?.[1] ?? 0)";
    let mut longest = 0;
    for _ in 0..40 {
        longest = browser.run(next_try).await.as_u64().expect("a number").max(longest);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!((1..=2).contains(&longest), "the next try was {longest} s away");
    let nowhere = browser.run("return document.body.innerText").await;
    assert!(!nowhere.to_string().contains("NaN"), "{nowhere}");
    let second = Service::start();
    let url = format!("{}/sessions/ada", second.url);
    assert_eq!(Client::new().request(Method::PUT, url).send().await.status(), 201);
    proxy.forward_to(second.address());
    browser.until_live().await;
    assert_eq!(browser.run(&format!("return {is_dimmed}")).await, false);
    browser.until("figure('sessions', 'Entries') === '1'").await;

    for (response, message) in [
        (BAD_GATEWAY, "A proxy cannot reach the service (502)."),
        (LOG_IN, "The answer is not from the service: possibly a login page."),
    ] {
        proxy.respond_with(Some(response));
        browser.until(&format!("state.startsWith('{message}')")).await;
        // The last values stay visible, with their time.
        browser
            .until("figure('sessions', 'Entries') === '1' && state.includes('Showing data from')")
            .await;
        let shown = browser.run("return document.body.innerText").await;
        assert!(!shown.to_string().contains("NaN"), "{shown}");
        proxy.respond_with(None);
        browser.until_live().await;
    }
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_in_a_table_are_readable_while_the_connection_is_lost() {
    let dict = |n| TimeoutDict::<u32, u32>::builder().name(format!("lost {n}")).build();
    let _more_than_five: Vec<_> = (0..7).map(dict).collect();
    let port = serve(Router::new().nest("/watch", fleeting::dashboard())).await;
    let proxy = Proxy::to(&format!("127.0.0.1:{port}")).await;
    let browser = Browser::start().await;
    browser.open(&format!("{}/watch", proxy.url)).await;
    browser.until_live().await;
    let is_row =
        "[...document.querySelectorAll('.compact th')].some(name => name.textContent === 'lost 3')";
    browser.until(is_row).await;
    proxy.respond_with(Some(BAD_GATEWAY));
    browser.until("document.getElementById('fleeting').classList.contains('stale')").await;
    for scheme in ["light", "dark"] {
        browser.on_screen(1_280, 900, scheme).await;
        assert_accessible(&browser, &format!("a dimmed table, {scheme}")).await;
    }
    browser.close().await;
}

#[tokio::test]
async fn form_forgets_a_failure_when_the_service_is_reachable_again() {
    let service = Service::start();
    let proxy = Proxy::to(service.address()).await;
    let browser = Browser::start().await;
    browser.open(&proxy.url).await;
    browser.until_live().await;
    let submit = "document.getElementById('session').requestSubmit(); return true";
    let output = "document.querySelector('#session output').textContent";
    proxy.respond_with(Some(BAD_GATEWAY));
    browser.run(submit).await;
    browser.until(&format!("{output} === 'A proxy cannot reach the service (502).'")).await;
    browser.until("state.startsWith('A proxy cannot reach the service (502).')").await;
    proxy.respond_with(None);
    browser.until_live().await;
    browser.until(&format!("{output}.trim() === ''")).await;
    browser.run(submit).await;
    browser.until(&format!("{output} === 'Created: ada, TTL 5 s.'")).await;
    browser.close().await;
}

#[tokio::test]
async fn rate_limit_is_reported_and_does_not_block_the_page() {
    let service = Service::start_with(&["--per-client", "3"]);
    let browser = Browser::start().await;
    browser.open(&service.url).await;
    browser.until_live().await;
    let read = "const form = document.getElementById('session'); \
                form.requestSubmit(form.querySelector('[value=read]')); return true";
    let output = "document.querySelector('#session output').textContent";
    loop {
        browser
            .run(&format!("document.querySelector('#session output').textContent = ''; {read}"))
            .await;
        browser.until(&format!("{output} !== ''")).await;
        let text = browser.run(&format!("return {output}")).await;
        let text = text.as_str().expect("a string");
        if text.starts_with("over the limit of 3 in 60s (client)") {
            break;
        }
        assert_eq!(text, "there is no session \"ada\"");
    }
    // The dashboard and its requests have no limit.
    browser.client.refresh().await.expect("the page can be reloaded");
    browser.until_live().await;
    // The stream of expirations has one.
    let caption = "document.getElementById('missed').textContent";
    browser.until(&format!("/too many requests .429.. Next try at [0-9:]+/.test({caption})")).await;
    browser.until("document.querySelector('#events td').textContent === '–'").await;
    browser.until("[...card('clients').querySelectorAll('td')].some(td => td.textContent === '127.0.0.1')").await;
    let shown = browser.run("return document.body.innerText").await;
    assert!(!shown.to_string().contains("NaN"), "{shown}");
    browser.close().await;
}
