//! [`Window::Gcra`](super::Window::Gcra), the generic cell rate algorithm (ITU-T I.371): one instant represents the
//! whole usage.

use super::algorithm::{Algorithm, Charge, LimitParams};
use crate::engine::clock::{Now, Tick};

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gcra {
    /// Theoretical arrival time: when everything that was charged has leaked.
    arrival: Option<Tick>,
    /// Total time refunded so far. A mark is stored with the total at that time added, and read with the present total
    /// subtracted. So each refund in between moves the mark earlier: correctly for charges after the refunded one, and
    /// too early for charges before it. A refund may thus return too little, never too much.
    refunded: u64,
}

impl Algorithm for Gcra {
    #[inline]
    fn ready(&self, params: &LimitParams, now: &impl Now, cost: u32) -> Option<Tick> {
        // The bucket holds the cost once all usage but `quota - cost` units has leaked.
        let ready = self.arrival?.earlier(params.step * u64::from(params.quota - cost));
        (!now.has_reached(ready)).then_some(ready)
    }

    #[inline]
    fn charge(&mut self, params: &LimitParams, now: &impl Now, cost: u32) -> (Charge, u32) {
        // Saturates: a large debt of long steps may exceed 64 bits of nanoseconds.
        let amount = params.step.saturating_mul(u64::from(cost));
        let base = match self.arrival {
            // While something is in use, the precise clock is not needed.
            Some(arrival) if !now.has_reached(arrival) => arrival,
            _ => now.tick(),
        };
        let arrival = base.later(amount);
        self.arrival = Some(arrival);
        // By the late clock and rounded up: the remaining quota is never too high.
        let used = arrival.nanoseconds_since(now.at_least()).div_ceil(params.step);
        let remaining = u64::from(params.quota).saturating_sub(used);
        (Charge { mark: arrival.later(self.refunded), amount }, remaining as u32)
    }

    fn refund(&mut self, charge: Charge, now: &impl Now) {
        // Charges leak in order, and this one until its mark.
        let leaked = charge.mark.earlier(self.refunded);
        // The precise clock: by the late one, more would be given back than has not leaked yet.
        let left = leaked.nanoseconds_since(now.tick()).min(charge.amount);
        self.arrival = self.arrival.map(|arrival| arrival.earlier(left));
        self.refunded = self.refunded.saturating_add(left);
    }

    fn adapt(&mut self, old: &LimitParams, new: &LimitParams, now: &impl Now) {
        let Some(arrival) = self.arrival.filter(|arrival| !now.has_reached(*arrival)) else {
            return;
        };
        // Usage is a time, and represents as many units as it contains steps.
        let now = now.tick();
        let left = arrival.nanoseconds_since(now);
        // In 128 bits, since both factors may be a century of nanoseconds. Rounded up, so that no usage is lost.
        let units = u128::from(left) * u128::from(new.step);
        let adapted = u64::try_from(units.div_ceil(old.step.into())).unwrap_or(u64::MAX);
        self.arrival = Some(now.later(adapted));
        // Marks of earlier charges then count as leaked: their amounts are in steps of the old length.
        self.refunded = self.refunded.saturating_add(left);
    }

    fn used(&self, params: &LimitParams, now: &impl Now) -> u32 {
        let Some(arrival) = self.arrival.filter(|arrival| !now.has_reached(*arrival)) else {
            return 0;
        };
        // By the late clock and rounded up, as in `charge`.
        let used = arrival.nanoseconds_since(now.at_least()).div_ceil(params.step);
        u32::try_from(used).unwrap_or(u32::MAX)
    }

    #[inline]
    fn idle_from(&self, _: &LimitParams) -> Option<Tick> {
        self.arrival
    }
}
