//! Values that are large by themselves, not behind a pointer: how much stack the methods need for them.

use std::{thread, time::Duration};

use fleeting::{Cache, Op, Sweep};
use tokio::runtime;

const HOUR: Duration = Duration::from_secs(3_600);
