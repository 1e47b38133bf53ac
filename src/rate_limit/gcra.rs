//! [`Window::Gcra`](super::Window::Gcra), the generic cell rate algorithm (ITU-T I.371): one instant represents the
//! whole usage, which is converted for another limit.
//!
//! A unit leaks in `per / quota`, which is seldom a whole number of nanoseconds, and less than one for a quota of many
//! bytes. So times are exact: nanoseconds, and a fraction whose denominator is the quota.

use super::algorithm::{Algorithm, Back, Charge, LimitParams, Noted};
use crate::engine::clock::{Now, Tick};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Gcra {
    /// Theoretical arrival time: when everything that was charged has leaked. Long ago if nothing ever was.
    arrival: Tick,
    /// Time of the last charge, or up to a step of the coarse clock earlier.
    last: Tick,
    /// Number of units refunded so far, except for those of last charges; or [`DERIVED`]. A mark is the arrival after a
    /// charge with the time of that number added. So marks increase from charge to charge, and never decrease by
    /// refunds.
    refunded: u64,
    /// Length of the window of the limit. It defines with `quota` how many units the usage represents.
    per: u64,
    quota: u32,
    /// Numerator of the fraction of a nanosecond that `arrival` is later; less than `quota`.
    part: u32,
}

/// Value of `refunded` of a state that was derived and not charged since. It does not know its part of a single call,
/// so it is derived again if one is refunded.
const DERIVED: u64 = u64::MAX;

impl Gcra {
    /// Returns the tick from which nothing is in use.
    #[inline]
    fn idle_at(&self) -> Tick {
        self.arrival.later(u64::from(self.part > 0))
    }

    #[inline]
    fn refunded(&self) -> u64 {
        if self.refunded == DERIVED { 0 } else { self.refunded }
    }

    /// Returns a time in parts, of which a unit has `per`, and a nanosecond has `quota`.
    fn parts(&self, at: Tick, part: u32) -> u128 {
        u128::from(at.nanoseconds()) * u128::from(self.quota) + u128::from(part)
    }

    fn arrival_parts(&self) -> u128 {
        self.parts(self.arrival, self.part)
    }

    fn set_arrival(&mut self, parts: u128) {
        // Saturates: a large debt by long steps may exceed 64 bits of nanoseconds.
        let quota = u128::from(self.quota);
        let nanoseconds = u64::try_from(parts / quota).unwrap_or(u64::MAX);
        self.arrival = Tick::from_nanoseconds(nanoseconds);
        self.part = (parts % quota) as u32;
    }

    fn refunded_parts(&self) -> u128 {
        u128::from(self.refunded()).saturating_mul(self.per.into())
    }

    /// Records a charge that was just made.
    #[inline]
    fn record(&mut self, now: &impl Now, cost: u32) -> Charge {
        self.last = now.at_least();
        self.refunded = self.refunded();
        let (mark, part) = match self.refunded {
            0 => (self.arrival, self.part),
            _ => self.mark_after_refunds(),
        };
        Charge { mark, amount: u64::from(cost) | u64::from(part) << 32 }
    }

    #[cold]
    fn mark_after_refunds(&self) -> (Tick, u32) {
        let (parts, quota) =
            (self.refunded_parts() + u128::from(self.part), u128::from(self.quota));
        let whole = u64::try_from(parts / quota).unwrap_or(u64::MAX);
        (self.arrival.later(whole), (parts % quota) as u32)
    }

    /// Returns the parts of another limit that are as many units as are in use at a time, rounded up so that no usage
    /// is lost.
    fn converted(&self, at: Tick, other: &Self) -> u128 {
        let (per, other_per) = (u128::from(self.per), u128::from(other.per));
        let left = self.arrival_parts().saturating_sub(self.parts(at, 0));
        // A unit has `per` parts.
        (left / per)
            .saturating_mul(other_per)
            .saturating_add((left % per * other_per).div_ceil(per))
    }

    /// Returns the state of a limit with the units that are in use by the known ones. `convert` returns the parts to
    /// take of those of a known one.
    fn derived<'a>(
        known: impl Iterator<Item = &'a Self> + Clone,
        params: &LimitParams,
        now: &impl Now,
        convert: impl Fn(&Self, u128) -> u128,
    ) -> Self {
        let mut derived = Self::of_slower(known.clone(), params, &convert);
        for known in Self::faster(known.clone(), params) {
            derived.raise(now.tick(), convert(known, known.converted(now.tick(), &derived)));
        }
        derived.last = known.map(|known| known.last).max().unwrap_or(derived.last);
        derived
    }

    /// Returns the state of a limit by the known one that leaks as slowly, or slower by the least. By that, as many
    /// units were in use after the last charge as by the limit, or more. They have leaked by the limit since then, so
    /// the result does not depend on the time of the call.
    fn of_slower<'a>(
        known: impl Iterator<Item = &'a Self>,
        params: &LimitParams,
        convert: &impl Fn(&Self, u128) -> u128,
    ) -> Self {
        let mut derived = Self { refunded: DERIVED, ..Self::new(params) };
        let slower = known.filter(|known| !known.leaks_faster_than(params));
        let closest = slower
            .reduce(|one, other| if other.leaks_faster_than(&one.params()) { other } else { one });
        if let Some(known) = closest {
            derived.raise(known.last, convert(known, known.converted(known.last, &derived)));
        }
        derived
    }

    /// Returns the known limits that leak faster. They do not know the units that have leaked, so a limit takes those
    /// that are in use when a check makes it known.
    fn faster<'a>(
        known: impl Iterator<Item = &'a Self>,
        params: &LimitParams,
    ) -> impl Iterator<Item = &'a Self> {
        known.filter(|known| known.leaks_faster_than(params))
    }

    fn leaks_faster_than(&self, params: &LimitParams) -> bool {
        u128::from(self.per) * u128::from(params.quota)
            < u128::from(params.per) * u128::from(self.quota)
    }

    /// Returns when `units` are in use, at most, if no more is charged.
    fn leaked_to(&self, units: u32) -> Tick {
        let leaked = u128::from(units) * u128::from(self.per);
        let at = self.arrival_parts().saturating_sub(leaked).div_ceil(self.quota.into());
        Tick::from_nanoseconds(u64::try_from(at).unwrap_or(u64::MAX))
    }

    /// Moves the arrival to at least some parts after a time.
    fn raise(&mut self, at: Tick, parts: u128) {
        if parts > 0 {
            let arrival = self.parts(at, 0).saturating_add(parts);
            self.set_arrival(arrival.max(self.arrival_parts()));
        }
    }

    /// Takes `back` parts of a charge back.
    ///
    /// The rest is an upper bound of the arrival as it would be without the charge, so never too much is taken back. It
    /// is exact for the last charge, and for refunds in the order of the charges or the reverse order while no more
    /// than a step of the coarse clock has passed.
    fn take_back(&mut self, charge: Charge, back: u128, now: &impl Now) {
        let mark = self.parts(charge.mark, (charge.amount >> 32) as u32);
        let (arrival, refunded) = (self.arrival_parts(), self.refunded_parts());
        // Charged since then. Too much if some of it was refunded.
        let since = (arrival + refunded).saturating_sub(mark);
        if since == 0 {
            // As if it was never made: the time that leaked of it would have passed without it, too.
            self.set_arrival(arrival.saturating_sub(back));
            return;
        }
        // Charges leak in order, and this one until its mark. The precise clock: by the late one, more would be given
        // back than has not leaked yet.
        let (present, late) = (now.tick(), now.at_most().nanoseconds_since(now.at_least()));
        let left = mark.saturating_sub(refunded).saturating_sub(self.parts(present, 0));
        let by_order = arrival - back.min(left).min(arrival);
        // All later charges were made until `last`.
        let last = self.last.later(late).min(present);
        let by_time = arrival.saturating_sub(back).max(self.parts(last, 0) + since);
        let rest = by_order.min(by_time).min(arrival);
        self.set_arrival(rest);
        let units = (arrival - rest).div_ceil(self.per.into());
        let units = u64::try_from(units).unwrap_or(u64::MAX);
        self.refunded = self.refunded.saturating_add(units).min(DERIVED - 1);
    }

    /// Takes a charge back, unless the state has to be derived again.
    fn take_back_unless_derived(&mut self, charge: Charge, back: u128, now: &impl Now) -> bool {
        let is_derived = self.refunded == DERIVED;
        if !is_derived {
            self.take_back(charge, back, now);
        }
        is_derived
    }

    /// Returns the units in use, rounded up.
    #[inline(always)]
    fn units(&self, now: &impl Now) -> u64 {
        let arrival = self.arrival;
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
        if at > self.arrival {
            return 0;
        }
        let (left, quota) = (self.arrival.nanoseconds_since(at), u64::from(self.quota));
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
    fn new(params: &LimitParams) -> Self {
        let never = Tick::from_nanoseconds(0);
        let (per, quota) = (params.per, params.quota);
        Self { arrival: never, last: never, refunded: 0, per, quota, part: 0 }
    }

    /// Takes the largest number of units that are in use.
    fn derive<'a>(
        known: impl Iterator<Item = &'a Self> + Clone,
        params: &LimitParams,
        now: &impl Now,
    ) -> Self {
        Self::derived(known, params, now, |_, parts| parts)
    }

    /// Takes the units that are in use now, at most the new quota; but all of a debt.
    fn convert<'a>(
        known: impl Iterator<Item = &'a Self> + Clone,
        params: &LimitParams,
        now: &impl Now,
    ) -> Option<Self> {
        let full = |quota| u128::from(params.per) * u128::from(quota);
        Some(Self::derived(known, params, now, |known, parts| {
            let debt = parts.saturating_sub(full(known.quota));
            (parts - debt).min(full(params.quota)) + debt
        }))
    }

    fn ready_unknown<'a>(
        known: impl Iterator<Item = &'a Self> + Clone,
        params: &LimitParams,
        now: &impl Now,
        cost: u32,
    ) -> Option<Tick> {
        let of_slower = Self::of_slower(known.clone(), params, &|_, parts| parts);
        let faster = Self::faster(known, params);
        let leaked = faster.map(|known| known.leaked_to(params.quota - cost)).max();
        let leaked = leaked.filter(|leaked| !now.has_reached(*leaked));
        of_slower.ready(params, now, cost).max(leaked)
    }

    fn used_unknown<'a>(
        known: impl Iterator<Item = &'a Self> + Clone,
        params: &LimitParams,
        now: &impl Now,
    ) -> u32 {
        let of_slower = Self::of_slower(known.clone(), params, &|_, parts| parts);
        let faster = Self::faster(known, params).map(|known| known.used(params, now));
        faster.max().unwrap_or(0).max(of_slower.used(params, now))
    }

    #[inline(always)]
    fn is_for(&self, params: &LimitParams) -> bool {
        self.per == params.per && self.quota == params.quota
    }

    fn params(&self) -> LimitParams {
        LimitParams::leaking(self.quota, self.per)
    }

    #[inline(always)]
    fn ready(&self, params: &LimitParams, now: &impl Now, cost: u32) -> Option<Tick> {
        // The bucket holds the cost once all usage but `quota - cost` units has leaked.
        let (time, part) = time_of(params, cost);
        let rounded = match u64::from(self.part) + part {
            0 => 0,
            parts => 1 + u64::from(parts > u64::from(params.quota)),
        };
        // Not above `per`, since the cost is not above the quota.
        let lead = params.per - time;
        let ready = if rounded <= lead {
            self.arrival.earlier(lead - rounded)
        } else {
            self.arrival.later(rounded - lead)
        };
        (!now.has_reached(ready)).then_some(ready)
    }

    /// Exact for calls of any cost: each raises the arrival by its cost, so the call passes when all units but a quota
    /// have leaked. `per` for each quota ahead would be too long: of those units, some pass before the bucket is full.
    fn ready_behind(&self, params: &LimitParams, now: &impl Now, ahead: u64, cost: u32) -> Tick {
        let (per, quota) = (u128::from(params.per), u128::from(params.quota));
        let present = now.tick();
        let base = self.arrival_parts().max(self.parts(present, 0));
        let units = u128::from(ahead) + u128::from(cost);
        let full = base.saturating_add(per.saturating_mul(units));
        let ready = full.saturating_sub(per * quota).div_ceil(quota);
        let ready = Tick::from_nanoseconds(u64::try_from(ready).unwrap_or(u64::MAX));
        ready.max(present)
    }

    /// The usage by limits that leak faster is not known at the time of the check. It has to leak until the call itself
    /// fits, at least.
    fn ready_behind_unknown<'a>(
        known: impl Iterator<Item = &'a Self> + Clone,
        params: &LimitParams,
        now: &impl Now,
        ahead: u64,
        cost: u32,
    ) -> Tick {
        let of_slower = Self::of_slower(known.clone(), params, &|_, parts| parts);
        let ready = of_slower.ready_behind(params, now, ahead, cost);
        Self::ready_unknown(known, params, now, cost).map_or(ready, |alone| alone.max(ready))
    }

    #[inline]
    fn charge(&mut self, params: &LimitParams, now: &impl Now, cost: u32) -> (Charge, u32) {
        let (time, part) = time_of(params, cost);
        // While something is in use, the precise clock is not needed.
        let (base, base_part) = if now.has_reached(self.idle_at()) {
            (now.tick(), 0)
        } else {
            (self.arrival, self.part)
        };
        let (parts, quota) = (u64::from(base_part) + part, u64::from(params.quota));
        let (whole, part) = if parts < quota { (0, parts) } else { (1, parts - quota) };
        self.arrival = base.later(time.saturating_add(whole));
        self.part = part as u32;
        let remaining = quota.saturating_sub(self.units(now));
        (self.record(now, cost), remaining as u32)
    }

    /// Fills the bucket at most to its quota: the limit itself would have admitted no more. But at least as many units
    /// are in use as by the limit that admitted the call, if that leaks faster.
    fn note(
        &mut self,
        params: &LimitParams,
        now: &impl Now,
        cost: u32,
        current: &Self,
    ) -> Option<(Charge, u128)> {
        let (now_tick, per) = (now.tick(), u128::from(params.per));
        let present = self.parts(now_tick, 0);
        let base = self.arrival_parts().max(present);
        let full = present + per * u128::from(params.quota);
        self.set_arrival((base + per * u128::from(cost)).min(full.max(base)));
        if current.leaks_faster_than(params) {
            self.raise(now_tick, current.converted(now_tick, self));
        }
        Some((self.record(now, cost), self.arrival_parts().saturating_sub(base)))
    }

    fn refund(&mut self, charge: Charge, back: Back, now: &impl Now) -> bool {
        let parts = u128::from(back.units) * u128::from(self.per);
        self.take_back_unless_derived(charge, parts, now)
    }

    fn refund_noted(&mut self, noted: &Noted, back: Back, now: &impl Now) -> bool {
        let stay = u128::from(back.stay) * u128::from(self.per);
        self.take_back_unless_derived(noted.charge, noted.parts.saturating_sub(stay), now)
    }

    fn refund_unrecorded(&mut self, _: Charge, _: Back, _: &impl Now) -> bool {
        self.refunded == DERIVED
    }

    fn used(&self, _: &LimitParams, now: &impl Now) -> u32 {
        u32::try_from(self.units(now)).unwrap_or(u32::MAX)
    }

    #[inline]
    fn idle_from(&self) -> Option<Tick> {
        Some(self.idle_at())
    }

    fn lag(&self) -> u64 {
        let nanoseconds = self.refunded_parts().div_ceil(self.quota.into());
        u64::try_from(nanoseconds).unwrap_or(u64::MAX)
    }
}
