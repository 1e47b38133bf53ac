//! The sessions in a file, from one run to the next. There is always a whole one: it is written beside the one that it
//! replaces, and renamed.

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

/// Reads the sessions of the last run, if there was one, and sees to it that this one's can be written.
pub(super) async fn restore(sessions: &Sessions, path: &Path) -> Result<(), String> {
    // Now, and not when it is too late.
    let new = new_file(path);
    create(&new).await.map_err(|error| sentence("can't write", &new, &error))?;
    fs::remove_file(&new).await.map_err(|error| sentence("can't write", &new, &error))?;
    let file = match File::open(path).await {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(sentence("can't read", path, &error)),
    };
    let restored = here(sessions)?.restore(file).await;
    let restored = restored.map_err(|error| sentence("can't restore", path, &error))?;
    tracing::info!(sessions = restored, file = %path.display(), "restored");
    Ok(())
}

/// Writes the sessions for the next run.
pub(super) async fn write(sessions: &Sessions, path: &Path) -> Result<(), String> {
    let new = new_file(path);
    let written = async {
        let mut file = create(&new).await?;
        let written = here(sessions)?.snapshot_compressed(&mut file).await?;
        file.sync_all().await?;
        fs::rename(&new, path).await?;
        sync_folder(path).await?;
        Ok::<_, Box<dyn Error + Send + Sync>>(written)
    };
    let written = written.await.map_err(|error| sentence("can't write", path, &*error))?;
    tracing::info!(sessions = written, file = %path.display(), "written");
    Ok(())
}

type InMemory = fleeting::Cache<String, Session, std::hash::RandomState>;

fn here(sessions: &Sessions) -> Result<&InMemory, String> {
    match sessions {
        Sessions::Here(sessions) => Ok(sessions),
        #[cfg(feature = "redis")]
        Sessions::Shared(_) => Err("what a server keeps needs no snapshot".into()),
    }
}

/// Whoever has a session is who it says, so nobody else may read them.
async fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    options.mode(0o600);
    options.open(path).await
}

/// A rename is on the disk when its folder is.
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

fn sentence(what: &str, path: &Path, error: &(dyn Error + 'static)) -> String {
    let path = path.display();
    match error.source() {
        Some(reason) => format!("{what} {path}: {error}: {reason}"),
        None => format!("{what} {path}: {error}"),
    }
}

/// As it is in a snapshot, and on a server: see `pack`.
impl<'de> Deserialize<'de> for Session {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Packed;

        impl Visitor<'_> for Packed {
            type Value = Session;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a session, in bytes")
            }

            fn visit_bytes<E: de::Error>(self, packed: &[u8]) -> Result<Session, E> {
                self.visit_byte_buf(packed.to_vec())
            }

            fn visit_byte_buf<E: de::Error>(self, packed: Vec<u8>) -> Result<Session, E> {
                // Copied: else the time to live would be kept in front of each body.
                let Session { body, ttl } = unpack(packed);
                Ok(Session { body: Bytes::copy_from_slice(&body), ttl })
            }
        }

        deserializer.deserialize_byte_buf(Packed)
    }
}
