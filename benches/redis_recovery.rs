//! Time from the end of an outage until calls succeed again.

use std::{
    fmt::Write,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use fleeting::redis::{Cache, Client};

use crate::{
    Goals, HOUR,
    measure::{median, ms, quantile},
    servers::{Cluster, Proxy, Sentinel, Server},
};

/// Returns a table of outages, with the milliseconds until calls succeed again.
pub(crate) async fn table(rounds: usize, goals: &mut Goals) -> String {
    let mut page = String::from(
        "\n## Until calls succeed again\n\n\
         One caller sets a key in a loop, with default settings. The time begins when a call could succeed: the \
         network or another route is available, a sentinel names the new master, the replica reports that it is the \
         master, or the server answers a `PING`. Medians and maxima.\n\n\
         | | ms | maximum |\n| --- | --- | --- |\n",
    );
    let mut samples = [const { Vec::new() }; 6];
    for _ in 0..rounds {
        samples[0].push(silence().await);
        samples[1].push(hole().await);
        samples[2].push(restart().await);
        samples[3].push(sentinel().await);
        samples[4].push(cluster(true).await);
        samples[5].push(cluster(false).await);
    }
    for (name, samples) in [
        "a connection goes silent; new connections succeed",
        "a network that drops everything for 3 s",
        "a server is killed, and restarted 1 s later",
        "a master behind a sentinel is killed",
        "a master in a cluster is killed",
        "a master in a cluster is stopped",
    ]
    .into_iter()
    .zip(samples)
    {
        let longest = samples.iter().copied().fold(0.0, f64::max);
        let median_ms = median(samples);
        eprintln!("{name}: {median_ms:.0} ms, {longest:.0} maximum");
        writeln!(page, "| {name} | {median_ms:.0} | {longest:.0} |")
            .expect("writing to a String cannot fail");
    }
    let [down, near] = down().await;
    goals.add("call to a server that is down, 99th percentile in ms", down, 5.0);
    write!(
        page,
        "\nWhile a server is down, after a whole timeout without a connection, a call fails within {down:.2} ms (99th \
         percentile). A near cache has no notifications then, so a `get` fails as fast ({near:.2} ms).\n"
    )
    .expect("writing to a String cannot fail");
    page
}

/// Returns the 99th percentile of the milliseconds per call to a server that is down: of a cache, and of a near cache.
async fn down() -> [f64; 2] {
    let mut server = Server::start();
    let plain = cache(server.url()).await;
    let client = Client::connect(server.url()).await.expect("the server answers");
    let near: Cache<String, u32> =
        Cache::builder(&client, "recovery").near(100).near_max_age(HOUR).build().expect("a name");
    near.get("a").await.expect("the server answers");
    server.kill();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(3) {
        let _ = (plain.get("a").await, near.get("a").await);
    }
    let mut samples = [const { Vec::new() }; 2];
    for _ in 0..1_000 {
        for (samples, cache) in samples.iter_mut().zip([&plain, &near]) {
            let begin = Instant::now();
            assert!(cache.get("a").await.is_err(), "the server is down");
            samples.push(begin.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    samples.map(|mut samples| {
        samples.sort();
        ms(quantile(&samples, 0.99))
    })
}

async fn cache(urls: impl fleeting::redis::Urls) -> Cache<String, u32> {
    let client = Client::connect(urls).await.expect("the server answers");
    let cache = Cache::new(&client, "recovery").expect("a name");
    cache.set("a".into(), 1).await.expect("the write succeeds");
    cache
}

/// Returns the milliseconds from the time when `is_possible` returns true until a call succeeds. `is_possible` is
/// polled on a separate thread.
async fn until_set(
    cache: &Cache<String, u32>,
    is_possible: impl Fn() -> bool + Send + 'static,
) -> f64 {
    let (sender, possible_since) = mpsc::channel();
    thread::spawn(move || {
        while !is_possible() {
            thread::sleep(Duration::from_millis(2));
        }
        let _ = sender.send(Instant::now());
    });
    let begin = Instant::now();
    while cache.set("a".into(), 2).await.is_err() {
        let is_over = begin.elapsed() > Duration::from_secs(60);
        assert!(!is_over, "no call succeeds; possible since {:?}", possible_since.try_recv());
    }
    let end = Instant::now();
    // A call may succeed before `is_possible` has noticed: such a recovery took no time.
    possible_since
        .try_recv()
        .map_or(0.0, |since| end.saturating_duration_since(since).as_secs_f64() * 1e3)
}

async fn silence() -> f64 {
    let server = Server::start();
    let proxy = Proxy::to(server.port()).await;
    let cache = cache(proxy.url()).await;
    let begin = Instant::now();
    proxy.silence();
    while cache.set("a".into(), 2).await.is_err() {}
    begin.elapsed().as_secs_f64() * 1e3
}

async fn hole() -> f64 {
    let server = Server::start();
    let proxy = Proxy::to(server.port()).await;
    let cache = cache(proxy.url()).await;
    let begin = Instant::now();
    proxy.hole(true);
    while begin.elapsed() < Duration::from_secs(3) {
        let _ = cache.set("a".into(), 2).await;
    }
    let begin = Instant::now();
    proxy.hole(false);
    while cache.set("a".into(), 2).await.is_err() {}
    begin.elapsed().as_secs_f64() * 1e3
}

async fn restart() -> f64 {
    let mut server = Server::start();
    let cache = cache(server.url()).await;
    server.kill();
    let port = server.port();
    let restart = thread::spawn(move || {
        thread::sleep(Duration::from_secs(1));
        server.restart();
        server
    });
    let time = until_set(&cache, move || crate::servers::ask(port, "PING").starts_with("+PONG"));
    let time = time.await;
    drop(restart.join());
    time
}

async fn sentinel() -> f64 {
    let mut master = Server::start();
    let replica = Server::replica_of(&master);
    let sentinel = Sentinel::of(&master);
    sentinel.knows_replicas(1);
    let cache = cache(format!("redis+sentinel://127.0.0.1:{}/main", sentinel.port())).await;
    master.kill();
    // Shared with the polling thread, and kept running until a call has succeeded.
    let servers = Arc::new((sentinel, replica));
    let polled = servers.clone();
    let time = until_set(&cache, move || polled.0.master() == polled.1.port()).await;
    drop(servers);
    time
}

async fn cluster(is_killed: bool) -> f64 {
    let mut cluster = Cluster::start();
    let replicas = cluster.add_replicas(3);
    let cache = cache(cluster.urls()).await;
    let has_it = |node: &Server| !node.ask("KEYS *").starts_with("*0");
    let of = cluster.nodes().iter().position(has_it).expect("a node has the key");
    if is_killed {
        cluster.nodes()[of].kill();
    } else {
        cluster.nodes()[of].pause();
    }
    let port = replicas[of].port();
    until_set(&cache, move || crate::servers::ask(port, "ROLE").contains("master")).await
}
