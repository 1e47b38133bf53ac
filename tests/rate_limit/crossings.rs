//! The table of crossings, on the limiter in memory.

use crate::{crossings_table::play_all, several_limits::Embedded};

#[tokio::test(start_paused = true)]
async fn each_pair_of_settings_leaves_one_quota_to_a_key() {
    play_all(|_| None, async |setup| Embedded::new(setup)).await;
}
