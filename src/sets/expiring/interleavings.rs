//! The orders in which pushes may meet a sweep, tried by shuttle; see `crate::engine::interleavings`.

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

/// Shards that are no more than their lowest scores, and an alarm that remembers a ring, as the real one does.
struct Parts {
    schedule: Schedule,
    shards: [Mutex<Option<Tick>>; 2],
    alarm: AtomicBool,
}

impl Parts {
    fn push(&self, shard: usize, score: Tick) {
        let mut lowest = self.shards[shard].lock().unwrap();
        *lowest = Some(lowest.map_or(score, |lowest| lowest.min(score)));
        let rings = self.schedule.note(shard, *lowest);
        drop(lowest);
        if rings {
            self.alarm.store(true, SeqCst);
        }
    }

    /// Lets leave what is `now` or before, as the sweeper does.
    fn sweep(&self, now: Tick) {
        for (index, shard) in self.shards.iter().enumerate() {
            if self.schedule.lowest(index).is_some_and(|lowest| lowest <= now) {
                let mut lowest = shard.lock().unwrap();
                *lowest = lowest.filter(|lowest| *lowest > now);
                self.schedule.note_swept(index, *lowest);
                drop(lowest);
            }
        }
        self.schedule.renew();
    }
}

/// Whatever is pushed while the sweeper sweeps: it sleeps for no longer than until the lowest score, or hears the alarm.
#[test]
fn interleavings_of_pushes_and_a_sweep() {
    let tick = Tick::from_nanoseconds;
    let test = move || {
        let parts = Arc::new(Parts {
            schedule: Schedule::new(2),
            shards: [const { None }; 2].map(Mutex::new),
            alarm: AtomicBool::new(false),
        });
        parts.push(0, tick(5));
        let pushers: Vec<_> = (0..2)
            .map(|_| {
                let parts = parts.clone();
                thread::spawn(move || {
                    let mut random = shuttle::rand::thread_rng();
                    for _ in 0..3 {
                        parts.push(random.gen_range(0..2), tick(random.gen_range(1..20)));
                    }
                })
            })
            .collect();
        let sweeper = {
            let parts = parts.clone();
            thread::spawn(move || {
                let mut sleeps_until = None;
                for now in [6, 12] {
                    parts.sweep(tick(now));
                    parts.alarm.store(false, SeqCst);
                    sleeps_until = parts.schedule.soonest();
                }
                sleeps_until
            })
        };
        pushers.into_iter().for_each(|pusher| pusher.join().unwrap());
        let sleeps_until = sweeper.join().unwrap();
        let lowest = parts.shards.iter().filter_map(|shard| *shard.lock().unwrap()).min();
        let Some(lowest) = lowest else { return };
        let is_in_time = sleeps_until.is_some_and(|until| until <= lowest);
        assert!(is_in_time || parts.alarm.load(SeqCst), "{sleeps_until:?} {lowest:?}");
        assert!(parts.schedule.soonest().is_some_and(|soonest| soonest <= lowest));
    };
    let iterations = std::env::var("SHUTTLE_ITERATIONS");
    let iterations = iterations.map_or(5_000, |n| n.parse().expect("a number"));
    shuttle::check_random(test, iterations);
}
