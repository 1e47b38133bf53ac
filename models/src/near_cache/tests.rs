use super::*;
use crate::check::{assert_finds, assert_holds, is_large};

const ONE_KEY: Protocol = Protocol {
    bug: None,
    is_cluster: false,
    keys: 1,
    writes: 1,
    verbs: 1,
    reads: 2,
    faults: 1,
    ticks: 0,
};
const TWO_KEYS: Protocol = Protocol { keys: 2, verbs: 0, ..ONE_KEY };

#[test]
fn near_cache_of_a_server_is_never_older_than_promised() {
    assert_holds("near cache, one key", ONE_KEY, 360_000);
    assert_holds("near cache, two keys", TWO_KEYS, 72_000);
    assert_holds("near cache, three reads", Protocol { reads: 3, verbs: 0, ..ONE_KEY }, 20_000);
    assert_holds("near cache, time", Protocol { ticks: 2, verbs: 0, ..ONE_KEY }, 93_000);
    if is_large() {
        assert_holds("near cache, two writes", Protocol { writes: 2, ..ONE_KEY }, 2_500_000);
        assert_holds("near cache, two faults", Protocol { faults: 2, ..TWO_KEYS }, 800_000);
    }
}

#[test]
fn near_cache_of_a_cluster_is_never_older_than_promised() {
    let cluster = Protocol { is_cluster: true, verbs: 0, ..ONE_KEY };
    assert_holds("near cache in a cluster, one key", cluster.clone(), 25_000);
    assert_holds(
        "near cache in a cluster, two keys",
        Protocol { keys: 2, ..cluster.clone() },
        136_000,
    );
    if is_large() {
        let with_verb = Protocol { verbs: 1, ..cluster };
        assert_holds("near cache in a cluster, with a verb", with_verb, 1_500_000);
    }
}

#[test]
fn each_bug_of_the_near_cache_is_found() {
    let (back, outdated) = ("reads never go back", "outdated answers are invalidated");
    for (bug, property) in [
        (Bug::CachesOutdatedReply, back),
        (Bug::JoinsOutdatedRead, back),
        (Bug::VerbLeavesAnswer, back),
        (Bug::UncachedReplyLeavesAnswer, back),
        (Bug::InvalidatesBeforeRetirement, outdated),
        (Bug::IgnoresPushes, outdated),
    ] {
        assert_finds(bug, Protocol { bug: Some(bug), ..ONE_KEY }, property);
    }
    let bug = Bug::NewMapLeavesAnswers;
    assert_finds(bug, Protocol { bug: Some(bug), is_cluster: true, ..TWO_KEYS }, outdated);
    let bug = Bug::CountsAgeFromReply;
    let property = "no answer is used beyond the maximum age";
    assert_finds(bug, Protocol { bug: Some(bug), ticks: 1, ..ONE_KEY }, property);
}
