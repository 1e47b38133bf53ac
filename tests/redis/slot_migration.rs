//! Migration of cluster slots during iterations and reads of many keys.

use std::{collections::BTreeSet, time::Duration};

use fleeting::{Ttl, redis::Cache};
use futures::StreamExt;
use tokio::time::timeout;

use crate::servers::{Cluster, Server, connect};

const HOUR: Duration = Duration::from_secs(3_600);

/// Number of a slot.
struct Slot(String);

impl Slot {
    /// Returns the slot of a key whose record is on `node`.
    fn of(node: &Server, key: &str) -> Self {
        let records = node.ask("KEYS *");
        let end = format!(":{key}");
        let record =
            records.lines().find(|line| line.ends_with(&end)).expect("the node has the record");
        let slot = node.ask(&format!("CLUSTER KEYSLOT {record}"));
        Self(slot.trim().trim_start_matches(':').to_owned())
    }

    fn begin_migration(&self, from: &Server, to: &Server) {
        let id = |node: &Server| node.ask("CLUSTER MYID").lines().nth(1).unwrap().to_owned();
        let Self(slot) = self;
        assert_eq!(to.ask(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", id(from))), "+OK\r\n");
        assert_eq!(from.ask(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", id(to))), "+OK\r\n");
    }

    /// Migrates up to `max` keys of the slot; returns the number of keys migrated.
    fn move_keys(&self, from: &Server, to: &Server, max: usize) -> usize {
        for moved in 0..max {
            let some = from.ask(&format!("CLUSTER GETKEYSINSLOT {} 1", self.0));
            let Some(record) = some.lines().nth(2) else { return moved };
            let moved = from.ask(&format!("MIGRATE 127.0.0.1 {} {record} 0 5000", to.port()));
            assert!(moved.starts_with("+OK"), "{moved}");
        }
        max
    }

    /// Assigns the slot to the destination, which must be notified first.
    fn end_migration(&self, cluster: &mut Cluster, to: usize) {
        let id = cluster.nodes()[to].ask("CLUSTER MYID").lines().nth(1).unwrap().to_owned();
        for node in [to, (to + 1) % 3, (to + 2) % 3] {
            let node = &cluster.nodes()[node];
            assert_eq!(node.ask(&format!("CLUSTER SETSLOT {} NODE {id}", self.0)), "+OK\r\n");
        }
    }
}

/// Returns the index of the node that has the record of a key.
fn node_of(cluster: &mut Cluster, key: &str) -> usize {
    let end = format!(":{key}\r\n");
    let node = cluster.nodes().iter().position(|node| node.ask("KEYS *").contains(&end));
    node.expect("a node has the record")
}

/// Keys migrate from a node that was not scanned yet to one that was.
#[tokio::test]
async fn iteration_returns_keys_that_migrate_during_it() {
    let mut cluster = Cluster::start();
    let client = connect(cluster.urls()).await;
    let plain = Cache::<String, u64>::new(&client, "c").unwrap();
    let near = Cache::<String, u64>::builder(&client, "c").near(10).build().unwrap();
    let keys: Vec<String> = (0..60).map(|n| format!("k{n}")).collect();
    plain.set_many(keys.iter().cloned().zip(0..), None).await.unwrap();
    let all: BTreeSet<String> = keys.iter().cloned().collect();
    for round in 0..6 {
        let (cache, is_ended) = if round % 2 == 0 { (&plain, true) } else { (&near, round == 3) };
        let mut iter = cache.keys();
        let mut seen = vec![iter.next().await.unwrap().unwrap()];
        let there = node_of(&mut cluster, &seen[0]);
        let other = keys.iter().find(|key| node_of(&mut cluster, key) != there).unwrap();
        let from = node_of(&mut cluster, other);
        let slot = Slot::of(&cluster.nodes()[from], other);
        let (nodes, some) = (cluster.nodes(), if is_ended { 1_000 } else { 2 });
        slot.begin_migration(&nodes[from], &nodes[there]);
        assert!(slot.move_keys(&nodes[from], &nodes[there], some) > 0);
        if is_ended {
            slot.end_migration(&mut cluster, there);
        }
        while let Some(key) = iter.next().await {
            seen.push(key.unwrap());
        }
        let distinct: BTreeSet<String> = seen.iter().cloned().collect();
        assert_eq!((seen.len(), &distinct), (60, &all), "round {round}");
        assert_eq!(cache.len().await.unwrap(), 60);
        // Values too, if the keys of the slot are on two nodes.
        let expected: Vec<_> = (0..60).map(Some).collect();
        assert_eq!(cache.get_many(&keys).await.unwrap(), expected);
        assert_eq!(cache.iter().count().await, 60);
        if !is_ended {
            let nodes = cluster.nodes();
            slot.move_keys(&nodes[from], &nodes[there], 1_000);
            slot.end_migration(&mut cluster, there);
        }
    }
}

/// The record is moved alone: the destination has neither the other keys of a script nor the versions of tags.
#[tokio::test]
async fn methods_do_not_wait_for_a_slot_that_is_being_moved() {
    let mut cluster = Cluster::start();
    let client = connect(cluster.urls()).await;
    let cache = Cache::<String, u64>::new(&client, "c").unwrap();
    cache.set_ex("ada".into(), 1, HOUR).await.unwrap();
    let from = node_of(&mut cluster, "ada");
    let to = (from + 1) % 3;
    let nodes = cluster.nodes();
    let slot = Slot::of(&nodes[from], "ada");
    slot.begin_migration(&nodes[from], &nodes[to]);
    for is_moved in [false, true] {
        if is_moved {
            assert_eq!(slot.move_keys(&nodes[from], &nodes[to], 1), 1);
        }
        assert_eq!(cache.get("ada").await.unwrap(), Some(1), "moved {is_moved}");
        assert!(cache.expire("ada", 2 * HOUR).await.unwrap());
        assert!(cache.persist("ada").await.unwrap());
        assert!(!cache.set_nx("ada".into(), 2, None).await.unwrap());
        assert_eq!(cache.set_keep_ttl("ada".into(), 1).await.unwrap(), Some(1));
        assert_ne!(cache.ttl("ada").await.unwrap(), Ttl::Missing);
        assert!(cache.contains_key("ada").await.unwrap());
        assert_eq!(cache.len().await.unwrap(), 1);
    }
}

/// The record and the version of its tag are on two nodes.
#[tokio::test]
async fn values_with_tags_are_found_while_their_slot_is_being_moved() {
    let mut cluster = Cluster::start();
    let client = connect(cluster.urls()).await;
    let cache = Cache::<String, u64>::new(&client, "c").unwrap();
    for moved in [":ada", ".tag:t"] {
        cache.set_tagged("ada".into(), 1, HOUR, ["t"]).await.unwrap();
        let from = node_of(&mut cluster, "ada");
        let to = (from + 1) % 3;
        let nodes = cluster.nodes();
        let slot = Slot::of(&nodes[from], "ada");
        slot.begin_migration(&nodes[from], &nodes[to]);
        let keys = nodes[from].ask("KEYS *");
        let key = keys.lines().find(|key| key.ends_with(moved)).unwrap();
        let answer =
            nodes[from].ask(&format!("MIGRATE 127.0.0.1 {} {key} 0 5000", nodes[to].port()));
        assert!(answer.starts_with("+OK"), "{answer}");
        assert_eq!(cache.get("ada").await.unwrap(), Some(1), "moved {moved}");
        if moved == ".tag:t" {
            assert_eq!(cache.get_many(["ada"]).await.unwrap(), [Some(1)]);
            assert_eq!(cache.len().await.unwrap(), 1);
            let wait = timeout(Duration::from_millis(300), cache.ttl("ada")).await;
            assert!(wait.is_err(), "a script waits for both: {wait:?}");
        }
        assert_eq!(slot.move_keys(&nodes[from], &nodes[to], 1_000), 1);
        slot.end_migration(&mut cluster, to);
        assert_ne!(cache.ttl("ada").await.unwrap(), Ttl::Missing);
        cache.remove_tag("t").await.unwrap();
        assert_eq!(cache.get("ada").await.unwrap(), None);
    }
}

/// The versions of the tags are on two nodes.
#[tokio::test]
async fn value_with_two_tags_is_found_while_its_slot_is_being_moved() {
    let mut cluster = Cluster::start();
    let client = connect(cluster.urls()).await;
    let cache = Cache::<String, u64>::new(&client, "c").unwrap();
    cache.set_tagged("ada".into(), 1, HOUR, ["t", "u"]).await.unwrap();
    let from = node_of(&mut cluster, "ada");
    let to = (from + 1) % 3;
    let nodes = cluster.nodes();
    let slot = Slot::of(&nodes[from], "ada");
    slot.begin_migration(&nodes[from], &nodes[to]);
    let keys = nodes[from].ask("KEYS *");
    let key = keys.lines().find(|key| key.ends_with(".tag:t")).unwrap();
    let answer = nodes[from].ask(&format!("MIGRATE 127.0.0.1 {} {key} 0 5000", nodes[to].port()));
    assert!(answer.starts_with("+OK"), "{answer}");
    assert_eq!(cache.get("ada").await.unwrap(), Some(1));
    assert_eq!(cache.set_ex("ada".into(), 2, HOUR).await.unwrap(), Some(1));
}

/// The version of the tag is on neither node.
#[tokio::test]
async fn value_with_a_removed_tag_is_missing_while_its_slot_is_being_moved() {
    let mut cluster = Cluster::start();
    let client = connect(cluster.urls()).await;
    let cache = Cache::<String, u64>::new(&client, "c").unwrap();
    cache.set_tagged("ada".into(), 1, HOUR, ["t", "u"]).await.unwrap();
    let from = node_of(&mut cluster, "ada");
    let to = (from + 1) % 3;
    let nodes = cluster.nodes();
    let slot = Slot::of(&nodes[from], "ada");
    slot.begin_migration(&nodes[from], &nodes[to]);
    cache.remove_tag("t").await.unwrap();
    assert_eq!(cache.get("ada").await.unwrap(), None);
}
