//! The state of the key on the server, and the scripts that change it.

use super::Bug;

/// The limit, and the time for which units are reserved, in ticks. With GCRA, one unit leaks per tick.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// True for GCRA, false for a log.
    pub is_gcra: bool,
    /// Units per window.
    pub quota: i8,
    /// Length of the window.
    pub per: i8,
    /// Time for which units are reserved.
    pub lead: i8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Server {
    /// By how much its clock is behind the ideal one.
    behind: i8,
    pub(super) has_stepped_back: bool,
    /// Number of states before this one.
    created: u8,
    /// Time of the last charge, by the clock of the server. None of the state is of use before the first charge.
    last: i8,
    /// Log: position, time and units of each call.
    calls: Vec<(i8, i8, i8)>,
    position: i8,
    /// GCRA: time at which the bucket is empty, time of the latest call, and sum of the charges.
    empty_at: i8,
    latest: i8,
    level: i8,
}

impl Server {
    pub(super) fn step_back(&mut self) {
        (self.behind, self.has_stepped_back) = (self.behind + 2, true);
    }

    pub(super) fn reset(&mut self) {
        let (behind, has_stepped_back) = (self.behind, self.has_stepped_back);
        let created = self.created + 1;
        *self = Self { behind, has_stepped_back, created, ..Self::default() };
    }

    /// Returns the clock, after the times of the state were moved back if they are ahead of it.
    fn clock(&mut self, sizes: &Sizes, now: i8) -> i8 {
        let clock = now - self.behind;
        if self.last > clock {
            let ahead = self.last - clock;
            for (_, at, _) in &mut self.calls {
                *at -= ahead;
            }
            self.last = clock;
            self.empty_at -= ahead;
            self.latest -= ahead;
            self.created += 1;
        }
        self.calls.retain(|(_, at, units)| at + sizes.per > clock && *units > 0);
        clock
    }

    /// Charges units as a call in `lead` ticks. Returns the state and the position of the charge; `None` if it is
    /// denied.
    pub(super) fn charge(
        &mut self,
        sizes: &Sizes,
        now: i8,
        units: i8,
        lead: i8,
    ) -> Option<(u8, i8)> {
        let clock = self.clock(sizes, now);
        if sizes.is_gcra {
            let empty_at = self.empty_at.max(clock + lead) + units;
            if empty_at > clock + sizes.quota {
                return None;
            }
            self.empty_at = empty_at;
            self.level += units;
            self.latest = self.latest.max(clock + lead);
        } else {
            let used: i8 = self.calls.iter().map(|(_, _, units)| units).sum();
            if used + units > sizes.quota {
                return None;
            }
            self.position += 1;
            self.calls.push((self.position, clock + lead, units));
        }
        self.last = clock;
        Some((self.created, if sizes.is_gcra { self.level } else { self.position }))
    }

    pub(super) fn give_back(
        &mut self,
        sizes: &Sizes,
        bug: Option<Bug>,
        now: i8,
        units: i8,
        &(created, position): &(u8, i8),
    ) {
        let clock = self.clock(sizes, now);
        if created != self.created && bug != Some(Bug::ReturnedToNextState) {
            return;
        }
        if !sizes.is_gcra {
            if let Some(call) = self.calls.iter_mut().find(|call| call.0 == position) {
                call.2 -= units.min(call.2);
            }
            return;
        }
        // As in `gcra.lua`, times are relative to the last charge.
        let (left, leaked, amount) = (self.empty_at - self.last, clock - self.last, units);
        let since = self.level - position;
        let left = if since <= 0 {
            if bug == Some(Bug::PartLeavesLevel) {
                self.level -= amount;
            }
            (left - amount).max(0)
        } else {
            let ahead = (self.latest - clock).max(0);
            let leaks_last = left - amount.min((left - leaked - since - ahead).max(0));
            left.min(leaks_last).min((left - amount).max(since + self.latest - self.last))
        };
        self.empty_at = self.last + left;
    }
}
