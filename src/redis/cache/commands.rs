//! What each verb sends: one call.
//!
//! 1. Without subscribers a record is a plain string with the server's own TTL, and most verbs are plain
//!    commands. With them (`retention`) every verb is a script, since a record outlives its deadline until
//!    it was told of: see prelude.lua.
//! 2. Deadlines are in the server's milliseconds. A value is dead from the millisecond of its deadline on,
//!    and lives no shorter than its TTL and less than a millisecond longer.

use std::time::Duration;

use super::super::{
    Client, Error,
    keyspace::{Names, SHARDS, shard},
    script::{Call, Script},
};
use crate::engine::ttl::When;

/// Beyond it a TTL is for ever: the server's scripts count exactly up to twice as much.
const LONGEST: u128 = 1 << 52;

macro_rules! script {
    ($($file:literal),*) => {
        Script::new(concat!(include_str!("prelude.lua"), "\n", $(include_str!($file), "\n"),*))
    };
}

static READ: Script = script!("read.lua");
static WRITE: Script = script!("write.lua");
static SWAP: Script = script!("compare_and_swap.lua");
static EXPIRE: Script = script!("expire.lua");
static REMOVE: Script = script!("remove.lua");
static PAGE: Script = script!("get_many.lua");
static JOIN: Script = script!("create_group.lua");
static GROUP: Script = script!("subscriber_prelude.lua", "read_group.lua");
static FEED: Script = script!("subscriber_prelude.lua", "read_stream.lua");

/// The keys of a cache, and what is sent about them.
pub(super) struct Store {
    pub(super) client: Client,
    pub(super) names: Names,
    /// For how many milliseconds an expiration waits for its subscribers; `None` where there are none.
    retention: Option<u64>,
    streams: Vec<Vec<u8>>,
}

/// How long a value may live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// It is dead at once.
    None,
    /// In milliseconds, at least one.
    For(u64),
    /// It has no deadline.
    Forever,
}

impl Store {
    pub(super) fn new(
        client: &Client,
        name: &str,
        retention: Option<Duration>,
    ) -> Result<Self, Error> {
        let names = client.names(name)?;
        let streams = (0..SHARDS).map(|shard| [names.index(shard), b".expired"].concat());
        let retention = retention.map(|time| match Life::of(time) {
            Life::None => 1,
            Life::For(time) => time,
            Life::Forever => LONGEST as u64,
        });
        Ok(Self { client: client.clone(), streams: streams.collect(), names, retention })
    }

    /// Whether expirations are told.
    pub(super) fn is_told(&self) -> bool {
        self.retention.is_some()
    }

    pub(super) fn get(&self, key: &[u8]) -> Call<'_> {
        match self.retention {
            None => self.plain("GET", key),
            Some(_) => self.script(&READ, key).arg("VALUE"),
        }
    }

    /// As of `PTTL`.
    pub(super) fn ttl(&self, key: &[u8]) -> Call<'_> {
        match self.retention {
            None => self.plain("PTTL", key),
            Some(_) => self.script(&READ, key).arg("TTL"),
        }
    }

    pub(super) fn get_ex(&self, key: &[u8], life: Life) -> Call<'_> {
        match (self.retention, life) {
            (None, Life::None) => self.remove(key),
            (None, Life::For(ttl)) => self.plain("GETEX", key).arg("PX").arg(ttl),
            (None, Life::Forever) => self.plain("GETEX", key).arg("PERSIST"),
            (Some(_), _) => self.script(&EXPIRE, key).arg(life.arg()).arg("GETEX"),
        }
    }

    pub(super) fn set(&self, key: &[u8], value: &[u8], life: Life) -> Call<'_> {
        let set = |key| self.plain("SET", key).arg(value);
        match (self.retention, life) {
            (None, Life::None) => self.remove(key),
            (None, Life::For(ttl)) => set(key).arg("PX").arg(ttl).arg("GET"),
            (None, Life::Forever) => set(key).arg("GET"),
            (Some(_), _) => self.write(key, value, life, "SET"),
        }
    }

    pub(super) fn set_nx(&self, key: &[u8], value: &[u8], life: Life) -> Call<'_> {
        let set = |key| self.plain("SET", key).arg(value).arg("NX");
        match (self.retention, life) {
            (None, Life::For(ttl)) => set(key).arg("PX").arg(ttl),
            (None, Life::Forever) => set(key),
            _ => self.write(key, value, life, "NX"),
        }
    }

    /// `life` is for a value that replaces none.
    pub(super) fn set_keep_ttl(&self, key: &[u8], value: &[u8], life: Life) -> Call<'_> {
        match (self.retention, life) {
            (None, Life::Forever) => self.plain("SET", key).arg(value).arg("KEEPTTL").arg("GET"),
            _ => self.write(key, value, life, "KEEPTTL"),
        }
    }

    /// Puts `new` where `old` is.
    pub(super) fn swap(&self, key: &[u8], old: &[u8], new: &[u8]) -> Call<'_> {
        self.script(&SWAP, key).arg(old).arg(new)
    }

    pub(super) fn expire(&self, key: &[u8], life: Life, when: Option<When>) -> Call<'_> {
        let how = when.map(|when| match when {
            When::NoTtl => "NX",
            When::HasTtl => "XX",
            When::Later => "GT",
            When::Sooner => "LT",
        });
        match (self.retention, life.milliseconds()) {
            (None, Some(ttl)) => self.plain("PEXPIRE", key).arg(ttl).arg(how),
            _ => self.script(&EXPIRE, key).arg(life.arg()).arg(how.unwrap_or("ALWAYS")),
        }
    }

    pub(super) fn extend(&self, key: &[u8], more: Life) -> Call<'_> {
        self.script(&EXPIRE, key).arg(more.arg()).arg("EXTEND")
    }

    pub(super) fn persist(&self, key: &[u8]) -> Call<'_> {
        match self.retention {
            None => self.plain("PERSIST", key),
            Some(_) => self.expire(key, Life::Forever, Some(When::HasTtl)),
        }
    }

    pub(super) fn remove(&self, key: &[u8]) -> Call<'_> {
        match self.retention {
            None => self.plain("GETDEL", key),
            Some(_) => self.remove_all(shard(key), &[key], ""),
        }
    }

    pub(super) fn expire_now(&self, key: &[u8]) -> Call<'_> {
        match self.retention {
            None => self.remove(key),
            Some(_) => self.remove_all(shard(key), &[key], "EXPIRE"),
        }
    }

    /// The live values of keys of one shard.
    pub(super) fn page<K: AsRef<[u8]>>(&self, shard: u16, keys: &[K]) -> Call<'_> {
        keys.iter().fold(self.about(&PAGE, shard, keys), |call, key| call.arg(key.as_ref()))
    }

    /// Takes keys of one shard out.
    pub(super) fn clear<K: AsRef<[u8]>>(&self, shard: u16, keys: &[K]) -> Call<'_> {
        self.remove_all(shard, keys, "")
    }

    pub(super) fn join(&self, shard: u16, group: &str) -> Call<'_> {
        self.about::<&[u8]>(&JOIN, shard, &[]).arg(group)
    }

    pub(super) fn ack(&self, shard: u16, group: &str, id: &str) -> Call<'_> {
        Call::command("XACK", &self.streams[usize::from(shard)]).arg(group).arg(id)
    }

    pub(super) fn group(&self, shard: u16) -> Call<'_> {
        self.about::<&[u8]>(&GROUP, shard, &[])
    }

    pub(super) fn feed(&self, shard: u16) -> Call<'_> {
        self.about::<&[u8]>(&FEED, shard, &[])
    }

    fn write(&self, key: &[u8], value: &[u8], life: Life, how: &str) -> Call<'_> {
        self.script(&WRITE, key).arg(value).arg(life.arg()).arg(how)
    }

    fn remove_all<K: AsRef<[u8]>>(&self, shard: u16, keys: &[K], how: &str) -> Call<'_> {
        let call = self.about(&REMOVE, shard, keys).arg(how);
        keys.iter().fold(call, |call, key| call.arg(key.as_ref()))
    }

    fn plain(&self, command: &str, key: &[u8]) -> Call<'_> {
        Call::command(command, &self.names.record(key))
    }

    fn script(&self, script: &'static Script, key: &[u8]) -> Call<'_> {
        self.about(script, shard(key), &[key]).arg(key)
    }

    /// A script about keys of one shard.
    fn about<K: AsRef<[u8]>>(&self, script: &'static Script, shard: u16, keys: &[K]) -> Call<'_> {
        let mut names: Vec<_> = keys.iter().map(|key| self.names.record(key.as_ref())).collect();
        names.push(self.names.index(shard).to_vec());
        names.push(self.streams[usize::from(shard)].clone());
        script.call(&names).arg(self.retention.map_or_else(String::new, |time| time.to_string()))
    }
}

impl Life {
    pub(super) fn of(ttl: Duration) -> Self {
        // Rounded up, so that it is never shorter.
        match ttl.as_nanos().div_ceil(1_000_000) {
            0 => Self::None,
            ttl if ttl < LONGEST => Self::For(ttl as u64),
            _ => Self::Forever,
        }
    }

    /// `None` for a life that is for ever.
    fn milliseconds(self) -> Option<u64> {
        match self {
            Self::None => Some(0),
            Self::For(ttl) => Some(ttl),
            Self::Forever => None,
        }
    }

    /// As scripts read it.
    fn arg(self) -> String {
        self.milliseconds().map_or_else(String::new, |ttl| ttl.to_string())
    }
}
