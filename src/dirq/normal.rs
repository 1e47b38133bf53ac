mod add;
mod layout;
mod rotation;

use std::{fmt, path::Path, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;

pub(super) use self::layout::Normal;
use self::{
    layout::{OBSOLETE, TEMPORARY},
    rotation::Insertion,
};
use super::{
    Element, Error, Lock, Name, Purge, PurgeReport, Schema,
    blocking::{Span, run},
    protocol::{Held, Protocol},
    root::Options,
    set::Browse,
    walk::Walk,
};

/// A queue that holds a directory for each element, with a file for each field: the `Queue` of Python's `dirq`,
/// `Directory::Queue::Normal` of Perl's.
///
/// It is a handle: cheap to clone, and all clones are one. Other processes, in whatever language, may use the
/// same directory at the same time. What holds for all directory queues is in [the module](super).
///
/// A queue that writes or reads elements needs their [`Schema`]. Where one piece of data an element is enough,
/// [`QueueSimple`](super::QueueSimple) is faster.
///
/// # Panics
///
/// Its calls may panic outside of a Tokio runtime, which has the threads that wait for the disk.
///
/// # Examples
///
/// ```
/// use fleeting::dirq::{Element, Queue, Schema};
///
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let schema = Schema::new([("body", "string"), ("header", "table?")])?;
/// let queue = Queue::builder(dir.path().join("mail")).schema(schema).open().await?;
/// let mail = Element::new().with("body", "hello").with("header", [("to", "grace")]);
/// queue.add(mail.clone()).await?;
///
/// let mut names = queue.names();
/// while let Some(name) = names.next().await.transpose()? {
///     assert_eq!(queue.dequeue(&name).await?, Some(mail.clone()));
/// }
/// assert_eq!(queue.count().await?, 0);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Queue {
    files: Arc<Normal>,
}

impl Queue {
    /// Opens the queue in the directory `path` without a schema: it can't add or read elements, but do all else.
    ///
    /// The directory is made if need be, with those above it.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where it can't be made, or is no directory.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::builder(path).open().await
    }

    /// Opens it otherwise than by default, as with a schema.
    pub fn builder(path: impl AsRef<Path>) -> QueueBuilder {
        QueueBuilder { options: Options::new(path.as_ref()), schema: None, max_elements: 16_000 }
    }

    /// The queue's directory, as an absolute path.
    pub fn path(&self) -> &Path {
        self.files.top().path()
    }

    /// The fields of its elements, as it was opened with.
    pub fn schema(&self) -> Option<&Schema> {
        self.files.schema.as_ref()
    }

    /// Adds an element, and returns its name.
    ///
    /// Others see it whole or not at all. Its name is later than all that this queue gave before; elements of
    /// several processes come in the order of their clocks.
    ///
    /// # Errors
    ///
    /// [`Error::NoSchema`]; [`Error::UnexpectedField`], [`Error::MissingField`] and [`Error::WrongType`] where
    /// it is not as the schema says; [`Error::Io`], as on a full disk. Each leaves nothing behind. But where
    /// only the last step of [`sync`](QueueBuilder::sync) failed, the element is there.
    ///
    /// # Cancel safety
    ///
    /// Who drops the future can't know whether the element is added.
    #[doc(alias = "enqueue")]
    pub async fn add(&self, element: Element) -> Result<Name, Error> {
        let span = self.files.span_of_add(&element);
        run("add to", span, &self.files, move |files| files.add(element)).await
    }

    /// Adds the elements, in their order, at once: quicker than one by one.
    ///
    /// All are written before the first is added: where that fails, none is. With
    /// [`sync`](QueueBuilder::sync), their directory is synced once.
    ///
    /// # Errors
    ///
    /// As [`add`](Self::add). [`Error::Partial`] names those that were added before one that could not be.
    ///
    /// # Cancel safety
    ///
    /// Who drops the future can't know what is added.
    pub async fn add_many(
        &self,
        elements: impl IntoIterator<Item = Element>,
    ) -> Result<Vec<Name>, Error> {
        let elements: Vec<_> = elements.into_iter().collect();
        run("add to", Span::Long, &self.files, move |files| files.add_many(elements)).await
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
    /// use fleeting::dirq::{Error, Queue};
    ///
    /// async fn drain(queue: Queue) -> Result<(), Error> {
    ///     let mut jobs = queue.locked();
    ///     while let Some(job) = jobs.next().await.transpose()? {
    ///         if work(job.value()).await.is_ok() {
    ///             job.ack().await?;
    ///         } // else it is unlocked, and comes again to who asks anew
    ///     }
    ///     Ok(())
    /// }
    /// # async fn work(_: &fleeting::dirq::Element) -> Result<(), ()> { Ok(()) }
    /// ```
    pub fn locked(&self) -> Walk<Lock<Element>> {
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
    /// use fleeting::dirq::{Error, Queue};
    ///
    /// async fn worker(queue: Queue) -> Result<(), Error> {
    ///     let mut jobs = queue.watch(Duration::from_secs(5));
    ///     while let Some(job) = jobs.next().await.transpose()? {
    ///         println!("{}: {:?}", job.name(), job.value());
    ///         job.ack().await?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub fn watch(&self, every: Duration) -> Walk<Lock<Element>> {
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

    /// An element that is locked.
    ///
    /// Files in it that are not in the schema are passed over.
    ///
    /// # Errors
    ///
    /// [`Error::NotLocked`] and [`Error::NoSchema`]; [`Error::MissingFile`], [`Error::NotUtf8`],
    /// [`Error::InvalidTable`] and [`Error::Foreign`] where the element is not as the schema says;
    /// [`Error::InvalidName`] and [`Error::Io`].
    pub async fn get(&self, name: &Name) -> Result<Element, Error> {
        self.on("read", name, |files, name| files.get(name)).await
    }

    /// An element, whether locked or not; none where it is gone.
    ///
    /// For a look at what others leave lying, without being in their way.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get), but for [`Error::NotLocked`].
    pub async fn peek(&self, name: &Name) -> Result<Option<Element>, Error> {
        self.on("read", name, |files, name| files.peek(name)).await
    }

    /// Locks an element, reads it and unlocks it; none where somebody else has the lock, or it is gone.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock) and [`get`](Self::get). The lock is given back.
    pub async fn get_element(&self, name: &Name) -> Result<Option<Element>, Error> {
        let name = *name;
        name.check()?;
        run("read", Span::Short, &self.files, move |files| {
            let Some((held, element)) = Held::take(files, name)? else { return Ok(None) };
            held.unlock()?;
            Ok(Some(element))
        })
        .await
    }

    /// Locks an element, reads it and removes it; none where somebody else has the lock, or it is gone.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), [`get`](Self::get) and [`remove`](Self::remove): then the element stays, and
    /// its lock is given back.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: what it read may be lost with the future. Who can't lose it holds the lock until the
    /// work is done.
    pub async fn dequeue(&self, name: &Name) -> Result<Option<Element>, Error> {
        self.on("dequeue", name, |files, name| files.dequeue(name)).await
    }

    /// Removes an element that is locked, with all its files.
    ///
    /// # Errors
    ///
    /// [`Error::NotLocked`]; [`Error::Foreign`] where a file in it can't be a field, in which case it stays, and
    /// stays locked; [`Error::InvalidName`] and [`Error::Io`].
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

    /// Takes away what dead processes left: locks, elements that were on their way in or out and are too old,
    /// and empty directories.
    ///
    /// Somebody has to, from time to time. It never takes an element that is in the queue. What others take away
    /// at the same time is no error. Costs a look at each element.
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
        work: impl FnOnce(&Normal, &Name) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let name = *name;
        name.check()?;
        run(operation, Span::Short, &self.files, move |files| work(files, &name)).await
    }
}

impl Browse for Queue {
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

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("path", &self.path()).finish_non_exhaustive()
    }
}

/// Opens a [`Queue`] otherwise than by default.
#[derive(Clone, Debug)]
#[must_use]
pub struct QueueBuilder {
    options: Options,
    schema: Option<Schema>,
    max_elements: u32,
}

impl QueueBuilder {
    /// The fields of its elements. Defaults to none, which is enough to look after a queue, but not to add or
    /// read elements.
    pub fn schema(mut self, schema: Schema) -> Self {
        self.schema = Some(schema);
        self
    }

    /// How many elements there may be in a directory before the next is begun. Defaults to 16,000.
    ///
    /// It is about: each process that adds counts what is there from time to time, and not at each add.
    pub fn max_elements(mut self, max_elements: u32) -> Self {
        self.max_elements = max_elements;
        self
    }

    /// Takes these bits of the mode from all files and directories that it makes, whatever the process' own
    /// umask. Defaults to the process' umask.
    pub fn umask(mut self, umask: u32) -> Self {
        self.options.umask = Some(umask);
        self
    }

    /// The last digit of new names, 0 to 15, so that processes that write at once don't meet. Defaults to a
    /// random one.
    pub fn rnd_hex(mut self, digit: u8) -> Self {
        self.options.rnd_hex = Some(digit);
        self
    }

    /// Whether new elements survive a crash of the machine: each add waits until the disk has the files and
    /// their names. Defaults to false, as in the other implementations.
    pub fn sync(mut self, sync: bool) -> Self {
        self.options.sync = sync;
        self
    }

    /// Opens the queue.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`], and [`Error::Io`] where a directory can't be made, or is none.
    pub async fn open(self) -> Result<Queue, Error> {
        let Self { options, schema, max_elements } = self;
        if max_elements == 0 {
            let reason = "it is at least 1".to_owned();
            return Err(Error::InvalidOption { option: "max_elements", reason });
        }
        let top = options.open(&[TEMPORARY, OBSOLETE]).await?;
        let insertion = Insertion::new(max_elements);
        Ok(Queue { files: Arc::new(Normal { top, schema, insertion }) })
    }
}
