//! Failed loads, and concurrent writes to their keys.

use std::{ops::ControlFlow, sync::Arc, time::Duration};

use super::{Parts, explore, spawn};
use crate::engine::{
    failed_loads::FailedLoads,
    store::{FlightMember, LoadFailure},
};

const HOUR: Duration = Duration::from_secs(3_600);

fn error_of(failed_loads: &FailedLoads, hash: u64, key: u8) -> Option<u32> {
    failed_loads.error::<u8, _, u32>(hash, &key).map(|error| *error)
}

fn failure(error: u32) -> Option<LoadFailure> {
    Some(Arc::new(error))
}

/// A load fails during a write to its key, which the flight of the load counts, as in the embedded cache. Loads of
/// other keys, which share its stripe, fail at the same time.
#[test]
fn no_error_is_found_after_a_write_that_its_flight_counts() {
    explore(|| {
        let parts = Parts::new();
        let failed_loads = Arc::new(FailedLoads::new(parts.clock.clone(), Some(HOUR), 10));
        let location = parts.store.locate(&1);
        let hash = location.hash();
        let joined = parts.store.join_load(location, &1, || 1, false, &parts.start);
        let ControlFlow::Continue(FlightMember { flight, .. }) = joined else {
            panic!("no value is live")
        };
        let (loads, failed) = (failed_loads.clone(), flight.clone());
        let load = spawn(&parts, move |parts| {
            let is_superseded = || parts.store.is_superseded(location, &failed);
            loads.record(hash, 1_u8, failure(1), &is_superseded);
            parts.store.leave_load(location, &failed);
        });
        let writes = failed_loads.clone();
        let write = spawn(&parts, move |parts| {
            parts.store.set(1, 1, &parts.start, |_| parts.until(0));
            writes.discard(hash);
            assert_eq!(error_of(&writes, hash, 1), None, "the value was written");
        });
        let others = failed_loads.clone();
        let other = spawn(&parts, move |_| {
            others.record(hash + 1, 2_u8, failure(2), &|| false);
            others.discard(hash + 1);
            others.record(hash + 2, 3_u8, failure(3), &|| false);
        });
        load.join().unwrap();
        write.join().unwrap();
        other.join().unwrap();
        let errors = [0, 1, 2].map(|n| error_of(&failed_loads, hash + n, n as u8 + 1));
        assert_eq!(errors, [None, None, Some(3)]);
    });
}
