//! The normal queue: a directory for each element, a file for each field of it. What users call on this kind alone,
//! and its builder.

mod add;
mod layout;
mod lock;
mod protocol;
mod purge;
mod remove;
mod rotation;

use std::{path::Path, sync::Arc, time::Duration};

use self::{
    add::len_of,
    layout::{Normal, OBSOLETE, TEMPORARY},
    rotation::Rotation,
};
use super::{
    DirQueue, Element, Error, Name, Schema,
    blocking::{Work, run, run_blocking},
    group::{self, Group},
    root::Options,
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
/// What it has in common with the other kind is in [`DirQueue`]. What it reads is an [`Element`].
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
///     match queue.dequeue(&name).await {
///         Ok(taken) => assert_eq!(taken, Some(mail.clone())),
///         // It stays, and is in nobody's way.
///         Err(error) => eprintln!("{error}"),
///     }
/// }
/// assert_eq!(queue.count().await?, 0);
/// # Ok(()) }
/// ```
pub type Queue = DirQueue<Normal>;

impl DirQueue<Normal> {
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

    /// The fields of its elements, as it was opened with.
    pub fn schema(&self) -> Option<&Schema> {
        self.protocol.schema.as_ref()
    }

    /// Adds an element, and returns its name.
    ///
    /// Others see it whole or not at all. Its name is later than all that this queue gave before; elements of
    /// several processes come in the order of their clocks.
    ///
    /// # Errors
    ///
    /// [`Error::NoSchema`]; [`Error::UnexpectedField`], [`Error::MissingField`] and [`Error::WrongType`] where
    /// it is not as the schema says; [`Error::TooLarge`]; [`Error::Full`]; [`Error::Io`], as on a full disk. Each leaves
    /// nothing behind. But where only the last step of [`sync`](QueueBuilder::sync) failed, the element is there: [`Error::Partial`]
    /// has its name.
    ///
    /// # Cancel safety
    ///
    /// Who drops the future can't know whether the element is added.
    #[doc(alias = "enqueue")]
    pub async fn add(&self, element: Element) -> Result<Name, Error> {
        let permit = self.reserve_capacity(1).await?;
        let len = len_of(&element);
        if group::accepts(&self.protocol.root, len) {
            let files = self.protocol.schema()?.encode(element)?;
            return group::add(&self.protocol, files, permit).await;
        }
        let work_length = self.protocol.work_for_add(len);
        run("add to", work_length, &self.protocol, move |queue| {
            let _permit = permit;
            queue.add(element)
        })
        .await
    }

    /// Adds the elements, in their order, at once: quicker than one by one.
    ///
    /// All are written before the first is added: where that fails, none is. With
    /// [`sync`](QueueBuilder::sync), their directory is synced once.
    ///
    /// # Errors
    ///
    /// As [`add`](Self::add); [`Error::Full`] where there is no room for all. [`Error::Partial`] names those that are
    /// there: all, where only [`sync`](QueueBuilder::sync) failed, or those before one that could not be added.
    ///
    /// # Cancel safety
    ///
    /// Who drops the future can't know what is added.
    pub fn add_many(
        &self,
        elements: impl IntoIterator<Item = Element>,
    ) -> impl Future<Output = Result<Vec<Name>, Error>> {
        // The caller's iterator may be of one thread alone, and the future is to go to any.
        let elements: Vec<_> = elements.into_iter().collect();
        async move {
            let permit = self.reserve_capacity(elements.len() as u64).await?;
            run("add to", Work::Long, &self.protocol, move |queue| {
                let _permit = permit;
                queue.add_many(elements)
            })
            .await
        }
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
    /// It is about: each process that adds counts what is there from time to time, and not at each add. How many the
    /// whole queue may have says [`max_total`](Self::max_total).
    pub fn max_elements(mut self, max_elements: u32) -> Self {
        self.max_elements = max_elements;
        self
    }

    /// How many elements the queue may have, in all its directories: an add that would make it more is refused
    /// ([`Error::Full`]), or [waits](Self::wait_for_room). Zero refuses all. Defaults to no bound.
    ///
    /// It counts all that is there, locked and dead elements included. Of one process, with its clones, it is exact.
    /// Several that add, or other implementations, who don't know of it, may add some more: each counts anew when it has
    /// added an eighth of the room that there was, as to count is to look at each element.
    pub fn max_total(mut self, max_total: u64) -> Self {
        self.options.max_elements = Some(max_total);
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
    /// their names, and those of the directories that they are in, up to the mount. Defaults to false, as in the other
    /// implementations.
    ///
    /// Adds of several callers at once are [synced together](super#cost).
    pub fn sync(mut self, sync: bool) -> Self {
        self.options.sync = sync;
        self
    }

    /// How many bytes each field of an element may have. Longer ones are neither added nor read
    /// ([`Error::TooLarge`]). Defaults to 1 GiB.
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
    /// [`Error::InvalidOption`], and [`Error::Io`] where a directory can't be made, or is none.
    pub async fn open(self) -> Result<Queue, Error> {
        let Self { options, schema, max_elements } = self;
        if max_elements == 0 {
            let reason = "it is at least 1".to_owned();
            return Err(Error::InvalidOption { option: "max_elements", reason });
        }
        let path = options.path.clone();
        let root = run_blocking("open", path, |_| options.open(&[TEMPORARY, OBSOLETE])).await?;
        let rotation = Rotation::new(max_elements);
        Ok(Queue {
            protocol: Arc::new(Normal { root, schema, rotation, sync_group: Group::default() }),
        })
    }
}
