//! What a cache spares a server: pages that are loaded over HTTP, while the server hangs, fails and is gone.
//!
//! The server is in the same program, behind a real socket, and counts the requests that reach it. Each line of the
//! table is a cache of its own: how many calls there were, of those how many requests, and what the callers got.

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
/// So short that a page is dead soon.
const SHORT: Duration = Duration::from_millis(100);
/// How long the server takes at its best.
const LATENCY: Duration = Duration::from_millis(5);
const CALLERS: usize = 1_000;

type Page = Arc<str>;
type LoadError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (site, server) = Site::start().await?;
    println!(
        "{:<22}{:>7}{:>10}{:>8}{:>8}{:>8}{:>8}",
        "", "asked", "requests", "fresh", "loaded", "stale", "failed"
    );
    let mut all = Tally::default();
    for tally in [
        crowd(&site).await?,
        not_there(&site).await?,
        hanging(&site).await?,
        failing(&site).await?,
        popular(&site).await?,
        gone(&site, server).await?,
    ] {
        all.asked += tally.asked;
        all.requests += tally.requests;
    }
    println!("\nof {} calls {} reached the server", all.asked, all.requests);
    Ok(())
}

/// Ten thousand callers of a hundred pages that the cache has not got yet: each is loaded once.
async fn crowd(site: &Site) -> Result<Tally, Box<dyn Error>> {
    let mut pages = Pages::new(Cache::builder(), site);
    pages.ask(10 * CALLERS, HOUR, |caller| format!("/pages/{}", caller % 100)).await?;
    Ok(pages.told("a crowd"))
}

/// What is not there is asked for once, and not again for an hour.
async fn not_there(site: &Site) -> Result<Tally, Box<dyn Error>> {
    let mut pages = Pages::new(Cache::builder().negative_ttl(HOUR), site);
    pages.ask(CALLERS, HOUR, |_| "/nowhere".to_owned()).await?;
    Ok(pages.told("a page not there"))
}

/// The server hangs, and nobody waits for it: all get the old page, until the new one is there.
async fn hanging(site: &Site) -> Result<Tally, Box<dyn Error>> {
    let mut pages = Pages::new(Cache::builder().stale_while_revalidate(HOUR), site);
    pages.ask(1, SHORT, |_| "/pages/1".to_owned()).await?;
    sleep(SHORT).await;
    site.be(Mood::Hanging);
    pages.ask(CALLERS, HOUR, |_| "/pages/1".to_owned()).await?;
    site.be(Mood::Well);
    pages.cache.wait_for("/pages/1").await;
    pages.ask(CALLERS, HOUR, |_| "/pages/1".to_owned()).await?;
    Ok(pages.told("a server that hangs"))
}

/// The server answers with errors: all get the old page, and it is asked no more for a while.
async fn failing(site: &Site) -> Result<Tally, Box<dyn Error>> {
    let mut pages = Pages::new(Cache::builder().stale_if_error(HOUR).negative_ttl(HOUR), site);
    pages.ask(1, SHORT, |_| "/pages/1".to_owned()).await?;
    sleep(SHORT).await;
    site.be(Mood::Failing);
    pages.ask(CALLERS, HOUR, |_| "/pages/1".to_owned()).await?;
    site.be(Mood::Well);
    Ok(pages.told("a server that fails"))
}

/// A page that is asked for all the time is loaded anew before it dies: the first callers wait, and few after.
async fn popular(site: &Site) -> Result<Tally, Box<dyn Error>> {
    let mut pages = Pages::new(Cache::builder().refresh_ahead(1.0), site);
    while pages.requests() < 5 {
        pages.ask(10, SHORT, |_| "/pages/1".to_owned()).await?;
        sleep(LATENCY / 5).await;
    }
    Ok(pages.told("a page always asked"))
}

/// Nobody listens any more: who asks for a page that was there gets the old one, who asks for another the error.
async fn gone(
    site: &Site,
    server: JoinHandle<std::io::Result<()>>,
) -> Result<Tally, Box<dyn Error>> {
    let mut pages = Pages::new(Cache::builder().stale_if_error(HOUR).negative_ttl(HOUR), site);
    pages.ask(1, SHORT, |_| "/pages/0".to_owned()).await?;
    sleep(SHORT).await;
    site.be(Mood::Gone);
    server.await??;
    pages.ask(CALLERS, HOUR, |caller| format!("/pages/{}", caller % 2)).await?;
    Ok(pages.told("a server that is gone"))
}

/// A cache of the site's pages, and what came of asking it.
struct Pages {
    cache: Cache<String, Page>,
    site: Site,
    requests_before: usize,
    tally: Tally,
}

#[derive(Default)]
struct Tally {
    asked: usize,
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

    /// Lets so many tasks ask at once, each for the path of its number.
    async fn ask(
        &mut self,
        callers: usize,
        ttl: Duration,
        path: impl Fn(usize) -> String,
    ) -> Result<(), tokio::task::JoinError> {
        let calls: Vec<_> = (0..callers)
            .map(|caller| {
                let (cache, site, path) = (self.cache.clone(), self.site.clone(), path(caller));
                tokio::spawn(async move {
                    // It owns what it needs: it may go on when this call has returned.
                    let wanted = path.clone();
                    let load = async move || site.load(&wanted).await;
                    cache.get_or_try_set_with_freshness(&path, ttl, load).await
                })
            })
            .collect();
        for call in calls {
            self.tally.count(call.await?);
        }
        Ok(())
    }

    /// How many requests of this cache have reached the server.
    fn requests(&self) -> usize {
        self.site.requests() - self.requests_before
    }

    /// Prints the line of this cache.
    fn told(mut self, what: &str) -> Tally {
        self.tally.requests = self.requests();
        let Tally { asked, requests, fresh, loaded, stale, failed, error } = &self.tally;
        print!("{what:<22}{asked:>7}{requests:>10}{fresh:>8}{loaded:>8}{stale:>8}{failed:>8}");
        match error {
            Some(error) => println!("  {}", root(error.as_ref().as_ref())),
            None => println!(),
        }
        self.tally
    }
}

impl Tally {
    fn count(&mut self, answer: Result<(Page, Freshness), Arc<LoadError>>) {
        self.asked += 1;
        match answer {
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

/// A server, and a client of it.
#[derive(Clone)]
struct Site {
    address: SocketAddr,
    client: Client<HttpConnector, Empty<Bytes>>,
    shared: Arc<Shared>,
}

struct Shared {
    requests: AtomicUsize,
    mood: watch::Sender<Mood>,
}

#[derive(Clone, Copy, PartialEq)]
enum Mood {
    Well,
    /// It accepts requests and doesn't answer.
    Hanging,
    Failing,
    Gone,
}

impl Site {
    async fn start() -> std::io::Result<(Self, JoinHandle<std::io::Result<()>>)> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mood = watch::Sender::new(Mood::Well);
        let mut end = mood.subscribe();
        let shared = Arc::new(Shared { requests: AtomicUsize::new(0), mood });
        let app = Router::new().fallback(answer).with_state(shared.clone());
        let serve = axum::serve(listener, app).with_graceful_shutdown(async move {
            let _ = end.wait_for(|mood| *mood == Mood::Gone).await;
        });
        let client = Client::builder(TokioExecutor::new()).build_http();
        Ok((Self { address, client, shared }, tokio::spawn(serve.into_future())))
    }

    async fn load(&self, path: &str) -> Result<Page, LoadError> {
        let answer = self.client.get(format!("http://{}{path}", self.address).parse()?).await?;
        let status = answer.status();
        if !status.is_success() {
            return Err(format!("{path}: {status}").into());
        }
        let text = answer.into_body().collect().await?.to_bytes();
        Ok(str::from_utf8(&text)?.into())
    }

    fn be(&self, mood: Mood) {
        self.shared.mood.send_replace(mood);
    }

    fn requests(&self) -> usize {
        self.shared.requests.load(Relaxed)
    }
}

async fn answer(State(server): State<Arc<Shared>>, uri: Uri) -> Result<String, StatusCode> {
    let number = server.requests.fetch_add(1, Relaxed) + 1;
    sleep(LATENCY).await;
    let mut mood = server.mood.subscribe();
    match mood.wait_for(|mood| *mood != Mood::Hanging).await.as_deref() {
        Ok(Mood::Failing) | Err(_) => Err(StatusCode::SERVICE_UNAVAILABLE),
        Ok(_) if uri.path().starts_with("/pages/") => Ok(format!("answer {number}")),
        Ok(_) => Err(StatusCode::NOT_FOUND),
    }
}

/// What is at the bottom of an error.
fn root<'a>(mut error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    while let Some(source) = error.source() {
        error = source;
    }
    error
}
