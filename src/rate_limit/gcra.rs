//! [`Window::Gcra`](super::Window::Gcra), the generic cell rate algorithm (ITU-T I.371): one instant represents the
//! whole usage.
//!
//! A unit leaks in `per / quota`, which is seldom a whole number of nanoseconds, and less than one for a quota of many
//! bytes. So times are exact: nanoseconds, and a fraction whose denominator is the quota.

use super::algorithm::{Algorithm, Charge, LimitParams};
use crate::engine::clock::{Now, Tick};

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gcra {
    /// Theoretical arrival time: when everything that was charged has leaked.
    arrival: Option<Tick>,
    /// Number of units refunded so far. A mark is stored with the time of that number added, and read with the time of
    /// the present number subtracted. So each refund in between moves the mark earlier: correctly for charges after the
    /// refunded one, and too early for charges before it. A refund may thus return too little, never too much.
    refunded: u64,
    /// Length of the window of the last check. It defines with `quota` how many units the usage represents, since the
    /// next check may be by other limits.
    per: u64,
    quota: u32,
    /// Numerator of the fraction of a nanosecond that `arrival` is later; less than `quota`.
    part: u32,
}

impl Gcra {
    /// Returns the tick from which nothing is in use.
    #[inline]
    fn idle_at(&self) -> Option<Tick> {
        self.arrival.map(|arrival| arrival.later(u64::from(self.part > 0)))
    }

    #[inline]
    fn is_of(&self, params: &LimitParams) -> bool {
        self.per == params.per && self.quota == params.quota
    }

    /// Converts the usage to other parameters: it remains the same number of units. If `caps`, quota that was used is
    /// at most the new quota, and only a debt is more.
    #[cold]
    fn convert(&mut self, params: &LimitParams, now: &impl Now, caps: bool) {
        let (per, quota) = (u128::from(params.per), u128::from(params.quota));
        let in_use = self.idle_at().is_some_and(|idle_at| !now.has_reached(idle_at));
        // Most states are new.
        if in_use || self.refunded > 0 {
            let (old_per, old_quota) = (u128::from(self.per), u128::from(self.quota));
            let now = now.tick();
            // In parts, of which a unit has `per`, and a nanosecond has `quota`.
            let mut left = match in_use {
                true => self.nanoseconds_left(now) * old_quota + u128::from(self.part),
                false => 0,
            };
            // Marks of earlier charges then count as leaked: their times are by the old limits.
            let marks = u128::from(self.refunded).saturating_mul(old_per).saturating_add(left);
            let marks = marks.div_ceil(old_quota).saturating_mul(quota).div_ceil(per);
            self.refunded = u64::try_from(marks).unwrap_or(u64::MAX);
            if caps {
                let debt = left.saturating_sub(old_per * old_quota);
                left = (left - debt).min(old_per * quota) + debt;
            }
            // In parts of the new limit, rounded up, so that no usage is lost.
            let rest = (left % old_per * per).div_ceil(old_per);
            let parts = (left / old_per).saturating_mul(per).saturating_add(rest);
            let nanoseconds = u64::try_from(parts / quota).unwrap_or(u64::MAX);
            self.arrival = in_use.then(|| now.later(nanoseconds));
            self.part = if in_use { (parts % quota) as u32 } else { 0 };
        } else {
            (self.arrival, self.part) = (None, 0);
        }
        (self.per, self.quota) = (params.per, params.quota);
    }

    /// Returns when `units` are in use, at most, if no more is charged.
    #[cold]
    fn leaked_to(&self, units: u32) -> Option<Tick> {
        let (per, quota) = (u128::from(self.per), u128::from(self.quota));
        let parts = u128::from(self.arrival?.nanoseconds()) * quota + u128::from(self.part);
        let at = parts.saturating_sub(u128::from(units) * per).div_ceil(quota);
        Some(Tick::from_nanoseconds(u64::try_from(at).unwrap_or(u64::MAX)))
    }

    fn nanoseconds_left(&self, now: Tick) -> u128 {
        self.arrival.map_or(0, |arrival| arrival.nanoseconds_since(now)).into()
    }

    /// Returns the units in use, rounded up.
    #[inline]
    fn units(&self, now: &impl Now) -> u64 {
        let Some(arrival) = self.arrival else { return 0 };
        let (early, late) = (now.at_least(), now.at_most());
        if early > arrival {
            return 0;
        }
        // The late clock may even lie before the last charge, and then counts more units than were charged. The precise
        // one is read only if a unit may have leaked in between. In 64 bits, which is several times as fast.
        let (quota, part) = (u64::from(self.quota), u64::from(self.part));
        let left = arrival.nanoseconds_since(early).checked_mul(quota);
        if let Some(left) = left.and_then(|left| left.checked_add(part)?.checked_sub(1))
            && let Some(leaking) = late.nanoseconds_since(early).checked_mul(quota)
            && leaking < self.per
            && leaking <= left % self.per
        {
            return left / self.per + 1;
        }
        self.units_at(now.tick())
    }

    fn units_at(&self, at: Tick) -> u64 {
        // The fraction leaks within the nanosecond after `arrival`.
        let Some(arrival) = self.arrival.filter(|arrival| at <= *arrival) else { return 0 };
        let (left, quota) = (arrival.nanoseconds_since(at), u64::from(self.quota));
        match left.checked_mul(quota).and_then(|left| left.checked_add(self.part.into())) {
            Some(left) => left.div_ceil(self.per),
            None => {
                let left = u128::from(left) * u128::from(quota) + u128::from(self.part);
                u64::try_from(left.div_ceil(self.per.into())).unwrap_or(u64::MAX)
            }
        }
    }
}

/// Returns the time in which `cost` units leak: nanoseconds, and the numerator of a fraction.
#[inline]
fn time_of(params: &LimitParams, cost: u32) -> (u64, u64) {
    let (cost, quota) = (u64::from(cost), u64::from(params.quota));
    // Cannot overflow: the fraction is less than the quota, which has 32 bits.
    let parts = cost * u64::from(params.fraction);
    // Most calls cost one unit, and need no division.
    let (whole, part) = if parts < quota { (0, parts) } else { (parts / quota, parts % quota) };
    // Saturates: a large debt of long steps may exceed 64 bits of nanoseconds.
    (params.step.saturating_mul(cost).saturating_add(whole), part)
}

impl Algorithm for Gcra {
    #[inline]
    fn ready(&self, params: &LimitParams, now: &impl Now, cost: u32) -> Option<Tick> {
        let arrival = self.arrival?;
        if !self.is_of(params) {
            // Until a check by these parameters, it leaks by the last ones.
            let ready = self.leaked_to(params.quota - cost)?;
            return (!now.has_reached(ready)).then_some(ready);
        }
        // The bucket holds the cost once all usage but `quota - cost` units has leaked.
        let (time, part) = time_of(params, cost);
        let rounded = match u64::from(self.part) + part {
            0 => 0,
            parts => 1 + u64::from(parts > u64::from(params.quota)),
        };
        // Not above `per`, since the cost is not above the quota.
        let lead = params.per - time;
        let ready = if rounded <= lead {
            arrival.earlier(lead - rounded)
        } else {
            arrival.later(rounded - lead)
        };
        (!now.has_reached(ready)).then_some(ready)
    }

    #[inline]
    fn charge(&mut self, params: &LimitParams, now: &impl Now, cost: u32) -> (Charge, u32) {
        self.fit(params, now);
        let (time, part) = time_of(params, cost);
        // While something is in use, the precise clock is not needed.
        let (base, base_part) = match (self.arrival, self.idle_at()) {
            (Some(arrival), Some(idle_at)) if !now.has_reached(idle_at) => (arrival, self.part),
            _ => (now.tick(), 0),
        };
        let (parts, quota) = (u64::from(base_part) + part, u64::from(params.quota));
        let (whole, part) = if parts < quota { (0, parts) } else { (1, parts - quota) };
        let arrival = base.later(time.saturating_add(whole));
        self.arrival = Some(arrival);
        self.part = part as u32;
        let remaining = quota.saturating_sub(self.units(now));
        let (mut mark, mut mark_part) = (arrival, part);
        if self.refunded > 0 {
            let parts = u128::from(self.refunded) * u128::from(params.per) + u128::from(part);
            let whole = u64::try_from(parts / u128::from(quota)).unwrap_or(u64::MAX);
            (mark, mark_part) = (arrival.later(whole), (parts % u128::from(quota)) as u64);
        }
        (Charge { mark, amount: u64::from(cost) | mark_part << 32 }, remaining as u32)
    }

    fn refund(&mut self, charge: Charge, params: &LimitParams, now: &impl Now) {
        let Some(arrival) = self.arrival else { return };
        // Other limits since then. Its mark is of the old ones, so it counts as leaked.
        if !self.is_of(params) {
            return;
        }
        let (per, quota) = (u128::from(self.per), u128::from(self.quota));
        let parts = |at: Tick, part: u32| u128::from(at.nanoseconds()) * quota + u128::from(part);
        // Charges leak in order, and this one until its mark.
        let leaked = parts(charge.mark, (charge.amount >> 32) as u32)
            .saturating_sub(u128::from(self.refunded).saturating_mul(per));
        // The precise clock: by the late one, more would be given back than has not leaked yet.
        let left = leaked.saturating_sub(parts(now.tick(), 0));
        let back = left.min(u128::from(charge.amount as u32) * per);
        let arrival = parts(arrival, self.part).saturating_sub(back);
        let nanoseconds = u64::try_from(arrival / quota).unwrap_or(u64::MAX);
        self.arrival = Some(Tick::from_nanoseconds(nanoseconds));
        self.part = (arrival % quota) as u32;
        let units = u64::try_from(back.div_ceil(per)).unwrap_or(u64::MAX);
        self.refunded = self.refunded.saturating_add(units);
    }

    #[inline]
    fn fit(&mut self, params: &LimitParams, now: &impl Now) {
        if !self.is_of(params) {
            // Without a cap: a client could otherwise reduce its usage of one plan by a call that is under another.
            self.convert(params, now, false);
        }
    }

    fn adapt(&mut self, old: &LimitParams, new: &LimitParams, now: &impl Now) {
        // Usage of a plan is converted by the next check, if that is by other limits.
        if self.is_of(old) && !self.is_of(new) {
            self.convert(new, now, true);
        }
    }

    fn clear(&mut self, now: &impl Now) {
        let Some(idle_at) = self.idle_at() else { return };
        // So that the marks of the cleared charges count as leaked.
        let left = idle_at.nanoseconds_since(now.tick());
        let units = (u128::from(left) * u128::from(self.quota)).div_ceil(self.per.into());
        self.refunded = self.refunded.saturating_add(u64::try_from(units).unwrap_or(u64::MAX));
        (self.arrival, self.part) = (None, 0);
    }

    fn used(&self, _: &LimitParams, now: &impl Now) -> u32 {
        u32::try_from(self.units(now)).unwrap_or(u32::MAX)
    }

    fn is_empty(&self, now: &impl Now) -> bool {
        self.idle_at().is_none_or(|idle_at| now.has_reached(idle_at))
    }

    #[inline]
    fn idle_from(&self, _: &LimitParams) -> Option<Tick> {
        self.idle_at()
    }
}
