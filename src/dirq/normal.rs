//! Normal queues, which store each element as a directory with one file per field: the public methods of this kind, and
//! the builder.

mod add;
mod layout;
mod lock;
mod protocol;
mod purge;
mod remove;
mod rotation;

use std::path::Path;

use self::{
    layout::{Normal, OBSOLETE, TEMPORARY},
    rotation::Rotation,
};
use super::{
    DirQueue, DirQueueBuilder, Element, Error, Name, Schema, add::Group, blocking, root::Options,
};

/// A queue of messages with fields, such as a body and a header, that programs in any language may share.
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
///         // It stays in the queue and does not block other elements.
///         Err(error) => eprintln!("{error}"),
///     }
/// }
/// assert_eq!(queue.count().await?, 0);
/// # Ok(()) }
/// ```
///
/// Each element is a directory with one file per field: the format of `Queue` in Python's `dirq` and of
/// `Directory::Queue::Normal` in Perl. To write or read elements, you need their [`Schema`]. If the content of your
/// elements is a single byte string, use [`QueueSimple`](super::QueueSimple), which needs no schema and stores one file
/// per element.
///
/// A `Queue` is a handle: it is cheap to clone, and all clones share one queue. Other processes, in any language, may
/// use the same directory at the same time. See the [module documentation](super) for the guarantees of all directory
/// queues.
///
/// [`DirQueue`] documents the methods that `Queue` and [`QueueSimple`](super::QueueSimple) have in common. Reading an
/// element returns an [`Element`].
pub type Queue = DirQueue<Normal>;

impl DirQueue<Normal> {
    /// Opens the queue in the directory `path` without a schema. Without a schema, methods that add or read elements
    /// fail with [`Error::NoSchema`], including [`locked`](Self::locked), [`watch`](Self::watch) and
    /// [`take_dead`](Self::take_dead).
    ///
    /// ```
    /// # use fleeting::dirq::Queue;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// // A monitor, which needs no schema.
    /// let mails = Queue::open(dir.path().join("mails")).await?;
    /// println!("{} mails are waiting", mails.count().await?);
    /// # Ok(()) }
    /// ```
    ///
    /// The directory and its parents are created if needed.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the directory cannot be created, or `path` is not a directory.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::builder(path).open().await
    }

    /// Returns a builder for a queue with custom settings, such as a schema.
    ///
    /// ```
    /// # use fleeting::dirq::{Queue, Schema};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let schema = Schema::new([("body", "string"), ("header", "table?")])?;
    /// let mails = Queue::builder(dir.path().join("mails")).schema(schema).open().await?;
    /// # Ok(()) }
    /// ```
    pub fn builder(path: impl AsRef<Path>) -> QueueBuilder {
        let settings = NormalSettings { schema: None, max_elements: 16_000 };
        DirQueueBuilder { options: Options::new(path.as_ref()), settings }
    }

    /// Returns the schema that the queue was opened with.
    ///
    /// ```
    /// # use fleeting::dirq::{Queue, Schema};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let schema = Schema::new([("body", "string")])?;
    /// let mails = Queue::builder(dir.path()).schema(schema.clone()).open().await?;
    /// assert_eq!(mails.schema(), Some(&schema));
    /// # Ok(()) }
    /// ```
    pub fn schema(&self) -> Option<&Schema> {
        self.protocol.schema.as_ref()
    }

    /// Adds an element, and returns its name.
    ///
    /// ```
    /// # use fleeting::dirq::{Element, Queue, Schema};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let schema = Schema::new([("body", "string"), ("header", "table?")])?;
    /// let mails = Queue::builder(dir.path()).schema(schema).open().await?;
    /// let mail = Element::new().with("body", "hello").with("header", [("to", "ada")]);
    /// println!("queued as {}", mails.add(mail).await?);
    /// # assert_eq!(mails.count().await?, 1);
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
    /// [`Error::NoSchema`]; [`Error::UnexpectedField`], [`Error::MissingField`] and [`Error::WrongType`] if the element
    /// does not match the schema; [`Error::TooLarge`]; [`Error::Full`]; [`Error::Io`], for instance if the disk is
    /// full. Nothing is left behind. If only the last step of [`sync`](QueueBuilder::sync) failed, the element is in
    /// the queue, and [`Error::Partial`] contains its name.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: if the future is dropped, the element may or may not have been added.
    #[doc(alias = "enqueue")]
    pub async fn add(&self, element: Element) -> Result<Name, Error> {
        let permit = self.reserve_capacity(1).await?;
        self.add_one(element, permit).await
    }

    /// Adds several elements, in order. On a disk, this is usually faster than single adds, because all elements share
    /// one round trip to another thread.
    ///
    /// ```
    /// # use fleeting::dirq::{Element, Queue, Schema};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let mails = Queue::builder(dir.path()).schema("to:string".parse()?).open().await?;
    /// let newsletter = ["ada", "bob", "cyd"].map(|user| Element::new().with("to", user));
    /// assert_eq!(mails.add_many(newsletter).await?.len(), 3);
    /// # Ok(()) }
    /// ```
    ///
    /// The data of all elements is written first; if that fails, no element is added. The elements are then added one
    /// after the other; if one of these steps fails, the earlier elements stay in the queue ([`Error::Partial`]). With
    /// [`sync`](QueueBuilder::sync), their directory is synced once.
    ///
    /// # Errors
    ///
    /// As for [`add`](Self::add). [`Error::Full`] if there is no capacity for all of them. [`Error::Partial`] contains
    /// the names of the elements that were added: all of them if only [`sync`](QueueBuilder::sync) failed, otherwise
    /// those before the one that failed.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: if the future is dropped, any number of the elements may have been added.
    pub fn add_many(
        &self,
        elements: impl IntoIterator<Item = Element>,
    ) -> impl Future<Output = Result<Vec<Name>, Error>> {
        // Consumed here because the caller's iterator may not be `Send`, and the future must be.
        self.add_all(elements.into_iter().collect())
    }
}

/// Builder of a [`Queue`]. [`DirQueueBuilder`] documents the settings that it has in common with
/// [`QueueSimpleBuilder`](super::QueueSimpleBuilder).
pub type QueueBuilder = DirQueueBuilder<NormalSettings>;

/// Settings of normal queues. `pub` only because it is a parameter of [`QueueBuilder`]. Other crates cannot name it.
#[derive(Clone, Debug)]
pub struct NormalSettings {
    schema: Option<Schema>,
    max_elements: u32,
}

impl DirQueueBuilder<NormalSettings> {
    /// Sets the schema of the elements. By default there is no schema: you can list, count and purge such a queue, but
    /// not add or read elements.
    ///
    /// ```
    /// # use fleeting::dirq::Queue;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let mails = Queue::builder(dir.path()).schema("body:string,header:table?".parse()?).open().await?;
    /// # Ok(()) }
    /// ```
    pub fn schema(mut self, schema: Schema) -> Self {
        self.settings.schema = Some(schema);
        self
    }

    /// Sets the number of elements in a directory after which the next directory is used. Defaults to 16,000.
    ///
    /// The number is approximate, because a process does not count the elements of the directory at each add.
    /// [`max_total`](Self::max_total) bounds the whole queue.
    ///
    /// ```
    /// # use fleeting::dirq::Queue;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// // A network file system lists small directories faster.
    /// let mails = Queue::builder(dir.path()).max_elements(1_000).open().await?;
    /// # Ok(()) }
    /// ```
    pub fn max_elements(mut self, max_elements: u32) -> Self {
        self.settings.max_elements = max_elements;
        self
    }

    /// Bounds the number of elements in the queue, in all its directories. An add above the bound fails with
    /// [`Error::Full`], or [waits](Self::wait_for_room). Zero rejects all adds. Defaults to no bound.
    ///
    /// All elements count, including locked and dead ones. The bound is exact if one process adds to the queue, with
    /// any number of clones. If other processes also add elements, the bound may be exceeded. Counting reads the whole
    /// queue, so each process counts only occasionally. Between two counts, it adds at most an eighth of the free
    /// capacity. Other implementations ignore the bound.
    ///
    /// ```
    /// # use fleeting::dirq::{Element, Error, Queue};
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let mails =
    ///     Queue::builder(dir.path()).schema("to:string".parse()?).max_total(1).open().await?;
    /// mails.add(Element::new().with("to", "ada")).await?;
    /// let full = mails.add(Element::new().with("to", "bob")).await;
    /// assert!(matches!(full, Err(Error::Full { max_elements: 1, .. })));
    /// # Ok(()) }
    /// ```
    pub fn max_total(mut self, max_total: u64) -> Self {
        self.options.max_elements = Some(max_total);
        self
    }

    /// Opens the queue.
    ///
    /// ```
    /// # use fleeting::dirq::Queue;
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let mails = Queue::builder(dir.path().join("spool/mails")).open().await?;
    /// assert!(mails.path().is_dir(), "created with its parents");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`], and [`Error::Io`] if a directory cannot be created, or the path is not a directory.
    pub async fn open(self) -> Result<Queue, Error> {
        let Self { options, settings: NormalSettings { schema, max_elements } } = self;
        if max_elements == 0 {
            let reason = "must be at least 1, got 0".to_owned();
            return Err(Error::InvalidOption { option: "max_elements", reason });
        }
        let root = blocking::open(options, &[TEMPORARY, OBSOLETE]).await?;
        let rotation = Rotation::new(max_elements);
        Ok(DirQueue::new(Normal { root, schema, rotation, sync_group: Group::default() }))
    }
}
