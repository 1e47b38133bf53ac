//! How a directory is made with the mode that it is to have, where others may write too.

use std::os::fd::AsFd;

use nix::unistd::geteuid;
use rustix::{
    fs::{Mode, OFlags, fchmod, fstat, mkdirat, openat},
    io::{Errno, Result},
    path::Arg,
};

use super::call::call;

/// A new directory, with the mode that it gets under this umask, or under that of the process.
///
/// The process' own umask is never switched, not even for a moment: other threads make files meanwhile.
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
    // The process' umask may have taken more. What is at the path by now may be anything: a link, or a directory of
    // somebody else, which a mode of ours would open to all. So it goes by what is open, and is ours.
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = match call("open", || openat(&parent, path, flags, Mode::empty())) {
        Ok(made) => made,
        // Who removed it, or put something in its place, answers for the mode.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => return Ok(()),
        Err(error) => return Err(error),
    };
    let stat = call("stat", || fstat(&made))?;
    let has = Mode::from_raw_mode(stat.st_mode);
    match stat.st_uid == geteuid().as_raw() && !has.contains(mode) {
        // What a directory has from the one above, as that group's bit, stays.
        true => call("chmod", || fchmod(&made, has | mode)),
        false => Ok(()),
    }
}

const DIR_MODE: Mode = Mode::from_bits_retain(0o777);
