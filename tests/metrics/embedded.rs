//! Caches, limiters, sets and dictionaries: their metrics match their own statistics.

use std::{sync::mpsc::channel, thread, time::Duration};

use fleeting::{Cache, Cause, ExpiringSet, ExpiringSets, Limit, RateLimiter, Sweep, TimeoutDict};
use tokio::time::{advance, sleep};

use crate::{SECOND, ScrapedMetrics, patience::patience, scrape, wait_until::wait_until};

#[tokio::test(start_paused = true)]
async fn cache_metrics_match_its_stats() {
    let cache = Cache::builder().name("numbers").max_entries(100).sweep(Sweep::manual()).build();
    for key in 0..150 {
        cache.set(key, key).await;
    }
    for key in 0..150 {
        cache.get(&key).await;
    }
    cache.get(&1_000).await;
    let mut events = cache.events_lossless(100);
    for key in 150..160 {
        cache.set_ex(key, key, SECOND).await;
        cache.set_ex(key, key + 1, SECOND).await;
    }
    cache.remove(&159).await;
    advance(3 * SECOND).await;
    let stale = scrape("numbers").gauge("fleeting_cache_staleness_seconds");
    assert!((1.9..2.1).contains(&stale), "{stale}");
    cache.sweep().await;

    let (metrics, stats) = (scrape("numbers"), cache.stats());
    assert_eq!(metrics.counter("fleeting_cache_hits_total"), stats.hits);
    assert_eq!(metrics.counter("fleeting_cache_misses_total"), stats.misses);
    assert_eq!(metrics.counter("fleeting_cache_misses_of_evicted_total"), stats.misses_of_evicted);
    assert_eq!(metrics.counter("fleeting_cache_sets_total"), 150 + 20);
    for (cause, count) in [
        (Cause::Expired, stats.expired),
        (Cause::Evicted, stats.evicted),
        (Cause::Removed, stats.removed),
        (Cause::Replaced, stats.replaced),
    ] {
        let label = Some(("cause", cause.as_str()));
        assert_eq!(metrics.counter_of("fleeting_cache_departures_total", label), count, "{cause}");
        assert!(count > 0, "{cause}");
    }
    assert_eq!(metrics.gauge("fleeting_cache_resident"), stats.resident as f64);
    assert_eq!(metrics.gauge("fleeting_cache_weight"), stats.weight as f64);
    assert_eq!(metrics.gauge("fleeting_cache_max_weight"), 100.0);
    assert_eq!(metrics.gauge("fleeting_cache_sweep_bound_seconds"), 0.0, "sweeps are manual");
    assert_eq!(metrics.gauge("fleeting_cache_staleness_seconds"), 0.0);
    assert_eq!(metrics.counter("fleeting_cache_sweep_looked_at_total"), stats.swept.looked_at);
    assert_eq!(metrics.within("fleeting_cache_sweep_seconds", 10.0), stats.sweeps);
    assert_eq!(metrics.gauge("fleeting_cache_subscribers"), 1.0);
    assert_eq!(metrics.gauge("fleeting_cache_events_overflow"), stats.overflow as f64);
    while events.recv().await.unwrap().cause != Cause::Expired {}
}

#[tokio::test(start_paused = true)]
async fn bound_and_delay_by_the_settings_are_published() {
    let every = SECOND / 10;
    let cache = Cache::<u32, u32>::builder().name("bounded").max_weight(70, |_, _| 7).build();
    assert_eq!(scrape("bounded").gauge("fleeting_cache_max_weight"), 70.0);
    assert_eq!(scrape("bounded").gauge("fleeting_cache_sweep_bound_seconds"), 0.1);
    cache.set_max_weight(35).await;
    cache.set_sweep(Sweep::default().every(every).sample(0.3));
    assert_eq!(scrape("bounded").gauge("fleeting_cache_max_weight"), 35.0);
    assert_eq!(scrape("bounded").gauge("fleeting_cache_sweep_bound_seconds"), 0.4);
    let _unbounded = Cache::<u32, u32>::builder().name("unbounded").build();
    assert_eq!(scrape("unbounded").gauge("fleeting_cache_max_weight"), 0.0);
}

#[tokio::test(start_paused = true)]
async fn event_metrics_record_lag_and_missed_events() {
    let cache = Cache::builder().name("late events").event_capacity(4).build();
    let mut slow = cache.events();
    let mut other = cache.events();
    for key in 0..10 {
        cache.set_ex(key, key, SECOND).await;
    }
    sleep(2 * SECOND).await;
    // Neither subscriber has received anything, so each has missed six.
    assert_eq!(scrape("late events").counter("fleeting_cache_events_missed_total"), 12);
    assert_eq!(slow.recv().await.unwrap().unwrap_err().0, 6);
    drop(slow);
    assert_eq!(other.recv().await.unwrap().unwrap_err().0, 6);
    drop(other);
    let metrics = scrape("late events");
    assert_eq!(metrics.counter("fleeting_cache_events_missed_total"), 12);
    assert_eq!(metrics.within("fleeting_cache_event_lag_seconds", 1.0), 10);
}

/// Value that publishes metrics when it is dropped.
#[derive(Clone)]
struct Publishing;

impl Drop for Publishing {
    fn drop(&mut self) {
        fleeting::publish_metrics();
    }
}

/// The publication that drops an event runs the drop of its value, which publishes once more.
#[test]
fn drop_of_a_value_may_publish_metrics() {
    let (done, ended) = channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let builder = Cache::builder().name("publishing values").event_capacity(1);
            let cache = builder.sweep(Sweep::manual()).publish([Cause::Removed]).build();
            let _slow = cache.events();
            for key in 0..3 {
                cache.set(key, Publishing).await;
                cache.remove(&key).await;
            }
        });
        done.send(()).expect("the test waits for it");
    });
    ended.recv_timeout(patience()).expect("no publication waits for itself");
}

#[tokio::test(start_paused = true)]
async fn load_metrics_count_loads_failures_and_durations() {
    let cache = Cache::<u32, u32>::builder().name("loaded").build();
    for key in [1, 1, 2] {
        let load = async move || {
            sleep(SECOND).await;
            if key == 2 { Err("error of the test") } else { Ok(key) }
        };
        let _ = cache.get_or_try_set_with(&key, 60 * SECOND, load).await;
    }
    let metrics = scrape("loaded");
    assert_eq!(metrics.counter("fleeting_cache_loads_total"), 2);
    assert_eq!(metrics.counter("fleeting_cache_failed_loads_total"), 1);
    assert_eq!(metrics.within("fleeting_cache_load_seconds", 10.0), 2);
    assert_eq!(metrics.within("fleeting_cache_load_seconds", 0.1), 0);
}

#[tokio::test(start_paused = true)]
async fn caches_of_one_name_share_metrics_and_counters_never_decrease() {
    let cache = || Cache::<u32, u32>::builder().name("twins").build();
    let (one, two) = (cache(), cache());
    for (cache, keys) in [(&one, 3), (&two, 4)] {
        for key in 0..keys {
            cache.set(key, key).await;
            cache.get(&key).await;
        }
    }
    let both = scrape("twins");
    assert_eq!(both.counter("fleeting_cache_hits_total"), 7);
    assert_eq!(both.gauge("fleeting_cache_resident"), 7.0);
    drop(one);
    let remaining = scrape_with_resident(4.0);
    assert_eq!(remaining.counter("fleeting_cache_hits_total"), 7, "a counter has decreased");
    drop(two);
    let three = cache();
    three.get(&1).await;
    three.set(1, 1).await;
    three.get(&1).await;
    let again = scrape_with_resident(1.0);
    assert_eq!(again.counter("fleeting_cache_hits_total"), 8);
}

/// Returns the metrics of the twins once `entries` are resident: after a cache was dropped, the thread that exports the
/// metrics may hold it for a moment.
fn scrape_with_resident(entries: f64) -> ScrapedMetrics {
    wait_until("the dropped cache has gone", || {
        let resident = scrape("twins").gauge("fleeting_cache_resident");
        assert!(resident >= entries, "{resident} of {entries} entries are resident");
        resident == entries
    });
    scrape("twins")
}

#[tokio::test(start_paused = true)]
async fn limiter_metrics_match_its_stats() {
    let limiter: RateLimiter<String> =
        RateLimiter::builder().name("calls").limit(Limit::per_second(2)).build();
    let permit = limiter.check("ada").await.unwrap();
    limiter.check("ada").await.unwrap();
    limiter.check("ada").await.unwrap_err();
    limiter.until_ready("ada").await;
    limiter.until_ready("eve").await;
    permit.refund().await;
    let (metrics, stats) = (scrape("calls"), limiter.stats());
    assert_eq!(metrics.counter("fleeting_limiter_allowed_total"), stats.admitted);
    assert_eq!(metrics.counter("fleeting_limiter_denied_total"), stats.denied);
    assert_eq!((metrics.counter("fleeting_limiter_waited_total"), stats.waited), (1, 1));
    assert_eq!(metrics.counter("fleeting_limiter_refunded_total"), stats.refunded);
    assert_eq!(metrics.counter("fleeting_limiter_overflowed_total"), 0);
    assert_eq!(metrics.gauge("fleeting_limiter_keys"), 2.0);
    assert!(stats.admitted == 4 && stats.denied >= 1, "{stats:?}");
}

#[tokio::test(start_paused = true)]
async fn set_metrics_count_expired_members_and_events() {
    let set: ExpiringSet<u32> = ExpiringSet::builder(10 * SECOND).name("members").build();
    set.extend(0..5).await;
    let sets: ExpiringSets<&str, u32> = ExpiringSets::builder(10 * SECOND).name("rooms").build();
    for key in ["a", "b", "a"] {
        sets.push(key, 1).await;
    }
    let mut events = set.events();
    assert_eq!(scrape("members").gauge("fleeting_set_resident"), 5.0);
    assert_eq!(scrape("rooms").gauge("fleeting_set_resident"), 2.0);
    assert_eq!(scrape("members").gauge("fleeting_set_sweep_bound_seconds"), 0.1);
    sleep(20 * SECOND).await;
    assert!(events.recv().await.unwrap().is_ok());
    let members = scrape("members");
    assert_eq!(members.counter("fleeting_set_expired_total"), 5);
    assert_eq!(members.gauge("fleeting_set_resident"), 0.0);
    assert_eq!(members.gauge("fleeting_set_subscribers"), 1.0);
    assert_eq!(members.within("fleeting_set_event_lag_seconds", 1.0), 5);
    assert_eq!(scrape("rooms").counter("fleeting_set_expired_total"), 2);
    // A call that precedes the sweeper removes and counts expired members, too.
    set.push(7).await;
    advance(11 * SECOND).await;
    assert_eq!(set.len().await, 0);
    assert_eq!(scrape("members").counter("fleeting_set_expired_total"), 6);
}

#[tokio::test(start_paused = true)]
async fn timeout_dict_metrics_show_due_and_leased_entries_and_the_oldest() {
    let jobs = TimeoutDict::builder().name("backlog").max_attempts(1).build();
    for job in 0..1_000_u64 {
        jobs.set(job, job, SECOND * (10 + job as u32)).await;
    }
    let now = || {
        let metrics = scrape("backlog");
        ["due", "leased", "dead"].map(|name| metrics.gauge(&format!("fleeting_dict_{name}")) as u64)
    };
    let oldest = || scrape("backlog").gauge("fleeting_dict_oldest_due_seconds");
    assert_eq!((now(), oldest()), ([0, 0, 0], 0.0));
    advance(509 * SECOND).await;
    assert_eq!((now(), oldest()), ([500, 0, 0], 499.0));
    let claims = jobs.claim_expired(300, 60 * SECOND).await;
    assert_eq!((now(), oldest()), ([200, 300, 0], 199.0));
    // Without any call, the leases of crashed workers end.
    advance(60 * SECOND).await;
    assert_eq!((now(), oldest()), ([560, 0, 0], 559.0));
    // The first call notices that their entries have no attempts left.
    assert_eq!(jobs.dead_len().await, 300);
    assert_eq!(now(), [260, 0, 300]);
    drop(claims);
    jobs.take_expired(1_000).await;
    assert_eq!((now(), oldest()), ([0, 0, 300], 0.0));
}

#[tokio::test(start_paused = true)]
async fn timeout_dict_metrics_show_entries_that_wait_for_another_attempt() {
    let jobs = TimeoutDict::builder().name("resting").backoff(10 * SECOND, 10 * SECOND);
    let jobs = jobs.max_attempts(2).build();
    let resting = || scrape("resting").gauge("fleeting_dict_resting");
    for job in 0..10_u64 {
        jobs.set(job, job, Duration::ZERO).await;
    }
    let mut claims = jobs.claim_expired(10, 60 * SECOND).await;
    assert_eq!(resting(), 0.0);
    claims.pop().unwrap().release().await;
    assert_eq!(resting(), 0.0);
    for claim in claims.drain(..3) {
        claim.fail("no").await;
    }
    assert_eq!(resting(), 3.0);
    // Each of these ends the rest of an entry, and so do the leases of the others.
    jobs.remove(&0).await;
    jobs.set(1, 1, 60 * SECOND).await;
    assert_eq!(resting(), 1.0);
    claims.into_iter().for_each(std::mem::forget); // of workers that crashed
    advance(60 * SECOND).await;
    let again = jobs.claim_expired(9, 60 * SECOND).await;
    assert_eq!((again.len(), resting()), (9, 0.0));
    drop(again);
    // Only the released job and the one that was set again have an attempt left.
    assert_eq!((resting(), scrape("resting").gauge("fleeting_dict_dead")), (2.0, 7.0));
    assert!(jobs.revive(&2, Duration::ZERO).await);
    assert_eq!(resting(), 2.0);
    advance(60 * SECOND).await;
    assert_eq!(jobs.take_expired(1).await, [(2, 2)]);
    assert_eq!(resting(), 2.0);
    jobs.clear().await;
    assert_eq!(resting(), 0.0);
}

#[tokio::test(start_paused = true)]
async fn timeout_dict_metrics_count_claims_acks_and_failures() {
    let jobs = TimeoutDict::builder().name("jobs").max_attempts(2).build();
    for job in 0..6 {
        jobs.set(job, job, SECOND).await;
    }
    advance(SECOND).await;
    assert_eq!(jobs.take_expired(1).await.len(), 1);
    let mut claims = jobs.claim_expired(3, SECOND).await;
    assert!(claims.pop().unwrap().ack().await);
    assert!(claims.pop().unwrap().retry_in(SECOND).await);
    // Its lease ends, so that dropping the claim later is not a second failure.
    advance(2 * SECOND).await;
    assert_eq!(jobs.claim_expired(0, SECOND).await.len(), 0);
    let again = jobs.claim_expired(9, SECOND).await;
    drop(claims);
    let dead = again.iter().filter(|claim| claim.attempts() == 2).count() as u64;
    drop(again);
    let metrics = scrape("jobs");
    assert_eq!(metrics.counter("fleeting_dict_taken_total"), 1);
    assert_eq!(metrics.counter("fleeting_dict_claims_total"), 3 + 4);
    assert_eq!(metrics.counter("fleeting_dict_acked_total"), 1);
    assert_eq!(metrics.counter("fleeting_dict_failed_total"), 2 + 4);
    assert_eq!(metrics.gauge("fleeting_dict_entries"), 4.0);
    assert_eq!((metrics.gauge("fleeting_dict_dead"), dead), (2.0, 2));
}

#[tokio::test(start_paused = true)]
async fn new_deadline_of_a_claimed_entry_counts_as_one_failure() {
    let jobs = TimeoutDict::builder().name("rescheduled jobs").build();
    let failed = || scrape("rescheduled jobs").counter("fleeting_dict_failed_total");
    for job in ["claimed", "overdue"] {
        jobs.set(job, (), Duration::ZERO).await;
    }
    assert!(jobs.set_timeout("overdue", Duration::ZERO).await);
    assert_eq!(failed(), 0, "no entry was claimed");
    let claim = jobs.next_claim(SECOND).await;
    assert!(jobs.set_timeout(claim.key(), SECOND).await);
    assert_eq!(failed(), 1);
    drop(claim);
    assert_eq!(failed(), 1, "the claim was void");
    let claim = jobs.next_claim(SECOND).await;
    advance(2 * SECOND).await;
    assert!(jobs.remove_timeout(claim.key()).await);
    assert_eq!(failed(), 2, "the lease had ended, which was the failure");
}
