//! Creates a directory with an exact mode, in a place where other processes may write too.

use std::os::fd::AsFd;

use nix::unistd::geteuid;
use rustix::{
    fs::{AtFlags, Mode, OFlags, fchmod, fstat, mkdirat, openat, unlinkat},
    io::{Errno, Result},
    path::Arg,
};

use super::call::call;

/// Creates a directory with the mode that results from `umask`, or from the process' umask.
///
/// The process' umask is never changed, not even briefly: other threads create files at the same time.
pub(super) fn make_dir_at(
    parent: impl AsFd,
    path: impl Arg + Copy,
    umask: Option<Mode>,
) -> Result<()> {
    let mode = DIR_MODE.difference(umask.unwrap_or(Mode::empty()));
    call("mkdir", || mkdirat(&parent, path, mode))?;
    if umask.is_none() {
        return Ok(());
    }
    add_mode(&parent, path, mode).inspect_err(|_| {
        // Its caller has nothing to remove: a lock would have no owner. The original error is more useful than that of
        // the cleanup.
        let _ = call("rmdir", || unlinkat(&parent, path, AtFlags::REMOVEDIR));
    })
}

/// Adds the bits of `mode` that the process' umask has removed from a new directory.
fn add_mode(parent: impl AsFd, path: impl Arg + Copy, mode: Mode) -> Result<()> {
    // By now, the path may lead to something else: a link, or another
    // user's directory, which a `chmod` would open to everyone. Therefore `fchmod` is applied to the open directory, if
    // it is ours.
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = match call("open", || openat(&parent, path, flags, Mode::empty())) {
        Ok(made) => made,
        // Another process removed or replaced the directory, and is responsible for its mode.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => return Ok(()),
        Err(error) => return Err(error),
    };
    let stat = call("stat", || fstat(&made))?;
    let has = Mode::from_raw_mode(stat.st_mode);
    match stat.st_uid == geteuid().as_raw() && !has.contains(mode) {
        // Bits inherited from the parent, such as setgid, are kept.
        true => call("chmod", || fchmod(&made, has | mode)),
        false => Ok(()),
    }
}

const DIR_MODE: Mode = Mode::from_bits_retain(0o777);
