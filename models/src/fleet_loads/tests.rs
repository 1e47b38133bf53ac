use super::*;
use crate::check::{assert_finds, assert_holds, find_stuck, is_large};

const SMALL: Protocol =
    Protocol { bug: None, writes: 2, calls: 2, faults: 0, late: 0, refreshes: false };

#[test]
fn writes_and_loads_of_a_fleet_keep_their_order() {
    let refreshes = Protocol { refreshes: true, ..SMALL };
    assert_holds("fleet loads", SMALL, 230_000);
    assert_holds("fleet loads, refreshes", refreshes.clone(), 315_000);
    let faults = Protocol { faults: 1, writes: 1, ..refreshes.clone() };
    assert_holds("fleet loads, faults", faults, 98_000);
    let late = Protocol { late: 1, writes: 1, ..refreshes.clone() };
    assert_holds("fleet loads, late requests", late, 185_000);
    if is_large() {
        assert_holds("fleet loads, three calls", Protocol { calls: 3, ..SMALL }, 4_000_000);
        let all = Protocol { faults: 1, late: 1, writes: 1, ..refreshes };
        assert_holds("fleet loads, refreshes, faults and late requests", all, 600_000);
    }
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
fn no_caller_waits_forever() {
    let model = Protocol { faults: 1, writes: 1, ..SMALL };
    let stuck = find_stuck("fleet loads, callers", &model, 65_000, is_fair, is_answered);
    assert!(stuck.is_none(), "{stuck:?}");
    let bug = Some(Bug::LeaseNeverExpires);
    let model = Protocol { bug, ..model };
    let path = find_stuck("LeaseNeverExpires", &model, 60_000, is_fair, is_answered);
    let path = path.expect("a caller waits forever").into_actions();
    println!("LeaseNeverExpires: a caller waits forever after {} steps: {path:?}", path.len());
}
