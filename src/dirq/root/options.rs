//! The settings of both kinds of queues, and opening a queue with them.

use std::{
    io,
    path::{Path, PathBuf, absolute},
    sync::{Arc, Mutex, atomic::AtomicBool},
    time::Duration,
};

use rand::{RngExt, make_rng, rngs::SmallRng};

use super::{Root, make_all};
use crate::{
    dirq::{
        Error, Purge,
        bound::QueueBound,
        dir_cache::DirCache,
        fs::{Medium, Mode, file_id, is_directory, medium, stat},
        name_generator::NameGenerator,
        retry_policy,
        shared::SharedQueue,
        spin_handoff::SpinHandoff,
    },
    engine::retries::Retries,
};

/// Settings of both kinds of queues.
#[derive(Clone, Debug)]
pub(in crate::dirq) struct Options {
    pub(in crate::dirq) path: PathBuf,
    pub(in crate::dirq) umask: Option<u32>,
    pub(in crate::dirq) rnd_hex: Option<u8>,
    pub(in crate::dirq) sync: bool,
    /// True if all work runs on the calling thread.
    pub(in crate::dirq) in_place: bool,
    pub(in crate::dirq) max_size: u64,
    /// `None` if deliveries are not counted.
    pub(in crate::dirq) retries: Option<Retries>,
    /// `None` if the number of elements is not bounded.
    pub(in crate::dirq) max_elements: Option<u64>,
    pub(in crate::dirq) wait_for_room: Option<Duration>,
    /// `None` if streams do not purge the queue.
    pub(in crate::dirq) purge_every: Option<(Duration, Purge)>,
}

impl Options {
    pub(in crate::dirq) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            umask: None,
            rnd_hex: None,
            sync: false,
            in_place: false,
            max_size: 1 << 30,
            retries: None,
            max_elements: None,
            wait_for_room: None,
            purge_every: None,
        }
    }

    /// Returns the retry policy, which enables the counting of deliveries when it is first set.
    pub(in crate::dirq) fn retries(&mut self) -> &mut Retries {
        self.retries.get_or_insert(Retries::DEFAULT)
    }

    /// Creates the queue's directory, its parents, and the subdirectories `always`, unless they exist.
    pub(in crate::dirq) fn open(self, always: &[&str]) -> Result<Root, Error> {
        let Self { path, umask, rnd_hex, sync, in_place, max_size, retries, purge_every, .. } =
            self;
        let (max_elements, wait_for_room) = (self.max_elements, self.wait_for_room);
        if let Some(retries) = &retries {
            retry_policy::check(retries)?;
        }
        if let Some(umask) = umask.filter(|&umask| umask > 0o777) {
            let reason = format!("must be at most 0o777, got {umask:#o}");
            return Err(Error::InvalidOption { option: "umask", reason });
        }
        if let Some(digit) = rnd_hex.filter(|&digit| digit > 15) {
            let reason = format!("must be one hexadecimal digit (0 to 15), got {digit}");
            return Err(Error::InvalidOption { option: "rnd_hex", reason });
        }
        let rnd_hex = rnd_hex.unwrap_or_else(|| make_rng::<SmallRng>().random_range(0..16));
        let umask = umask.map(|umask| Mode::from_bits_retain(umask as _));
        // Resolved now: the process may change its working directory while the queue is open.
        let path = absolute(&path).map_err(|error| Error::io("resolve", path, error))?;
        make_all(&path, umask)?;
        // `stat` follows a symbolic link at the path, as `open_root` does.
        let at_path = stat(&path).map_err(Error::on("open", || &path))?;
        if !is_directory(&at_path) {
            return Err(Error::io("open", path, io::Error::from(io::ErrorKind::NotADirectory)));
        }
        let medium = medium(&path);
        let shared = SharedQueue::at(&path);
        let root = Root {
            umask,
            sync,
            in_place,
            max_size,
            retries,
            purge_every,
            bound: max_elements.map(|max| QueueBound::new(max, wait_for_room)),
            names: NameGenerator::new(rnd_hex),
            id: file_id(&at_path),
            medium,
            handoff: Arc::new(SpinHandoff::new(shared.threads.clone())),
            shared,
            cache: (medium != Medium::Other).then(DirCache::default),
            record_cache: Mutex::default(),
            is_unrecorded: AtomicBool::new(false),
            synced: Mutex::default(),
            path,
        };
        always.iter().try_for_each(|name| root.make_named(name))?;
        Ok(root)
    }
}
