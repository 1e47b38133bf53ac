//! Adding elements to a queue of either kind: each is written where no reader looks, synced if the queue is synced, and
//! then published under its name.

use std::iter;

use tokio::sync::oneshot::Sender;

use super::{
    Error, Name,
    blocking::Work,
    bound::CapacityPermit,
    protocol::Protocol,
    root::{OpenFiles, Root, Unpublished},
    ticket_queue::TicketQueue,
};

/// Adds that wait for their group.
pub(super) type Group<C> = TicketQueue<WaitingAdd<C>, GroupState>;

#[derive(Default)]
pub(super) struct GroupState {
    pub(super) has_leader: bool,
}

pub(super) struct WaitingAdd<C> {
    pub(super) content: C,
    pub(super) permit: Option<CapacityPermit>,
    pub(super) sender: Sender<Result<Name, Error>>,
}

/// The steps of an add, which each kind of queue implements. All of them may block on a disk, except `group`,
/// `encoder`, `work_for_add` and `max_open_files`.
pub(super) trait Add: Protocol {
    /// The content of an element as it is written.
    type Content: Send + 'static;

    /// A written element that is not in the queue yet.
    type Written: Unpublished;

    /// The directories needed by an add, opened once per call.
    type Dirs<'a>;

    /// Returns the adds that wait to be synced.
    fn group(&self) -> &Group<Self::Content>;

    /// Returns the conversion of a payload to the content of an element.
    fn encoder(&self) -> Result<impl Fn(Self::Payload) -> Result<Self::Content, Error>, Error>;

    /// Returns the duration of an add of `len` bytes.
    fn work_for_add(&self, len: usize) -> Work {
        Work::for_add(self.root(), len)
    }

    fn dirs(&self) -> Self::Dirs<'_>;

    /// Returns the maximum number of files that are open until one of the elements is synced.
    fn max_open_files(_contents: &[Self::Content]) -> usize {
        1
    }

    /// Writes an element. It is not synced.
    fn write<'a>(
        &'a self,
        dirs: &mut Self::Dirs<'a>,
        content: &Self::Content,
    ) -> Result<Self::Written, Error>;

    /// Turns a written element into an element of the queue. Writes `content` again, and syncs it if the queue is
    /// synced, if a purge has removed the written one.
    fn publish<'a>(
        &'a self,
        dirs: &mut Self::Dirs<'a>,
        written: Self::Written,
        content: &Self::Content,
    ) -> Result<Name, Error>;

    fn add(&self, content: &Self::Content) -> Result<Name, Error> {
        let mut dirs = self.dirs();
        let mut written = self.write(&mut dirs, content)?;
        // Before it is published, so that no element is incomplete after a crash of the machine. A crash of the process
        // up to here leaves a temporary file or directory, which a purge removes.
        written.sync()?;
        let name = self.publish(&mut dirs, written, content)?;
        self.root().finish_add(name)
    }

    /// Adds several elements. All are written before the first is added: if a write fails, none is added.
    fn add_many(&self, contents: &[Self::Content]) -> Result<Vec<Name>, Error> {
        let mut dirs = self.dirs();
        let written = write_each(self, &mut dirs, contents).collect::<Result<Vec<_>, _>>()?;
        let publish = |(written, content)| self.publish(&mut dirs, written, content);
        self.root().finish_adds(written.into_iter().zip(contents).map(publish))
    }

    /// Adds several elements that have separate results.
    fn add_each(&self, contents: &[Self::Content]) -> Vec<Result<Name, Error>> {
        let mut dirs = self.dirs();
        let written: Vec<_> = write_each(self, &mut dirs, contents).collect();
        let publish = |(written, content): (Result<_, _>, _)| -> Result<Name, Error> {
            self.publish(&mut dirs, written?, content)
        };
        self.root().finish_each(written.into_iter().zip(contents).map(publish))
    }
}

/// Writes each of the elements, and syncs it if the queue is synced. Yields one result per element, in order.
fn write_each<'a, P: Add + ?Sized>(
    queue: &'a P,
    dirs: &mut P::Dirs<'a>,
    contents: &[P::Content],
) -> impl Iterator<Item = Result<P::Written, Error>> {
    let (mut contents, files) = (contents.iter().peekable(), P::max_open_files(contents));
    let next = move || {
        let wanted = (contents.len() * files).min(Root::MAX_OPEN_FILES);
        let open = match queue.root().sync {
            true => OpenFiles::take(files, wanted),
            false => OpenFiles(0),
        };
        let at_once = (open.0 / files).max(1);
        let mut written = Vec::new();
        while written.len() < at_once
            && let Some(content) = contents.peek()
        {
            match queue.write(dirs, content) {
                // Syncing closes the open files, which frees descriptors.
                Err(error) if error.is_out_of_file_descriptors() && !written.is_empty() => break,
                done => written.push(done),
            }
            // Only now: an element for which no descriptor was free is written again in the next batch.
            contents.next();
        }
        if queue.root().sync {
            queue.root().sync_each(&mut written);
        }
        Some(written).filter(|written| !written.is_empty())
    };
    iter::from_fn(next).flatten()
}
