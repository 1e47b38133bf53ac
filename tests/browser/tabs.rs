//! Tests of several tabs: they share one stream, and none of them hangs.

use crate::{browser::Browser, example::Service};

const TABS: usize = 8;

#[tokio::test]
async fn all_tabs_share_one_stream() {
    let service = Service::start();
    let browser = Browser::start().await;
    let client = &browser.client;
    for tab in 0..TABS {
        if tab > 0 {
            let new = client.new_window(true).await.expect("a new tab");
            client.switch_to_window(new.handle).await.expect("the tab exists");
        }
        browser.open(&service.url).await;
        browser.until_live().await;
    }
    // A browser opens at most six connections to a host: with a stream per tab, this request would wait forever.
    let answer = browser.run_async("fetch('/healthz').then(answer => answer.text())").await;
    assert_eq!(answer, "ok\n");
    // If the tab that holds the stream is closed, another one takes over.
    for tab in (1..TABS).rev() {
        let windows = client.windows().await.expect("a list of tabs");
        assert_eq!(windows.len(), tab + 1);
        client.switch_to_window(windows[0].clone()).await.expect("the tab exists");
        client.close_window().await.expect("the tab can be closed");
        client.switch_to_window(windows[1].clone()).await.expect("the tab exists");
        if tab > TABS - 3 {
            let put = format!(
                "fetch('/sessions/tab{tab}', {{ method: 'PUT' }}).then(answer => answer.status)"
            );
            assert_eq!(browser.run_async(&put).await, 201);
            let entries = TABS - tab;
            browser.until(&format!("figure('sessions', 'Entries') === '{entries}'")).await;
        }
    }
    assert_eq!(browser.log_problems().await, [""; 0]);
    browser.close().await;
}
