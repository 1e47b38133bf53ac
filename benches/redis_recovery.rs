//! How long it takes until calls succeed again, once that is possible.

use std::{
    fmt::Write,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use fleeting::redis::{Cache, Client};

use crate::{
    median,
    servers::{Cluster, Proxy, Sentinel, Server},
};

/// What makes calls fail, and then succeed again; the figures are milliseconds.
pub(crate) async fn table(rounds: usize) -> String {
    let mut page = String::from(
        "\n## Until calls succeed again\n\n\
         One caller sets again and again, with all settings as they are by default. Timed is from when it could \
         succeed: the network is back, or another way is there; a sentinel names the new master; the replica says that \
         it is one; the server answers a `PING`. Medians, and the longest.\n\n\
         | | ms | longest |\n| --- | --- | --- |\n",
    );
    let mut figures = [const { Vec::new() }; 6];
    for _ in 0..rounds {
        figures[0].push(silence().await);
        figures[1].push(hole().await);
        figures[2].push(restart().await);
        figures[3].push(sentinel().await);
        figures[4].push(cluster(true).await);
        figures[5].push(cluster(false).await);
    }
    for (name, figures) in [
        "a connection goes silent; new ones get through",
        "a network that drops everything for 3 s",
        "a server is killed, and restarted 1 s later",
        "a master behind a sentinel is killed",
        "a master in a cluster is killed",
        "a master in a cluster is stopped",
    ]
    .into_iter()
    .zip(figures)
    {
        let longest = figures.iter().copied().fold(0.0, f64::max);
        let middle = median(figures);
        eprintln!("{name}: {middle:.0} ms, {longest:.0} at most");
        writeln!(page, "| {name} | {middle:.0} | {longest:.0} |").expect("a string takes all");
    }
    page
}

async fn cache(urls: impl fleeting::redis::Urls) -> Cache<String, u32> {
    let client = Client::connect(urls).await.expect("the server answers");
    let cache = Cache::new(&client, "recovery").expect("a name");
    cache.set("a".into(), 1).await.expect("it is set");
    cache
}

/// Milliseconds until a call succeeds, from when `is_possible` says so, on a thread of its own.
async fn until_set(
    cache: &Cache<String, u32>,
    is_possible: impl Fn() -> bool + Send + 'static,
) -> f64 {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        while !is_possible() {
            thread::sleep(Duration::from_millis(2));
        }
        let _ = tell.send(Instant::now());
    });
    let begin = Instant::now();
    while cache.set("a".into(), 2).await.is_err() {
        let is_over = begin.elapsed() > Duration::from_secs(60);
        assert!(!is_over, "it never succeeds; it could since {:?}", told.try_recv());
    }
    let end = Instant::now();
    // One that succeeded before it was possible, or was seen to be, took no time.
    told.try_recv().map_or(0.0, |since| end.saturating_duration_since(since).as_secs_f64() * 1e3)
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
    // They live until a call has succeeded.
    let servers = Arc::new((sentinel, replica));
    let looks_at = servers.clone();
    let time = until_set(&cache, move || looks_at.0.master() == looks_at.1.port()).await;
    drop(servers);
    time
}

async fn cluster(is_killed: bool) -> f64 {
    let mut cluster = Cluster::start();
    let replicas = cluster.add_replicas(3);
    let cache = cache(cluster.urls()).await;
    let has_it = |node: &Server| !node.ask("KEYS *").starts_with("*0");
    let of = cluster.nodes().iter().position(has_it).expect("one has the key");
    if is_killed {
        cluster.nodes()[of].kill();
    } else {
        cluster.nodes()[of].pause();
    }
    let port = replicas[of].port();
    until_set(&cache, move || crate::servers::ask(port, "ROLE").contains("master")).await
}
