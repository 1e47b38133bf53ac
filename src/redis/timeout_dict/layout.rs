//! Where the entries are on the server, how their values are written, and by which scripts: all in which the two
//! layouts differ.

use ::redis::{FromRedisValue, Value as Reply};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value as Json};

use super::super::{
    Error, Format,
    codec::{decode_bare_key, decode_key, encode_bare_key, encode_key},
    keyspace::{Keyspace, SHARDS, shard},
};
use super::scripts::{COMPAT, SHARDED, Scripts};

/// One of two: sixteen shards of our own, or the sorted set and hashes of the original class (`compat`).
pub(super) struct Layout {
    shards: Vec<ShardKeys>,
    encoding: ValueEncoding,
    pub(super) scripts: &'static Scripts,
}

/// The keys of a shard on the server.
pub(super) struct ShardKeys {
    /// The sorted set of its keys, by deadline.
    pub(super) index: Vec<u8>,
    /// What scripts are given beside it, by the layout.
    others: Vec<Vec<u8>>,
    /// What the names of its records begin with. Scripts append the key, since a call about what is due can't
    /// name its records beforehand; all are in the index' slot.
    pub(super) record_prefix: Vec<u8>,
}

enum ValueEncoding {
    String(Format),
    /// A hash: a map, or a struct, of strings.
    Hash,
}

impl ShardKeys {
    /// All that a script is given beside records.
    pub(super) fn all(&self) -> Vec<&[u8]> {
        [&self.index].into_iter().chain(&self.others).map(|key| &key[..]).collect()
    }
}

impl Layout {
    pub(super) fn sharded(keyspace: &Keyspace, format: Format) -> Self {
        let keys_of = |shard| {
            let index = keyspace.index(shard).to_vec();
            let others = [&b".dead"[..], b".failed"].map(|of| [&index[..], of].concat()).to_vec();
            let record_prefix = [&index[..], b":"].concat();
            ShardKeys { index, others, record_prefix }
        };
        Self {
            shards: (0..SHARDS).map(keys_of).collect(),
            encoding: ValueEncoding::String(format),
            scripts: &SHARDED,
        }
    }

    pub(super) fn compat(set: String) -> Self {
        let index = set.into_bytes();
        let shard = ShardKeys { index, others: Vec::new(), record_prefix: Vec::new() };
        Self { shards: vec![shard], encoding: ValueEncoding::Hash, scripts: &COMPAT }
    }

    pub(super) fn shards(&self) -> &[ShardKeys] {
        &self.shards
    }

    pub(super) fn shard_of(&self, key: &[u8]) -> &ShardKeys {
        &self.shards[self.shard_index(key)]
    }

    pub(super) fn shard_index(&self, key: &[u8]) -> usize {
        match &self.shards[..] {
            [_] => 0,
            _ => usize::from(shard(key)),
        }
    }

    /// Whether failures are counted, so that entries may be dead.
    pub(super) fn has_dead(&self) -> bool {
        matches!(self.encoding, ValueEncoding::String(_))
    }

    pub(super) fn encode_key<K: Serialize + ?Sized>(&self, key: &K) -> Result<Vec<u8>, Error> {
        match self.encoding {
            ValueEncoding::String(_) => encode_key(key),
            ValueEncoding::Hash => encode_bare_key(key),
        }
    }

    pub(super) fn decode_key<K: DeserializeOwned>(&self, key: &[u8]) -> Result<K, Error> {
        match self.encoding {
            ValueEncoding::String(_) => decode_key(key),
            ValueEncoding::Hash => decode_bare_key(key),
        }
    }

    pub(super) fn record(&self, key: &[u8]) -> Vec<u8> {
        [&self.shard_of(key).record_prefix[..], key].concat()
    }

    /// The command that reads a record.
    pub(super) fn read_command(&self) -> &'static str {
        match self.encoding {
            ValueEncoding::String(_) => "GET",
            ValueEncoding::Hash => "HGETALL",
        }
    }

    /// Redis' name of a record's type.
    pub(super) fn record_type(&self) -> &'static str {
        match self.encoding {
            ValueEncoding::String(_) => "string",
            ValueEncoding::Hash => "hash",
        }
    }

    /// The value of `key` as arguments of a script.
    pub(super) fn encode<V: Serialize>(
        &self,
        key: &[u8],
        value: &V,
    ) -> Result<Vec<Vec<u8>>, Error> {
        // Its record would take the place of the index.
        if self.record(key) == self.shard_of(key).index {
            return Err(Error::Encode("the key is the name of the sorted set itself".into()));
        }
        match self.encoding {
            ValueEncoding::String(format) => Ok(vec![format.encode(value)?]),
            ValueEncoding::Hash => to_fields(value),
        }
    }

    /// What a script returned as a value, as the arguments that [`encode`](Layout::encode) makes of it: so what
    /// was taken goes back as it was, also where it can't be decoded.
    pub(super) fn args_of(&self, value: &Reply) -> Vec<Vec<u8>> {
        match value {
            Reply::BulkString(bytes) => vec![bytes.clone()],
            Reply::Array(fields) => fields.iter().flat_map(|field| self.args_of(field)).collect(),
            _ => Vec::new(),
        }
    }

    pub(super) fn decode<V: DeserializeOwned>(
        &self,
        key: &[u8],
        value: &Reply,
    ) -> Result<V, Error> {
        let record = || self.record(key);
        let name = || String::from_utf8_lossy(&record()).into_owned();
        match (&self.encoding, value) {
            // What the scripts give in place of a record of another type.
            (_, Reply::Int(_)) => Err(Error::WrongType { key: name() }),
            (ValueEncoding::String(format), Reply::BulkString(bytes)) => {
                format.decode(bytes, record)
            }
            _ => from_fields(value).map_err(|source| Error::Decode { key: name(), source }),
        }
    }
}

fn to_fields<V: Serialize>(value: &V) -> Result<Vec<Vec<u8>>, Error> {
    let refuse = |why: &'static str| Err(Error::Encode(why.into()));
    let value = serde_json::to_value(value).map_err(|error| Error::Encode(error.into()))?;
    let Json::Object(fields) = value else { return refuse("a hash holds a map or a struct") };
    let mut args = Vec::with_capacity(2 * fields.len());
    for (name, value) in fields {
        match value {
            Json::String(text) => args.extend([name.into_bytes(), text.into_bytes()]),
            // A field that is not there.
            Json::Null => {}
            _ => return refuse("the fields of a hash are strings"),
        }
    }
    // Redis has no empty hash: the entry would be gone.
    if args.is_empty() {
        return refuse("there is no hash without fields");
    }
    Ok(args)
}

fn from_fields<V: DeserializeOwned>(
    value: &Reply,
) -> Result<V, Box<dyn std::error::Error + Send + Sync>> {
    let fields = Vec::<(String, String)>::from_redis_value(value.clone())?;
    let fields: Map<_, _> =
        fields.into_iter().map(|(name, text)| (name, Json::String(text))).collect();
    Ok(serde_json::from_value(Json::Object(fields))?)
}
