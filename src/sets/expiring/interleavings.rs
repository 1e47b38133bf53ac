//! Interleavings of pushes and a sweep, explored by shuttle; see `crate::engine::interleavings`.

use std::sync::Arc;

use shuttle::{rand::Rng, thread};

use super::schedule::Schedule;
use crate::engine::{
    clock::Tick,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

/// Shards reduced to their lowest scores, and a wake flag that keeps a notification until it is read, as `Notify` does.
struct BareShards {
    schedule: Schedule,
    shards: [Mutex<Option<Tick>>; 2],
    sweeper_wake: AtomicBool,
}

impl BareShards {
    fn push(&self, shard: usize, score: Tick) {
        let mut lowest = self.shards[shard].lock().unwrap();
        *lowest = Some(lowest.map_or(score, |lowest| lowest.min(score)));
        let wakes_sweeper = self.schedule.record_lowest(shard, *lowest);
        drop(lowest);
        if wakes_sweeper {
            self.sweeper_wake.store(true, SeqCst);
        }
    }

    /// Removes scores up to `now`, as the sweeper does.
    fn sweep(&self, now: Tick) {
        for (index, shard) in self.shards.iter().enumerate() {
            if self.schedule.lowest(index).is_some_and(|lowest| lowest <= now) {
                let mut lowest = shard.lock().unwrap();
                *lowest = lowest.filter(|lowest| *lowest > now);
                self.schedule.record_swept(index, *lowest);
                drop(lowest);
            }
        }
        self.schedule.recompute();
    }
}

/// Concurrent pushes do not make the sweeper oversleep: it sleeps at most until the lowest score, or it has been woken.
#[test]
fn interleavings_of_pushes_and_a_sweep() {
    let tick = Tick::from_nanoseconds;
    let test = move || {
        let state = Arc::new(BareShards {
            schedule: Schedule::new(2),
            shards: [const { None }; 2].map(Mutex::new),
            sweeper_wake: AtomicBool::new(false),
        });
        state.push(0, tick(5));
        let writers: Vec<_> = (0..2)
            .map(|_| {
                let state = state.clone();
                thread::spawn(move || {
                    let mut random = shuttle::rand::thread_rng();
                    for _ in 0..3 {
                        state.push(random.gen_range(0..2), tick(random.gen_range(1..20)));
                    }
                })
            })
            .collect();
        let sweeper = {
            let state = state.clone();
            thread::spawn(move || {
                let mut sleeps_until = None;
                for now in [6, 12] {
                    state.sweep(tick(now));
                    state.sweeper_wake.store(false, SeqCst);
                    sleeps_until = state.schedule.lowest_of_all();
                }
                sleeps_until
            })
        };
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        let sleeps_until = sweeper.join().unwrap();
        let lowest = state.shards.iter().filter_map(|shard| *shard.lock().unwrap()).min();
        let Some(lowest) = lowest else { return };
        let is_in_time = sleeps_until.is_some_and(|until| until <= lowest);
        assert!(is_in_time || state.sweeper_wake.load(SeqCst), "{sleeps_until:?} {lowest:?}");
        assert!(state.schedule.lowest_of_all().is_some_and(|score| score <= lowest));
    };
    let iterations = std::env::var("SHUTTLE_ITERATIONS");
    let iterations = iterations.map_or(5_000, |n| n.parse().expect("a number"));
    shuttle::check_random(test, iterations);
}
