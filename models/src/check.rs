//! The checks that the tests of all models share.

use std::{
    collections::HashMap,
    fmt::Debug,
    hash::Hash,
    thread,
    time::{Duration, Instant},
};

use stateright::{Checker, HasDiscoveries, Model, Path};

/// Returns whether the environment asks for the larger sizes of the models.
pub(crate) fn is_large() -> bool {
    std::env::var("FLEETING_MODEL_SIZE").is_ok_and(|size| size == "large")
}

/// Asserts that all properties of `model` hold in all reachable states, of which there are at least `min_states`.
pub(crate) fn assert_holds<M>(name: &str, model: M, min_states: usize)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + 'static,
{
    let started = Instant::now();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    // Ends early only if the model fails: what happens sometimes does not stop the search.
    let builder = model.checker().threads(threads).finish_when(HasDiscoveries::AnyFailures);
    let checker = builder.spawn_bfs().join();
    report(name, checker.unique_state_count(), started.elapsed());
    checker.assert_properties();
    let states = checker.unique_state_count();
    assert!(states >= min_states, "{name}: only {states} states, expected {min_states}");
}

/// Asserts that `model`, which contains a bug, violates `property`. Prints the shortest path to the violation.
pub(crate) fn assert_finds<M>(bug: impl Debug, model: M, property: &'static str)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + 'static,
{
    let started = Instant::now();
    // One thread, because only then is the path the shortest.
    let ends = HasDiscoveries::AnyOf([property].into());
    let checker = model.checker().finish_when(ends).spawn_bfs().join();
    let path = checker.discovery(property);
    let path = path.unwrap_or_else(|| panic!("{bug:?}: \"{property}\" holds")).into_actions();
    println!("{bug:?}: \"{property}\" is violated after {} steps: {path:?}", path.len());
    report("  found", checker.unique_state_count(), started.elapsed());
}

/// The state from which a state was found first, and the step; `None` for an initial state.
type FirstStep<M> = Option<(usize, <M as Model>::Action)>;

/// Explores `model`, and returns the path to a state from which no sequence of `is_fair` steps leads to one that
/// `is_done`; `None` if there is no such state. So each waiter in a reachable state can still be answered, without
/// the help of a further fault, write or call. Asserts that there are at least `min_states`.
pub(crate) fn find_stuck<M>(
    name: &str,
    model: &M,
    min_states: usize,
    is_fair: impl Fn(&M::Action) -> bool,
    is_done: impl Fn(&M::State) -> bool,
) -> Option<Path<M::State, M::Action>>
where
    M: Model,
    M::State: Clone + Debug + Eq + Hash,
    M::Action: Clone + PartialEq,
{
    let started = Instant::now();
    let mut numbers: HashMap<M::State, usize> = HashMap::new();
    // For each state: the state and the step by which it was found first, and the states with a fair step to it.
    let mut found: Vec<(FirstStep<M>, Vec<usize>)> = Vec::new();
    let mut states = model.init_states();
    for (number, state) in states.iter().enumerate() {
        numbers.insert(state.clone(), number);
        found.push((None, Vec::new()));
    }
    let mut at = 0;
    let mut actions = Vec::new();
    while at < states.len() {
        let state = states[at].clone();
        model.actions(&state, &mut actions);
        for action in actions.drain(..) {
            let Some(next) = model.next_state(&state, action.clone()) else { continue };
            let fair = is_fair(&action);
            let to = *numbers.entry(next.clone()).or_insert_with(|| {
                states.push(next);
                found.push((Some((at, action)), Vec::new()));
                states.len() - 1
            });
            if fair {
                found[to].1.push(at);
            }
        }
        at += 1;
    }
    let mut can_finish = vec![false; states.len()];
    let mut open: Vec<_> = (0..states.len()).filter(|&number| is_done(&states[number])).collect();
    open.iter().for_each(|&number| can_finish[number] = true);
    while let Some(number) = open.pop() {
        for &before in &found[number].1 {
            if !std::mem::replace(&mut can_finish[before], true) {
                open.push(before);
            }
        }
    }
    report(name, states.len(), started.elapsed());
    assert!(states.len() >= min_states, "{name}: only {} states", states.len());
    let mut stuck = can_finish.iter().position(|can| !can)?;
    let mut path = Vec::new();
    while let Some((before, action)) = &found[stuck].0 {
        path.push(action.clone());
        stuck = *before;
    }
    path.reverse();
    Path::from_actions(model, states[stuck].clone(), &path)
}

fn report(name: &str, states: usize, elapsed: Duration) {
    println!("{name}: {states} states in {:.1} s", elapsed.as_secs_f64());
}
