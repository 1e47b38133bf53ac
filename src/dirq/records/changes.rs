//! Taking a snapshot of the records, of which only the changes are read, because dead letters may be many.
//!
//! 1. If the directory of records is unchanged, so are all records.
//! 2. A record is never changed but replaced. So a record of a dead letter is unchanged if its inode is the same, and
//!    only the others are read again. Other records are replaced often, and their inodes are soon used again.
//! 3. The inode of a revived dead letter may be used again, too, for the record of its next delivery. Therefore all
//!    records are read again after a while.
//! 4. Network file systems report change times late, and some file systems no inodes. There, all records are read.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use rustix::io::Errno;

use super::Records;
use crate::dirq::{
    Error, Name, PurgeReport,
    dir_version::DirVersion,
    file_name::RecordEntry,
    root::Root,
    snapshot::{Cached, Snapshot},
};

/// The time after which all records are read again.
const MAX_AGE: Duration = Duration::from_secs(10);

impl Records {
    /// Returns the current records, or `None` if nothing has failed yet.
    pub(in crate::dirq) fn snapshot(root: &Root) -> Result<Option<Arc<Snapshot>>, Error> {
        let Some(records) = Self::open(root)? else { return Ok(None) };
        let now = SystemTime::now();
        let failed = |error| Error::io("stat", records.dir.path(), error);
        let version = DirVersion::of(&records.dir.own_stat().map_err(failed)?);
        // Copied: the lock is not held while the disk is read. Concurrent readers each keep a true snapshot.
        let mut cached = root.record_cache.get();
        if cached.version == Some(version) {
            return Ok(Some(cached.snapshot));
        }
        cached.version = (root.is_local() && version.is_settled(now)).then_some(version);
        if cached.read_at.elapsed() > MAX_AGE || !root.is_local() {
            (cached.snapshot, cached.read_at) = (Arc::default(), Instant::now());
        }
        let snapshot = Arc::new(records.read_changes(&cached.snapshot)?);
        let len = snapshot.dead.len() + snapshot.others.len();
        if len >= cached.purge_at {
            // The elements may have been removed by another implementation, whose purge keeps records. The cost is
            // that of a few calls per record, because the number must double before the next time.
            let mut report = PurgeReport::default();
            records.purge(root, &mut report)?;
            let left = len.saturating_sub(report.records as usize);
            cached.purge_at = 2 * left + Cached::MIN_PURGE;
        }
        cached.snapshot = snapshot.clone();
        root.record_cache.set(cached);
        Ok(Some(snapshot))
    }

    /// Returns the records, and reads only those that are not known from the `last` snapshot.
    fn read_changes(&self, last: &Snapshot) -> Result<Snapshot, Error> {
        let (mut dead, mut unknown) = (Vec::new(), Vec::new());
        let listed = self.dir.list_with_inodes(|name, _, inode| {
            let Some(file) = RecordEntry::parse(name.to_bytes()) else { return };
            let name = Name { directory: file.directory, element: file.element };
            if file.is_reason || file.is_draft {
                return;
            }
            match last.dead.get(&name) == Some(&inode) {
                true => dead.push((name, inode)),
                false => unknown.push((name, inode)),
            }
        });
        match listed {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(Error::io("list", self.dir.path(), error)),
        }
        let known = dead.len();
        let mut others = HashMap::new();
        for (name, inode) in unknown {
            match self.get(&name)? {
                Some(record) if record.is_dead() => dead.push((name, inode)),
                Some(record) => drop(others.insert(name, record)),
                None => {}
            }
        }
        let is_unchanged = dead.len() == known && known == last.dead.len();
        let dead = match is_unchanged {
            true => last.dead.clone(),
            false => Arc::new(dead.into_iter().collect()),
        };
        Ok(Snapshot { dead, others })
    }
}
