//! Taking a snapshot of the records. Unchanged directories are not listed again, because dead letters may be many.
//!
//! 1. If a directory of records is unchanged, so are the records in it. The directory of dead letters changes only with
//!    them, and a record in it is not read: its place suffices.
//! 2. Network file systems report change times late. There, both directories are listed.

use std::{collections::HashMap, mem, sync::Arc};

use super::{Records, list};
use crate::dirq::{
    Error, Name, PurgeReport,
    dir_version::DirVersion,
    fs::Dir,
    mutex::lock,
    record::Record,
    root::Root,
    snapshot::{Cached, DeadLetters, Snapshot},
};

impl Records {
    /// Returns the current records, or `None` if nothing has failed yet.
    pub(in crate::dirq) fn snapshot(root: &Root) -> Result<Option<Arc<Snapshot>>, Error> {
        let Some(records) = Self::open(root)? else { return Ok(None) };
        // Copied: the lock is not held while the disk is read. Concurrent readers each keep a true snapshot.
        let mut cached = lock(&root.record_cache).clone();
        if records.update(&mut cached, root)? {
            let len = cached.snapshot.dead.names.len() + cached.snapshot.others.len();
            if len >= cached.purge_at {
                // The elements may have been removed by another implementation, whose purge keeps records. The cost is
                // that of a few calls per record, because the number must double before the next time.
                let mut report = PurgeReport::default();
                records.purge(root, &mut report)?;
                let left = len.saturating_sub(report.records as usize);
                cached.purge_at = 2 * left + Cached::MIN_PURGE;
            }
            // Dropped after the lock is released: it may be large.
            let _old = mem::replace(&mut *lock(&root.record_cache), cached.clone());
        }
        Ok(Some(cached.snapshot))
    }

    /// Lists the directories that have changed. Returns false if none has.
    fn update(&self, cached: &mut Cached, root: &Root) -> Result<bool, Error> {
        let (version, is_settled) = version_of(&self.dir)?;
        let dead = self.dead.as_deref().map(version_of).transpose()?;
        let (dead_version, is_dead_settled) = dead.unzip();
        let is_unchanged = cached.version == Some(version);
        let is_dead_unchanged = cached.dead_version == dead_version && self.dead.is_some();
        if is_unchanged && (is_dead_unchanged || self.dead.is_none()) {
            return Ok(false);
        }
        let last = &cached.snapshot;
        // The others first: a record that is moved in the meantime must not be in neither listing.
        let others = match is_unchanged {
            true => last.others.clone(),
            false => Arc::new(self.read_others()?),
        };
        let mut dead = match is_dead_unchanged {
            true => last.dead.clone(),
            false => self.list_dead()?,
        };
        cached.version = (root.is_local() && is_settled).then_some(version);
        cached.dead_version =
            dead_version.filter(|_| root.is_local() && is_dead_settled == Some(true));
        if others.keys().any(|name| dead.names.contains(name)) {
            // A process is about to revive them, or crashed before it could remove a record.
            let is_only_dead = |name: &&Name| !others.contains_key(*name);
            dead = Arc::new(dead.names.iter().filter(is_only_dead).copied().collect());
            cached.dead_version = None;
        }
        if dead.names == last.dead.names {
            dead = last.dead.clone();
        }
        cached.snapshot = Arc::new(Snapshot { dead, others });
        Ok(true)
    }

    /// Reads the records that are not in the directory of dead letters.
    fn read_others(&self) -> Result<HashMap<Name, Record>, Error> {
        let mut names = Vec::new();
        list(&self.dir, |file, name| {
            if !file.is_reason && !file.is_draft {
                names.push(name);
            }
        })?;
        let mut others = HashMap::new();
        for name in names {
            if let Some(record) = self.get(&name)? {
                others.insert(name, record);
            }
        }
        Ok(others)
    }

    fn list_dead(&self) -> Result<Arc<DeadLetters>, Error> {
        let mut names = Vec::new();
        if let Some(dead) = &self.dead {
            list(dead, |file, name| {
                if !file.is_reason && !file.is_draft {
                    names.push(name);
                }
            })?;
        }
        Ok(Arc::new(names.into_iter().collect()))
    }
}

/// Returns the version of a directory, and whether any further change must alter it.
fn version_of(dir: &Dir) -> Result<(DirVersion, bool), Error> {
    DirVersion::read(|| dir.own_stat()).map_err(Error::on("stat", || dir.path()))
}
