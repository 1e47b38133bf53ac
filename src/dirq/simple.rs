mod layout;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::BoxFuture;

pub(super) use self::layout::Simple;
use super::{
    Error, Lock, Name, Purge, PurgeReport,
    blocking::{Span, run},
    protocol::{Held, Protocol},
    root::Options,
    set::Browse,
    walk::Walk,
};

/// A queue that holds a file for each element: the `QueueSimple` of the other implementations.
///
/// It is a handle: cheap to clone, and all clones are one. Other processes, in whatever language, may use the
/// same directory at the same time. What holds for all directory queues is in [the module](super).
///
/// # Panics
///
/// Its calls may panic outside of a Tokio runtime, which has the threads that wait for the disk.
///
/// # Examples
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
///         println!("{name} holds {:?}", queue.get(&name).await?);
///         queue.remove(&name).await?;
///     }
/// }
/// assert_eq!(queue.count().await?, 0);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct QueueSimple {
    files: Arc<Simple>,
}

impl QueueSimple {
    /// Opens the queue in the directory `path`, which is made if need be, with those above it.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where it can't be made, or is no directory.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::builder(path).open().await
    }

    /// Opens it otherwise than by default.
    pub fn builder(path: impl AsRef<Path>) -> QueueSimpleBuilder {
        QueueSimpleBuilder {
            options: Options::new(path.as_ref()),
            granularity: Duration::from_secs(60),
        }
    }

    /// The queue's directory, as an absolute path.
    pub fn path(&self) -> &Path {
        self.files.top().path()
    }

    /// Adds an element that holds `data`, and returns its name.
    ///
    /// Others see it whole or not at all. Its name is later than all that this queue gave before; elements of
    /// several processes come in the order of their clocks.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], as on a full disk: then it leaves nothing behind. But where only the last step of
    /// [`sync`](QueueSimpleBuilder::sync) failed, the element is there.
    ///
    /// # Cancel safety
    ///
    /// Who drops the future can't know whether the element is added.
    #[doc(alias = "enqueue")]
    pub async fn add(&self, data: impl AsRef<[u8]>) -> Result<Name, Error> {
        let data = data.as_ref().to_vec();
        let span = Span::of_data(data.len());
        run("add to", span, &self.files, move |files| files.add(&data)).await
    }

    /// Adds an element for each of `bodies`, in their order, at once: quicker than one by one.
    ///
    /// All are written before the first is added: where that fails, none is. With
    /// [`sync`](QueueSimpleBuilder::sync), their directory is synced once.
    ///
    /// # Errors
    ///
    /// As [`add`](Self::add). [`Error::Partial`] names those that were added before one that could not be.
    ///
    /// # Cancel safety
    ///
    /// Who drops the future can't know what is added.
    pub async fn add_many<B: AsRef<[u8]>>(
        &self,
        bodies: impl IntoIterator<Item = B>,
    ) -> Result<Vec<Name>, Error> {
        let mut data = Vec::new();
        let mut ends = Vec::new();
        for body in bodies {
            data.extend_from_slice(body.as_ref());
            ends.push(data.len());
        }
        run("add to", Span::Long, &self.files, move |files| {
            let mut start = 0;
            let body = |&end: &usize| &data[std::mem::replace(&mut start, end)..end];
            files.add_many(&ends.iter().map(body).collect::<Vec<_>>())
        })
        .await
    }

    /// Moves a file into the queue, and returns the name of the element that it now is.
    ///
    /// It keeps its owner, mode and times.
    ///
    /// # Errors
    ///
    /// [`Error::OtherFileSystem`] where it would have to be copied, [`Error::Foreign`] where it is no regular
    /// file, and [`Error::Io`]. In each case it stays where it is.
    ///
    /// # Cancel safety
    ///
    /// Who drops the future can't know whether it is moved.
    pub async fn add_path(&self, path: impl AsRef<Path>) -> Result<Name, Error> {
        let path = path.as_ref().to_owned();
        // The file may be on a disk, and then a look at it waits.
        run("add to", Span::Long, &self.files, move |files| files.add_path(&path)).await
    }

    /// How many elements there are, locked ones included. Costs a look at each.
    pub async fn count(&self) -> Result<u64, Error> {
        run("count", Span::Long, &self.files, |files| files.count()).await
    }

    /// The names of all elements in order, locked ones included.
    #[doc(alias = "first")]
    pub fn names(&self) -> Walk<Name> {
        Walk::names(self.files.clone())
    }

    /// Locks an element; false where somebody else has, or it is gone.
    ///
    /// The lock lasts until [`unlock`](Self::unlock) or [`remove`](Self::remove), or until a
    /// [`purge`](Self::purge) of any process finds it too old: [`touch`](Self::touch) it in long work.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`], [`Error::Foreign`] and [`Error::Io`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: where the future is dropped, the lock is given back, if it was got.
    pub async fn lock(&self, name: &Name) -> Result<bool, Error> {
        let name = *name;
        name.check()?;
        let held =
            run("lock", Span::Short, &self.files, move |files| Held::lock(files, name)).await?;
        Ok(held.map(Held::keep).is_some())
    }

    /// Locks and reads all elements that can be locked, in order, and then ends. Those that others have locked
    /// are passed over.
    ///
    /// Whoever works on many elements does it by this: several are locked by one call to another thread, as long
    /// as they are asked for quickly. Those that were locked and not asked for are given back when the stream is
    /// dropped, or a second old. In [memory](super#cost), each is locked when it is asked for. An element that can't
    /// be read comes as an error, and is unlocked.
    ///
    /// # Examples
    ///
    /// ```
    /// use fleeting::dirq::{Error, QueueSimple};
    ///
    /// async fn drain(queue: QueueSimple) -> Result<(), Error> {
    ///     let mut jobs = queue.locked();
    ///     while let Some(job) = jobs.next().await.transpose()? {
    ///         if work(job.value()).await.is_ok() {
    ///             job.ack().await?;
    ///         } // else it is unlocked, and comes again to who asks anew
    ///     }
    ///     Ok(())
    /// }
    /// # async fn work(_: &[u8]) -> Result<(), ()> { Ok(()) }
    /// ```
    pub fn locked(&self) -> Walk<Lock<Bytes>> {
        Walk::locked(self.files.clone(), None)
    }

    /// Locks and reads all elements that can be locked, and those that are added later: it never ends.
    ///
    /// It sleeps until the system says that an element was added (inotify on Linux), and looks by itself `every`
    /// so often: for elements that were unlocked, for those that other machines add on a file system of the
    /// network, and where the system has no more watches to give. An element that was given back, or that can't
    /// be read, so comes again after at most that time, as an element or an error. Any number of tasks and
    /// processes may watch a queue: each element goes to one of them.
    ///
    /// Otherwise it is as [`locked`](Self::locked).
    ///
    /// # Panics
    ///
    /// On a runtime without time.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleeting::dirq::{Error, QueueSimple};
    ///
    /// async fn worker(queue: QueueSimple) -> Result<(), Error> {
    ///     let mut jobs = queue.watch(Duration::from_secs(5));
    ///     while let Some(job) = jobs.next().await.transpose()? {
    ///         println!("{}: {:?}", job.name(), job.value());
    ///         job.ack().await?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub fn watch(&self, every: Duration) -> Walk<Lock<Bytes>> {
        Walk::locked(self.files.clone(), Some(every))
    }

    /// Gives a lock back.
    ///
    /// # Errors
    ///
    /// [`Error::NotLocked`], also where the element is gone, [`Error::InvalidName`] and [`Error::Io`].
    pub async fn unlock(&self, name: &Name) -> Result<(), Error> {
        self.on("unlock", name, |files, name| files.unlock(name)).await
    }

    /// What an element that is locked holds.
    ///
    /// # Errors
    ///
    /// [`Error::NotLocked`], [`Error::InvalidName`], [`Error::Foreign`] and [`Error::Io`].
    pub async fn get(&self, name: &Name) -> Result<Bytes, Error> {
        self.on("read", name, |files, name| files.get(name)).await
    }

    /// The path of a file with what an element that is locked holds.
    ///
    /// It is there as long as the lock. The file is the queue's: who writes to it changes the element.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
    pub async fn get_path(&self, name: &Name) -> Result<PathBuf, Error> {
        self.on("look for", name, |files, name| files.get_path(name)).await
    }

    /// What an element holds, whether locked or not; none where it is gone.
    ///
    /// For a look at what others leave lying, without being in their way.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`], [`Error::Foreign`] and [`Error::Io`].
    pub async fn peek(&self, name: &Name) -> Result<Option<Bytes>, Error> {
        self.on("read", name, |files, name| files.peek(name)).await
    }

    /// Locks an element, reads it and removes it; none where somebody else has the lock, or it is gone.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock) and [`get`](Self::get): then the element stays, and its lock is given back.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: what it read may be lost with the future. Who can't lose it holds the lock until the
    /// work is done.
    pub async fn dequeue(&self, name: &Name) -> Result<Option<Bytes>, Error> {
        self.on("dequeue", name, |files, name| files.dequeue(name)).await
    }

    /// Removes an element that is locked, and its lock.
    ///
    /// # Errors
    ///
    /// [`Error::NotLocked`], [`Error::InvalidName`] and [`Error::Io`].
    pub async fn remove(&self, name: &Name) -> Result<(), Error> {
        self.on("remove", name, |files, name| files.remove(name)).await
    }

    /// Makes the age of an element zero, and so that of its lock: a purge lets it be for as long again.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidName`], and [`Error::Io`] where it is gone.
    pub async fn touch(&self, name: &Name) -> Result<(), Error> {
        self.on("touch", name, |files, name| files.touch(name)).await
    }

    /// Takes away what dead processes left: locks and half-written elements that are too old, and empty
    /// directories.
    ///
    /// Somebody has to, from time to time. It never takes an element. What others take away at the same time
    /// is no error. Costs a look at each element.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where it may not: what was done until then is done.
    pub async fn purge(&self, purge: Purge) -> Result<PurgeReport, Error> {
        run("purge", Span::Long, &self.files, move |files| files.purge(&purge)).await
    }

    async fn on<T: Send + 'static>(
        &self,
        operation: &'static str,
        name: &Name,
        work: impl FnOnce(&Simple, &Name) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let name = *name;
        name.check()?;
        run(operation, Span::Short, &self.files, move |files| work(files, &name)).await
    }
}

impl Browse for QueueSimple {
    fn id(&self) -> (u64, u64) {
        self.files.top().id()
    }

    fn path(&self) -> &Path {
        self.path()
    }

    fn count_all(&self) -> BoxFuture<'_, Result<u64, Error>> {
        Box::pin(self.count())
    }

    fn all_names(&self) -> Walk<Name> {
        self.names()
    }
}

impl fmt::Debug for QueueSimple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueSimple").field("path", &self.path()).finish_non_exhaustive()
    }
}

/// Opens a [`QueueSimple`] otherwise than by default.
#[derive(Clone, Debug)]
#[must_use]
pub struct QueueSimpleBuilder {
    options: Options,
    granularity: Duration,
}

impl QueueSimpleBuilder {
    /// Takes these bits of the mode from all files and directories that it makes, whatever the process' own
    /// umask. Defaults to the process' umask.
    pub fn umask(mut self, umask: u32) -> Self {
        self.options.umask = Some(umask);
        self
    }

    /// For how long new elements go to the same directory, in whole seconds. Defaults to 60 seconds.
    ///
    /// Zero is a second.
    pub fn granularity(mut self, granularity: Duration) -> Self {
        self.granularity = granularity;
        self
    }

    /// The last digit of new names, 0 to 15, so that processes that write at once don't meet. Defaults to a
    /// random one.
    pub fn rnd_hex(mut self, digit: u8) -> Self {
        self.options.rnd_hex = Some(digit);
        self
    }

    /// Whether new elements survive a crash of the machine: each add waits until the disk has the file and
    /// its name. Defaults to false, as in the other implementations.
    pub fn sync(mut self, sync: bool) -> Self {
        self.options.sync = sync;
        self
    }

    /// Opens the queue.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`], and [`Error::Io`] where the directory can't be made, or is none.
    pub async fn open(self) -> Result<QueueSimple, Error> {
        let Self { options, granularity } = self;
        let whole = granularity.subsec_nanos() == 0;
        let Some(granularity) = u32::try_from(granularity.as_secs()).ok().filter(|_| whole) else {
            let reason =
                format!("it is a number of whole seconds, below 2^32, and not {granularity:?}");
            return Err(Error::InvalidOption { option: "granularity", reason });
        };
        let top = options.open(&[]).await?;
        Ok(QueueSimple { files: Arc::new(Simple { top, granularity }) })
    }
}
