//! Where the entries are on the server, and how their values are written.

use ::redis::{FromRedisValue, Value as Reply};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value as Json};

use super::super::{
    Error, Format,
    keyspace::{Names, SHARDS, shard},
    script::Script,
};

/// Where, how, and by which scripts.
pub(super) struct Layout {
    places: Vec<Place>,
    values: Values,
    pub(super) scripts: &'static Scripts,
}

/// The keys of a shard.
pub(super) struct Place {
    pub(super) index: Vec<u8>,
    /// What the names of its records begin with.
    pub(super) stem: Vec<u8>,
}

enum Values {
    String(Format),
    /// A hash: a map, or a struct, of strings.
    Fields,
}

pub(super) struct Scripts {
    pub(super) set: Script,
    pub(super) set_timeout: Script,
    pub(super) ttl: Script,
    pub(super) remove: Script,
    pub(super) look: Script,
    pub(super) take: Script,
    pub(super) put_back: Script,
    pub(super) claim: Script,
    pub(super) ack: Script,
    pub(super) extend: Script,
    pub(super) give_back: Script,
    pub(super) clear: Script,
}

macro_rules! scripts {
    ($layout:literal: $($verb:ident $file:literal,)*) => {
        Scripts {
            $($verb: Script::new(concat!(
                include_str!($layout),
                include_str!("prelude.lua"),
                include_str!($file),
            )),)*
        }
    };
    ($layout:literal) => {
        scripts! { $layout:
            set "set.lua",
            set_timeout "set_timeout.lua",
            ttl "ttl.lua",
            remove "remove.lua",
            look "peek_due.lua",
            take "take.lua",
            put_back "put_back.lua",
            claim "claim.lua",
            ack "ack.lua",
            extend "extend.lua",
            give_back "give_back.lua",
            clear "clear.lua",
        }
    };
}

static SHARDED: Scripts = scripts!("sharded.lua");
static ORIGINAL: Scripts = scripts!("compat.lua");

impl Layout {
    pub(super) fn sharded(names: &Names, format: Format) -> Self {
        let place = |shard| {
            let index = names.index(shard).to_vec();
            let stem = [&index[..], b":"].concat();
            Place { index, stem }
        };
        Self {
            places: (0..SHARDS).map(place).collect(),
            values: Values::String(format),
            scripts: &SHARDED,
        }
    }

    pub(super) fn original(set: String) -> Self {
        let place = Place { index: set.into_bytes(), stem: Vec::new() };
        Self { places: vec![place], values: Values::Fields, scripts: &ORIGINAL }
    }

    pub(super) fn places(&self) -> &[Place] {
        &self.places
    }

    pub(super) fn place(&self, key: &[u8]) -> &Place {
        match &self.places[..] {
            [only] => only,
            places => &places[usize::from(shard(key))],
        }
    }

    pub(super) fn record(&self, key: &[u8]) -> Vec<u8> {
        [&self.place(key).stem[..], key].concat()
    }

    /// The command that reads a record.
    pub(super) fn get(&self) -> &'static str {
        match self.values {
            Values::String(_) => "GET",
            Values::Fields => "HGETALL",
        }
    }

    /// Redis' name of a record's type.
    pub(super) fn record_type(&self) -> &'static str {
        match self.values {
            Values::String(_) => "string",
            Values::Fields => "hash",
        }
    }

    /// The value as arguments of a script.
    pub(super) fn encode<V: Serialize>(&self, value: &V) -> Result<Vec<Vec<u8>>, Error> {
        match self.values {
            Values::String(format) => Ok(vec![format.encode(value)?]),
            Values::Fields => fields(value),
        }
    }

    /// What a script returned of a value.
    pub(super) fn args(&self, value: &Reply) -> Vec<Vec<u8>> {
        match value {
            Reply::BulkString(bytes) => vec![bytes.clone()],
            Reply::Array(fields) => fields.iter().flat_map(|field| self.args(field)).collect(),
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
        match (&self.values, value) {
            (_, Reply::Int(_)) => Err(Error::WrongType { key: name() }),
            (Values::String(format), Reply::BulkString(bytes)) => format.decode(bytes, record),
            _ => from_fields(value).map_err(|source| Error::Decode { key: name(), source }),
        }
    }
}

fn fields<V: Serialize>(value: &V) -> Result<Vec<Vec<u8>>, Error> {
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
