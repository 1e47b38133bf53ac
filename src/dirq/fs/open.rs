//! Opening of files that exist. Other processes may have put anything in their place.

use std::os::fd::{AsFd, OwnedFd};

use rustix::{
    fs::{Mode, OFlags, Stat, fstat, openat},
    io::{Errno, Result},
    path::Arg,
};

use super::{call::call, stat::is_file};

/// Opens a regular file, and returns its metadata: `ELOOP` if it is a link, `EINVAL` or `ENXIO` if it is something
/// else. Tests identify the system call by `name`.
pub(super) fn open_file(
    name: &'static str,
    dir: impl AsFd,
    path: impl Arg + Copy,
    access: OFlags,
) -> Result<(OwnedFd, Stat)> {
    // `NONBLOCK`, because opening a pipe would wait for its other end. It has no effect on regular files.
    let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = call(name, || openat(&dir, path, flags, Mode::empty()))?;
    let stat = call("stat", || fstat(&file))?;
    match is_file(&stat) {
        true => Ok((file, stat)),
        false => Err(Errno::INVAL),
    }
}
