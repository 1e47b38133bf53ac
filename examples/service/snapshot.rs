//! Keeps the sessions in a file over a restart. The file is replaced as a whole: a new one is written next to it and
//! renamed.

use std::{
    error::Error,
    fmt, io,
    path::{Path, PathBuf},
};

use axum::body::Bytes;
use serde::{
    Deserialize, Deserializer,
    de::{self, Visitor},
};
use tokio::fs::{self, File, OpenOptions};

use super::{
    Session,
    backend::{Sessions, unpack},
};

/// Restores the sessions of the last run, if there is a snapshot, and checks that a snapshot can be written.
pub(super) async fn restore(sessions: &Sessions, path: &Path) -> Result<(), String> {
    // Fails at the start, because at shutdown it would be too late to choose another path.
    let new = new_file(path);
    create(&new).await.map_err(|error| message("cannot write", &new, &error))?;
    fs::remove_file(&new).await.map_err(|error| message("cannot write", &new, &error))?;
    let file = match File::open(path).await {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(message("cannot read", path, &error)),
    };
    let restored = embedded(sessions)?.restore(file).await;
    let restored = restored.map_err(|error| message("cannot restore", path, &error))?;
    tracing::info!(sessions = restored, file = %path.display(), "sessions restored from the snapshot");
    Ok(())
}

/// Writes the sessions for the next run.
pub(super) async fn write(sessions: &Sessions, path: &Path) -> Result<(), String> {
    let new = new_file(path);
    let written = async {
        let mut file = create(&new).await?;
        let written = embedded(sessions)?.snapshot_compressed(&mut file).await?;
        // Before the rename, so that a crash cannot leave an incomplete file under the final name.
        file.sync_all().await?;
        fs::rename(&new, path).await?;
        sync_folder(path).await?;
        Ok::<_, Box<dyn Error + Send + Sync>>(written)
    };
    let written = written.await.map_err(|error| message("cannot write", path, &*error))?;
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

/// Creates a file that only its owner may read, because a session id authenticates its client.
async fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    options.mode(0o600);
    options.open(path).await
}

/// Syncs the directory: a rename survives a crash of the machine only after that.
async fn sync_folder(path: &Path) -> io::Result<()> {
    match path.parent().filter(|_| cfg!(unix)) {
        Some(folder) if folder.as_os_str().is_empty() => File::open(".").await?.sync_all().await,
        Some(folder) => File::open(folder).await?.sync_all().await,
        None => Ok(()),
    }
}

fn new_file(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
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
