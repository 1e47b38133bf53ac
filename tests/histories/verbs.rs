//! The methods that a history calls, in families, and a random choice of them.

use rand::{RngExt, rngs::SmallRng, seq::IndexedRandom};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    Contains,
    Set,
    SetEx,
    SetKeepTtl,
    SetNx,
    Remove,
    Update,
    Compute,
    ComputeWith,
    GetMany,
    SetMany,
    RemoveMany,
    RemoveIf,
    Clear,
    Iter,
    Sweep,
    Ttl,
    GetEx,
    Expire,
    ExpireAt,
    ExpireIf,
    ExpireNow,
    Extend,
    Persist,
    SetTagged,
    RemoveTag,
    Load,
    TryLoad,
    LoadByFuture,
    LoadMany,
    Refresh,
    SetMaxEntries,
}

const VALUES: &[Verb] = &[
    Verb::Get,
    Verb::Contains,
    Verb::Set,
    Verb::SetEx,
    Verb::SetKeepTtl,
    Verb::SetNx,
    Verb::Remove,
    Verb::Update,
    Verb::Compute,
    Verb::ComputeWith,
    Verb::GetMany,
    Verb::SetMany,
    Verb::RemoveMany,
    Verb::RemoveIf,
    Verb::Clear,
    Verb::Iter,
    Verb::Sweep,
];
const DEADLINES: &[Verb] = &[
    Verb::Ttl,
    Verb::GetEx,
    Verb::Expire,
    Verb::ExpireAt,
    Verb::ExpireIf,
    Verb::ExpireNow,
    Verb::Extend,
    Verb::Persist,
];
const TAGS: &[Verb] = &[Verb::SetTagged, Verb::RemoveTag];
const LOADS: &[Verb] = &[Verb::Load, Verb::TryLoad, Verb::LoadByFuture, Verb::LoadMany];
const REFRESHES: &[Verb] = &[Verb::Refresh];
const BOUNDS: &[Verb] = &[Verb::SetMaxEntries];

/// The calls of a history.
pub(crate) struct Plan {
    /// Calls before the callers start.
    pub(crate) before: Vec<Verb>,
    /// First call of each caller, so that calls of one verb overlap.
    pub(crate) opening: Option<Verb>,
    /// Verbs from which each caller chooses its further calls.
    pub(crate) verbs: Vec<Verb>,
}

/// Chooses the calls of a history.
pub(crate) fn plan(random: &mut SmallRng, is_bounded: bool) -> Plan {
    if random.random_bool(0.3) {
        // A tag that is removed by all callers at once. Until the next sweep, later removals hide some defects.
        let verbs = [Verb::Get, Verb::Contains, Verb::SetTagged, one(VALUES, random)].to_vec();
        return Plan { before: vec![Verb::SetTagged], opening: Some(Verb::RemoveTag), verbs };
    }
    if random.random_bool(0.1) {
        // Loads of tagged values, whose tags are removed during the load, again and again.
        let verbs = vec![one(LOADS, random), one(LOADS, random), Verb::RemoveTag, Verb::RemoveTag];
        return Plan { before: vec![], opening: None, verbs };
    }
    let verbs = choose(random, is_bounded);
    let before = (0..random.random_range(1..=3)).map(|_| one(&verbs, random)).collect();
    let opening = random.random_bool(0.3).then(|| one(&verbs, random));
    Plan { before, opening, verbs }
}

/// Chooses some verbs for a history. Few, because two calls that do not respect each other then meet more often.
fn choose(random: &mut SmallRng, is_bounded: bool) -> Vec<Verb> {
    let mut verbs: Vec<Verb> =
        (0..random.random_range(1..=4)).map(|_| one(VALUES, random)).collect();
    // Each of them twice, as a family has few verbs.
    let mut add = |family: &[Verb], random: &mut SmallRng| {
        for _ in 0..family.len().min(3) {
            let verb = one(family, random);
            verbs.extend([verb, verb]);
        }
    };
    if random.random_bool(0.2) {
        add(REFRESHES, random);
    }
    if random.random_bool(0.3) {
        add(LOADS, random);
    }
    if random.random_bool(0.4) {
        add(DEADLINES, random);
    }
    if random.random_bool(0.5) {
        TAGS.iter().for_each(|_| add(TAGS, random));
    }
    if is_bounded {
        add(BOUNDS, random);
    }
    verbs
}

fn one(verbs: &[Verb], random: &mut SmallRng) -> Verb {
    *verbs.choose(random).expect("no family is empty")
}
