//! The null queue, which discards all elements.

use std::path::{Path, PathBuf};

use super::{Error, Name, Purge, PurgeReport, Walk, blocking::run_blocking, fs::unlink};
use bytes::Bytes;

/// A queue that discards everything added to it, like `/dev/null`.
///
/// ```
/// use fleeting::dirq::{Error, QueueNull};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// let queue = QueueNull::new();
/// let name = queue.add("this is discarded").await?;
/// assert_eq!(name.to_string(), "NULL");
/// assert_eq!(queue.count().await?, 0);
/// assert!(matches!(queue.lock(&name).await, Err(Error::Unsupported { operation: "lock" })));
/// # Ok(()) }
/// ```
///
/// It can replace a [`QueueSimple`](super::QueueSimple) whose elements you do not need. It is always empty. The methods
/// that lock, read or remove elements return errors, as in the other implementations.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueNull(());

impl QueueNull {
    /// Creates a null queue.
    pub fn new() -> Self {
        Self::default()
    }

    /// Discards `data`. The returned name is always `NULL`.
    ///
    /// ```
    /// # use fleeting::dirq::QueueNull;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// // A test of a producer needs no files.
    /// let queue = QueueNull::new();
    /// assert_eq!(queue.add("resize 7.png").await?.to_string(), "NULL");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Never fails.
    #[doc(alias = "enqueue")]
    pub async fn add(&self, data: impl AsRef<[u8]>) -> Result<Name, Error> {
        drop(data);
        Ok(Name::NULL)
    }

    /// Discards each of `bodies`.
    ///
    /// ```
    /// # use fleeting::dirq::QueueNull;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let queue = QueueNull::new();
    /// assert_eq!(queue.add_many(["one", "two"]).await?.len(), 2);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Never fails.
    pub async fn add_many<B: AsRef<[u8]>>(
        &self,
        bodies: impl IntoIterator<Item = B>,
    ) -> Result<Vec<Name>, Error> {
        Ok(bodies.into_iter().map(|_| Name::NULL).collect())
    }

    /// Removes the file at `path`.
    ///
    /// ```
    /// # use fleeting::dirq::QueueNull;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let file = dir.path().join("upload");
    /// std::fs::write(&file, "not needed")?;
    /// QueueNull::new().add_path(&file).await?;
    /// assert!(!file.exists());
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    ///
    /// Panics outside of a Tokio runtime.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the file cannot be removed.
    pub async fn add_path(&self, path: impl AsRef<Path>) -> Result<Name, Error> {
        let path = path.as_ref().to_owned();
        let directory = path.parent().unwrap_or(&path).to_owned();
        let remove = move || unlink(&path).map_err(Error::on("remove", || path));
        run_blocking("remove", &directory, remove).await?;
        Ok(Name::NULL)
    }

    /// Returns 0.
    ///
    /// # Errors
    ///
    /// Never fails.
    pub async fn count(&self) -> Result<u64, Error> {
        Ok(0)
    }

    /// Returns an empty stream.
    pub fn names(&self) -> Walk<Name> {
        Walk::new(futures_util::stream::empty())
    }

    /// Does nothing.
    ///
    /// # Errors
    ///
    /// Never fails.
    pub async fn purge(&self, _: Purge) -> Result<PurgeReport, Error> {
        Ok(PurgeReport::default())
    }

    /// Always fails, because there is nothing to lock.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`].
    pub async fn lock(&self, _: &Name) -> Result<bool, Error> {
        unsupported("lock")
    }

    /// Always fails, because there is nothing to unlock.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`].
    pub async fn unlock(&self, _: &Name) -> Result<(), Error> {
        unsupported("unlock")
    }

    /// Always fails, because there is nothing to read.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`].
    pub async fn get(&self, _: &Name) -> Result<Bytes, Error> {
        unsupported("get")
    }

    /// Always fails, because there is no file.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`].
    pub async fn get_path(&self, _: &Name) -> Result<PathBuf, Error> {
        unsupported("get_path")
    }

    /// Always fails, because there is nothing to remove.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`].
    pub async fn remove(&self, _: &Name) -> Result<(), Error> {
        unsupported("remove")
    }

    /// Always fails, because there is nothing to touch.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`].
    pub async fn touch(&self, _: &Name) -> Result<(), Error> {
        unsupported("touch")
    }
}

fn unsupported<T>(operation: &'static str) -> Result<T, Error> {
    Err(Error::Unsupported { operation })
}
