//! Calls of loads: leases, the values that they write, and the writes and removed tags that take precedence over these.

use std::time::Duration;

use rand::{RngExt, rngs::SmallRng};

use super::{Commands, Expiry, PRELUDE, ShardKeys, TAGS, WITH_TAGS, new_version};
use crate::redis::script::{Call, Script};

const FINGERPRINT: &str = include_str!("../fingerprint.lua");

static LOOKUP_LEASE: Script = Script::new([TAGS, FINGERPRINT, include_str!("../lookup_lease.lua")]);
static UPDATE_LEASE: Script = Script::new([TAGS, include_str!("../update_lease.lua")]);
static PUBLISH: Script = Script::new([
    TAGS,
    WITH_TAGS,
    PRELUDE,
    include_str!("../put.lua"),
    FINGERPRINT,
    include_str!("../publish.lua"),
]);
static NOTE_REMOVED_TAG: Script = Script::new([include_str!("../note_removed_tag.lua")]);
/// A full server refuses `SET`, unless the script has already called a command that writes. `UNLINK` is one even if
/// there is no key.
static CLEAR_LOADS: Script = Script::new(["\
    redis.call('UNLINK', KEYS[1])
    return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])"]);

/// TTL of the value that `clear` changes, in milliseconds: longer than any load. `publish.lua` extends it for a stale
/// copy that is kept for longer.
const CLEARED_TTL_MILLIS: u64 = 86_400_000;

/// Maximum number of tags that a shard keeps because they were removed during loads. If more are removed, the values of
/// loads with tags that are in progress are not stored.
const MAX_REMOVED_TAGS: usize = 10_000;

impl Commands {
    /// Reads the live value, or the stale value while it is loaded. With `lease`, also takes the lease if there is no
    /// live value and no other process holds the lease. With `has_tags`, removals of tags are noted during the lease.
    pub(in crate::redis::cache) fn lookup_lease(
        &self,
        key: &[u8],
        lease: Option<(&str, Duration)>,
        has_tags: bool,
    ) -> Call<'_> {
        let ShardKeys { cleared, removed_tags, .. } = &self.shards[usize::from(self.shard(key))];
        // An empty token takes no lease.
        let (token, duration) = lease.unwrap_or_default();
        let keys =
            [self.keyspace.record(key), self.load_key(key), cleared.clone(), removed_tags.clone()];
        let call = LOOKUP_LEASE.call(&keys[..if has_tags { 4 } else { 3 }]);
        call.arg(token).arg(Expiry::of(duration).arg()).arg(CLEARED_TTL_MILLIS)
    }

    /// Renews a lease held with `token` and hands it to `holder`; a `duration` of zero releases it.
    pub(in crate::redis::cache) fn update_lease(
        &self,
        key: &[u8],
        token: &str,
        duration: Duration,
        holder: &str,
        has_tags: bool,
    ) -> Call<'_> {
        let removed_tags = self.shards[usize::from(self.shard(key))].removed_tags.clone();
        let keys = [self.load_key(key), removed_tags];
        UPDATE_LEASE
            .call(&keys[..if has_tags { 2 } else { 1 }])
            .arg(token)
            .arg(Expiry::of(duration).arg())
            .arg(holder)
    }

    /// Writes a loaded value if the lease with this token and time of its grant is still held. Without `tags`, it keeps
    /// those of the value that it replaces.
    pub(in crate::redis::cache) fn publish(
        &self,
        key: &[u8],
        (token, grant): (&str, &str),
        value: &[u8],
        expiry: Expiry,
        tags: Option<&[String]>,
    ) -> Call<'_> {
        let ShardKeys { cleared, removed_tags, .. } = &self.shards[usize::from(self.shard(key))];
        let mut keys = self.key_triples(&[key]);
        keys.push(cleared.clone());
        if let Some(tags) = tags {
            keys.push(removed_tags.clone());
            keys.extend(tags.iter().map(|tag| self.version_key(self.shard(key), tag.as_bytes())));
        }
        let call = self.shard_script(&PUBLISH, self.shard(key), keys);
        let call = call.arg(key).arg(token).arg(value).arg(expiry.arg()).arg(self.stale).arg(grant);
        let Some(tags) = tags else { return call };
        tags.iter().fold(call.arg(&new_version()[..]), |call, tag| call.arg(tag))
    }

    /// Invalidates all loads in progress and all stale values of a shard.
    pub(in crate::redis::cache) fn clear_loads(&self, shard: u16) -> Call<'_> {
        let cleared = &self.shards[usize::from(shard)].cleared;
        // Random and not a counter: the key may expire or be evicted, and a counter would then repeat its values.
        let unique: u64 = rand::make_rng::<SmallRng>().random();
        CLEAR_LOADS.call(&[cleared]).arg(unique).arg(CLEARED_TTL_MILLIS)
    }

    /// Notes for the loads of a shard that a tag is about to be removed. One key per call, so that no call has to wait
    /// in a slot that is being moved.
    pub(in crate::redis::cache) fn note_removed_tag(&self, shard: u16, tag: &str) -> Call<'_> {
        let removed_tags = &self.shards[usize::from(shard)].removed_tags;
        NOTE_REMOVED_TAG.call(&[removed_tags]).arg(tag).arg(MAX_REMOVED_TAGS)
    }
}
