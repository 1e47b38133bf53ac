//! Promises of the simulation that hold for every run: nothing is lost, and the bounds of the protocols are kept.

use super::{
    costs::Costs,
    engine::{MS, SECOND},
    limits::{self, OnError},
    loads, near, requests,
    reservations::Reserve,
    windows::Window,
};

fn requests(down: Option<(u64, u64)>) -> requests::Settings {
    requests::Settings {
        processes: 20,
        rate: 5_000.0,
        keys: 1_000,
        exponent: 1.0,
        placement: vec![0, 1, 2, 3],
        reserve: None,
        mix: vec![(0.5, "get"), (0.5, "set_ex")],
        down,
        tick: 0,
        round_trip: MS / 2,
        time: 4 * SECOND,
        seed: 7,
    }
}

#[test]
fn overloaded_server_is_busy_all_the_time() {
    // A warm-up after which the server is in a turn that lasts for longer than the measurement.
    let reserve = Some(Reserve { most: 1, time: SECOND / 10 });
    let settings = requests::Settings {
        rate: 1e6,
        reserve,
        time: 2 * MS,
        placement: vec![0],
        ..requests(None)
    };
    let time = settings.time;
    assert_eq!(requests::run(settings, &Costs::measured()).busiest(time), 1.0);
}

#[test]
fn every_request_is_answered_or_fails() {
    for down in [None, Some((SECOND, 3 * SECOND))] {
        let run = requests::run(requests(down), &Costs::measured());
        let ended = run.times.len() as u64 + run.failed;
        // Those that began before the measurement or have not ended.
        assert!(run.made.abs_diff(ended) < 20, "{} made, {ended} ended", run.made);
        let executed: u64 = run.loads.iter().map(|load| load.commands).sum();
        assert!(executed.abs_diff(run.times.len() as u64) < 20, "{executed} executed");
        assert_eq!(run.failed > 0, down.is_some());
    }
}

#[test]
fn checks_that_wait_for_a_failed_draw_ask_or_fail() {
    let down = Some((SECOND, 3 * SECOND));
    let reserve = Some(Reserve { most: 100, time: SECOND / 10 });
    let run = requests::run(
        requests::Settings { reserve, keys: 10, ..requests(down) },
        &Costs::measured(),
    );
    let ended = run.times.len() as u64 + run.failed;
    assert!(run.failed > 0);
    assert!(run.made.abs_diff(ended) < 20, "{} made, {ended} ended", run.made);
}

#[test]
fn every_near_read_is_a_hit_a_request_or_joins_one() {
    let settings = near::Settings { changes: 50.0, ..near::Settings::new(10) };
    let run = near::run(settings, &Costs::measured());
    assert!(run.hits > 0 && run.asked > 0 && run.failed == 0);
    assert!(run.hits + run.asked <= run.reads + 20, "callers share requests");
    assert!(run.reads < run.hits + 2 * run.asked, "few callers share requests");
    // Reads and changes.
    assert!(run.load.commands.abs_diff(run.asked + 100) < 60, "{:?}", run.load);
}

#[test]
fn near_answer_is_not_older_than_its_maximum_age() {
    for (cut, max_age) in [(500, SECOND), (3_000, SECOND), (5_000, 60 * SECOND)] {
        let settings = near::Settings {
            changes: 200.0,
            affected: 5,
            cut: Some((2 * SECOND, 2 * SECOND + cut * MS)),
            max_age,
            time: 6 * SECOND,
            ..near::Settings::new(10)
        };
        let mut run = near::run(settings, &Costs::measured());
        let oldest = run.stale.quantile_ms(1.0);
        // A silent connection is detected after 1.5 s.
        let bound = (max_age.min(1_500 * MS).min(cut * MS) / MS) as f64 + 1.0;
        assert!(oldest <= bound && oldest > bound / 2.0, "{oldest} ms, bound {bound} ms");
    }
}

#[test]
fn more_changes_make_fewer_near_hits() {
    let hits = |changes| {
        let settings = near::Settings { changes, max_age: 60 * SECOND, ..near::Settings::new(4) };
        let run = near::run(settings, &Costs::measured());
        run.hits as f64 / run.reads as f64
    };
    assert!(hits(1.0) > hits(300.0) + 0.02, "{} {}", hits(1.0), hits(300.0));
}

#[test]
fn log_admits_at_most_its_quota_while_the_server_answers() {
    for (window, most) in [(Window::Log, 1.0), (Window::Buckets(10), 1.0), (Window::Gcra, 2.0)] {
        for processes in [1, 20] {
            let checks = 4_000.0 / processes as f64;
            let settings = limits::Settings {
                window,
                checks,
                time: 3 * SECOND,
                ..limits::Settings::new(processes)
            };
            let run = limits::run(settings, &Costs::measured());
            assert!(run.over_quota <= most && run.over_quota > 0.9, "{window:?} {run:?}");
            assert!(run.checks.abs_diff(run.sent + run.denied_locally) < 20, "{run:?}");
            assert!(run.denied_locally > 0 && run.by_policy == 0, "{run:?}");
        }
    }
}

#[test]
fn lost_charges_are_admitted_again_after_a_failover() {
    let over_quota = |lag, on_error| {
        let settings = limits::Settings {
            keys: 1,
            checks: 40.0,
            limit: super::windows::Limit { quota: 1_000, per: 10_000_000 },
            down: Some((2 * SECOND, 2 * SECOND + 500 * MS)),
            lag,
            on_error,
            ..limits::Settings::new(10)
        };
        limits::run(settings, &Costs::measured()).over_quota
    };
    assert!(over_quota(0, OnError::Deny) <= 1.0);
    // 400 calls per second, for one second and for half a second.
    assert!((over_quota(SECOND, OnError::Deny) - 1.4).abs() < 0.05);
    // 400 calls per second while the server is down, and until the circuit breakers test it again.
    assert!((1.2..1.45).contains(&over_quota(0, OnError::Allow)));
}

#[test]
fn one_loader_runs_per_lost_value_with_leases() {
    let run = |leases| {
        let settings = loads::Settings {
            calls: 500.0,
            keys: 300,
            leases,
            down: Some((SECOND + 100 * MS, SECOND + 300 * MS)),
            ..loads::Settings::new(10)
        };
        loads::run(settings, &Costs::measured())
    };
    let (with, without) = (run(true), run(false));
    // A load in progress during the crash loses its lease.
    assert!(with.loads <= with.renewed + 30, "{} loads, {} values", with.loads, with.renewed);
    assert!(3 * without.loads > 5 * without.renewed, "{} loads", without.loads);
    assert!(with.failed == 0 && with.calls > 9_000, "{} calls", with.calls);
}
