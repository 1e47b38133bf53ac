//! Checks whether a history of one key is linearizable: whether its actions can be ordered so that each took effect at
//! one time between its call and its return, with the results and the events that were seen.
//!
//! The search is that of Wing and Gong (1993), with the memory of Lowe (2017): a set of ordered actions that leads to a
//! known state is not searched twice.

use std::collections::HashSet;

use crate::model::{Action, Departed, State};

/// Number of visited states after which a search ends without a result.
const MAX_VISITED: usize = 500_000;

/// An action on one key, and the times of its call and its return.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) call: u64,
    pub(crate) ret: u64,
    pub(crate) action: Action,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Linearizable,
    /// Not linearizable. The longest order that was found has these operations, by position.
    Violation(Vec<usize>),
    TooLong,
}

struct Search<'a> {
    operations: &'a [Operation],
    events: Option<&'a [Departed]>,
    /// Sets of ordered operations, and the states that they lead to.
    visited: HashSet<(u128, State)>,
    order: Vec<usize>,
    longest: Vec<usize>,
}

/// Checks the operations of one key. Its `events` are known unless nothing was subscribed, and are then exactly the
/// departures of the order.
pub(crate) fn check(operations: &[Operation], events: Option<&[Departed]>) -> Verdict {
    assert!(operations.len() < 128, "a history is short");
    let (order, longest) = (vec![], vec![]);
    let mut search = Search { operations, events, visited: HashSet::new(), order, longest };
    match search.extend(0, &State::default()) {
        true => Verdict::Linearizable,
        false if search.visited.len() >= MAX_VISITED => Verdict::TooLong,
        false => Verdict::Violation(search.longest),
    }
}

impl Search<'_> {
    /// Returns whether the operations that are not `done` can follow in some order.
    fn extend(&mut self, done: u128, state: &State) -> bool {
        if self.order.len() == self.operations.len() {
            return self.events.is_none_or(|events| state.departures() == events.len());
        }
        if self.visited.len() >= MAX_VISITED || !self.visited.insert((done, state.clone())) {
            return false;
        }
        let operations = self.operations;
        let open = || operations.iter().enumerate().filter(|(at, _)| done >> at & 1 == 0);
        let first_return = open().map(|(_, operation)| operation.ret).min().unwrap_or(u64::MAX);
        // An operation that was called after another one had returned comes after it.
        for (at, operation) in open().filter(|(_, operation)| operation.call <= first_return) {
            for next in state.after(&operation.action, self.events) {
                self.order.push(at);
                if self.order.len() > self.longest.len() {
                    self.longest.clone_from(&self.order);
                }
                if self.extend(done | 1 << at, &next) {
                    return true;
                }
                self.order.pop();
            }
        }
        false
    }
}
