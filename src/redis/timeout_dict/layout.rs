//! Layouts of a dictionary on the server: keys, encoding of the values, and scripts. Everything in which the two
//! layouts differ is here.

use ::redis::{FromRedisValue, Value as Reply};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value as Json};

use super::super::{
    Error, Format,
    codec::{decode_bare_key, decode_key, encode_bare_key, encode_key, mismatch},
    keyspace::{Keyspace, SHARDS, shard},
};
use super::scripts::{COMPAT, SHARDED, Scripts};
use crate::engine::encodable::Encodable;

/// One of two layouts: 16 shards of this crate, or the sorted set and the hashes of the original class (`compat`).
pub(super) struct Layout {
    shards: Vec<DictShardKeys>,
    encoding: ValueEncoding,
    pub(super) scripts: &'static Scripts,
}

/// Keys of a shard.
pub(super) struct DictShardKeys {
    /// Sorted set of the shard's entries by deadline.
    pub(super) index: Vec<u8>,
    /// Further keys that the scripts of this layout need.
    pub(super) others: Vec<Vec<u8>>,
    /// Prefix of the keys of its records. Scripts append the entry's key, because a call about due entries cannot name
    /// its records beforehand. They are in the same slot as the index.
    pub(super) record_prefix: Vec<u8>,
}

enum ValueEncoding {
    String(Format),
    /// A hash with the fields of a map or a struct of strings.
    Hash,
}

impl DictShardKeys {
    /// Returns the keys that each script of the shard gets.
    pub(super) fn all(&self) -> Vec<&[u8]> {
        [&self.index].into_iter().chain(&self.others).map(|key| &key[..]).collect()
    }
}

impl Layout {
    pub(super) fn sharded(keyspace: &Keyspace, format: Format) -> Self {
        let keys_of = |shard| {
            let index = keyspace.index(shard).to_vec();
            // Names on the server, which must not change.
            let others = [&b".dead"[..], b".failed", b".reasons"]
                .map(|of| [&index[..], of].concat())
                .to_vec();
            let record_prefix = [&index[..], b":"].concat();
            DictShardKeys { index, others, record_prefix }
        };
        Self {
            shards: (0..SHARDS).map(keys_of).collect(),
            encoding: ValueEncoding::String(format),
            scripts: &SHARDED,
        }
    }

    pub(super) fn compat(set: String) -> Self {
        let index = set.into_bytes();
        let shard = DictShardKeys { index, others: Vec::new(), record_prefix: Vec::new() };
        Self { shards: vec![shard], encoding: ValueEncoding::Hash, scripts: &COMPAT }
    }

    pub(super) fn shards(&self) -> &[DictShardKeys] {
        &self.shards
    }

    pub(super) fn shard_of(&self, key: &[u8]) -> &DictShardKeys {
        &self.shards[self.shard_index(key)]
    }

    pub(super) fn shard_index(&self, key: &[u8]) -> usize {
        match &self.shards[..] {
            [_] => 0,
            _ => usize::from(shard(key, SHARDS)),
        }
    }

    /// Returns whether failures are counted, so that there may be dead letters.
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
            ValueEncoding::String(_) => decode_key(key, || self.record(key)),
            ValueEncoding::Hash => decode_bare_key(key),
        }
    }

    pub(super) fn record(&self, key: &[u8]) -> Vec<u8> {
        [&self.shard_of(key).record_prefix[..], key].concat()
    }

    /// Returns the command that reads a record.
    pub(super) fn read_command(&self) -> &'static str {
        match self.encoding {
            ValueEncoding::String(_) => "GET",
            ValueEncoding::Hash => "HGETALL",
        }
    }

    /// Converts a score of the index to microseconds.
    pub(super) fn micros(&self, score: f64) -> i64 {
        match self.encoding {
            ValueEncoding::String(_) => score as i64,
            ValueEncoding::Hash => (score * 1e6).round() as i64,
        }
    }

    /// Returns the type of a record, as `TYPE` names it.
    pub(super) fn record_type(&self) -> &'static str {
        match self.encoding {
            ValueEncoding::String(_) => "string",
            ValueEncoding::Hash => "hash",
        }
    }

    /// Encodes the value of `key` as arguments of a script.
    pub(super) fn encode<V: Serialize>(
        &self,
        key: &[u8],
        value: &V,
    ) -> Result<Vec<Vec<u8>>, Error> {
        // Its record would overwrite the index.
        if self.record(key) == self.shard_of(key).index {
            return Err(Error::Encode(
                "the key is the name of the sorted set; use another key".into(),
            ));
        }
        match self.encoding {
            ValueEncoding::String(format) => Ok(vec![format.encode(value)?]),
            ValueEncoding::Hash => to_fields(value),
        }
    }

    /// Converts a value returned by a script to the arguments that [`encode`](Layout::encode) made of it, so that an
    /// entry can be put back unchanged even if it cannot be decoded.
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
            // Returned by the scripts in place of a record of another type.
            (_, Reply::Int(_)) => Err(Error::WrongType { key: name() }),
            (ValueEncoding::String(format), Reply::BulkString(bytes)) => {
                format.decode(bytes, record)
            }
            _ => from_fields(value)
                .map_err(|_| Error::Decode { key: name(), source: mismatch::<V>(None) }),
        }
    }
}

fn to_fields<V: Serialize>(value: &V) -> Result<Vec<Vec<u8>>, Error> {
    let refuse = |why: &'static str| Err(Error::Encode(why.into()));
    // Otherwise NaN would be left out like `None`.
    let value = serde_json::to_value(Encodable::as_json(value));
    let value = value.map_err(|error| Error::Encode(error.into()))?;
    let Json::Object(fields) = value else {
        return refuse("a value of a compat dictionary must be a map or a struct");
    };
    let mut args = Vec::with_capacity(2 * fields.len());
    for (name, value) in fields {
        match value {
            Json::String(text) => args.extend([name.into_bytes(), text.into_bytes()]),
            // `None` fields are left out.
            Json::Null => {}
            _ => return refuse("the fields of a compat value must be strings"),
        }
    }
    // Redis deletes a hash without fields, so that the entry would disappear.
    if args.is_empty() {
        return refuse("a compat value must have at least one field");
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
