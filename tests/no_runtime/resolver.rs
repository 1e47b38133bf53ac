//! The pattern of hickory-dns: a resolver with a constructor that is not async, whose cache is read and written by
//! functions that are not async, called from runtimes of any kind.

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use fleeting::{Cache, Op, SyncCache};

#[derive(Clone, Debug, PartialEq)]
struct Answer {
    address: Ipv4Addr,
    valid_until: Instant,
}

#[derive(Clone, Debug)]
struct ResponseCache {
    answers: SyncCache<String, Answer>,
}

impl ResponseCache {
    fn new(capacity: usize) -> Self {
        let answers = Cache::builder().max_entries(capacity).background_thread().build();
        Self { answers: answers.sync().clone() }
    }

    fn insert(&self, name: &str, address: Ipv4Addr, ttl: Duration, now: Instant) {
        let answer = Answer { address, valid_until: now + ttl };
        self.answers.set_ex(name.to_owned(), answer, ttl);
    }

    fn get(&self, name: &str, now: Instant) -> Option<Answer> {
        self.answers.get(name).filter(|answer| answer.valid_until > now)
    }

    fn clear(&self) {
        self.answers.clear();
    }
}

fn use_it(cache: &ResponseCache) {
    let now = Instant::now();
    cache.insert("localhost", Ipv4Addr::LOCALHOST, Duration::from_secs(60), now);
    assert_eq!(cache.get("localhost", now).map(|answer| answer.address), Some(Ipv4Addr::LOCALHOST));
    assert_eq!(cache.get("localhost", now + Duration::from_secs(61)), None);
    cache.insert("gone", Ipv4Addr::LOCALHOST, Duration::ZERO, now);
    assert_eq!(cache.get("gone", now), None);
    let shorter = |_: Option<&Answer>| Op::Remove;
    assert_eq!(cache.answers.compute("localhost", shorter), None);
    cache.clear();
    assert!(cache.answers.is_empty());
}

#[test]
fn resolver_is_built_and_used_without_a_runtime() {
    use_it(&ResponseCache::new(32));
}

#[test]
fn resolver_is_built_and_used_inside_of_runtimes() {
    for mut runtime in
        [tokio::runtime::Builder::new_current_thread(), tokio::runtime::Builder::new_multi_thread()]
    {
        let cache = ResponseCache::new(32);
        let runtime = runtime.worker_threads(1).build().expect("a runtime");
        runtime.block_on(async {
            use_it(&cache);
            use_it(&ResponseCache::new(32));
        });
        drop(runtime);
        use_it(&cache);
    }
}

/// 200 answers are inserted by four threads, of which the cache may hold 32.
#[test]
fn threads_share_the_resolver_and_its_bound_holds() {
    let cache = ResponseCache::new(32);
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let cache = &cache;
            scope.spawn(move || {
                for number in 0..50_u8 {
                    let (address, now) = (Ipv4Addr::new(127, 0, thread, number), Instant::now());
                    cache.insert(&address.to_string(), address, Duration::from_secs(60), now);
                    assert!(cache.answers.len() <= 32 + 4);
                }
            });
        }
    });
    assert!(cache.answers.len() <= 32, "{}", cache.answers.len());
    assert!(format!("{cache:?}").contains("127.0."), "{cache:?}");
}
