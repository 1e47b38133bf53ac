//! `redis::Cache` on a server that evicts keys.

use std::{sync::Arc, time::Duration};

use fleeting::redis::Cache;
use tokio::{sync::Notify, time::timeout};

use crate::{
    patience::patience,
    servers::{Server, connect},
};

const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test]
async fn load_that_began_before_clear_is_not_cached_after_an_eviction() {
    let server = Server::start();
    let cache: Cache<String, u64> = Cache::new(&connect(server.url()).await, "c").unwrap();
    for (n, is_evicted) in [(1, false), (2, true), (3, true)] {
        let (started, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let load = tokio::spawn({
            let (cache, started, release) = (cache.clone(), started.clone(), release.clone());
            async move {
                let loader = async move || {
                    started.notify_one();
                    release.notified().await;
                    n
                };
                cache.get_or_set_with("ada", HOUR, loader).await
            }
        });
        timeout(patience(), started.notified()).await.expect("the loader runs");
        cache.clear().await.unwrap();
        if is_evicted {
            let mut plain = server.plain().await;
            let keys: Vec<String> =
                redis::cmd("KEYS").arg("*.cleared").query_async(&mut plain).await.unwrap();
            assert_eq!(keys.len(), 16);
            let () = redis::cmd("DEL").arg(keys).query_async(&mut plain).await.unwrap();
        }
        release.notify_one();
        assert_eq!(load.await.unwrap().unwrap(), n, "the caller gets the loaded value");
        assert_eq!(cache.get("ada").await.unwrap(), None, "loaded before the clear");
    }
}
