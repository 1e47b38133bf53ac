//! The version of a directory, by which unchanged directories are recognized.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::io::Errno;

use super::fs::Stat;

/// Device, inode and change time of a directory. If they are the same as before, nothing in it was created, removed or
/// renamed. Change times of network file systems are not reliable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DirVersion {
    id: (u64, u64),
    seconds: i64,
    nanos: i64,
}

impl DirVersion {
    /// Changes within one tick of the kernel's clock may have the same time. Ticks are shorter than this.
    const TICK: Duration = Duration::from_millis(100);
    /// The same for file systems that store whole seconds, such as ext4 with inodes of 128 bytes.
    const LONG_TICK: Duration = Duration::from_millis(1_100);

    /// Reads the metadata of a directory by `stat`. Returns its version, and whether any further change must alter it,
    /// because it is older than a tick of the clock.
    pub(super) fn read(stat: impl FnOnce() -> Result<Stat, Errno>) -> Result<(Self, bool), Errno> {
        // Before the metadata. Otherwise a recent change could look older than a tick, although another change in the
        // same tick may follow.
        let now = SystemTime::now();
        let version = Self::of(&stat()?);
        Ok((version, version.is_settled(now)))
    }

    // The types of the fields differ between platforms.
    #[allow(clippy::unnecessary_cast)]
    fn of(stat: &Stat) -> Self {
        let id = (stat.st_dev as u64, stat.st_ino as u64);
        Self { id, seconds: stat.st_ctime as i64, nanos: stat.st_ctime_nsec as i64 }
    }

    fn is_settled(&self, now: SystemTime) -> bool {
        // A time with nanoseconds may be a whole number of seconds by chance. Then it is settled a second later.
        let tick = if self.nanos == 0 { Self::LONG_TICK } else { Self::TICK };
        // A change time in the future is not settled: the clock was set back.
        let age = self.changed_at().and_then(|changed| now.duration_since(changed).ok());
        age.is_some_and(|age| age > tick)
    }

    fn changed_at(&self) -> Option<SystemTime> {
        let (seconds, nanos) = (u64::try_from(self.seconds).ok()?, u32::try_from(self.nanos).ok()?);
        UNIX_EPOCH.checked_add(Duration::new(seconds, nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_in_whole_seconds_is_settled_only_after_more_than_a_second() {
        let at = |seconds, nanos| DirVersion { id: (1, 2), seconds, nanos };
        let after = |millis: u64| UNIX_EPOCH + Duration::from_millis(1_000_000 + millis);
        assert!(!at(1_000, 1).is_settled(after(100)));
        assert!(at(1_000, 1).is_settled(after(101)));
        // An element that is added at 1,000.9 has the same change time.
        assert!(!at(1_000, 0).is_settled(after(950)));
        assert!(at(1_000, 0).is_settled(after(1_101)));
        assert!(!at(1_001, 0).is_settled(after(0)), "in the future");
        assert!(!at(-1, 0).is_settled(after(0)), "before 1970");
    }
}
