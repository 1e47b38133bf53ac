//! Differential test: random calls of an embedded type and of its counterpart on a server return the same.
//!
//! The server's clock is the only one that passes: it stands still during a call, and between two calls it advances
//! together with the paused clock of the embedded type. Valkey's clock cannot be stopped. There the steps are minutes,
//! so that the duration of the calls does not matter.
//!
//! A difference on purpose is a row or sentence of the guide's section, and is listed in [`ON_PURPOSE`].
//! `FLEETING_DIFFERENTIAL_SEQUENCES` sets the number of sequences of each kind, and `FLEETING_SEED` the seed.

mod cache;
mod data;
mod dict;
mod set;

use std::{cell::RefCell, fmt::Debug, time::Duration};

use fleeting::{
    Ttl,
    redis::{Client, Error, Format},
};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::{
    runtime::{Builder, Runtime},
    time::advance,
};

use self::{
    cache::Cache,
    data::{Bytes, Data, Float, Map, Mixed, Nested, Single, Text},
    dict::Dict,
    set::Set,
};
use super::rate_limiter::server_time;
use crate::servers::{Server, connect, program};

/// Differences that the calls avoid, with the words of the guide's section.
const ON_PURPOSE: [&str; 4] = [
    "`len` counts live entries only",
    "a part of a millisecond is a whole one",
    "`Some(None)` is read as `None`",
    "The scores of the set are `SystemTime`s.",
];

/// Calls of a sequence.
const CALLS: usize = 60;

/// A difference, or `Ok`.
type Outcome = Result<(), String>;

/// Both sides of the comparison, with their clocks.
struct Sides {
    /// Its clock is paused, so it runs only calls that do not wait.
    embedded: Runtime,
    real: Runtime,
    server: Server,
    client: Client,
    clock: RefCell<Clock>,
}

enum Clock {
    /// Time at which the server's clock stands still, in microseconds.
    Stopped(u64),
    /// Lead over the real time.
    Ahead(Duration),
}

impl Sides {
    fn start() -> Self {
        let embedded =
            Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let real = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let server = Server::start_with_clock();
        let client = real.block_on(connect(server.url()));
        let clock = if program().contains("valkey") {
            Clock::Ahead(Duration::ZERO)
        } else {
            // A whole millisecond, so that both sides round alike.
            let now = real.block_on(async { server_time(&mut server.plain().await).await });
            let now = now.next_multiple_of(1_000);
            server.stop_clock(now);
            Clock::Stopped(now)
        };
        Self { embedded, real, server, client, clock: RefCell::new(clock) }
    }

    fn is_stopped(&self) -> bool {
        matches!(*self.clock.borrow(), Clock::Stopped(_))
    }

    /// Returns a duration in the unit of the clock. Time passes by an even number of units and deadlines are an odd
    /// number of them away, so that no result depends on the order of a deadline and a call at the same time.
    fn units(&self, number: u32) -> Duration {
        self.unit() * number
    }

    fn unit(&self) -> Duration {
        if self.is_stopped() { Duration::from_millis(1) } else { Duration::from_secs(60) }
    }

    /// Lets time pass on both sides.
    fn pass(&self, units: u32) {
        assert!(units.is_multiple_of(2), "an even number of units");
        let time = self.units(units);
        self.embedded.block_on(advance(time));
        match &mut *self.clock.borrow_mut() {
            Clock::Stopped(now) => {
                *now += time.as_micros() as u64;
                self.server.stop_clock(*now);
            }
            Clock::Ahead(ahead) => {
                *ahead += time;
                self.server.set_clock(*ahead);
            }
        }
    }

    /// Compares TTLs, which the server has in whole milliseconds.
    fn same_ttl(&self, embedded: Ttl, on_server: Result<Ttl, Error>) -> Outcome {
        match (embedded, &on_server) {
            (Ttl::Remaining(left), Ok(Ttl::Remaining(right)))
                if left.abs_diff(*right) <= self.unit() =>
            {
                Ok(())
            }
            _ => same(embedded, on_server),
        }
    }
}

fn same<T: PartialEq + Debug>(embedded: T, on_server: Result<T, Error>) -> Outcome {
    match on_server {
        Ok(on_server) if on_server == embedded => Ok(()),
        other => Err(shortened(&format!("embedded {embedded:?}, on the server {other:?}"))),
    }
}

/// Compares without regard to the order.
fn same_items<T: Debug>(embedded: Vec<T>, on_server: Result<Vec<T>, Error>) -> Outcome {
    let sorted = |items: Vec<T>| {
        let mut items: Vec<_> = items.iter().map(|item| format!("{item:?}")).collect();
        items.sort();
        items
    };
    same(sorted(embedded), on_server.map(sorted))
}

/// Returns a text without the middle of long keys.
fn shortened(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    match chars.len() {
        ..1_000 => text.to_owned(),
        len => chars[..500].iter().chain(&chars[len - 500..]).collect(),
    }
}

/// A sequence of calls of one pair of types.
struct Sequence<'a> {
    sides: &'a Sides,
    name: String,
    format: Format,
    random: SmallRng,
    /// Calls so far, for the message of a difference.
    calls: Vec<String>,
}

impl Sequence<'_> {
    /// Runs `call` until it finds a difference.
    fn run(&mut self, mut call: impl FnMut(&mut Self) -> Outcome) -> Outcome {
        for _ in 0..CALLS {
            call(self).map_err(|difference| self.describe(&difference))?;
        }
        Ok(())
    }

    /// Returns the message of a difference.
    fn describe(&self, difference: &str) -> String {
        let calls = &self.calls[self.calls.len().saturating_sub(12)..];
        format!("{}, {:?}: {difference}\n    after {calls:#?}", self.name, self.format)
    }

    fn log(&mut self, call: impl Debug) {
        self.calls.push(shortened(&format!("{call:?}")));
    }

    /// Returns a TTL: none, all, or an odd number of units.
    fn ttl(&mut self) -> Duration {
        let sides = self.sides;
        match self.random.random_range(0..10) {
            0 => Duration::ZERO,
            1 => Duration::MAX,
            2 => sides.unit() / 3,
            n => sides.units([1, 3, 5, 9, 15, 41, 101][n - 3]),
        }
    }

    fn is_one_in(&mut self, number: u32) -> bool {
        self.random.random_range(0..number) == 0
    }
}

/// A pair of types whose calls are compared.
trait Subject: Debug {
    /// Runs a sequence with keys or members of type `K`, and with values of type `V`.
    fn run<K: Data, V: Data>(&self, sequence: &mut Sequence<'_>) -> Outcome;
}

/// Runs sequences with all types of keys and values, and fails with all differences.
fn play(subject: impl Subject) {
    let number = |name, default| {
        std::env::var(name).map_or(default, |text| text.parse::<u64>().expect("a number"))
    };
    let seed = number("FLEETING_SEED", 47);
    let count = number("FLEETING_DIFFERENTIAL_SEQUENCES", 2);
    println!("{count} sequences of each pair of types from seed {seed}");
    let sides = Sides::start();
    let outcomes: Vec<Outcome> = (0..count)
        .flat_map(|n| {
            let format = [Format::Json, Format::MessagePack][n as usize % 2];
            let random = SmallRng::seed_from_u64(seed + n);
            let mut sequence =
                Sequence { sides: &sides, name: n.to_string(), format, random, calls: Vec::new() };
            sequences(&subject, &mut sequence)
        })
        .collect();
    let count = outcomes.len();
    let differences: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    let number = differences.len();
    assert!(number == 0, "{number} of {count} sequences differ:\n{}", differences.join("\n"));
}

/// Runs a sequence with each pair of types.
fn sequences(subject: &impl Subject, sequence: &mut Sequence<'_>) -> Vec<Outcome> {
    let number = sequence.name.clone();
    macro_rules! of {
        ($($key:ty => $value:ty),+ $(,)?) => {
            [$({
                let types = concat!(stringify!($key), " => ", stringify!($value));
                sequence.name = format!("{subject:?} {types} {number}");
                sequence.calls.clear();
                subject.run::<$key, $value>(sequence)
            }),+]
        };
    }
    // Few, because the compiler takes some seconds for each.
    let outcomes = of![
        Text => Float, Float => Bytes, i128 => u128, Option<Text> => Nested, () => char,
        (char, Single) => (), Mixed => Map, Map => Mixed,
    ];
    outcomes.into()
}

#[test]
fn cache_returns_the_same_as_the_embedded_one() {
    play(Cache::Plain);
}

#[test]
fn cache_with_events_returns_the_same_as_the_embedded_one() {
    play(Cache::WithEvents);
}

#[test]
fn near_cache_returns_the_same_as_the_embedded_one() {
    play(Cache::Near);
}

#[test]
fn set_returns_the_same_as_the_embedded_one() {
    play(Set);
}

#[test]
fn dictionary_returns_the_same_as_the_embedded_one() {
    play(Dict);
}

#[test]
fn differences_on_purpose_are_in_the_guide() {
    let guide = include_str!("../../src/guide/redis.md");
    let (_, section) = guide.split_once("# Differences").expect("the guide has this section");
    let (section, _) = section.split_once("# Near cache").expect("the guide has this section");
    let section = section.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in ON_PURPOSE {
        assert!(section.contains(words), "the guide does not contain: {words}");
    }
}
