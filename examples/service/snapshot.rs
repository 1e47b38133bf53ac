//! Keeps the sessions in a file over a restart.

use std::{error::Error, fmt, path::Path};

use axum::body::Bytes;
use serde::{
    Deserialize, Deserializer,
    de::{self, Visitor},
};

use super::{
    Session,
    backend::{Sessions, unpack},
};

/// Restores the sessions of the last run, if there is a snapshot, and writes them again.
pub(super) async fn restore(sessions: &Sessions, path: &Path) -> Result<(), String> {
    let restored = embedded(sessions)?.restore_from(path).await;
    let restored = restored.map_err(|error| message("cannot restore", path, &error))?;
    tracing::info!(sessions = restored, file = %path.display(), "sessions restored from the snapshot");
    // Fails at the start, because at shutdown it would be too late to choose another path.
    write(sessions, path).await
}

/// Writes the sessions for the next run.
pub(super) async fn write(sessions: &Sessions, path: &Path) -> Result<(), String> {
    let written = embedded(sessions)?.snapshot_to(path).await;
    let written = written.map_err(|error| message("cannot write", path, &error))?;
    tracing::info!(sessions = written, file = %path.display(), "sessions written to the snapshot");
    Ok(())
}

type InMemory = fleeting::Cache<String, Session, std::hash::RandomState>;

fn embedded(sessions: &Sessions) -> Result<&InMemory, String> {
    match sessions {
        Sessions::Embedded(sessions) => Ok(sessions),
        #[cfg(feature = "redis")]
        Sessions::Shared(_) => {
            Err("sessions on a Redis server need no snapshot; omit --snapshot".into())
        }
    }
}

fn message(what: &str, path: &Path, error: &(dyn Error + 'static)) -> String {
    let path = path.display();
    match error.source() {
        Some(reason) => format!("{what} {path}: {error}: {reason}"),
        None => format!("{what} {path}: {error}"),
    }
}

/// Decodes a session as written by `pack`.
impl<'de> Deserialize<'de> for Session {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Packed;

        impl Visitor<'_> for Packed {
            type Value = Session;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a session as bytes")
            }

            fn visit_bytes<E: de::Error>(self, packed: &[u8]) -> Result<Session, E> {
                self.visit_byte_buf(packed.to_vec())
            }

            fn visit_byte_buf<E: de::Error>(self, packed: Vec<u8>) -> Result<Session, E> {
                // Copied, because a slice of `packed` would also keep the TTL in memory.
                let Session { body, ttl } = unpack(packed);
                Ok(Session { body: Bytes::copy_from_slice(&body), ttl })
            }
        }

        deserializer.deserialize_byte_buf(Packed)
    }
}
