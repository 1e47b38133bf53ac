//! The simple queue: a file for each element. What users call on this kind alone, and its builder.

mod add;
mod layout;
mod lock;
mod protocol;
mod purge;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use self::layout::Simple;
use super::{
    DirQueue, Error, Name,
    blocking::{Work, run, run_blocking},
    group::{self, Group},
    root::Options,
};

/// A queue that holds a file for each element: the `QueueSimple` of the other implementations.
///
/// It is a handle: cheap to clone, and all clones are one. Other processes, in whatever language, may use the
/// same directory at the same time. What holds for all directory queues is in [the module](super).
///
/// What it has in common with the other kind is in [`DirQueue`]. What it reads is [`Bytes`](bytes::Bytes).
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
///         match queue.get(&name).await {
///             Ok(body) => {
///                 println!("{name} holds {body:?}");
///                 queue.remove(&name).await?;
///             }
///             // It stays, and is in nobody's way.
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
pub type QueueSimple = DirQueue<Simple>;

impl DirQueue<Simple> {
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

    /// Adds an element that holds `data`, and returns its name.
    ///
    /// Others see it whole or not at all. Its name is later than all that this queue gave before; elements of
    /// several processes come in the order of their clocks.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`], [`Error::Full`], and [`Error::Io`], as on a full disk: then it leaves nothing behind. But
    /// where only the last step of [`sync`](QueueSimpleBuilder::sync) failed, the element is there: [`Error::Partial`]
    /// has its name.
    ///
    /// # Cancel safety
    ///
    /// Who drops the future can't know whether the element is added.
    #[doc(alias = "enqueue")]
    pub async fn add(&self, data: impl AsRef<[u8]>) -> Result<Name, Error> {
        let data = data.as_ref().to_vec();
        let permit = self.reserve_capacity(1).await?;
        if group::accepts(&self.protocol.root, data.len()) {
            return group::add(&self.protocol, data, permit).await;
        }
        let work_length = Work::for_add(&self.protocol.root, data.len());
        run("add to", work_length, &self.protocol, move |queue| {
            let _permit = permit;
            queue.add(&data)
        })
        .await
    }

    /// Adds an element for each of `bodies`, in their order, at once: quicker than one by one.
    ///
    /// All are written before the first is added: where that fails, none is. With
    /// [`sync`](QueueSimpleBuilder::sync), their directory is synced once.
    ///
    /// # Errors
    ///
    /// As [`add`](Self::add); [`Error::Full`] where there is no room for all. [`Error::Partial`] names those that are
    /// there: all, where only [`sync`](QueueSimpleBuilder::sync) failed, or those before one that could not be added.
    ///
    /// # Cancel safety
    ///
    /// Who drops the future can't know what is added.
    pub fn add_many<B: AsRef<[u8]>>(
        &self,
        bodies: impl IntoIterator<Item = B>,
    ) -> impl Future<Output = Result<Vec<Name>, Error>> {
        // The caller's iterator may be of one thread alone, and the future is to go to any.
        let mut data = Vec::new();
        let mut ends = Vec::new();
        for body in bodies {
            data.extend_from_slice(body.as_ref());
            ends.push(data.len());
        }
        async move {
            let permit = self.reserve_capacity(ends.len() as u64).await?;
            run("add to", Work::Long, &self.protocol, move |queue| {
                let _permit = permit;
                let mut start = 0;
                let body = |&end: &usize| &data[std::mem::replace(&mut start, end)..end];
                queue.add_many(&ends.iter().map(body).collect::<Vec<_>>())
            })
            .await
        }
    }

    /// Moves a file into the queue, and returns the name of the element that it now is.
    ///
    /// It keeps its owner, mode and times.
    ///
    /// # Errors
    ///
    /// [`Error::OtherFileSystem`] where it would have to be copied, [`Error::Foreign`] where it is no regular
    /// file, [`Error::TooLarge`], [`Error::Full`], and [`Error::Io`]. In each case it stays where it is. But where only the last step of
    /// [`sync`](QueueSimpleBuilder::sync) failed it is moved, and [`Error::Partial`] has its name.
    ///
    /// # Cancel safety
    ///
    /// Who drops the future can't know whether it is moved.
    pub async fn add_path(&self, path: impl AsRef<Path>) -> Result<Name, Error> {
        let path = path.as_ref().to_owned();
        let permit = self.reserve_capacity(1).await?;
        // The file may be on a disk, and then a look at it waits.
        run("add to", Work::Long, &self.protocol, move |queue| {
            let _permit = permit;
            queue.add_path(&path)
        })
        .await
    }

    /// The path of a file with what an element that is locked holds.
    ///
    /// It is there as long as the lock. The file is the queue's: who writes to it changes the element.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
    pub async fn get_path(&self, name: &Name) -> Result<PathBuf, Error> {
        self.on("look for", name, |queue, name| queue.get_path(name)).await
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

    /// How many elements the queue may have: an add that would make it more is refused ([`Error::Full`]), or
    /// [waits](Self::wait_for_room). Zero refuses all. Defaults to no bound.
    ///
    /// It counts all that is there, locked and dead elements included. Of one process, with its clones, it is exact.
    /// Several that add, or other implementations, who don't know of it, may add some more: each counts anew when it has
    /// added an eighth of the room that there was, as to count is to look at each element.
    pub fn max_elements(mut self, max_elements: u64) -> Self {
        self.options.max_elements = Some(max_elements);
        self
    }

    /// Lets adds wait while there is no room for them, and look for it `every` so often, in the order of asking. What is
    /// more than the queue may ever have is refused all the same. Defaults to none: they are refused.
    ///
    /// Then [`add`](DirQueue::add) and its like need a runtime with time. One that waits, and is kept without being polled,
    /// holds up those behind it.
    pub fn wait_for_room(mut self, every: Duration) -> Self {
        self.options.wait_for_room = Some(every);
        self
    }

    /// The last digit of new names, 0 to 15, so that processes that write at once don't meet. Defaults to a
    /// random one.
    pub fn rnd_hex(mut self, digit: u8) -> Self {
        self.options.rnd_hex = Some(digit);
        self
    }

    /// Whether new elements survive a crash of the machine: each add waits until the disk has the file and
    /// its name, and those of the directories that it is in, up to the mount. Defaults to false, as in the other
    /// implementations.
    ///
    /// Adds of several callers at once are [synced together](super#cost).
    pub fn sync(mut self, sync: bool) -> Self {
        self.options.sync = sync;
        self
    }

    /// How many bytes an element may have. Longer ones are neither added nor read ([`Error::TooLarge`]). Defaults to
    /// 1 GiB.
    ///
    /// What is read is in memory as a whole, and anybody who may write to the queue says how long it is.
    pub fn max_size(mut self, bytes: u64) -> Self {
        self.options.max_size = bytes;
        self
    }

    /// How long an element that failed stays away: `first` after its first failure, and twice as long after each, up to
    /// `max`. It is jittered: half to three halves of that. Defaults to a second and a minute where there is a
    /// [`max_attempts`](Self::max_attempts), else to none: what failed may come again at once.
    ///
    /// From then on [deliveries are counted](super#retries-and-dead-letters).
    pub fn backoff(mut self, first: Duration, max: Duration) -> Self {
        let retries = self.options.retries();
        (retries.first, retries.max) = (first, max);
        self
    }

    /// How often an element may fail before it is [dead](DirQueue::take_dead). Defaults to no bound.
    ///
    /// From then on [deliveries are counted](super#retries-and-dead-letters).
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.options.retries().max_attempts = Some(attempts);
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
        let path = options.path.clone();
        let root = run_blocking("open", path, |_| options.open(&[])).await?;
        Ok(QueueSimple {
            protocol: Arc::new(Simple { root, granularity, sync_group: Group::default() }),
        })
    }
}
