//! Checks, waits, debts, refunds, resets and changes of the limits, concurrently and at random: nothing is admitted
//! above the quota, waiters pass in order, and no waiter waits forever.
//!
//! `PROPTEST_CASES` sets how many sequences: a tenth of it.

use std::{cell::RefCell, collections::VecDeque, pin::Pin, rc::Rc, time::Duration};

use fleeting::{Limit, Limited, Permit, RateLimiter, Sweep, Window};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::{
    task::{JoinHandle, LocalSet, spawn_local, yield_now},
    time::{Instant, sleep, timeout},
};
use tokio_test::task;

use crate::limits::{MILLISECOND, SECOND};

/// Charge that is still counted, at least in part.
#[derive(Clone, Copy, Debug)]
struct Charge {
    number: usize,
    at: Instant,
    units: u64,
    /// By limit: whether the charge has never left that limit's window. After that the limiter may forget it.
    is_certain: [bool; 2],
}

/// Model of the limiter's only key.
struct Model {
    window: Window,
    limits: Vec<Limit>,
    charges: Vec<Charge>,
    /// Number of the last charge before the limits changed.
    changed: usize,
    numbers: usize,
    /// Waiters in the order in which they joined, without those that are not polled or may give up.
    queue: VecDeque<u32>,
}

type Shared = Rc<RefCell<Model>>;

impl Model {
    /// Marks the charges that have left a window: the limiter may forget them.
    fn forget(&mut self) {
        let now = Instant::now();
        for charge in &mut self.charges {
            for (index, is_certain) in charge.is_certain.iter_mut().enumerate() {
                let limit = self.limits.get(index);
                *is_certain &= limit.is_some_and(|limit| now - charge.at < limit.per());
            }
        }
    }

    fn used(&self, index: usize, limit: &Limit) -> u64 {
        let now = Instant::now();
        let counts = |charge: &&Charge| charge.is_certain[index] && now - charge.at < limit.per();
        self.charges.iter().filter(counts).map(|charge| charge.units).sum()
    }

    /// Lower bound on the usage by GCRA, in parts, of which a unit has `per` and a nanosecond leaks `quota`: as if
    /// refunded charges had never been made, and without the charges from before the limits changed.
    fn level(&self, limit: &Limit) -> u128 {
        let (quota, unit) = (u128::from(limit.quota()), limit.per().as_nanos());
        let mut level = 0_u128;
        let mut then: Option<Instant> = None;
        for charge in self.charges.iter().filter(|charge| charge.number > self.changed) {
            let passed = then.map_or(0, |then| (charge.at - then).as_nanos());
            level = level.saturating_sub(passed * quota) + u128::from(charge.units) * unit;
            then = Some(charge.at);
        }
        level.saturating_sub(then.map_or(0, |then| (Instant::now() - then).as_nanos()) * quota)
    }

    fn admit(&mut self, context: &str, cost: u32) -> usize {
        self.forget();
        for (index, limit) in self.limits.iter().enumerate() {
            if self.window == Window::Gcra {
                let unit = limit.per().as_nanos();
                let level = self.level(limit) + u128::from(cost) * unit;
                let most = unit * u128::from(limit.quota());
                assert!(level <= most, "{context}: {level} of {most} parts in {limit}");
            } else {
                let used = self.used(index, limit) + u64::from(cost);
                let charges = &self.charges;
                assert!(used <= limit.quota().into(), "{context}: {used} in {limit}: {charges:#?}");
            }
        }
        self.charge(cost.into())
    }

    fn charge(&mut self, units: u64) -> usize {
        self.numbers += 1;
        let (number, at) = (self.numbers, Instant::now());
        self.charges.push(Charge { number, at, units, is_certain: [true; 2] });
        number
    }
}

struct Test {
    limiter: RateLimiter<u8>,
    model: Shared,
    open: Vec<(usize, u32, Permit)>,
    waiting: Vec<JoinHandle<()>>,
    random: SmallRng,
    name: String,
}

fn random_limits(random: &mut SmallRng) -> Vec<Limit> {
    let mut limit = || {
        let per = [10, 500, 1_000, 7_000][random.random_range(0..4)] * MILLISECOND;
        Limit::new(random.random_range(1..12), per)
    };
    let limits = vec![limit(), limit()];
    let count = random.random_range(1..=2);
    limits.into_iter().take(count).collect()
}

impl Test {
    fn new(window: Window, seed: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let limits = random_limits(&mut random);
        let mut builder = RateLimiter::builder().window(window).sweep(Sweep::default().seed(seed));
        for limit in &limits {
            builder = builder.limit(limit.clone());
        }
        let jitter = [Duration::ZERO, 20 * MILLISECOND][random.random_range(0..2)];
        let model = Model {
            window,
            limits,
            charges: Vec::new(),
            changed: 0,
            numbers: 0,
            queue: VecDeque::new(),
        };
        Self {
            limiter: builder.jitter(jitter).max_waiting(4).build(),
            model: Rc::new(RefCell::new(model)),
            open: Vec::new(),
            waiting: Vec::new(),
            random,
            name: format!("{window:?}, seed {seed}"),
        }
    }

    fn cost(&mut self) -> u32 {
        self.random.random_range(1..5)
    }

    fn admitted(&mut self, outcome: Result<Permit, Limited>, cost: u32) {
        if let Ok(permit) = outcome {
            let number = self.model.borrow_mut().admit(&self.name, cost);
            self.open.push((number, cost, permit));
        }
    }

    /// Waits in a task of its own, without a limit or for a while.
    fn wait(&mut self, id: u32) {
        let (limiter, model, name) = (self.limiter.clone(), self.model.clone(), self.name.clone());
        let cost = self.cost();
        let max_wait =
            self.random.random_ratio(1, 3).then(|| self.random.random_range(0..5) * SECOND);
        let gives_up =
            self.random.random_ratio(1, 4).then(|| self.random.random_range(0..3) * SECOND);
        let stays = max_wait.is_none() && gives_up.is_none();
        self.waiting.push(spawn_local(async move {
            if stays {
                model.borrow_mut().queue.push_back(id);
            }
            let wait: Pin<Box<dyn Future<Output = _>>> = match max_wait {
                Some(max_wait) => {
                    let passed = limiter.clone();
                    Box::pin(async move { (passed.until_ready_within(&0, max_wait).await, 1) })
                }
                None => {
                    let passed = limiter.clone();
                    Box::pin(async move { (passed.until_ready_n(&0, cost).await, cost) })
                }
            };
            let waited = timeout(gives_up.unwrap_or(Duration::from_secs(100_000)), wait).await;
            assert!(waited.is_ok() || !stays, "{name}: {id} waits forever");
            let (outcome, cost) = waited.unwrap_or((Err(never(&limiter).await), 0));
            let mut model = model.borrow_mut();
            if outcome.is_ok() {
                model.admit(&name, cost);
            }
            if stays {
                // A waiter that can no longer pass leaves from any place.
                let place = model.queue.iter().position(|waiting| *waiting == id);
                let place = place.expect("every waiter of the model is in its queue");
                model.queue.remove(place);
                assert!(
                    outcome.is_err() || place == 0,
                    "{name}: {id} passed before {place} earlier waiters"
                );
            }
        }));
    }

    async fn step(&mut self, id: u32) {
        let pick = |random: &mut SmallRng, open: usize| random.random_range(0..open);
        match self.random.random_range(0..20) {
            0..5 => {
                let cost = self.cost();
                let outcome = self.limiter.check_n(&0, cost).await;
                self.admitted(outcome, cost);
            }
            5..8 => self.wait(id),
            8..10 if !self.open.is_empty() => {
                let index = pick(&mut self.random, self.open.len());
                let (number, cost, permit) = self.open.swap_remove(index);
                let actual = self.random.random_range(0..16);
                permit.settle(actual).await;
                let mut model = self.model.borrow_mut();
                if actual < cost {
                    let less =
                        model.charges.iter_mut().filter(|charge| charge.number == number).take(1);
                    less.for_each(|charge| charge.units = actual.into());
                } else {
                    model.forget();
                    model.charge(u64::from(actual - cost));
                }
            }
            10 if !self.open.is_empty() => {
                let index = pick(&mut self.random, self.open.len());
                let (number, _, permit) = self.open.swap_remove(index);
                permit.refund().await;
                self.model.borrow_mut().charges.retain(|charge| charge.number != number);
            }
            11 => {
                let limits = random_limits(&mut self.random);
                let mut model = self.model.borrow_mut();
                model.forget();
                model.limits = limits.clone();
                model.changed = model.numbers;
                self.limiter.set_limits(limits);
            }
            12 if self.random.random_ratio(1, 4) => {
                self.limiter.reset(&0).await;
                self.model.borrow_mut().charges.clear();
                self.open.clear();
            }
            13 => self.wait_silently().await,
            _ => sleep(self.random.random_range(1..2_500) * MILLISECOND).await,
        }
        // Lets a new waiter join.
        yield_now().await;
    }

    /// Waits, but is polled only a few times.
    async fn wait_silently(&mut self) {
        let limiter = self.limiter.clone();
        let mut silent = task::spawn(limiter.until_ready(&0));
        for _ in 0..self.random.random_range(1..4) {
            if let std::task::Poll::Ready(permit) = silent.poll() {
                self.admitted(Ok(permit), 1);
                return;
            }
            sleep(self.random.random_range(1..3_000) * MILLISECOND).await;
        }
    }
}

/// A denial, whose contents do not matter.
async fn never(limiter: &RateLimiter<u8>) -> Limited {
    limiter.check_n(&1, u32::MAX).await.expect_err("the cost is above every quota")
}

#[tokio::test(start_paused = true)]
async fn admissions_never_exceed_the_quota_and_no_waiter_waits_forever() {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse::<u64>().ok());
    let seeds = cases.unwrap_or(1_000) / 40;
    let mut waited = 0;
    for window in [Window::Log, Window::Buckets(10), Window::Buckets(1), Window::Gcra] {
        for seed in 0..seeds {
            LocalSet::new()
                .run_until(async {
                    let mut test = Test::new(window, seed);
                    for id in 0..150 {
                        test.step(id).await;
                    }
                    for task in test.waiting.drain(..) {
                        task.await.unwrap();
                    }
                    waited += test.limiter.stats().waited;
                    assert!(test.model.borrow().queue.is_empty());
                })
                .await;
        }
    }
    assert!(waited > 5 * seeds, "only {waited} calls waited");
}
