//! The purge of a queue and of its records.

use super::{Error, Purge, PurgeReport, protocol::Protocol, records::Records};

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
