//! However many tabs there are, one of them listens, and none hangs.

use crate::{browser::Browser, example::Service};

const TABS: usize = 8;

#[tokio::test]
async fn all_tabs_share_one_stream() {
    let service = Service::start();
    let browser = Browser::start().await;
    let client = &browser.client;
    for tab in 0..TABS {
        if tab > 0 {
            let new = client.new_window(true).await.expect("there can be another tab");
            client.switch_to_window(new.handle).await.expect("it is there");
        }
        browser.open(&service.url).await;
        browser.until_live().await;
    }
    // Six streams would be all connections that a browser makes: this would wait for ever.
    let answer = browser.await_for("fetch('/healthz').then(answer => answer.text())").await;
    assert_eq!(answer, "ok\n");
    // Whoever listens may go: another goes on.
    for tab in (1..TABS).rev() {
        let windows = client.windows().await.expect("they can be listed");
        assert_eq!(windows.len(), tab + 1);
        client.switch_to_window(windows[0].clone()).await.expect("it is there");
        client.close_window().await.expect("it can be closed");
        client.switch_to_window(windows[1].clone()).await.expect("it is there");
        if tab > TABS - 3 {
            let put = format!(
                "fetch('/sessions/tab{tab}', {{ method: 'PUT' }}).then(answer => answer.status)"
            );
            assert_eq!(browser.await_for(&put).await, 201);
            let entries = TABS - tab;
            browser.until(&format!("figure('sessions', 'Entries') === '{entries}'")).await;
        }
    }
    assert_eq!(browser.complaints().await, [""; 0]);
    browser.close().await;
}
