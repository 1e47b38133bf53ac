//! Whatever is wrong, the page says so in words; and it comes back by itself.

use axum::http::Method;

use crate::{browser::Browser, example::Service, http::Client, proxy::Proxy};

const BAD_GATEWAY: &str =
    "HTTP/1.1 502 Bad Gateway\r\ncontent-length: 3\r\nconnection: close\r\n\r\nbad";
const LOG_IN: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\
    connection: close\r\n\r\nlog in";

#[tokio::test]
async fn it_comes_back_after_a_restart_and_after_a_502() {
    let first = Service::start();
    let proxy = Proxy::to(first.address()).await;
    let browser = Browser::start().await;
    // The dashboard alone, by both of its addresses.
    for path in ["/fleeting/", "/fleeting"] {
        browser.open(&format!("{}{path}", proxy.url)).await;
        browser.until_live().await;
    }
    browser.until("figure('sessions', 'Entries') === '0'").await;

    drop(first);
    browser.until("state.startsWith('The service is unreachable.')").await;
    let nowhere = browser.ask("return document.body.innerText").await;
    assert!(!nowhere.to_string().contains("NaN"), "{nowhere}");
    let second = Service::start();
    let url = format!("{}/sessions/ada", second.url);
    assert_eq!(Client::new().request(Method::PUT, url).send().await.status(), 201);
    proxy.lead_to(second.address());
    browser.until_live().await;
    browser.until("figure('sessions', 'Entries') === '1'").await;

    for (answer, sentence) in [
        (BAD_GATEWAY, "A proxy cannot reach the service (502)."),
        (LOG_IN, "The answer is not from the service: possibly a login page."),
    ] {
        proxy.answer(Some(answer));
        browser.until(&format!("state.startsWith('{sentence}')")).await;
        // The figures stay, and say of when they are.
        browser
            .until("figure('sessions', 'Entries') === '1' && state.includes('Showing data from')")
            .await;
        let shown = browser.ask("return document.body.innerText").await;
        assert!(!shown.to_string().contains("NaN"), "{shown}");
        proxy.answer(None);
        browser.until_live().await;
    }
    browser.close().await;
}

#[tokio::test]
async fn limits_are_told_and_keep_nobody_from_the_page() {
    let service = Service::start_with(&["--per-client", "3"]);
    let browser = Browser::start().await;
    browser.open(&service.url).await;
    browser.until_live().await;
    let read = "const form = document.getElementById('session'); \
                form.requestSubmit(form.querySelector('[value=read]')); return true";
    let output = "document.querySelector('#session output').textContent";
    loop {
        browser
            .ask(&format!("document.querySelector('#session output').textContent = ''; {read}"))
            .await;
        browser.until(&format!("{output} !== ''")).await;
        let said = browser.ask(&format!("return {output}")).await;
        let said = said.as_str().expect("it is a text");
        if said.starts_with("over the limit of 3 in 60s (client)") {
            break;
        }
        assert_eq!(said, "there is no session \"ada\"");
    }
    // The dashboard and what it asks for are for who runs the service.
    browser.client.refresh().await.expect("it can be loaded again");
    browser.until_live().await;
    browser.until("[...card('clients').querySelectorAll('td')].some(td => td.textContent === '127.0.0.1')").await;
    let shown = browser.ask("return document.body.innerText").await;
    assert!(!shown.to_string().contains("NaN"), "{shown}");
    browser.close().await;
}
