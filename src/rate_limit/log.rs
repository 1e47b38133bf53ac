use smallvec::SmallVec;

use super::rule::{Algorithm, Charge, Left, Rule};
use crate::clock::{Now, Tick};

/// The times of the calls that passed. A call counts for `per` from its time on, so the window is
/// `(now - per, now]`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    /// In the order of their times, one for each time. The first two need no memory of their own.
    calls: SmallVec<[Calls; 2]>,
    /// How many at the front have left.
    gone: u32,
    /// The sum of the costs of the others.
    used: u32,
}

#[derive(Clone, Copy, Debug)]
struct Calls {
    at: Tick,
    /// Zero where all was taken back.
    cost: u32,
}

impl Log {
    #[inline]
    fn present(&self) -> &[Calls] {
        &self.calls[self.gone as usize..]
    }

    #[inline]
    fn forget(&mut self, rule: &Rule, now: &impl Now) {
        while let Some(first) = self.present().first()
            && now.has_reached(first.at.later(rule.per))
        {
            self.used -= first.cost;
            self.gone += 1;
        }
    }

    #[inline]
    fn push(&mut self, calls: Calls) {
        // As many leave at once as stay, so that each is moved once at most, as the memory grows.
        if self.calls.len() == self.calls.capacity() && 2 * self.gone as usize >= self.calls.len() {
            self.calls.drain(..self.gone as usize);
            self.gone = 0;
        }
        self.calls.push(calls);
    }

    #[inline]
    fn holds(&self, rule: &Rule, cost: u32) -> bool {
        u64::from(self.used) + u64::from(cost) <= u64::from(rule.quota)
    }

    /// When enough has left for `cost`, which has no room now.
    fn ready(&self, rule: &Rule, cost: u32) -> Tick {
        // A plan of a smaller quota may find more in use than it has.
        let mut excess = u64::from(self.used) + u64::from(cost) - u64::from(rule.quota);
        let last = self.present().iter().find(|calls| {
            let is_enough = u64::from(calls.cost) >= excess;
            excess = excess.saturating_sub(u64::from(calls.cost));
            is_enough
        });
        last.expect("what is in use was charged").at.later(rule.per)
    }
}

impl Algorithm for Log {
    #[inline]
    fn room(&mut self, rule: &Rule, now: &impl Now, cost: u32) -> Result<(), Tick> {
        // Where there is room anyway, the time makes no difference.
        if !self.holds(rule, cost) {
            self.forget(rule, now);
            if !self.holds(rule, cost) {
                return Err(self.ready(rule, cost));
            }
        }
        Ok(())
    }

    #[inline]
    fn charge(&mut self, rule: &Rule, now: &impl Now, cost: u32) -> (Charge, u32) {
        let mut at = now.tick();
        self.forget(rule, now);
        self.used += cost;
        let gone = self.gone as usize;
        match self.calls[gone..].last_mut() {
            // Not after it: times stay in order also where a clock would go back.
            Some(last) if last.at >= at => {
                last.cost += cost;
                at = last.at;
            }
            _ => self.push(Calls { at, cost }),
        }
        (Charge { mark: at, amount: u64::from(cost) }, rule.quota - self.used)
    }

    fn refund(&mut self, charge: Charge, _: &impl Now) {
        let gone = self.gone as usize;
        let present = &mut self.calls[gone..];
        let Ok(index) = present.binary_search_by_key(&charge.mark, |calls| calls.at) else {
            return;
        };
        let back = present[index].cost.min(charge.amount as u32);
        present[index].cost -= back;
        self.used -= back;
        while self.present().last().is_some_and(|last| last.cost == 0) {
            self.calls.pop();
        }
    }

    fn left(&self, rule: &Rule, now: &impl Now) -> Left {
        let leaves = |calls: &Calls| calls.at.later(rule.per);
        let left = self.present().iter().take_while(|calls| now.has_reached(leaves(calls)));
        let used = self.used - left.map(|calls| calls.cost).sum::<u32>();
        let next = |calls: &&Calls| calls.cost > 0 && !now.has_reached(leaves(calls));
        Left {
            remaining: rule.quota.saturating_sub(used),
            more_at: self.present().iter().find(next).map(leaves),
        }
    }

    #[inline]
    fn idle_from(&self, rule: &Rule) -> Option<Tick> {
        self.present().last().map(|last| last.at.later(rule.per))
    }
}
