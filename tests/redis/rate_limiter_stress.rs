//! Checks, waits, debts, refunds and changes of the limits on Redis, all at once, by the real clock: nothing is admitted
//! without room beside what is certainly kept.

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

/// Units that were charged some time between two instants.
#[derive(Clone, Copy, Debug)]
struct Charge {
    begin: Instant,
    end: Instant,
    units: u64,
    /// A debt asks for no room.
    is_debt: bool,
}

#[derive(Default)]
struct Seen {
    charges: Vec<Charge>,
    /// How some of the units of a charge were given back, from when on: they count no more.
    given_back: Vec<(usize, Instant, u64)>,
    /// When each quota began to hold.
    quotas: Vec<(Instant, u32)>,
}

impl Seen {
    /// The largest quota that may have held between two instants.
    fn quota(&self, begin: Instant, end: Instant) -> u64 {
        let may_hold = |index: &usize| {
            let next = self.quotas.get(index + 1).map(|(at, _)| *at);
            self.quotas[*index].0 <= end && next.is_none_or(|next| next + PER / 10 >= begin)
        };
        let may_hold = (0..self.quotas.len()).filter(may_hold);
        may_hold.map(|index| self.quotas[index].1.into()).max().expect("one always holds")
    }

    /// What was certainly charged before, is certainly in the window, and was not given back yet.
    fn used(&self, admitted: &Charge) -> u64 {
        let counts = |(_, charge): &(usize, &Charge)| {
            charge.end <= admitted.begin && admitted.end - charge.begin < PER
        };
        let kept = |(index, charge): (usize, &Charge)| {
            let back = self
                .given_back
                .iter()
                .filter(|(of, from, _)| *of == index && *from <= admitted.end);
            charge.units - back.map(|(_, _, units)| units).sum::<u64>()
        };
        self.charges.iter().enumerate().filter(counts).map(kept).sum()
    }
}

/// Whether much was admitted, where nothing was without room. GCRA lets twice the quota pass, less one, where nobody owes.
async fn hammer(window: Window) -> bool {
    let server = Server::start();
    let limiter = strict(&client(&server).await, "everything")
        .window(window)
        .limit(Limit::new(40, PER))
        .build()
        .unwrap();
    let is_gcra = window == Window::Gcra;
    let begin = Instant::now();
    let seen = Arc::new(Mutex::new(Seen { quotas: vec![(begin, 40)], ..Seen::default() }));
    let mut tasks = JoinSet::new();
    for task in 0..8_u64 {
        let (limiter, seen) = (limiter.clone(), seen.clone());
        tasks.spawn(async move {
            let mut random = SmallRng::seed_from_u64(task);
            let mut open: Vec<(usize, u64, Permit)> = Vec::new();
            while begin.elapsed() < 8 * PER {
                let cost = random.random_range(1..4_u32);
                let from = Instant::now();
                let told = match random.random_range(0..8) {
                    0..3 => limiter.check_n("ada", cost).await.map(|permit| (permit, cost)),
                    3 => limiter.until_ready_within("ada", PER / 2).await.map(|permit| (permit, 1)),
                    4 => match timeout(PER, limiter.until_ready_n("ada", cost)).await {
                        Ok(told) => told.map(|permit| (permit, cost)),
                        Err(_) => continue,
                    },
                    5 if !open.is_empty() => {
                        let (index, cost, permit) = open.swap_remove(0);
                        let most = if is_gcra { cost } else { 9 };
                        let actual = random.random_range(0..=most);
                        if let Some(less) = cost.checked_sub(actual) {
                            // First, as it may be given back at once.
                            seen.lock().unwrap().given_back.push((index, from, less));
                        }
                        permit.settle(actual as u32).await.unwrap();
                        let (end, units) = (Instant::now(), actual.saturating_sub(cost));
                        let debt = Charge { begin: from, end, units, is_debt: true };
                        seen.lock().unwrap().charges.push(debt);
                        continue;
                    }
                    6 if task == 0 && !is_gcra => {
                        let quota = random.random_range(20..60);
                        // Before it holds, as it may hold at once.
                        seen.lock().unwrap().quotas.push((from, quota));
                        limiter.set_limits([Limit::new(quota, PER)]).await.unwrap();
                        continue;
                    }
                    _ => {
                        sleep(Duration::from_millis(random.random_range(0..20))).await;
                        continue;
                    }
                };
                let Ok((permit, cost)) = told else { continue };
                let (end, units) = (Instant::now(), u64::from(cost));
                let mut seen = seen.lock().unwrap();
                open.push((seen.charges.len(), units, permit));
                seen.charges.push(Charge { begin: from, end, units, is_debt: false });
            }
        });
    }
    tasks.join_all().await;
    let seen = seen.lock().unwrap();
    let admitted = seen.charges.iter().filter(|charge| !charge.is_debt);
    for charge in admitted.clone() {
        let used = seen.used(charge) + charge.units;
        let quota = seen.quota(charge.begin, charge.end);
        let most = if is_gcra { 2 * quota - 1 } else { quota };
        assert!(used <= most, "{window:?}: {used} of {most} with {charge:?}");
    }
    println!("{window:?}: {} admitted, {:?}", admitted.clone().count(), limiter.stats());
    admitted.count() > 60 && limiter.stats().waited > 5
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_admitted_without_room_whatever_many_callers_do() {
    for window in [Window::Log, Window::Buckets(5), Window::Gcra] {
        until_enough(async || hammer(window).await).await;
    }
}
