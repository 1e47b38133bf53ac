//! [`Window::Gcra`](super::Window::Gcra), the generic cell rate algorithm (ITU-T I.371): one instant tells all that
//! is in use.

use super::algorithm::{Algorithm, Charge, Rule};
use crate::engine::clock::{Now, Tick};

/// The theoretical arrival time: when all that was charged has leaked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gcra(Option<Tick>);

impl Algorithm for Gcra {
    #[inline]
    fn ready(&self, rule: &Rule, now: &impl Now, cost: u32) -> Option<Tick> {
        // Where what is in use has leaked by then, but for this, the bucket holds the cost.
        let ready = self.0?.earlier(rule.step * u64::from(rule.quota - cost));
        (!now.has_reached(ready)).then_some(ready)
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

    fn used(&self, rule: &Rule, now: &impl Now) -> u32 {
        let Some(arrival) = self.0.filter(|arrival| !now.has_reached(*arrival)) else { return 0 };
        let used = arrival.nanoseconds_since(now.at_least()).div_ceil(rule.step);
        u32::try_from(used).unwrap_or(u32::MAX)
    }

    #[inline]
    fn idle_from(&self, _: &Rule) -> Option<Tick> {
        self.0
    }
}
