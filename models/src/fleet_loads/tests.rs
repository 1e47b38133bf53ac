use super::*;
use crate::check::{assert_finds, assert_holds, find_stuck, is_large};

const SMALL: Protocol =
    Protocol { bug: None, writes: 2, calls: 2, faults: 0, late: 0, refreshes: false };

#[test]
fn explore() {
    let v: Vec<u8> =
        std::env::var("SIZES").unwrap().split(' ').map(|x| x.parse().unwrap()).collect();
    let m = Protocol {
        writes: v[0],
        calls: v[1],
        faults: v[2],
        late: v[3],
        refreshes: v[4] == 1,
        bug: None,
    };
    assert_holds("fleet loads", m, 1);
}

#[test]
fn each_bug_of_the_loads_is_found() {
    let lost = "no write is lost";
    let late = Protocol { writes: 1, late: 1, ..SMALL };
    let refresh = Protocol { refreshes: true, ..SMALL };
    let late_refresh = Protocol { refreshes: true, ..late.clone() };
    for (bug, model, property) in [
        (Bug::PublishesWithoutToken, SMALL, lost),
        (Bug::RemoveLeavesLease, SMALL, lost),
        (Bug::IgnoresClear, SMALL, lost),
        (Bug::IgnoresFingerprint, refresh.clone(), lost),
        (Bug::KeepTtlLeavesLease, refresh, lost),
        (Bug::GrantsRevokedLease, late, lost),
        (Bug::RepeatedRequestSeesAgain, late_refresh, lost),
        (Bug::GrantsHeldLease, SMALL, "one load per lease"),
        (Bug::AnswersLateFollowers, SMALL, "no call returns an old value"),
    ] {
        assert_finds(bug, Protocol { bug: Some(bug), ..model }, property);
    }
}

fn is_fair(action: &Action) -> bool {
    !matches!(
        action,
        Action::Call(..)
            | Action::Refresh(_)
            | Action::Write(_)
            | Action::Fail(_)
            | Action::Drop(_)
            | Action::Crash(_)
            | Action::CutOff
            | Action::ExecuteLate(_)
            | Action::Ask(_, true)
    )
}

fn is_answered(state: &State) -> bool {
    state.processes.iter().all(|process| process.callers == [Caller::Idle; CALLERS])
}

#[test]
fn no_caller_waits_for_ever() {
    let model = Protocol { faults: 1, writes: 1, ..SMALL };
    let stuck = find_stuck("fleet loads, callers", &model, is_fair, is_answered);
    assert!(stuck.is_none(), "{stuck:?}");
    let bug = Some(Bug::LeaseNeverExpires);
    let path = find_stuck("LeaseNeverExpires", &Protocol { bug, ..model }, is_fair, is_answered);
    let path = path.expect("a caller waits for ever").into_actions();
    println!("LeaseNeverExpires: a caller waits for ever after {} steps: {path:?}", path.len());
}
