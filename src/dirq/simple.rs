//! Simple queues, which store each element as one file: the public methods of this kind, and its settings.

mod add;
mod layout;
mod lock;
mod protocol;
mod purge;

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;

use self::{add::PartsFile, layout::Simple};
use super::{
    DirQueue, DirQueueBuilder, Error, Name,
    add::Group,
    blocking::{self, Work, run},
    retry_budget::RetryBudget,
    root::Options,
};

/// A queue of byte strings, one file each, that programs in any language may share: the `QueueSimple` of the other
/// implementations.
///
/// ```
/// use fleeting::dirq::QueueSimple;
///
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let queue = QueueSimple::open(dir.path().join("jobs")).await?;
/// queue.add("one").await?;
/// queue.add("two").await?;
///
/// let mut names = queue.names();
/// while let Some(name) = names.next().await.transpose()? {
///     if queue.lock(&name).await? {
///         match queue.get(&name).await {
///             Ok(body) => {
///                 println!("{name} holds {body:?}");
///                 queue.remove(&name).await?;
///             }
///             // It stays in the queue and does not block other elements.
///             Err(error) => {
///                 eprintln!("{error}");
///                 queue.unlock(&name).await?;
///             }
///         }
///     }
/// }
/// assert_eq!(queue.count().await?, 0);
/// # Ok(()) }
/// ```
///
/// A `QueueSimple` is a handle: it is cheap to clone, and all clones share one queue. Other processes, in any language,
/// may use the same directory at the same time. See the [module documentation](super) for the guarantees of all
/// directory queues.
///
/// [`DirQueue`] documents the methods that `QueueSimple` and [`Queue`](super::Queue) have in common. Reading an element
/// returns [`Bytes`](bytes::Bytes).
pub type QueueSimple = DirQueue<Simple>;

/// Longer elements are copied and written in parts of this length, because the caller's bytes cannot be lent to the
/// thread that writes them.
const MAX_COPY: usize = 1 << 20;

impl DirQueue<Simple> {
    /// Opens the queue in the directory `path`. The directory and its parents are created if needed.
    ///
    /// ```
    /// # use fleeting::dirq::QueueSimple;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let jobs = QueueSimple::open(dir.path().join("spool/jobs")).await?;
    /// assert!(jobs.path().is_dir(), "created with its parents");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the directory cannot be created, or `path` is not a directory.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::builder(path).open().await
    }

    /// Returns a builder for a queue with custom settings.
    ///
    /// ```
    /// # use fleeting::dirq::QueueSimple;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let jobs = QueueSimple::builder(dir.path().join("jobs")).max_attempts(5).open().await?;
    /// # Ok(()) }
    /// ```
    pub fn builder(path: impl AsRef<Path>) -> QueueSimpleBuilder {
        let settings = SimpleSettings { granularity: Duration::from_secs(60) };
        DirQueueBuilder { options: Options::new(path.as_ref()), settings }
    }

    /// Adds an element with the content `data`, such as your job as JSON, and returns its name.
    ///
    /// ```
    /// # use fleeting::dirq::QueueSimple;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let jobs = QueueSimple::open(dir.path()).await?;
    /// let name = jobs.add("resize 7.png").await?; // any bytes, such as JSON
    /// println!("queued as {name}");
    /// # assert_eq!(jobs.count().await?, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// Other processes see the element completely or not at all. Its name sorts after all names that this handle and
    /// its clones assigned before. Elements of several processes are ordered by the clocks of these processes.
    ///
    /// If the directory of the queue is missing, it is created again, even if only its disk is not mounted: check the
    /// mount when your service starts ([*Limits*](super#limits)).
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`], [`Error::Full`], and [`Error::Io`], for instance if the disk is full: nothing is left
    /// behind. If only the last step of [`sync`](QueueSimpleBuilder::sync) failed, the element is in the queue, and
    /// [`Error::Partial`] contains its name.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: if the future is dropped, the element may or may not have been added.
    #[doc(alias = "enqueue")]
    pub async fn add(&self, data: impl AsRef<[u8]>) -> Result<Name, Error> {
        if data.as_ref().len() > MAX_COPY {
            return self.add_in_parts(data.as_ref()).await;
        }
        let data = Bytes::copy_from_slice(data.as_ref());
        let permit = self.reserve_capacity(1).await?;
        self.add_one(data, permit).await
    }

    /// Adds an element without a copy of it: each part is copied when it is written.
    async fn add_in_parts(&self, data: &[u8]) -> Result<Name, Error> {
        self.protocol.root.check_size(data.len() as u64, || self.path().to_owned())?;
        let mut permit = self.reserve_capacity(1).await?;
        let mut retries = RetryBudget::of("add to");
        loop {
            let written = match self.write_in_parts(data).await {
                // The umask may not permit this process to open its own file again.
                Err(Error::Io { source, .. }) if source.kind() == ErrorKind::PermissionDenied => {
                    return self.add_one(Bytes::copy_from_slice(data), permit).await;
                }
                written => written?,
            };
            if let Some(parts) = written {
                // The permit is held until the element is in the queue, even if the caller is dropped.
                let publish = move |queue: &Arc<Simple>| Ok((queue.publish_parts(parts)?, permit));
                let (name, unused) = run("add to", Work::Long, &self.protocol, publish).await?;
                if let Some(name) = name {
                    return Ok(name);
                }
                permit = unused;
            }
            // A purge took the file for the leftover of a crashed writer.
            retries.spend(|| self.path().to_owned())?;
        }
    }

    /// Writes the parts of an element. Returns `None` if a purge has removed the file in the meantime.
    async fn write_in_parts(&self, data: &[u8]) -> Result<Option<PartsFile>, Error> {
        let mut written = None;
        for part in data.chunks(MAX_COPY) {
            let (parts, part) = (written.take(), part.to_vec());
            let write = move |queue: &Arc<Simple>| queue.write_part(parts, &part);
            written = run("add to", Work::Long, &self.protocol, write).await?;
            if written.is_none() {
                break;
            }
        }
        Ok(written)
    }

    /// Adds one element for each of `bodies`, in order. On a disk, this is usually faster than single adds, because all
    /// elements share one round trip to another thread.
    ///
    /// ```
    /// # use fleeting::dirq::QueueSimple;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let jobs = QueueSimple::open(dir.path()).await?;
    /// let names = jobs.add_many((1..=100).map(|picture| format!("resize {picture}.png"))).await?;
    /// assert_eq!(names.len(), 100);
    /// # Ok(()) }
    /// ```
    ///
    /// The data of all elements is written first; if that fails, no element is added. The elements are then added one
    /// after the other; if one of these steps fails, the earlier elements stay in the queue ([`Error::Partial`]). With
    /// [`sync`](QueueSimpleBuilder::sync), their directory is synced once.
    ///
    /// # Errors
    ///
    /// As for [`add`](Self::add). [`Error::Full`] if there is no capacity for all of them. [`Error::Partial`] contains
    /// the names of the elements that were added: all of them if only [`sync`](QueueSimpleBuilder::sync) failed,
    /// otherwise those before the one that failed.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: if the future is dropped, any number of the elements may have been added.
    pub fn add_many<B: AsRef<[u8]>>(
        &self,
        bodies: impl IntoIterator<Item = B>,
    ) -> impl Future<Output = Result<Vec<Name>, Error>> {
        // Consumed here because the caller's iterator may not be `Send`, and the future must be.
        let copy = |body: B| Bytes::copy_from_slice(body.as_ref());
        self.add_all(bodies.into_iter().map(copy).collect())
    }

    /// Moves your file into the queue, and returns the name of the new element. Use it for elements that are too large
    /// for memory.
    ///
    /// ```
    /// # use fleeting::dirq::QueueSimple;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # std::fs::create_dir(dir.path().join("uploads"))?;
    /// // An upload is written next to the queue, and moved into it when it is complete.
    /// let films = QueueSimple::open(dir.path().join("films")).await?;
    /// let upload = dir.path().join("uploads/film.mkv");
    /// std::fs::write(&upload, "a very long film")?;
    /// films.add_path(&upload).await?;
    /// assert!(!upload.exists());
    /// # Ok(()) }
    /// ```
    ///
    /// The file keeps its owner, mode and times.
    ///
    /// # Errors
    ///
    /// [`Error::OtherFileSystem`] if the file would have to be copied, [`Error::Foreign`] if it is not a regular file,
    /// [`Error::TooLarge`], [`Error::Full`], and [`Error::Io`]. After these errors, the file is where it was. If only
    /// the last step of [`sync`](QueueSimpleBuilder::sync) failed, the file has been moved, and [`Error::Partial`]
    /// contains its name.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: if the future is dropped, the file may or may not have been moved.
    pub async fn add_path(&self, path: impl AsRef<Path>) -> Result<Name, Error> {
        let path = path.as_ref().to_owned();
        let permit = self.reserve_capacity(1).await?;
        // Never in place: the file may be on a disk, so even `lstat` can block.
        run("add to", Work::Long, &self.protocol, move |queue| {
            let _permit = permit;
            queue.add_path(&path)
        })
        .await
    }

    /// Returns the path of a file with the content of a locked element.
    ///
    /// ```
    /// # use fleeting::dirq::QueueSimple;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let films = QueueSimple::open(dir.path()).await?;
    /// let name = films.add("a very long film").await?;
    /// films.lock(&name).await?;
    /// // Pass it to a program that reads files.
    /// let path = films.get_path(&name).await?;
    /// assert_eq!(std::fs::read(path)?, b"a very long film");
    /// # Ok(()) }
    /// ```
    ///
    /// The file exists as long as the lock. It belongs to the queue: writing to it changes the element.
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get).
    pub async fn get_path(&self, name: &Name) -> Result<PathBuf, Error> {
        self.on("look for", name, |queue, name| queue.get_path(name)).await
    }
}

/// Builder of a [`QueueSimple`]. [`DirQueueBuilder`] documents the settings that it has in common with
/// [`QueueBuilder`](super::QueueBuilder).
pub type QueueSimpleBuilder = DirQueueBuilder<SimpleSettings>;

/// Settings of simple queues. `pub` only because it is a parameter of [`QueueSimpleBuilder`]. Other crates cannot name
/// it.
#[derive(Clone, Debug)]
pub struct SimpleSettings {
    granularity: Duration,
}

impl DirQueueBuilder<SimpleSettings> {
    /// Sets the time for which new elements share one directory, in whole seconds. Zero means one second. Defaults to
    /// 60 seconds.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::dirq::QueueSimple;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// // Few jobs: fewer directories.
    /// let jobs = QueueSimple::builder(dir.path()).granularity(Duration::from_secs(3_600)).open().await?;
    /// # Ok(()) }
    /// ```
    pub fn granularity(mut self, granularity: Duration) -> Self {
        self.settings.granularity = granularity;
        self
    }

    /// Bounds the number of elements in the queue. An add above the bound fails with [`Error::Full`], or
    /// [waits](Self::wait_for_room). Zero rejects all adds. Defaults to no bound.
    ///
    /// ```
    /// # use fleeting::dirq::{Error, QueueSimple};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let jobs = QueueSimple::builder(dir.path()).max_elements(1).open().await?;
    /// jobs.add("one").await?;
    /// assert!(matches!(jobs.add("two").await, Err(Error::Full { max_elements: 1, .. })));
    /// # Ok(()) }
    /// ```
    ///
    /// All elements count, including locked and dead ones. The bound is exact if one process adds to the queue, with
    /// any number of clones. If other processes also add elements, the bound may be exceeded. Counting reads the whole
    /// queue, so each process counts only occasionally. Between two counts, it adds at most an eighth of the free
    /// capacity. Other implementations ignore the bound.
    pub fn max_elements(mut self, max_elements: u64) -> Self {
        self.options.max_elements = Some(max_elements);
        self
    }

    /// Opens the queue.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fleeting::dirq::{Error, QueueSimple};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let half_a_second = Duration::from_millis(500);
    /// let invalid = QueueSimple::builder(dir.path()).granularity(half_a_second).open().await;
    /// assert!(matches!(invalid, Err(Error::InvalidOption { option: "granularity", .. })));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`], and [`Error::Io`] if the directory cannot be created, or the path is not a directory.
    pub async fn open(self) -> Result<QueueSimple, Error> {
        let Self { options, settings: SimpleSettings { granularity } } = self;
        let whole = granularity.subsec_nanos() == 0;
        let Some(granularity) = u32::try_from(granularity.as_secs()).ok().filter(|_| whole) else {
            let reason =
                format!("must be a whole number of seconds below 2^32, got {granularity:?}");
            return Err(Error::InvalidOption { option: "granularity", reason });
        };
        let root = blocking::open(options, &[]).await?;
        Ok(DirQueue::new(Simple { root, granularity, sync_group: Group::default() }))
    }
}
