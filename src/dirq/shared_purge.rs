//! The purge of a queue and of its records, and the part that both kinds of queues share. `simple/purge.rs` and
//! `normal/purge.rs` remove stale locks and incomplete elements, which depend on the format of each kind.

use rustix::io::Errno;

use super::{
    Error, Purge, PurgeReport, file_name::FileName, fs::rmdir, protocol::Protocol,
    records::Records, root::Root,
};

/// Removes the leftovers of crashed processes.
pub(super) fn purge_all<P: Protocol + ?Sized>(
    queue: &P,
    purge: &Purge,
) -> Result<PurgeReport, Error> {
    let mut report = queue.purge(purge)?;
    match Records::open(queue.root()) {
        Ok(Some(records)) => records.purge(queue.root(), &mut report)?,
        Ok(None) => {}
        Err(error) => report.fail(error),
    }
    Ok(report)
}

/// Removes all empty directories of elements except the last, because other processes may be about to add to it.
pub(super) fn remove_empty_directories(root: &Root, report: &mut PurgeReport) -> Result<(), Error> {
    let directories = root.directories()?;
    let Some((_, all_but_last)) = directories.split_last() else { return Ok(()) };
    for &directory in all_but_last {
        let path = root.path().join(FileName::directory(directory).as_str());
        // Without checking first: `rmdir` fails atomically if the directory is not empty.
        match rmdir(&path) {
            Ok(()) => report.directories += 1,
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOENT | Errno::NOTDIR) => {}
            Err(error) => report.fail(Error::io("remove", path, error)),
        }
    }
    Ok(())
}
