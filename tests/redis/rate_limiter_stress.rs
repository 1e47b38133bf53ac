//! Stress test with the real clock: concurrent checks, waits, debts, refunds and changes of limits on Redis never admit
//! a call beyond the quota, given the charges that are certainly in the window.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use fleeting::{Limit, Window, redis::Permit};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::rate_limiter::{client, strict};
use crate::{clock::until_enough, servers::Server};

const PER: Duration = Duration::from_millis(100);

/// Units that were charged at some time between two instants.
#[derive(Clone, Copy, Debug)]
struct Charge {
    begin: Instant,
    end: Instant,
    units: u64,
    /// True for a debt, which may exceed the quota.
    is_debt: bool,
}

#[derive(Default)]
struct History {
    charges: Vec<Charge>,
    /// Refunds: index of the charge, time from which the units may count no more, and units.
    refunds: Vec<(usize, Instant, u64)>,
    /// Quotas, with the begin and the end of the call that set each, if it has ended.
    quotas: Vec<(Instant, Option<Instant>, u32)>,
}

impl History {
    /// Returns the largest quota that may have applied between two instants.
    fn quota(&self, begin: Instant, end: Instant) -> u64 {
        let may_apply = |index: &usize| {
            let replaced_at = self.quotas.get(index + 1).and_then(|(_, end, _)| *end);
            self.quotas[*index].0 <= end
                && replaced_at.is_none_or(|replaced_at| replaced_at >= begin)
        };
        let may_apply = (0..self.quotas.len()).filter(may_apply);
        may_apply
            .map(|index| self.quotas[index].2.into())
            .max()
            .expect("the first quota applies from the start")
    }

    /// Returns the units that were certainly charged before, are certainly in the window, and were not refunded yet.
    fn used(&self, admitted: &Charge) -> u64 {
        let counts = |(_, charge): &(usize, &Charge)| {
            charge.end <= admitted.begin && admitted.end - charge.begin < PER
        };
        let remaining = |(index, charge): (usize, &Charge)| {
            let back =
                self.refunds.iter().filter(|(of, from, _)| *of == index && *from <= admitted.end);
            charge.units - back.map(|(_, _, units)| units).sum::<u64>()
        };
        self.charges.iter().enumerate().filter(counts).map(remaining).sum()
    }
}

/// Asserts that no call is admitted beyond the quota. Returns whether enough calls were admitted and waited.
///
/// GCRA without debts admits up to twice the quota minus one within a window.
async fn hammer(window: Window) -> bool {
    let server = Server::start();
    let limiter = strict(&client(&server).await, "stress")
        .window(window)
        .limit(Limit::new(40, PER))
        .build()
        .unwrap();
    let is_gcra = window == Window::Gcra;
    let begin = Instant::now();
    let history = Arc::new(Mutex::new(History {
        quotas: vec![(begin, Some(begin), 40)],
        ..History::default()
    }));
    let mut tasks = JoinSet::new();
    for task in 0..8_u64 {
        let (limiter, history) = (limiter.clone(), history.clone());
        tasks.spawn(async move {
            let mut rng = SmallRng::seed_from_u64(task);
            let mut open: Vec<(usize, u64, Permit)> = Vec::new();
            while begin.elapsed() < 8 * PER {
                let cost = rng.random_range(1..4_u32);
                let from = Instant::now();
                let outcome = match rng.random_range(0..8) {
                    0..3 => limiter.check_n("ada", cost).await.map(|permit| (permit, cost)),
                    3 => limiter.until_ready_within("ada", PER / 2).await.map(|permit| (permit, 1)),
                    4 => match timeout(PER, limiter.until_ready_n("ada", cost)).await {
                        Ok(outcome) => outcome.map(|permit| (permit, cost)),
                        Err(_) => continue,
                    },
                    5 if !open.is_empty() => {
                        let (index, cost, permit) = open.swap_remove(0);
                        let max = if is_gcra { cost } else { 9 };
                        let actual = rng.random_range(0..=max);
                        if let Some(less) = cost.checked_sub(actual) {
                            // Recorded before the call, as the refund may take effect at any time during it.
                            history.lock().unwrap().refunds.push((index, from, less));
                        }
                        permit.settle(actual as u32).await.unwrap();
                        let (end, units) = (Instant::now(), actual.saturating_sub(cost));
                        let debt = Charge { begin: from, end, units, is_debt: true };
                        history.lock().unwrap().charges.push(debt);
                        continue;
                    }
                    6 if task == 0 && !is_gcra => {
                        let quota = rng.random_range(20..60);
                        // Recorded before the call, as the quota may apply at any time during it, and the one
                        // before until its end.
                        history.lock().unwrap().quotas.push((from, None, quota));
                        limiter.set_limits([Limit::new(quota, PER)]).await.unwrap();
                        let end = Some(Instant::now());
                        history.lock().unwrap().quotas.last_mut().expect("it was pushed").1 = end;
                        continue;
                    }
                    _ => {
                        sleep(Duration::from_millis(rng.random_range(0..20))).await;
                        continue;
                    }
                };
                let Ok((permit, cost)) = outcome else { continue };
                let (end, units) = (Instant::now(), u64::from(cost));
                let mut history = history.lock().unwrap();
                open.push((history.charges.len(), units, permit));
                history.charges.push(Charge { begin: from, end, units, is_debt: false });
            }
        });
    }
    tasks.join_all().await;
    let history = history.lock().unwrap();
    let admitted = history.charges.iter().filter(|charge| !charge.is_debt);
    for charge in admitted.clone() {
        let used = history.used(charge) + charge.units;
        let quota = history.quota(charge.begin, charge.end);
        let max = if is_gcra { 2 * quota - 1 } else { quota };
        assert!(
            used <= max,
            "{window:?}: {used} units in use, at most {max} allowed, with {charge:?}"
        );
    }
    println!("{window:?}: {} admitted, {:?}", admitted.clone().count(), limiter.stats());
    admitted.count() > 60 && limiter.stats().waited > 5
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_operations_never_admit_more_than_the_quota() {
    for window in [Window::Log, Window::Buckets(5), Window::Gcra] {
        until_enough(async || hammer(window).await).await;
    }
}
