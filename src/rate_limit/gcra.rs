use super::rule::{Algorithm, Charge, Left, Rule};
use crate::clock::{Now, Tick};

/// The theoretical arrival time: when all that was charged has leaked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gcra(Option<Tick>);

impl Algorithm for Gcra {
    #[inline]
    fn room(&mut self, rule: &Rule, now: &impl Now, cost: u32) -> Result<(), Tick> {
        let Some(arrival) = self.0 else { return Ok(()) };
        // Where it arrives by then, the bucket holds the cost.
        let ready = arrival.earlier(rule.step * u64::from(rule.quota - cost));
        if now.has_reached(ready) { Ok(()) } else { Err(ready) }
    }

    #[inline]
    fn charge(&mut self, rule: &Rule, now: &impl Now, cost: u32) -> (Charge, u32) {
        let amount = rule.step * u64::from(cost);
        let base = match self.0 {
            // A key in its burst needs no precise clock.
            Some(arrival) if !now.has_reached(arrival) => arrival,
            _ => now.tick(),
        };
        let arrival = base.later(amount);
        self.0 = Some(arrival);
        let used = arrival.nanoseconds_since(now.at_least()).div_ceil(rule.step);
        let remaining = u64::from(rule.quota).saturating_sub(used);
        (Charge { mark: arrival, amount }, remaining as u32)
    }

    fn refund(&mut self, charge: Charge, now: &impl Now) {
        // Charges leak in the order in which they came, this one until its mark.
        let left = charge.mark.nanoseconds_since(now.tick()).min(charge.amount);
        self.0 = self.0.map(|arrival| arrival.earlier(left));
    }

    fn left(&self, rule: &Rule, now: &impl Now) -> Left {
        let Some(arrival) = self.0.filter(|arrival| !now.has_reached(*arrival)) else {
            return Left { remaining: rule.quota, more_at: None };
        };
        let used = arrival.nanoseconds_since(now.tick()).div_ceil(rule.step);
        let quota = u64::from(rule.quota);
        // A plan of a smaller quota may find more in use than it has.
        let less = arrival.earlier((used.min(quota) - 1) * rule.step);
        let remaining = quota.saturating_sub(used);
        Left { remaining: remaining as u32, more_at: Some(less) }
    }

    #[inline]
    fn idle_from(&self, _: &Rule) -> Option<Tick> {
        self.0
    }
}
