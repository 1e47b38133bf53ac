//! What each verb of a [`Cache`](super::Cache) sends: one call, which is made here and sent there.
//!
//! 1. A record is a plain string with the server's own TTL, which it does not outlive: reads are plain commands. With
//!    subscribers (`retention`) what changes is a script, which also keeps what is to be told: see prelude.lua.
//! 2. A write to a key ends the load of it that is under way (lookup_lease.lua): in the same script, or where it lives on for long
//!    by being there when that is to be put. So a plain `SET` is enough for most.
//! 3. Deadlines are in the server's milliseconds. A value is dead from the millisecond of its deadline on,
//!    and lives no shorter than its TTL and less than a millisecond longer.

use std::{ops::Range, time::Duration};

use rand::{RngExt, rngs::SmallRng};

use super::{
    super::{
        Client, Error,
        keyspace::{Keyspace, Kind, SHARDS, shard},
        script::{Call, Script},
    },
    expiry::{Expiry, LONGEST},
};
use crate::engine::ttl::When;

const PRELUDE: &str = include_str!("prelude.lua");
const SUBSCRIBER_PRELUDE: &str = include_str!("subscriber_prelude.lua");

static WRITE: Script =
    Script::new([include_str!("write_fast_path.lua"), PRELUDE, include_str!("write.lua")]);
static COMPARE_AND_SWAP: Script = Script::new([PRELUDE, include_str!("compare_and_swap.lua")]);
static EXPIRE: Script = Script::new([PRELUDE, include_str!("expire.lua")]);
static REMOVE: Script = Script::new([PRELUDE, include_str!("remove.lua")]);
static CLEAR: Script = Script::new([PRELUDE, include_str!("clear.lua")]);
static GET_MANY: Script = Script::new([include_str!("get_many.lua")]);
static READ_MANY: Script = Script::new([include_str!("read_many.lua")]);
static SET_MANY: Script =
    Script::new([PRELUDE, include_str!("put.lua"), include_str!("set_many.lua")]);
static SEEK: Script = Script::new([include_str!("lookup_lease.lua")]);
static HOLD: Script = Script::new([include_str!("update_lease.lua")]);
static PUBLISH: Script =
    Script::new([PRELUDE, include_str!("put.lua"), include_str!("publish.lua")]);
/// A command that changes a value, which ends the load of its key where it did.
static CHANGE: Script = Script::new(["\
    local answer = redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))
    if answer ~= 0 then redis.call('UNLINK', KEYS[2]) end
    return answer"]);
static CREATE_GROUP: Script =
    Script::new([PRELUDE, SUBSCRIBER_PRELUDE, include_str!("create_group.lua")]);
static READ_GROUP: Script =
    Script::new([PRELUDE, SUBSCRIBER_PRELUDE, include_str!("read_group.lua")]);
static READ_STREAM: Script =
    Script::new([PRELUDE, SUBSCRIBER_PRELUDE, include_str!("read_stream.lua")]);

/// The keys of a cache, and what is sent about them.
pub(super) struct Commands {
    pub(super) client: Client,
    pub(super) keyspace: Keyspace,
    /// For how many milliseconds an expiration waits for its subscribers; `None` where there are none.
    retention: Option<u64>,
    /// For how many milliseconds what was loaded may be used after its end.
    stale: u64,
    shards: Vec<ShardKeys>,
}

/// What a shard has beside its records, for subscribers. Its index is of the keyspace.
struct ShardKeys {
    /// What has expired and waits for subscribers.
    stream: Vec<u8>,
    groups: Vec<u8>,
    /// What changes whenever all is cleared, for loads that are under way then.
    cleared: Vec<u8>,
    /// The two notes of prelude.lua.
    soonest: Vec<u8>,
    told: Vec<u8>,
}

/// A script reads so many keys at most, as all others wait meanwhile.
pub(super) const MANY: usize = 1_000;

/// After so many bytes of values a script stops: all others wait meanwhile, and an answer that is too long for the time
/// that a client gives it is none.
const BATCH_BYTES: usize = 1 << 20;

impl Commands {
    pub(super) fn new(
        client: &Client,
        name: &str,
        retention: Option<Duration>,
        stale: Duration,
    ) -> Result<Self, Error> {
        let keyspace = client.keyspace(Kind::Cache, name)?;
        let shards = (0..SHARDS).map(|shard| {
            let beside = |what: &str| [keyspace.index(shard), what.as_bytes()].concat();
            ShardKeys {
                stream: beside(".expired"),
                groups: beside(".groups"),
                cleared: beside(".cleared"),
                soonest: beside(".soonest"),
                told: beside(".told"),
            }
        });
        let shards = shards.collect();
        let retention = retention.map(|time| match Expiry::of(time) {
            Expiry::Immediate => 1,
            Expiry::After(time) => time,
            Expiry::Never => LONGEST as u64,
        });
        let stale = Expiry::of(stale).milliseconds().unwrap_or(LONGEST as u64);
        Ok(Self { client: client.clone(), shards, keyspace, retention, stale })
    }

    /// Whether expirations are told to subscribers.
    pub(super) fn has_events(&self) -> bool {
        self.retention.is_some()
    }

    pub(super) fn get(&self, key: &[u8]) -> Call<'_> {
        self.command("GET", key)
    }

    /// As of `PTTL`.
    pub(super) fn ttl(&self, key: &[u8]) -> Call<'_> {
        self.command("PTTL", key)
    }

    pub(super) fn get_ex(&self, key: &[u8], expiry: Expiry) -> Call<'_> {
        match (self.retention, expiry) {
            (None, Expiry::Immediate) => self.remove(key),
            (None, Expiry::After(ttl)) => self.change("GETEX", key, expiry).arg("PX").arg(ttl),
            (None, Expiry::Never) => self.command("GETEX", key).arg("PERSIST"),
            (Some(_), _) => self.key_script(&EXPIRE, key).arg(expiry.arg()).arg("GETEX"),
        }
    }

    pub(super) fn set(&self, key: &[u8], value: &[u8], expiry: Expiry) -> Call<'_> {
        let set = |key| self.change("SET", key, expiry).arg(value);
        match (self.retention, expiry) {
            // What it replaces leaves all the same, and is returned.
            (None, Expiry::Immediate) => self.remove(key),
            (None, Expiry::After(ttl)) => set(key).arg("PX").arg(ttl).arg("GET"),
            (None, Expiry::Never) => set(key).arg("GET"),
            (Some(_), _) if self.is_seen(expiry) => self.write(key, value, expiry, "LONG"),
            (Some(_), _) => self.write(key, value, expiry, "SET"),
        }
    }

    pub(super) fn set_nx(&self, key: &[u8], value: &[u8], expiry: Expiry) -> Call<'_> {
        let set = |key| self.change("SET", key, expiry).arg(value).arg("NX");
        match (self.retention, expiry) {
            (None, Expiry::After(ttl)) => set(key).arg("PX").arg(ttl),
            (None, Expiry::Never) => set(key),
            // Dead at once: the script answers whether it could have been set, and leaves nothing.
            _ => self.write(key, value, expiry, "NX"),
        }
    }

    /// `expiry` is for a value that replaces none.
    pub(super) fn set_keep_ttl(&self, key: &[u8], value: &[u8], expiry: Expiry) -> Call<'_> {
        match (self.retention, expiry) {
            // What replaces none gets no TTL by it, as it should. Any other TTL needs a look at what is there.
            (None, Expiry::Never) => {
                self.change("SET", key, expiry).arg(value).arg("KEEPTTL").arg("GET")
            }
            _ => self.write(key, value, expiry, "KEEPTTL"),
        }
    }

    /// Puts `new` where `old` is.
    pub(super) fn compare_and_swap(&self, key: &[u8], old: &[u8], new: &[u8]) -> Call<'_> {
        self.key_script(&COMPARE_AND_SWAP, key).arg(old).arg(new)
    }

    pub(super) fn expire(&self, key: &[u8], expiry: Expiry, when: Option<When>) -> Call<'_> {
        let how = when.map(|when| match when {
            When::NoTtl => "NX",
            When::HasTtl => "XX",
            When::Later => "GT",
            When::Sooner => "LT",
        });
        match (self.retention, expiry.milliseconds()) {
            // Without a TTL it is no `PEXPIRE`, and `PERSIST` knows no conditions.
            (None, Some(ttl)) => self.change("PEXPIRE", key, expiry).arg(ttl).arg(how),
            _ => self.key_script(&EXPIRE, key).arg(expiry.arg()).arg(how.unwrap_or("ALWAYS")),
        }
    }

    pub(super) fn extend(&self, key: &[u8], more: Expiry) -> Call<'_> {
        self.key_script(&EXPIRE, key).arg(more.arg()).arg("EXTEND")
    }

    pub(super) fn persist(&self, key: &[u8]) -> Call<'_> {
        match self.retention {
            None => self.command("PERSIST", key),
            Some(_) => self.expire(key, Expiry::Never, Some(When::HasTtl)),
        }
    }

    pub(super) fn remove(&self, key: &[u8]) -> Call<'_> {
        match self.retention {
            None => self.change("GETDEL", key, Expiry::Immediate),
            Some(_) => self.key_script(&REMOVE, key).arg(""),
        }
    }

    pub(super) fn expire_now(&self, key: &[u8]) -> Call<'_> {
        match self.retention {
            None => self.remove(key),
            Some(_) => self.key_script(&REMOVE, key).arg("EXPIRE"),
        }
    }

    /// The live values of keys of one shard: of the first ones, as many as one answer holds.
    pub(super) fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Call<'_> {
        GET_MANY.call(&self.plain_records_of(keys)).arg(BATCH_BYTES)
    }

    /// The same with their TTLs.
    pub(super) fn read_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Call<'_> {
        READ_MANY.call(&self.plain_records_of(keys)).arg(BATCH_BYTES)
    }

    /// For each shard a key that there can't be.
    pub(super) fn absent(&self) -> Vec<Vec<u8>> {
        (0..SHARDS).map(|shard| [self.keyspace.index(shard), b".none"].concat()).collect()
    }

    /// Takes keys of one shard out.
    pub(super) fn clear<K: AsRef<[u8]>>(&self, shard: u16, keys: &[K]) -> Call<'_> {
        let call = self.shard_script(&CLEAR, shard, self.records_of(keys));
        keys.iter().fold(call, |call, key| call.arg(key.as_ref()))
    }

    /// Lets whoever loads put nothing, and forgets what is stale.
    pub(super) fn clear_loads(&self, shard: u16) -> Call<'_> {
        /// Longer than any load, beside what is stale.
        const DAY: u64 = 86_400_000;
        let cleared = &self.shards[usize::from(shard)].cleared;
        let unique: u64 = rand::make_rng::<SmallRng>().random();
        Call::command("SET", cleared).arg(unique).arg("PX").arg(self.stale.saturating_add(DAY))
    }

    /// Puts values at keys of one shard.
    pub(super) fn set_many(&self, entries: &[&(Vec<u8>, Vec<u8>)], expiry: Expiry) -> Call<'_> {
        let keys: Vec<&[u8]> = entries.iter().map(|(key, _)| &key[..]).collect();
        let shard = keys.first().map_or(0, |key| shard(key));
        let call = self.shard_script(&SET_MANY, shard, self.records_of(&keys));
        let call = call.arg(expiry.arg());
        entries.iter().fold(call, |call, (key, value)| call.arg(&key[..]).arg(&value[..]))
    }

    /// What who wants a value finds; with a lease, it gets that where there is none to find and nobody loads it.
    pub(super) fn seek(&self, key: &[u8], lease: Option<(&str, Duration)>) -> Call<'_> {
        let cleared = self.shards[usize::from(shard(key))].cleared.clone();
        let (token, length) = lease.unwrap_or_default();
        let call = SEEK.call(&[self.keyspace.record(key), self.load_of(key), cleared]);
        call.arg(token).arg(Expiry::of(length).arg())
    }

    /// Renews a lease; for zero it is given back. It is `whose` from then on.
    pub(super) fn hold(&self, key: &[u8], token: &str, length: Duration, whose: &str) -> Call<'_> {
        HOLD.call(&[self.load_of(key)]).arg(token).arg(Expiry::of(length).arg()).arg(whose)
    }

    /// Puts what was loaded with a lease.
    pub(super) fn publish(
        &self,
        key: &[u8],
        token: &str,
        value: &[u8],
        expiry: Expiry,
    ) -> Call<'_> {
        let mut keys = self.records_of(&[key]);
        keys.push(self.shards[usize::from(shard(key))].cleared.clone());
        let call = self.shard_script(&PUBLISH, shard(key), keys);
        call.arg(key).arg(token).arg(value).arg(expiry.arg()).arg(self.stale)
    }

    /// Whether anything is used after its end.
    pub(super) fn keeps_stale(&self) -> bool {
        self.stale > 0
    }

    pub(super) fn create_group(&self, shard: u16, group: &str) -> Call<'_> {
        self.subscriber_script(&CREATE_GROUP, shard).arg(group)
    }

    pub(super) fn ack(&self, shard: u16, group: &str, id: &str) -> Call<'_> {
        Call::command("XACK", &self.shards[usize::from(shard)].stream).arg(group).arg(id)
    }

    /// The caller adds the arguments.
    pub(super) fn read_group(&self, shard: u16) -> Call<'_> {
        self.subscriber_script(&READ_GROUP, shard)
    }

    /// The caller adds the arguments.
    pub(super) fn read_stream(&self, shard: u16) -> Call<'_> {
        self.subscriber_script(&READ_STREAM, shard)
    }

    /// The two notes of each of some shards, in turns: its soonest deadline, and what changes with its news.
    pub(super) fn notes(&self, shards: Range<u16>) -> Call<'_> {
        let shards = &self.shards[usize::from(shards.start)..usize::from(shards.end)];
        let notes = shards.iter().flat_map(|shard| [&shard.soonest, &shard.told]);
        notes.skip(1).fold(Call::command("MGET", &shards[0].soonest), |call, key| call.arg(key))
    }

    fn write(&self, key: &[u8], value: &[u8], expiry: Expiry, how: &str) -> Call<'_> {
        self.key_script(&WRITE, key).arg(value).arg(expiry.arg()).arg(how)
    }

    fn command(&self, command: &str, key: &[u8]) -> Call<'_> {
        Call::command(command, &self.keyspace.record(key))
    }

    /// A command after which a value lives for as long.
    fn change(&self, command: &str, key: &[u8], expiry: Expiry) -> Call<'_> {
        if self.is_seen(expiry) {
            return self.command(command, key);
        }
        CHANGE.call(&[self.keyspace.record(key), self.load_of(key)]).arg(command)
    }

    /// Whether what lives for as long is found by whoever loads the key, so that nobody has to end the load.
    fn is_seen(&self, expiry: Expiry) -> bool {
        expiry.is_long() && !self.keeps_stale()
    }

    fn key_script(&self, script: &'static Script, key: &[u8]) -> Call<'_> {
        self.shard_script(script, shard(key), self.records_of(&[key])).arg(key)
    }

    /// For each key its record, its shadow, and its load.
    fn records_of<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Vec<u8>> {
        let records = keys.iter().flat_map(|key| {
            let key = key.as_ref();
            let shadow = [self.keyspace.index(shard(key)), b".value:", key].concat();
            [self.keyspace.record(key), shadow, self.load_of(key)]
        });
        records.collect()
    }

    fn plain_records_of<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Vec<u8>> {
        keys.iter().map(|key| self.keyspace.record(key.as_ref())).collect()
    }

    fn load_of(&self, key: &[u8]) -> Vec<u8> {
        [self.keyspace.index(shard(key)), b".load:", key].concat()
    }

    fn subscriber_script(&self, script: &'static Script, shard: u16) -> Call<'_> {
        self.shard_script(script, shard, vec![self.shards[usize::from(shard)].groups.clone()])
    }

    /// A script about a shard; `keys` come first of those that its prelude reads.
    fn shard_script(
        &self,
        script: &'static Script,
        shard: u16,
        mut keys: Vec<Vec<u8>>,
    ) -> Call<'_> {
        let ShardKeys { stream, soonest, told, .. } = &self.shards[usize::from(shard)];
        keys.extend([self.keyspace.index(shard), stream, soonest, told].map(<[u8]>::to_vec));
        script.call(&keys).arg(self.retention.map_or_else(String::new, |time| time.to_string()))
    }
}
