//! Tests of values that are unknown, because a disk or a server does not answer.

use std::{fs, time::Duration};

use fleeting::{
    TimeoutDict,
    dirq::QueueSimple,
    redis::{Client, TimeoutDict as RedisDict},
};

use crate::{
    browser::Browser, mounted::open_dashboard, page::assert_accessible, patience::patience,
    servers::Server,
};

const SECOND: Duration = Duration::from_secs(1);

/// The place of the first point of the first line of a chart.
fn first_point(name: &str, chart: usize) -> String {
    format!(
        "+card('{name}').querySelectorAll('.plot')[{chart}].querySelector('path.first')\
         .getAttribute('d').match(/^M([0-9]+),/)[1]"
    )
}

async fn number(browser: &Browser, script: &str) -> i64 {
    browser.run(&format!("return {script}")).await.as_i64().expect("a number")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_length_is_a_gap_that_does_not_move_older_points() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (path, moved) = (folder.path().join("hung"), folder.path().join("moved"));
    let queue = QueueSimple::open(&path).await.expect("a queue");
    queue.add_many(["one", "two", "three"]).await.expect("the elements are added");
    let browser = open_dashboard().await;
    let name = path.display().to_string();
    browser.until(&format!("figure('{name}', 'Waiting') === '3'")).await;
    // In a table of many, the card is opened first.
    let open = format!(
        "const row = [...document.querySelectorAll('button.link')].find(one => one.textContent === '{name}'); \
         if (card('{name}').hidden) row.click(); return true"
    );
    browser.run(&open).await;
    browser.until(&format!("{} >= 0", first_point(&name, 0))).await;
    // The line of waiting elements begins with the first measurement, the one of added elements with the first sample.
    let (waiting, added) = (first_point(&name, 0), first_point(&name, 1));
    let later = number(&browser, &format!("{waiting} - {added}")).await;
    assert!((0..10).contains(&later), "{later}");

    // The queue cannot be read.
    fs::rename(&path, &moved).expect("the directory can be moved");
    fs::write(&path, "not a directory").expect("the file can be written");
    browser.until(&format!("figure('{name}', 'Waiting') === '–'")).await;
    browser.until(&format!("word('{name}', 'Length') === 'not measured yet'")).await;
    fs::remove_file(&path).expect("the file can be removed");
    fs::rename(&moved, &path).expect("the directory can be moved back");
    browser.until(&format!("figure('{name}', 'Waiting') === '3'")).await;
    let runs = format!(
        "card('{name}').querySelector('.plot path.first').getAttribute('d').split('M').length - 1"
    );
    // In a page that received each sample, and in one that requested the history.
    for _ in 0..2 {
        browser.until(&format!("{runs} === 2")).await;
        assert_eq!(number(&browser, &format!("{waiting} - {added}")).await, later);
        let caption = format!("card('{name}').querySelector('figcaption').textContent");
        browser.until(&format!("{caption}.includes('Now: waiting 3, peak 3')")).await;
        browser.client.refresh().await.expect("the page can be reloaded");
        browser.until_live().await;
        browser.until(&format!("figure('{name}', 'Waiting') === '3'")).await;
        browser.run(&open).await;
    }
    assert_eq!(browser.log_problems().await, [""; 0]);
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_connection_to_redis_and_the_dictionaries_on_it_are_shown() {
    let mut server = Server::durable();
    let client =
        Client::builder(server.url()).prefix("shop").timeout(patience() / 60).connect().await;
    let client = client.expect("the server answers");
    let jobs = RedisDict::<u32, u32>::new(&client, "mails").expect("a valid name");
    for job in 0..3 {
        jobs.set(job, job, Duration::ZERO).await.expect("the server answers");
    }
    let claim = jobs.next_claim(3_600 * SECOND).await.expect("the server answers");
    let embedded = TimeoutDict::<u32, u32>::builder().name("mails").build();
    embedded.set(1, 1, 3_600 * SECOND).await;

    let browser = open_dashboard().await;
    // The same section has both dictionaries of this name.
    let heads = "[...document.querySelectorAll('section[aria-labelledby=fleeting-dict] h3')].map(name => name.textContent)";
    browser
        .until(&format!(
            "{heads}.filter(name => name.startsWith('mails')).join() === 'mails,mails on Redis'"
        ))
        .await;
    for (label, value) in [("Due", "2"), ("Leased", "1"), ("Entries", "3")] {
        browser.until(&format!("figure('mails on Redis', '{label}') === '{value}'")).await;
    }
    assert_eq!(browser.run("return word('mails on Redis', 'Leased')").await, "by this process");
    browser.until("figure('mails', 'Entries') === '1'").await;
    browser.until("figure('shop', 'Connection') === 'works'").await;
    let is_marked = "card('shop').classList.contains('alarm')";
    assert_eq!(browser.run(&format!("return {is_marked}")).await, false);
    let summary = "document.querySelector('.summary').textContent";
    assert_eq!(browser.run(&format!("return {summary}.includes('shop')")).await, false);

    server.kill();
    // A call that waits for its whole timeout.
    assert!(jobs.len().await.is_err());
    browser.until(&format!("figure('shop', 'Connection') === 'lost' && {is_marked}")).await;
    browser
        .until(&format!("/^Above a threshold: .*Connections to Redis \\(shop\\)/.test({summary})"))
        .await;
    browser.until("/^calls fail, for [0-9.,]+ (ms|s|min)$/.test(word('shop', 'Connection'))").await;
    browser.until("figure('mails on Redis', 'Due') === '–'").await;
    for scheme in ["light", "dark"] {
        browser.on_screen(1_280, 900, scheme).await;
        assert_accessible(&browser, scheme).await;
    }
    let shown = browser.run("return document.body.innerText").await;
    assert!(!shown.to_string().contains("NaN"), "{shown}");
    server.restart();
    browser.until("figure('shop', 'Connection') === 'works'").await;
    browser.until("figure('mails on Redis', 'Entries') === '3'").await;
    assert_eq!(browser.log_problems().await, [""; 0]);
    drop(claim);
    browser.close().await;
}
