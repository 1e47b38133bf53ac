//! Tests of the dashboard in a service of this process: each kind of object, charts, tables, hostile names, and
//! browsers that cannot share a stream.

use std::time::Duration;

use axum::{
    Router,
    extract::Request,
    http::StatusCode,
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
};
use fantoccini::{
    Locator,
    actions::{InputSource, MouseActions, PointerAction},
};
use fleeting::{Cache, ExpiringSet, Limit, RateLimiter, Spool, TimeoutDict, dirq::QueueSimple};
use tokio::{net::TcpListener, time::sleep};

use crate::{browser::Browser, page::assert_accessible};

const MINUTE: Duration = Duration::from_secs(60);

const HOSTILE: [&str; 5] = [
    "<img src=x onerror=\"document.title='hit'\"><script>document.title='hit'</script>",
    "\u{202e}\u{2066}evil\u{2069}\u{202e}drowssap",
    "__proto__",
    "\"},{\"name\":\"]]>\n\ndata: x",
    "\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}\u{1f600}",
];

/// Serves the dashboard at `/watch`, and returns its port.
pub(crate) async fn serve(app: Router) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("a local address").port();
    tokio::spawn(axum::serve(listener, app).into_future());
    port
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_names_and_keys_are_shown_as_text() {
    let caches = HOSTILE.map(|name| {
        Cache::<String, u32>::builder()
            .name(name)
            .max_entries(2)
            .inspect(|text| Some(text.to_owned()))
            .build()
    });
    let limiter = RateLimiter::<String>::builder()
        .name(HOSTILE[0])
        .limit(Limit::per_hour(1))
        .show_keys(|key| key.clone())
        .build();
    for key in HOSTILE {
        for _ in 0..3 {
            let _ = limiter.check(key).await;
        }
    }
    let port = serve(Router::new().nest("/watch", fleeting::dashboard())).await;
    let browser = Browser::start().await;
    browser.open(&format!("http://127.0.0.1:{port}/watch")).await;
    browser.until_live().await;
    browser.on_screen(360, 800, "dark").await;
    let names = "[...document.querySelectorAll('h3')].map(name => name.textContent)";
    let expected = serde_json::json!(HOSTILE);
    browser.until(&format!("{expected}.every(name => {names}.includes(name))")).await;
    let keys = "[...document.querySelectorAll('tbody td')].map(key => key.textContent)";
    browser.until(&format!("{expected}.every(key => {keys}.includes(key))")).await;
    for cache in &caches {
        cache.set("x".to_owned(), 1).await;
    }
    browser.until(&format!("{expected}.every(name => figure(name, 'Entries') === '1')")).await;
    let inert = "document.title === 'fleeting' && !document.querySelector('img') \
                 && document.querySelectorAll('script').length === 1";
    assert_eq!(browser.run(&format!("return {inert}")).await, true);
    let wide = browser.run("return document.documentElement.scrollWidth").await;
    assert!(wide.as_u64() <= Some(360), "a name makes the page {wide} px wide");
    assert_eq!(browser.log_problems().await, [""; 0]);
    browser.close().await;
}

/// Opens the dashboard of this process in a browser.
pub(crate) async fn open_dashboard() -> Browser {
    let port = serve(Router::new().nest("/watch", fleeting::dashboard())).await;
    let browser = Browser::start().await;
    browser.open(&format!("http://127.0.0.1:{port}/watch")).await;
    browser.until_live().await;
    browser
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dictionaries_queues_spools_and_sets_have_cards() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let jobs = TimeoutDict::builder().name("all jobs").max_attempts(1).build();
    for job in 0..6 {
        jobs.set(job, job, Duration::ZERO).await;
    }
    jobs.set(6, 6, 60 * MINUTE).await;
    drop(jobs.claim_expired(1, MINUTE).await);
    let _claims = jobs.claim_expired(2, 60 * MINUTE).await;
    let _calm = TimeoutDict::<u32, u32>::builder().name("calm jobs").build();
    let members = ExpiringSet::<u32>::builder(60 * MINUTE).name("all members").build();
    members.extend(0..4).await;
    let queue = QueueSimple::open(folder.path().join("queue")).await.expect("a queue");
    let names = queue.add_many(["one", "two", "three"]).await.expect("the elements are added");
    assert!(queue.lock(&names[1]).await.expect("the queue can be locked"));
    let cache = Cache::<u32, u32>::builder().name("half full").max_entries(8).build();
    for key in 0..4 {
        cache.set(key, key).await;
    }
    let spool = Spool::new(QueueSimple::open(folder.path().join("spool")).await.expect("a queue"));
    let spooling = tokio::spawn(spool.run(cache.events_lossless(16)));

    let browser = open_dashboard().await;
    let path = folder.path().display();
    for (name, label, value) in [
        ("all jobs", "Due", "3"),
        ("all jobs", "Leased", "2"),
        ("all jobs", "Dead", "1"),
        ("all jobs", "Entries", "7"),
        ("calm jobs", "Oldest", "–"),
        ("all members", "Members", "4"),
        (&format!("{path}/queue"), "Length", "3"),
        (&format!("{path}/queue"), "Waiting", "2"),
        (&format!("{path}/queue"), "Locked", "1"),
        (&format!("{path}/queue"), "Dead", "0"),
        ("half full", "Full", "50.0 %"),
    ] {
        browser.until(&format!("figure('{name}', '{label}') === '{value}'")).await;
    }
    browser.until("/^[0-9.,]+ (ms|s|min)$/.test(figure('all jobs', 'Oldest'))").await;
    assert_eq!(browser.run("return word('half full', 'Full')").await, "of 8");
    // A dead letter is marked, and by more than a colour: its number is one of the large values.
    let is_marked = |name: &str| format!("card('{name}').classList.contains('alarm')");
    assert_eq!(browser.run(&format!("return {}", is_marked("all jobs"))).await, true);
    assert_eq!(browser.run(&format!("return {}", is_marked("calm jobs"))).await, false);
    for key in 0..3 {
        cache.expire_now(&key).await;
    }
    // A spool and its queue have the same name.
    let spools = "document.getElementById('fleeting-spool').parentElement.innerText";
    browser.until(&format!("/Written.s\\n.*\\n3 total/.test({spools})")).await;
    browser.until(&format!("{spools}.includes('Stalled\\nno\\nwrites succeed')")).await;

    // A subscriber that reads too slowly is marked for a minute.
    let slow = Cache::<u32, u32>::builder().name("slow").event_capacity(2).build();
    let _events = slow.events();
    browser.until("figure('slow', 'Missed by slow subscribers') === '0'").await;
    assert_eq!(browser.run(&format!("return {}", is_marked("slow"))).await, false);
    for key in 0..12 {
        slow.set_ex(key, key, Duration::ZERO).await;
        slow.expire_now(&key).await;
    }
    slow.sweep().await;
    browser.until("figure('slow', 'Missed by slow subscribers') === '10'").await;
    let note = "word('slow', 'Missed by slow subscribers') === '10 in the last minute'";
    browser.until(&format!("{note} && {}", is_marked("slow"))).await;
    for scheme in ["light", "dark"] {
        browser.on_screen(1_280, 900, scheme).await;
        assert_accessible(&browser, scheme).await;
    }
    assert_eq!(browser.log_problems().await, [""; 0]);
    browser.close().await;
    spooling.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_members_and_lossless_events_above_capacity_are_marked() {
    let millis = Duration::from_millis;
    // The sweeper waits for the full stream, longer than its bound of 100 ms.
    let late = ExpiringSet::<u32>::builder(millis(10)).name("late members").build();
    let mut slow = late.events_lossless(1);
    late.extend(0..4).await;
    sleep(millis(1_000)).await;
    for _ in 0..4 {
        slow.recv().await;
    }
    let full = Cache::<u32, u32>::builder().name("full stream").build();
    let _unread = full.events_lossless(2);
    for key in 0..6 {
        full.set_ex(key, key, MINUTE).await;
        full.expire_now(&key).await;
    }
    let browser = open_dashboard().await;
    browser.until("word('late members', 'Event lag, p99') === 'above 100 ms'").await;
    let note = "word('full stream', 'Missed by slow subscribers')";
    browser.until(&format!("{note} === '4 above a lossless capacity'")).await;
    browser.until("figure('full stream', 'Lossless events above capacity') === '4'").await;
    let summary = "card('full stream').querySelector('summary')";
    browser.until(&format!("{summary}.textContent === 'More metrics, 1 above a threshold'")).await;
    for name in ["late members", "full stream"] {
        browser.until(&format!("card('{name}').classList.contains('alarm')")).await;
    }
    let colours = "const colour = element => getComputedStyle(element).color; \
                   const marked = card('full stream').querySelector('dd.alarm'); \
                   return colour(marked) === colour(SUMMARY) && colour(marked) !== colour(document.body)";
    assert_eq!(browser.run(&colours.replace("SUMMARY", summary)).await, true);
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chart_values_are_shown_under_the_pointer_and_by_keyboard_for_minutes_and_an_hour() {
    let calls = RateLimiter::<u32>::builder().name("charted").limit(Limit::per_second(1)).build();
    let browser = open_dashboard().await;
    browser.until("!!card('charted')").await;
    // In a table of many, the card is opened first.
    let open = "const row = [...document.querySelectorAll('button.link')].find(one => one.textContent === 'charted'); \
                if (card('charted').hidden) row.click(); card('charted').querySelector('.plot').id = 'plot'; return true";
    browser.run(open).await;
    for _ in 0..50 {
        let _ = calls.check(&1).await;
    }
    browser.until("word('charted', 'Denied/s') === '49 total'").await;
    browser.run("card('charted').scrollIntoView(); return true").await;
    let plot = browser.client.find(Locator::Id("plot")).await.expect("the chart");
    let reading = "card('charted').querySelector('.reading').textContent";
    assert_eq!(browser.run(&format!("return {reading}")).await, "");

    let middle =
        PointerAction::MoveToElement { element: plot.clone(), duration: None, x: 0.0, y: 0.0 };
    let to_middle = MouseActions::new("mouse".to_owned()).then(middle);
    browser.client.perform_actions(to_middle).await.expect("the pointer moves");
    browser
        .until(&format!("/^2 min (29|30) s ago: allowed –\\/s, denied –\\/s$/.test({reading})"))
        .await;
    let away = PointerAction::MoveTo { duration: None, x: 2.0, y: 2.0 };
    let away = MouseActions::new("mouse".to_owned()).then(away);
    browser.client.perform_actions(away).await.expect("the pointer moves");
    browser.until(&format!("{reading} === ''")).await;

    // The key End, then arrow left until the second in which the calls were denied.
    let (mut found, mut others) = (false, String::new());
    for step in 0..60 {
        let key = if step == 0 { "\u{e010}" } else { "\u{e012}" };
        plot.send_keys(key).await.expect("the chart has the focus");
        let text = browser.run(&format!("return {reading}")).await;
        let text = text.as_str().expect("a string").to_owned();
        let time = if step == 0 { "now".to_owned() } else { format!("{step} s ago") };
        assert!(text.starts_with(&format!("{time}: allowed ")), "{text}");
        let spoken = "return document.getElementById('plot').getAttribute('aria-valuetext')";
        assert!(browser.run(spoken).await.as_str().is_some_and(|text| text.starts_with(&time)));
        let (_, denied) = text.split_once("denied ").expect("the value of each line");
        found = !denied.starts_with('0') && !denied.starts_with('–');
        if found {
            break;
        }
        others += &text;
    }
    assert!(found, "no point has the denied calls: {others}");
    plot.send_keys("\u{e00c}").await.expect("the chart has the focus");
    browser.until(&format!("{reading} === ''")).await;

    let choose = |label: &str| {
        format!(
            "[...document.querySelectorAll('.range button')].find(one => one.textContent === '{label}').click(); return true"
        )
    };
    let caption = "card('charted').querySelector('figcaption').textContent";
    let is_clock = "[...card('charted').querySelectorAll('.x > :not(.reading)')] \
                    .every(time => /^[0-2][0-9]:[0-5][0-9]$/.test(time.textContent))";
    let most = "document.getElementById('plot').getAttribute('aria-valuemax')";
    browser.run(&choose("1 hour")).await;
    browser
        .until(&format!("{caption}.includes('last hour') && {is_clock} && {most} === '359'"))
        .await;
    // The mean of the ten seconds with the denied calls.
    browser.until(&format!("/denied [0-9.]+, peak [1-9]/.test({caption})")).await;
    assert_accessible(&browser, "an hour").await;
    browser.run(&choose("5 minutes")).await;
    browser
        .until(&format!("{caption}.includes('five minutes') && {is_clock} && {most} === '299'"))
        .await;
    assert_eq!(browser.log_problems().await, [""; 0]);
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_five_of_a_kind_are_a_table_whose_rows_open_their_cards() {
    let sets: Vec<_> = (0..7)
        .map(|n| ExpiringSet::<u32>::builder(60 * MINUTE).name(format!("set {n}")).build())
        .collect();
    sets[3].extend(0..5).await;
    let browser = open_dashboard().await;
    let row = "[...document.querySelectorAll('.compact tbody tr')].find(row => row.cells[0].textContent === 'set 3')";
    browser.until(&format!("{row}.cells[1].textContent === '5' && {row}.checkVisibility()")).await;
    let is_visible = "card('set 3').checkVisibility()";
    assert_eq!(browser.run(&format!("return {is_visible}")).await, false);
    browser.run(&format!("{row}.querySelector('button').click(); return true")).await;
    browser
        .until(&format!(
            "{is_visible} && !!card('set 3').querySelector('.plot path.first').getAttribute('d')"
        ))
        .await;
    let expanded = format!("return {row}.querySelector('button').getAttribute('aria-expanded')");
    assert_eq!(browser.run(&expanded).await, "true");
    assert_eq!(browser.run("return card('set 2').checkVisibility()").await, false);
    for width in [1_280, 390] {
        browser.on_screen(width, 900, "light").await;
        assert_accessible(&browser, &format!("a table, {width} wide")).await;
        let wide = browser.run("return document.documentElement.scrollWidth").await;
        assert!(wide.as_u64() <= Some(width.into()), "the page is {wide} px wide");
    }
    browser.run(&format!("{row}.querySelector('button').click(); return true")).await;
    browser.until(&format!("!{is_visible}")).await;
    // Five or less are cards again.
    let remaining: Vec<_> = sets.into_iter().take(4).collect();
    browser.until("!card('set 5') && card('set 2').checkVisibility()").await;
    assert_eq!(remaining.len(), 4);
    assert_eq!(browser.log_problems().await, [""; 0]);
    browser.close().await;
}

/// Without HTTPS, browsers have no Web Locks except on `localhost`. In addition, no stream gets through here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dashboard_polls_if_no_stream_can_be_shared() {
    let cache = Cache::<u32, u32>::builder().name("polled").build();
    let no_streams = async |request: Request, next: Next| -> Response {
        match request.uri().path().ends_with("/stream") {
            true => StatusCode::BAD_GATEWAY.into_response(),
            false => next.run(request).await,
        }
    };
    let dashboard = fleeting::dashboard().layer(from_fn(no_streams));
    let port = serve(Router::new().nest("/watch", dashboard)).await;
    let browser = Browser::start().await;
    for host in ["elsewhere.test", "127.0.0.1"] {
        browser.open(&format!("http://{host}:{port}/watch")).await;
        let has_locks = browser.run("return 'locks' in navigator").await;
        assert_eq!(has_locks, host == "127.0.0.1");
        for entries in 1..=2 {
            cache.set_ex(entries, 0, Duration::MAX).await;
            browser.until(&format!("figure('polled', 'Entries') === '{entries}'")).await;
        }
        cache.clear().await;
    }
    browser.close().await;
}
