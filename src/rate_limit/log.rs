//! [`Window::Log`](super::Window::Log), the sliding-window log: the time of each admitted call. (Events for tracing are
//! in `denial_log.rs`.)

use std::num::NonZeroU32;

use smallvec::SmallVec;

use super::algorithm::{Algorithm, Charge, LimitParams, Releases};
use crate::engine::clock::{Now, Tick};

/// Times of admitted calls. A call counts for `per` from its time on, so the window is `(now - per, now]`.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    /// In order of time, one item per distinct time. The first two are stored inline.
    calls: SmallVec<[Calls; 2]>,
    /// One more than the number of items at the front that have left the window. Never zero, which saves a word.
    start: NonZeroU32,
    /// Sum of the costs in the window, saturating: a debt may exceed every quota.
    used: u32,
}

/// Capacity below which memory is not given back.
const SMALL_CAPACITY: usize = 32;

/// Calls of one time. Packed, since a quarter of it would be padding.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed(4))]
struct Calls {
    at: Tick,
    cost: u32,
}

impl Calls {
    /// Returns a copy: references to fields of a packed struct are not allowed.
    #[inline]
    fn at(&self) -> Tick {
        self.at
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { calls: SmallVec::new(), start: NonZeroU32::MIN, used: 0 }
    }
}

impl Log {
    #[inline]
    fn expired_len(&self) -> usize {
        self.start.get() as usize - 1
    }

    #[inline]
    fn in_window(&self) -> &[Calls] {
        &self.calls[self.expired_len()..]
    }

    #[inline]
    fn drop_expired(&mut self, params: &LimitParams, now: &impl Now) {
        let is_sum = self.used < u32::MAX;
        while let Some(first) = self.in_window().first()
            && now.has_reached(first.at().later(params.per))
        {
            // May wrap if it was saturated; then it is counted again below.
            self.used = self.used.wrapping_sub(first.cost);
            self.start = self.start.saturating_add(1);
        }
        if !is_sum {
            self.recount();
        }
    }

    #[inline]
    fn push(&mut self, calls: Calls) {
        let (expired, len) = (self.expired_len(), self.calls.len());
        // At a full buffer, compacts only if at least half of the items have left the window, so that each is moved at
        // most once between two growths. Compacts early if nearly all have left: otherwise a burst would keep its
        // memory forever.
        let is_buffer_full = len == self.calls.capacity() && 2 * expired >= len;
        if is_buffer_full || expired > SMALL_CAPACITY && expired / 4 > len - expired {
            self.compact();
        }
        self.calls.push(calls);
    }

    #[cold]
    fn compact(&mut self) {
        let remaining = self.in_window().len();
        let enough = SMALL_CAPACITY.max(2 * remaining);
        if self.calls.capacity() / 4 > enough {
            let mut calls = SmallVec::with_capacity(enough);
            calls.extend_from_slice(self.in_window());
            self.calls = calls;
        } else {
            self.calls.drain(..self.expired_len());
        }
        self.start = NonZeroU32::MIN;
    }

    /// Returns the sum of the costs, counted again if `used` is saturated.
    #[inline]
    fn total(&self) -> u64 {
        if self.used < u32::MAX { self.used.into() } else { self.sum() }
    }

    #[cold]
    fn sum(&self) -> u64 {
        self.in_window().iter().map(|calls| u64::from(calls.cost)).sum()
    }

    #[cold]
    fn recount(&mut self) {
        self.used = u32::try_from(self.sum()).unwrap_or(u32::MAX);
    }

    #[inline]
    fn releases(&self, params: &LimitParams) -> impl Iterator<Item = (Tick, u32)> {
        self.in_window().iter().map(|calls| (calls.at().later(params.per), calls.cost))
    }
}

impl Algorithm for Log {
    #[inline]
    fn ready(&self, params: &LimitParams, now: &impl Now, cost: u32) -> Option<Tick> {
        let (used, headroom) = (self.total(), u64::from(params.quota - cost));
        if used <= headroom {
            return None;
        }
        // From the side on which fewer units have to be counted: a large cost would otherwise walk all that is in use.
        if used - headroom <= headroom {
            return self.releases(params).ready(used, params, now, cost);
        }
        let mut later = 0;
        let must_leave = self.in_window().iter().rfind(|calls| {
            later += u64::from(calls.cost);
            later > headroom
        })?;
        let leaves_at = must_leave.at().later(params.per);
        (!now.has_reached(leaves_at)).then_some(leaves_at)
    }

    #[inline]
    fn charge(&mut self, params: &LimitParams, now: &impl Now, cost: u32) -> (Charge, u32) {
        let mut at = now.tick();
        self.drop_expired(params, now);
        self.used = self.used.saturating_add(cost);
        let expired = self.expired_len();
        match self.calls[expired..].last_mut() {
            // Not after the last item: times stay in order even if a clock went back.
            Some(last) if last.at() >= at => {
                // Saturates: a cost above every quota leaves as a whole, so its exact size makes no difference.
                last.cost = last.cost.saturating_add(cost);
                // `refund` finds the item by this time.
                at = last.at();
            }
            _ => self.push(Calls { at, cost }),
        }
        (Charge { mark: at, amount: u64::from(cost) }, params.quota.saturating_sub(self.used))
    }

    fn refund(&mut self, charge: Charge, _: &LimitParams, _: &impl Now) {
        let expired = self.expired_len();
        let in_window = &mut self.calls[expired..];
        // Times are in order and distinct. A charge that is not found has left the window or was reset.
        let Ok(index) = in_window.binary_search_by_key(&charge.mark, Calls::at) else {
            return;
        };
        let back = in_window[index].cost.min(charge.amount as u32);
        in_window[index].cost -= back;
        let is_left = in_window[index].cost > 0;
        // An item without units would delay `idle_from`, and so the removal of the key.
        if !is_left {
            self.calls.remove(expired + index);
        }
        match self.used {
            u32::MAX => self.recount(),
            _ => self.used -= back,
        }
    }

    fn used(&self, params: &LimitParams, now: &impl Now) -> u32 {
        let calls = self.in_window();
        let has_left = |calls: &Calls| now.has_reached(calls.at().later(params.per));
        let (left, in_use) = calls.split_at(calls.partition_point(has_left));
        let sum = |calls: &[Calls]| calls.iter().map(|calls| u64::from(calls.cost)).sum::<u64>();
        // The shorter part is summed up: usually all calls are in use, or nearly all have left.
        let used = match left.len() < in_use.len() {
            true => self.total() - sum(left),
            false => sum(in_use),
        };
        u32::try_from(used).unwrap_or(u32::MAX)
    }

    #[inline]
    fn idle_from(&self, params: &LimitParams) -> Option<Tick> {
        self.in_window().last().map(|last| last.at().later(params.per))
    }
}
