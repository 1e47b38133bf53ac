//! Requests that a cache saves a server: pages are loaded over HTTP while the server hangs, fails and disappears.
//!
//! The server runs in the same program, behind a real socket, and counts its requests. Each row of the table is a
//! separate cache: its calls, the requests that reached the server, and the results that the callers got.

use std::{
    error::Error,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{StatusCode, Uri},
};
use http_body_util::{BodyExt, Empty};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle, time::sleep};

use fleeting::{Builder, Cache, Freshness};

const HOUR: Duration = Duration::from_secs(3_600);
/// A TTL so short that a page has expired before the next step.
const SHORT: Duration = Duration::from_millis(100);
/// Response time of a healthy server.
const LATENCY: Duration = Duration::from_millis(5);
const CALLERS: usize = 1_000;

type Page = Arc<str>;
type LoadError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (site, server) = Site::start().await?;
    println!(
        "{:<22}{:>7}{:>10}{:>8}{:>8}{:>8}{:>8}",
        "", "calls", "requests", "fresh", "loaded", "stale", "failed"
    );
    let mut all = Tally::default();
    for tally in [
        cold_cache(&site).await?,
        missing_page(&site).await?,
        hanging_server(&site).await?,
        failing_server(&site).await?,
        popular_page(&site).await?,
        stopped_server(&site, server).await?,
    ] {
        all.calls += tally.calls;
        all.requests += tally.requests;
    }
    println!("\nof {} calls, {} reached the server", all.calls, all.requests);
    Ok(())
}

/// Ten thousand callers request a hundred pages that are not cached yet: each page is loaded once.
async fn cold_cache(site: &Site) -> Result<Tally, Box<dyn Error>> {
    let mut pages = Pages::new(Cache::builder(), site);
    pages.request(10 * CALLERS, HOUR, |caller| format!("/pages/{}", caller % 100)).await?;
    Ok(pages.print_row("cold cache"))
}

/// A missing page is requested once, and not again for an hour.
async fn missing_page(site: &Site) -> Result<Tally, Box<dyn Error>> {
    let mut pages = Pages::new(Cache::builder().negative_ttl(HOUR), site);
    pages.request(CALLERS, HOUR, |_| "/nowhere".to_owned()).await?;
    Ok(pages.print_row("missing page"))
}

/// The server hangs, and no caller waits for it: all get the stale page until a background refresh has finished.
async fn hanging_server(site: &Site) -> Result<Tally, Box<dyn Error>> {
    let mut pages = Pages::new(Cache::builder().stale_while_revalidate(HOUR), site);
    pages.request(1, SHORT, |_| "/pages/1".to_owned()).await?;
    sleep(SHORT).await;
    site.set_health(Health::Hanging);
    pages.request(CALLERS, HOUR, |_| "/pages/1".to_owned()).await?;
    site.set_health(Health::Good);
    pages.cache.wait_for("/pages/1").await;
    pages.request(CALLERS, HOUR, |_| "/pages/1".to_owned()).await?;
    Ok(pages.print_row("hanging server"))
}

/// The server responds with errors: all callers get the stale page, and the error is cached, too.
async fn failing_server(site: &Site) -> Result<Tally, Box<dyn Error>> {
    let mut pages = Pages::new(Cache::builder().stale_if_error(HOUR).negative_ttl(HOUR), site);
    pages.request(1, SHORT, |_| "/pages/1".to_owned()).await?;
    sleep(SHORT).await;
    site.set_health(Health::Failing);
    pages.request(CALLERS, HOUR, |_| "/pages/1".to_owned()).await?;
    site.set_health(Health::Good);
    Ok(pages.print_row("failing server"))
}

/// A popular page is refreshed before it expires: callers wait for the first load, and rarely for a later one.
async fn popular_page(site: &Site) -> Result<Tally, Box<dyn Error>> {
    let mut pages = Pages::new(Cache::builder().refresh_ahead(1.0), site);
    while pages.requests() < 5 {
        pages.request(10, SHORT, |_| "/pages/1".to_owned()).await?;
        sleep(LATENCY / 5).await;
    }
    Ok(pages.print_row("popular page"))
}

/// The server has stopped: callers of a page that was cached get the stale page, callers of another page the error.
async fn stopped_server(
    site: &Site,
    server: JoinHandle<std::io::Result<()>>,
) -> Result<Tally, Box<dyn Error>> {
    let mut pages = Pages::new(Cache::builder().stale_if_error(HOUR).negative_ttl(HOUR), site);
    pages.request(1, SHORT, |_| "/pages/0".to_owned()).await?;
    sleep(SHORT).await;
    site.set_health(Health::Stopped);
    server.await??;
    pages.request(CALLERS, HOUR, |caller| format!("/pages/{}", caller % 2)).await?;
    Ok(pages.print_row("stopped server"))
}

/// A cache of the site's pages, and a tally of its calls.
struct Pages {
    cache: Cache<String, Page>,
    site: Site,
    requests_before: usize,
    tally: Tally,
}

#[derive(Default)]
struct Tally {
    calls: usize,
    requests: usize,
    fresh: usize,
    loaded: usize,
    stale: usize,
    failed: usize,
    error: Option<Arc<LoadError>>,
}

impl Pages {
    fn new(settings: Builder<String, Page>, site: &Site) -> Self {
        Self {
            cache: settings.build(),
            site: site.clone(),
            requests_before: site.requests(),
            tally: Tally::default(),
        }
    }

    /// Spawns `callers` tasks, each of which requests `path` of its number.
    async fn request(
        &mut self,
        callers: usize,
        ttl: Duration,
        path: impl Fn(usize) -> String,
    ) -> Result<(), tokio::task::JoinError> {
        let calls: Vec<_> = (0..callers)
            .map(|caller| {
                let (cache, site, path) = (self.cache.clone(), self.site.clone(), path(caller));
                tokio::spawn(async move {
                    // Owned, because a background refresh may still run after this call has returned.
                    let page = path.clone();
                    let load = async move || site.load(&page).await;
                    cache.get_or_try_set_with_freshness(&path, ttl, load).await
                })
            })
            .collect();
        for call in calls {
            self.tally.count(call.await?);
        }
        Ok(())
    }

    /// Returns the number of requests of this cache that have reached the server.
    fn requests(&self) -> usize {
        self.site.requests() - self.requests_before
    }

    /// Prints the row of this cache.
    fn print_row(mut self, what: &str) -> Tally {
        self.tally.requests = self.requests();
        let Tally { calls, requests, fresh, loaded, stale, failed, error } = &self.tally;
        print!("{what:<22}{calls:>7}{requests:>10}{fresh:>8}{loaded:>8}{stale:>8}{failed:>8}");
        match error {
            Some(error) => println!("  {}", root_cause(error.as_ref().as_ref())),
            None => println!(),
        }
        self.tally
    }
}

impl Tally {
    fn count(&mut self, result: Result<(Page, Freshness), Arc<LoadError>>) {
        self.calls += 1;
        match result {
            Ok((_, Freshness::Fresh)) => self.fresh += 1,
            Ok((_, Freshness::Loaded)) => self.loaded += 1,
            Ok((_, Freshness::Stale)) => self.stale += 1,
            Err(error) => {
                self.failed += 1;
                self.error = Some(error);
            }
        }
    }
}

/// A server, and a client for it.
#[derive(Clone)]
struct Site {
    address: SocketAddr,
    client: Client<HttpConnector, Empty<Bytes>>,
    shared: Arc<Shared>,
}

struct Shared {
    requests: AtomicUsize,
    health: watch::Sender<Health>,
}

#[derive(Clone, Copy, PartialEq)]
enum Health {
    Good,
    /// Accepts requests and never responds.
    Hanging,
    Failing,
    Stopped,
}

impl Site {
    async fn start() -> std::io::Result<(Self, JoinHandle<std::io::Result<()>>)> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let health = watch::Sender::new(Health::Good);
        let mut end = health.subscribe();
        let shared = Arc::new(Shared { requests: AtomicUsize::new(0), health });
        let app = Router::new().fallback(respond).with_state(shared.clone());
        let serve = axum::serve(listener, app).with_graceful_shutdown(async move {
            let _ = end.wait_for(|health| *health == Health::Stopped).await;
        });
        let client = Client::builder(TokioExecutor::new()).build_http();
        Ok((Self { address, client, shared }, tokio::spawn(serve.into_future())))
    }

    async fn load(&self, path: &str) -> Result<Page, LoadError> {
        let response = self.client.get(format!("http://{}{path}", self.address).parse()?).await?;
        let status = response.status();
        if !status.is_success() {
            return Err(format!("{path}: {status}").into());
        }
        let text = response.into_body().collect().await?.to_bytes();
        Ok(str::from_utf8(&text)?.into())
    }

    fn set_health(&self, health: Health) {
        self.shared.health.send_replace(health);
    }

    fn requests(&self) -> usize {
        self.shared.requests.load(Relaxed)
    }
}

async fn respond(State(server): State<Arc<Shared>>, uri: Uri) -> Result<String, StatusCode> {
    let number = server.requests.fetch_add(1, Relaxed) + 1;
    sleep(LATENCY).await;
    let mut health = server.health.subscribe();
    match health.wait_for(|health| *health != Health::Hanging).await.as_deref() {
        Ok(Health::Failing) | Err(_) => Err(StatusCode::SERVICE_UNAVAILABLE),
        Ok(_) if uri.path().starts_with("/pages/") => Ok(format!("response {number}")),
        Ok(_) => Err(StatusCode::NOT_FOUND),
    }
}

/// Returns the last error in the chain of sources.
fn root_cause<'a>(mut error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    while let Some(source) = error.source() {
        error = source;
    }
    error
}
