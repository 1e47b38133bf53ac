//! One process of the calibration: makes calls at random times for some seconds, and prints its counters.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fleeting::{
    Limit,
    redis::{Cache, Client, RateLimiter},
};
use fleeting_models::fleet::random::{Random, Zipf};
use futures_util::future::{BoxFuture, FutureExt};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};

use crate::calibrate::{LIMITS, LOADS, NEAR, REQUESTS, TICK, WARM_UP};

/// Arguments: the scenario, the URL of the server, the seed, the start as microseconds since the epoch, and the
/// seconds.
pub(crate) fn run(args: &[&str]) {
    let [scenario, url, seed, start, seconds] = args else { panic!("five arguments") };
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let start = UNIX_EPOCH + Duration::from_micros(number(start));
    let run = Run { random: Random::new(number(seed)), start, seconds: number(seconds) };
    // All calls of a tick are written at once, as in the simulation.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let client = Client::connect(*url).await.expect("the server answers");
        match *scenario {
            "near" => near(run, &client).await,
            "limits" => limits(run, &client).await,
            "loads" => loads(run, &client).await,
            "requests" => requests(run, &client).await,
            other => panic!("unknown scenario {other}"),
        }
    });
}

struct Run {
    random: Random,
    start: SystemTime,
    seconds: u64,
}

async fn near(run: Run, client: &Client) {
    let cache = Cache::builder(client, "calibration").near(10_000);
    let cache: Cache<u32, u64> = cache.build().expect("a name");
    let at_start = cache.clone();
    let handle = cache.clone();
    let before = run
        .calls(
            NEAR.reads,
            &Zipf::new(NEAR.keys, NEAR.exponent),
            move || at_start.stats(),
            move |key| {
                let cache = handle.clone();
                async move { drop(cache.get(&key).await) }.boxed()
            },
        )
        .await;
    let stats = cache.stats();
    let reads = stats.hits + stats.misses - before.hits - before.misses;
    println!("{reads} {}", stats.near_hits - before.near_hits);
}

async fn limits(run: Run, client: &Client) {
    let limit = Limit::new(LIMITS.quota, Duration::from_secs(1));
    let limiter = RateLimiter::builder(client, "calibration").limit(limit);
    let limiter: RateLimiter<u32> =
        limiter.timeout(Duration::from_secs(1)).build().expect("a name");
    let at_start = limiter.clone();
    let handle = limiter.clone();
    let before = run
        .calls(
            LIMITS.checks,
            &Zipf::new(LIMITS.keys, 0.0),
            move || at_start.stats(),
            move |key| {
                let limiter = handle.clone();
                async move { drop(limiter.check(&key).await) }.boxed()
            },
        )
        .await;
    let stats = limiter.stats();
    println!(
        "{} {}",
        stats.admitted - before.admitted,
        stats.denied_locally - before.denied_locally
    );
}

async fn loads(run: Run, client: &Client) {
    let cache: Cache<u32, u64> = Cache::new(client, "calibration").expect("a name");
    let at_start = cache.clone();
    let handle = cache.clone();
    let before = run
        .calls(
            LOADS.calls,
            &Zipf::new(LOADS.keys, LOADS.exponent),
            move || at_start.stats(),
            move |key| {
                let cache = handle.clone();
                async move {
                    let load = async move || {
                        tokio::time::sleep(LOADS.load_time).await;
                        1
                    };
                    drop(cache.get_or_set_with(&key, LOADS.ttl, load).await);
                }
                .boxed()
            },
        )
        .await;
    let stats = cache.stats();
    let calls = stats.hits + stats.misses - before.hits - before.misses;
    println!("{calls} {}", stats.loads - before.loads);
}

/// Makes four reads to one write.
async fn requests(run: Run, client: &Client) {
    let cache: Cache<String, String> = Cache::new(client, "calibration").expect("a name");
    let at_start = cache.clone();
    let handle = cache.clone();
    let call = move |key: u32| {
        let cache = handle.clone();
        let name = format!("user:{:016}", key / 5);
        async move {
            if key.is_multiple_of(5) {
                let value = "session of a user: 123456".to_owned();
                drop(cache.set_ex(name, value, Duration::from_secs(3_600)).await);
            } else {
                drop(cache.get(&name).await);
            }
        }
        .boxed()
    };
    let keys = Zipf::new(5 * REQUESTS.keys, 0.0);
    let before = run.calls(REQUESTS.rate, &keys, move || at_start.stats(), call).await;
    let stats = cache.stats();
    println!("{} 0", stats.hits + stats.misses - before.hits - before.misses);
}

impl Run {
    /// Makes `rate` calls per second, at the ticks that follow random times. Returns the counters after the warm-up.
    async fn calls<S>(
        mut self,
        rate: f64,
        keys: &Zipf,
        stats: impl Fn() -> S,
        call: impl Fn(u32) -> BoxFuture<'static, ()>,
    ) -> S {
        let until_start = self.start.duration_since(SystemTime::now()).unwrap_or_default();
        let begin = Instant::now() + until_start;
        sleep_until(begin).await;
        let mut ticks = interval_at(begin, TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (measured_from, end) =
            (begin + WARM_UP, begin + WARM_UP + Duration::from_secs(self.seconds));
        let mut next = begin;
        let mut before = None;
        loop {
            let now = ticks.tick().await;
            if now >= measured_from && before.is_none() {
                before = Some(stats());
            }
            if now >= end {
                return before.unwrap_or_else(stats);
            }
            while next <= now {
                tokio::spawn(call(keys.key(&mut self.random)));
                next += Duration::from_nanos(self.random.until_next(rate));
            }
        }
    }
}
