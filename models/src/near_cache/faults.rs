//! Steps of the network and of others: lost connections, failovers and moved slots.

use super::{Action, Bug, KEYS, Protocol, SEVERAL, State};

impl Protocol {
    pub(super) fn fetch_map(&self, state: &mut State, is_outdated: bool) {
        let map = if is_outdated { [0; KEYS] } else { state.serving };
        let is_changed = std::mem::replace(&mut state.map, map) != map;
        state.needs_map = false;
        let mut is_dropped = false;
        for destination in 0..2 {
            if !map.contains(&destination) {
                is_dropped |= state.in_use[destination as usize].take().is_some();
            }
        }
        if (is_changed || is_dropped) && !self.has(Bug::NewMapLeavesAnswers) {
            state.retiring = Some(SEVERAL);
        }
    }

    fn fail_over(state: &mut State, lost: Option<u8>) {
        state.servers[1].values = state.servers[0].values;
        state.serving = [1; KEYS];
        let Some(key) = lost else { return };
        let last = state.last[key as usize];
        state.lost[key as usize] = last;
        state.servers[1].values[key as usize] = last - 1;
        let known = &mut state.known[key as usize];
        *known = (*known).min(last - 1);
        let of_key = state.reads.iter_mut().filter(|read| read.key == key);
        of_key.for_each(|read| read.floor = read.floor.min(last - 1));
    }

    /// Takes the steps of the network and of others; returns `None` if the step is impossible now.
    pub(super) fn fault(&self, state: &mut State, action: Action) -> Option<()> {
        let is_idle = state.retiring.is_none();
        match action {
            Action::Close(number) => {
                state.in_use.contains(&Some(number)).then_some(())?;
                let connection = &mut state.connections[number as usize];
                connection.requests.clear();
                std::mem::replace(&mut connection.is_open, false).then_some(())?;
            }
            Action::Retire(number) => {
                let connection = &state.connections[number as usize];
                let in_use = &mut state.in_use[connection.destination as usize];
                let has_ended = !connection.is_open && connection.replies.is_empty();
                (is_idle && *in_use == Some(number)).then_some(())?;
                match self.has(Bug::InvalidatesBeforeRetirement) {
                    true => state.invalidate_all(),
                    false => *in_use = None,
                }
                state.retiring = Some(number);
                if has_ended {
                    return Some(());
                }
            }
            Action::Renew => {
                let old = state.in_use[0].filter(|_| is_idle)?;
                let is_replica = state.connections[old as usize].server != state.serving[0];
                self.connect(state, 0);
                state.retiring = Some(SEVERAL);
                if is_replica && !self.is_cluster {
                    return Some(());
                }
            }
            Action::FailOver(lost) => {
                let is_lost = lost.is_none_or(|key| state.last[key as usize] > 0);
                (!self.is_cluster && state.serving[0] == 0 && is_lost).then_some(())?;
                Self::fail_over(state, lost);
            }
            Action::Move(key, is_reported) => {
                (self.is_cluster && state.serving[key as usize] == 0).then_some(())?;
                state.serving[key as usize] = 1;
                state.servers[1].values[key as usize] = state.servers[0].values[key as usize];
                state.servers[0].unreported[key as usize] |= is_reported;
            }
            _ => return None,
        }
        state.faults = state.faults.checked_sub(1)?;
        Some(())
    }
}
