//! Migration of cluster slots during iterations and reads of many keys.

use std::collections::BTreeSet;

use fleeting::redis::Cache;
use futures::StreamExt;

use crate::servers::{Cluster, Server, connect};

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
