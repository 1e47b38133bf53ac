//! Tags of loaded values: kept by refreshes, given by the loader's argument, and removed during a load.

use std::time::Duration;

use fleeting::Sweep;
use tokio::time::{advance, sleep};

use crate::freshness::{builder, run_background_tasks};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// Each kind of refresh keeps the tags of the value that it replaces, even if that was evicted in the meantime.
#[tokio::test(start_paused = true)]
async fn refresh_keeps_the_tags_of_the_replaced_value() {
    for (kind, evicts) in (0..6).map(|case| (case / 2, case % 2 == 1)) {
        let builder = builder().refresh_ahead(1e9).sweep(Sweep::manual().seed(1));
        let cache = builder.stale_while_revalidate(MINUTE).max_entries(2).build();
        let slow = async || {
            sleep(SECOND).await;
            2
        };
        // Refresh-ahead needs a duration of loads.
        cache.get_or_set_with(&0, MINUTE, slow).await;
        cache.set_tagged(1, 1, MINUTE, ["user"]).await;
        if kind == 1 {
            advance(MINUTE).await;
        }
        match kind {
            0 | 1 => assert_eq!(cache.get_or_set_with(&1, MINUTE, slow).await, 1),
            _ => {
                let cache = cache.clone();
                tokio::spawn(async move { cache.refresh_with(&1, MINUTE, slow).await });
            }
        }
        run_background_tasks().await;
        if evicts {
            cache.set_max_entries(1).await;
            cache.set(2, 2).await;
        }
        sleep(2 * SECOND).await;
        assert_eq!(cache.get(&1).await, Some(2), "{kind}");
        cache.remove_tag("user").await;
        assert_eq!(cache.get(&1).await, None, "{kind}, evicts {evicts}: the refresh lost the tag");
    }
}
