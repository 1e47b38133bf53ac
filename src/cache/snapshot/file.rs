//! Files of snapshots: replaced as a whole, and readable only for their owner.

#[cfg(unix)]
use std::os::unix::fs::OpenOptionsExt as _;
use std::{
    fs,
    hash::{BuildHasher, RandomState},
    io,
    path::{Path, PathBuf},
};

use tokio::{fs::File, runtime::Handle, task::spawn_blocking};

/// A new file next to the one that it replaces. Dropping it removes it, unless it has been renamed.
pub(super) struct SnapshotFile {
    pub(super) file: File,
    path: Option<PathBuf>,
}

impl SnapshotFile {
    /// Creates a file with a random name in the directory of `target`. It never opens what is there already: another
    /// user may have put a link or a file of their own in its place.
    pub(super) async fn create(target: &Path) -> io::Result<Self> {
        let target = target.to_owned();
        // One call, whose result removes the file if the caller was cancelled.
        let created = spawn_blocking(move || Self::create_now(&target)).await;
        created.unwrap_or_else(|error| Err(error.into()))
    }

    fn create_now(target: &Path) -> io::Result<Self> {
        let name = target.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let mut options = fs::OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        options.mode(0o600);
        loop {
            let mut new_name = name.to_owned();
            new_name.push(format!(".{:016x}.new", RandomState::new().hash_one(target)));
            let path = target.with_file_name(new_name);
            match options.open(&path) {
                Ok(file) => return Ok(Self { file: File::from_std(file), path: Some(path) }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Syncs the file and renames it to `target`. A crash leaves either the old file there or the new one.
    pub(super) async fn replace(mut self, target: &Path) -> io::Result<()> {
        self.file.sync_all().await?;
        if let Some(path) = &self.path {
            tokio::fs::rename(path, target).await?;
        }
        self.path = None;
        sync_directory(target).await
    }
}

impl Drop for SnapshotFile {
    fn drop(&mut self) {
        let Some(path) = self.path.take() else { return };
        let remove = move || drop(fs::remove_file(path));
        // The worker of a cancelled call does not wait for the disk.
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_) => remove(),
        }
    }
}

/// A rename survives a crash of the machine once its directory is synced.
async fn sync_directory(path: &Path) -> io::Result<()> {
    match path.parent().filter(|_| cfg!(unix)) {
        Some(directory) if directory.as_os_str().is_empty() => {
            File::open(".").await?.sync_all().await
        }
        Some(directory) => File::open(directory).await?.sync_all().await,
        None => Ok(()),
    }
}
