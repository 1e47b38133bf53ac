//! Commands and scripts of the methods of a [`Cache`](super::Cache). Calls are built here and sent by the methods,
//! except those that read and check a value with tags (`live_reads`).
//!
//! 1. A record is a plain string with the server's own TTL, so that reads are plain commands. With events
//!    (`retention`), writes are scripts, which also keep the values whose expiry is to be published: see `prelude.lua`.
//! 2. A write to a key invalidates the load of that key (`lookup_lease.lua`), either in the same script, or implicitly:
//!    a value with a long TTL is still there when the load publishes its result, which is then discarded. So a plain
//!    `SET` is enough for most writes.
//!    A new deadline is noted in the load of a refresh (`keep_load.lua`), and the removal of a tag in its shard
//!    (`note_removed_tag.lua`).
//! 3. Deadlines are in the server's milliseconds. A value is expired from the millisecond of its deadline on, which is
//!    never before its TTL has elapsed, and less than a millisecond after that.

mod live_reads;
mod loads;

use std::{ops::Range, time::Duration};

use rand::{RngExt, rngs::SmallRng};

use super::{
    super::{
        Client, Error,
        error::unexpected_reply,
        keyspace::Keyspace,
        script::{Call, Script},
    },
    expiry::{Expiry, MAX_TTL_MILLIS},
    stored_value::TAGGED,
};
use crate::engine::ttl::When;

const TAGS: &str = include_str!("tags.lua");
const PRELUDE: &str = include_str!("prelude.lua");
const KEEP_LOAD: &str = include_str!("keep_load.lua");
const WITH_TAGS: &str = include_str!("with_tags.lua");
const SUBSCRIBER_PRELUDE: &str = include_str!("subscriber_prelude.lua");

static WRITE: Script =
    Script::new([include_str!("write_fast_path.lua"), TAGS, PRELUDE, include_str!("write.lua")]);
static WRITE_TAGGED: Script = Script::new([
    TAGS,
    WITH_TAGS,
    include_str!("tag_value.lua"),
    PRELUDE,
    include_str!("write.lua"),
]);
static KEEP_TAGS: Script = Script::new([TAGS, include_str!("keep_tags.lua")]);
static CHANGE: Script = Script::new([
    KEEP_LOAD,
    include_str!("change_fast_path.lua"),
    TAGS,
    include_str!("change.lua"),
]);
static TTL: Script =
    Script::new([include_str!("ttl_fast_path.lua"), TAGS, include_str!("ttl.lua")]);
static COUNT_LIVE: Script = Script::new([TAGS, include_str!("count_live.lua")]);
static COMPARE_AND_SWAP: Script =
    Script::new([TAGS, PRELUDE, include_str!("compare_and_swap.lua")]);
static EXPIRE: Script = Script::new([TAGS, PRELUDE, KEEP_LOAD, include_str!("expire.lua")]);
static REMOVE: Script = Script::new([TAGS, PRELUDE, include_str!("remove.lua")]);
static CLEAR: Script = Script::new([TAGS, PRELUDE, include_str!("clear.lua")]);
static GET_MANY: Script = Script::new([TAGS, include_str!("get_many.lua")]);
static READ_MANY: Script = Script::new([TAGS, include_str!("read_many.lua")]);
static SET_MANY: Script =
    Script::new([TAGS, PRELUDE, include_str!("put.lua"), include_str!("set_many.lua")]);
static CREATE_GROUP: Script =
    Script::new([TAGS, PRELUDE, SUBSCRIBER_PRELUDE, include_str!("create_group.lua")]);
static REMOVE_GROUP: Script =
    Script::new([TAGS, PRELUDE, SUBSCRIBER_PRELUDE, include_str!("remove_group.lua")]);
static GROUPS: Script =
    Script::new([TAGS, PRELUDE, SUBSCRIBER_PRELUDE, include_str!("groups.lua")]);
static READ_GROUP: Script =
    Script::new([TAGS, PRELUDE, SUBSCRIBER_PRELUDE, include_str!("read_group.lua")]);
static READ_STREAM: Script =
    Script::new([TAGS, PRELUDE, SUBSCRIBER_PRELUDE, include_str!("read_stream.lua")]);

/// Keys of a cache, and the calls that use them.
pub(super) struct Commands {
    pub(super) client: Client,
    pub(super) keyspace: Keyspace,
    /// Retention of expirations for their subscribers, in milliseconds; `None` without events.
    retention: Option<u64>,
    /// Stale window of loaded values, in milliseconds.
    stale: u64,
    /// True if live values are loaded again.
    refreshes: bool,
    shards: Vec<ShardKeys>,
}

/// Keys of a shard in addition to its records. The key of its index is made by the keyspace.
struct ShardKeys {
    /// Stream of expirations.
    stream: Vec<u8>,
    groups: Vec<u8>,
    /// Set to a new random value by `clear`, which invalidates the loads in progress.
    cleared: Vec<u8>,
    /// Tags that were removed during loads: see `note_removed_tag.lua`.
    removed_tags: Vec<u8>,
    /// The two hints of `prelude.lua`. `.soonest` and `.told` on the server, which must not change.
    earliest_deadline: Vec<u8>,
    stream_version: Vec<u8>,
}

/// Maximum number of keys that a script reads, because the server executes nothing else in the meantime.
pub(super) const MAX_KEYS_PER_READ: usize = 1_000;

/// Number of value bytes after which a script stops reading. The server executes nothing else in the meantime, and a
/// reply that takes longer than the client's timeout would be lost.
const MAX_REPLY_BYTES: usize = 1 << 20;

impl Commands {
    pub(super) fn new(
        client: &Client,
        keyspace: Keyspace,
        retention: Option<Duration>,
        stale: Duration,
        refreshes: bool,
    ) -> Self {
        let shards = keyspace.shards().map(|shard| {
            let with_suffix = |suffix: &str| [keyspace.index(shard), suffix.as_bytes()].concat();
            ShardKeys {
                stream: with_suffix(".expired"),
                groups: with_suffix(".groups"),
                cleared: with_suffix(".cleared"),
                removed_tags: with_suffix(".untagged"),
                earliest_deadline: with_suffix(".soonest"),
                stream_version: with_suffix(".told"),
            }
        });
        let shards = shards.collect();
        let retention = retention.map(|time| match Expiry::of(time) {
            // Redis refuses an expiry time of zero.
            Expiry::Immediate => 1,
            Expiry::After(time) => time,
            Expiry::Never => MAX_TTL_MILLIS as u64,
        });
        let stale = Expiry::of(stale).milliseconds().unwrap_or(MAX_TTL_MILLIS as u64);
        Self { client: client.clone(), shards, keyspace, retention, stale, refreshes }
    }

    /// Returns whether expirations are published to subscribers.
    pub(super) fn has_events(&self) -> bool {
        self.retention.is_some()
    }

    pub(super) fn get(&self, key: &[u8]) -> Call<'_> {
        self.command("GET", key)
    }

    /// Replies as `PTTL`, also for values whose tags were removed.
    pub(super) fn pttl(&self, key: &[u8]) -> Call<'_> {
        self.command("PTTL", key)
    }

    /// Reads the beginning of a value, which shows whether the value may have tags.
    pub(super) fn beginning(&self, key: &[u8]) -> Call<'_> {
        self.command("GETRANGE", key).arg(0).arg(TAGGED.len() - 1)
    }

    /// Replies as `PTTL`.
    pub(super) fn ttl(&self, key: &[u8]) -> Call<'_> {
        TTL.call(&[self.keyspace.record(key)])
    }

    /// Counts the live values of keys of one shard.
    pub(super) fn count_live<K: AsRef<[u8]>>(&self, keys: &[K]) -> Call<'_> {
        COUNT_LIVE.call(&self.records_of(keys))
    }

    /// Writes a value with tags; replies as [`set`](Commands::set).
    pub(super) fn set_tagged(
        &self,
        key: &[u8],
        value: &[u8],
        expiry: Expiry,
        tags: &[String],
    ) -> Call<'_> {
        let mut keys = self.key_triples(&[key]);
        keys.extend(tags.iter().map(|tag| self.version_key(self.shard(key), tag.as_bytes())));
        let call = self.shard_script(&WRITE_TAGGED, self.shard(key), keys).arg(key);
        let call = call.arg(value).arg(expiry.arg()).arg("SET");
        tags.iter().fold(call.arg(&new_version()[..]), |call, tag| call.arg(tag))
    }

    /// Removes the values of a shard that have a tag.
    pub(super) fn remove_tag(&self, shard: u16, tag: &str) -> Call<'_> {
        Call::command("UNLINK", &self.version_key(shard, tag.as_bytes()))
    }

    pub(super) fn get_ex(&self, key: &[u8], expiry: Expiry) -> Call<'_> {
        match (self.retention, expiry) {
            // Redis rejects a TTL of 0, but not a deadline that has passed. `GETDEL` would end the load of a missing
            // key.
            (None, Expiry::Immediate) => {
                self.changing_command("GETEX", key, expiry).arg("PXAT").arg(1)
            }
            (None, Expiry::After(ttl)) => {
                self.changing_command("GETEX", key, expiry).arg("PX").arg(ttl)
            }
            (None, Expiry::Never) => self.changing_command("GETEX", key, expiry).arg("PERSIST"),
            (Some(_), _) => self.key_script(&EXPIRE, key).arg(expiry.arg()).arg("GETEX"),
        }
    }

    pub(super) fn set(&self, key: &[u8], value: &[u8], expiry: Expiry) -> Call<'_> {
        let set = |key| self.changing_command("SET", key, expiry).arg(value);
        match (self.retention, expiry) {
            // Redis rejects a TTL of 0. The new value is expired immediately; the old one is removed and returned.
            (None, Expiry::Immediate) => self.remove(key),
            (None, Expiry::After(ttl)) => set(key).arg("PX").arg(ttl).arg("GET"),
            (None, Expiry::Never) => set(key).arg("GET"),
            (Some(_), _) if self.outlives_loads(expiry) => self.write(key, value, expiry, "LONG"),
            (Some(_), _) => self.write(key, value, expiry, "SET"),
        }
    }

    /// Returns a plain command that writes a value if there is none, and otherwise replies with the present one, which
    /// may have tags; `None` if only a script can.
    pub(super) fn set_nx_get(&self, key: &[u8], value: &[u8], expiry: Expiry) -> Option<Call<'_>> {
        if self.retention.is_some() || !self.outlives_loads(expiry) {
            return None;
        }
        let call = self.command("SET", key).arg(value).arg("NX").arg("GET");
        match expiry {
            Expiry::Immediate => None,
            Expiry::After(ttl) => Some(call.arg("PX").arg(ttl)),
            Expiry::Never => Some(call),
        }
    }

    pub(super) fn set_nx(&self, key: &[u8], value: &[u8], expiry: Expiry) -> Call<'_> {
        let set = |key| self.change("SET", key, expiry).arg(value).arg("NX");
        match (self.retention, expiry) {
            (None, Expiry::After(ttl)) => set(key).arg("PX").arg(ttl),
            (None, Expiry::Never) => set(key),
            // Expires immediately: the script returns whether the key was free, and leaves no value.
            _ => self.write(key, value, expiry, "NX"),
        }
    }

    /// `expiry` applies if there is no live value whose TTL could be kept.
    pub(super) fn set_keep_ttl(&self, key: &[u8], value: &[u8], expiry: Expiry) -> Call<'_> {
        match (self.retention, expiry) {
            // `KEEPTTL` gives a new key no TTL, which is this expiry. Any other needs a script that checks for a value,
            // and a stale window needs one that ends the staleness.
            (None, Expiry::Never) if !self.keeps_stale() => {
                let set = CHANGE.call(&[self.keyspace.record(key)]).arg("").arg("KEEP").arg("SET");
                set.arg(value).arg("KEEPTTL").arg("GET")
            }
            _ => self.write(key, value, expiry, "KEEPTTL"),
        }
    }

    /// Writes `new` if the live value is `old`.
    pub(super) fn compare_and_swap(&self, key: &[u8], old: &[u8], new: &[u8]) -> Call<'_> {
        self.key_script(&COMPARE_AND_SWAP, key).arg(old).arg(new)
    }

    pub(super) fn expire(&self, key: &[u8], expiry: Expiry, when: Option<When>) -> Call<'_> {
        let condition = when.map(|when| match when {
            When::NoTtl => "NX",
            When::HasTtl => "XX",
            When::Later => "GT",
            When::Sooner => "LT",
        });
        match (self.retention, expiry.milliseconds()) {
            // No TTL is the job of `PERSIST`, which takes no conditions: the script handles it.
            (None, Some(ttl)) => self.change("PEXPIRE", key, expiry).arg(ttl).arg(condition),
            _ => self.key_script(&EXPIRE, key).arg(expiry.arg()).arg(condition.unwrap_or("ALWAYS")),
        }
    }

    pub(super) fn extend(&self, key: &[u8], more: Expiry) -> Call<'_> {
        self.key_script(&EXPIRE, key).arg(more.arg()).arg("EXTEND")
    }

    pub(super) fn persist(&self, key: &[u8]) -> Call<'_> {
        match self.retention {
            None => self.change("PERSIST", key, Expiry::Never),
            // `HasTtl`, because `PERSIST` returns whether there was a TTL.
            Some(_) => self.expire(key, Expiry::Never, Some(When::HasTtl)),
        }
    }

    pub(super) fn remove(&self, key: &[u8]) -> Call<'_> {
        match self.retention {
            None => self.changing_command("GETDEL", key, Expiry::Immediate),
            Some(_) => self.key_script(&REMOVE, key).arg(""),
        }
    }

    pub(super) fn expire_now(&self, key: &[u8]) -> Call<'_> {
        match self.retention {
            None => self.remove(key),
            Some(_) => self.key_script(&REMOVE, key).arg("EXPIRE"),
        }
    }

    /// Reads the live values of keys of one shard: of the first keys, as many as fit in a reply.
    pub(super) fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Call<'_> {
        GET_MANY.call(&self.records_of(keys)).arg(MAX_REPLY_BYTES)
    }

    /// Reads the same values with their TTLs.
    pub(super) fn read_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Call<'_> {
        READ_MANY.call(&self.records_of(keys)).arg(MAX_REPLY_BYTES)
    }

    /// Returns, for each shard, a key that no record can have. It stands for the shard's slot.
    pub(super) fn absent(&self) -> Vec<Vec<u8>> {
        let shards = self.keyspace.shards();
        shards.map(|shard| [self.keyspace.index(shard), b".none"].concat()).collect()
    }

    /// Removes keys of one shard.
    pub(super) fn clear<K: AsRef<[u8]>>(&self, shard: u16, keys: &[K]) -> Call<'_> {
        let call = self.shard_script(&CLEAR, shard, self.key_triples(keys));
        keys.iter().fold(call, |call, key| call.arg(key.as_ref()))
    }

    /// Removes keys of one shard, also those that are not present.
    pub(super) fn remove_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Call<'_> {
        self.clear(keys.first().map_or(0, |key| self.shard(key.as_ref())), keys)
    }

    /// Writes values at keys of one shard.
    pub(super) fn set_many(
        &self,
        entries: &[&(Vec<u8>, Vec<u8>)],
        expiry: impl Fn() -> Expiry,
    ) -> Call<'_> {
        let keys: Vec<&[u8]> = entries.iter().map(|(key, _)| &key[..]).collect();
        let shard = keys.first().map_or(0, |key| self.shard(key));
        let call = self.shard_script(&SET_MANY, shard, self.key_triples(&keys));
        entries
            .iter()
            .fold(call, |call, (key, value)| call.arg(&key[..]).arg(&value[..]).arg(expiry().arg()))
    }

    /// Returns the error of a key that holds another type.
    pub(super) fn wrong_type(&self, key: &[u8]) -> Error {
        Error::WrongType { key: String::from_utf8_lossy(&self.keyspace.record(key)).into_owned() }
    }

    /// Returns whether loaded values have a stale window.
    pub(super) fn keeps_stale(&self) -> bool {
        self.stale > 0
    }

    pub(super) fn create_group(&self, shard: u16, group: &str) -> Call<'_> {
        self.subscriber_script(&CREATE_GROUP, shard).arg(group)
    }

    pub(super) fn remove_group(&self, shard: u16, group: &str) -> Call<'_> {
        self.subscriber_script(&REMOVE_GROUP, shard).arg(group)
    }

    pub(super) fn groups(&self, shard: u16) -> Call<'_> {
        self.subscriber_script(&GROUPS, shard)
    }

    pub(super) fn ack(&self, shard: u16, group: &str, id: &str) -> Call<'_> {
        Call::command("XACK", &self.shards[usize::from(shard)].stream).arg(group).arg(id)
    }

    /// The caller adds the arguments: see `read_group.lua`.
    pub(super) fn read_group(&self, shard: u16) -> Call<'_> {
        self.subscriber_script(&READ_GROUP, shard)
    }

    /// The caller adds the arguments: see `read_stream.lua`.
    pub(super) fn read_stream(&self, shard: u16) -> Call<'_> {
        self.subscriber_script(&READ_STREAM, shard)
    }

    /// Reads the two hints of each of these shards in turn: its earliest deadline and the version of its stream.
    pub(super) fn shard_hints(&self, shards: Range<u16>) -> Call<'_> {
        let shards = &self.shards[usize::from(shards.start)..usize::from(shards.end)];
        let keys =
            shards.iter().flat_map(|shard| [&shard.earliest_deadline, &shard.stream_version]);
        keys.skip(1)
            .fold(Call::command("MGET", &shards[0].earliest_deadline), |call, key| call.arg(key))
    }

    fn shard(&self, key: &[u8]) -> u16 {
        self.keyspace.shard(key)
    }

    fn write(&self, key: &[u8], value: &[u8], expiry: Expiry, mode: &str) -> Call<'_> {
        self.key_script(&WRITE, key).arg(value).arg(expiry.arg()).arg(mode)
    }

    fn command(&self, command: &str, key: &[u8]) -> Call<'_> {
        Call::command(command, &self.keyspace.record(key))
    }

    /// Returns a command that leaves the value with this expiry, wrapped in a script if it must invalidate a load.
    fn changing_command(&self, command: &str, key: &[u8], expiry: Expiry) -> Call<'_> {
        if self.outlives_loads(expiry) && !(self.refreshes && command == "GETEX") {
            return self.command(command, key);
        }
        self.change(command, key, expiry)
    }

    /// Returns the same, always in a script, because a value of which a tag was removed must count as missing.
    fn change(&self, command: &str, key: &[u8], expiry: Expiry) -> Call<'_> {
        let keys = [self.keyspace.record(key), self.load_key(key)];
        let is_new = matches!(command, "SET" | "GETDEL");
        // A refresh in progress has to know a new deadline.
        let is_noticed = self.outlives_loads(expiry) && (is_new || !self.refreshes);
        let count = if is_noticed { 1 } else { 2 };
        let ttl = if is_new { "NEW".to_owned() } else { expiry.arg() };
        CHANGE.call(&keys[..count]).arg("").arg(ttl).arg(command)
    }

    /// Returns whether a value with this expiry is still there when a load in progress ends, so that the load notices
    /// the write by itself. With a stale window this is not enough, because the write must also end the staleness.
    fn outlives_loads(&self, expiry: Expiry) -> bool {
        expiry.is_long() && !self.keeps_stale()
    }

    fn key_script(&self, script: &'static Script, key: &[u8]) -> Call<'_> {
        self.shard_script(script, self.shard(key), self.key_triples(&[key])).arg(key)
    }

    /// Returns the keys of the record, the shadow and the load of each key.
    fn key_triples<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Vec<u8>> {
        let records = keys.iter().flat_map(|key| {
            let key = key.as_ref();
            let shadow = [self.keyspace.index(self.shard(key)), b".value:", key].concat();
            [self.keyspace.record(key), shadow, self.load_key(key)]
        });
        records.collect()
    }

    fn records_of<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Vec<u8>> {
        keys.iter().map(|key| self.keyspace.record(key.as_ref())).collect()
    }

    /// Returns the key of the current version of a tag in a shard.
    fn version_key(&self, shard: u16, tag: &[u8]) -> Vec<u8> {
        [self.keyspace.index(shard), b".tag:", tag].concat()
    }

    fn load_key(&self, key: &[u8]) -> Vec<u8> {
        [self.keyspace.index(self.shard(key)), b".load:", key].concat()
    }

    fn subscriber_script(&self, script: &'static Script, shard: u16) -> Call<'_> {
        self.shard_script(script, shard, vec![self.shards[usize::from(shard)].groups.clone()])
    }

    /// Returns a call of a script about one shard. `keys` precede the shard's own keys, as `prelude.lua` reads them.
    fn shard_script(
        &self,
        script: &'static Script,
        shard: u16,
        mut keys: Vec<Vec<u8>>,
    ) -> Call<'_> {
        let ShardKeys { stream, earliest_deadline, stream_version, .. } =
            &self.shards[usize::from(shard)];
        keys.extend(
            [self.keyspace.index(shard), stream, earliest_deadline, stream_version]
                .map(<[u8]>::to_vec),
        );
        script.call(&keys).arg(self.retention_arg())
    }

    fn retention_arg(&self) -> String {
        self.retention.map_or_else(String::new, |time| time.to_string())
    }
}

/// Returns a version for tags that have none.
fn new_version() -> [u8; 16] {
    rand::make_rng::<SmallRng>().random()
}

/// Checks the number of values in the reply to a read of several keys, of which the last ones may be missing.
///
/// # Errors
///
/// [`Error::Server`] if there is none, so that a caller that reads the other keys next makes progress.
pub(super) fn check_page(values: usize, keys: usize) -> Result<(), Error> {
    match (1..=keys).contains(&values) {
        true => Ok(()),
        false => Err(unexpected_reply("unexpected number of values in a reply for several keys")),
    }
}

/// Checks a number of keys that the server has reported.
pub(super) fn check_count(count: usize, keys: usize) -> Result<usize, Error> {
    match count <= keys {
        true => Ok(count),
        false => Err(unexpected_reply("the number in a reply is larger than that of the keys")),
    }
}
