//! A file system of its own for tests: ext4 on a loop device, which can be frozen and filled.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::mpsc::{Sender, channel},
    thread,
};

use tempfile::TempDir;

use crate::{patience::patience, skipped::skipped};

/// A mounted file system. Dropping it thaws and unmounts it.
pub(crate) struct Disk {
    dir: TempDir,
}

impl Disk {
    /// Mounts an ext4 file system of `size` bytes. Returns `None`, with a message, if this system does not allow
    /// mounts.
    pub(crate) fn mount(size: u64) -> Option<Self> {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let image = dir.path().join("image");
        fs::File::create(&image).unwrap().set_len(size).unwrap();
        let disk = Self { dir };
        fs::create_dir(disk.path()).unwrap();
        let made = run("mkfs.ext4", &["-q", "-F"], &image);
        let mounted = made && {
            let mut mount = Command::new("mount");
            mount.args(["-o", "loop"]).arg(&image).arg(disk.path());
            mount.output().is_ok_and(|output| output.status.success())
        };
        if !mounted {
            skipped(
                "tests with a hung or full disk: they need root, loop devices, mkfs.ext4 and fsfreeze",
            );
        }
        mounted.then_some(disk)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("mounted")
    }

    /// Unmounts the disk, even while a queue keeps directories of it open.
    pub(crate) fn unmount(&self) {
        assert!(run("umount", &["-l"], &self.path()));
    }

    /// Freezes the disk until the returned value is dropped, or for [`patience`]: a test that waits for the disk must
    /// fail and not hang.
    pub(crate) fn freeze(&self) -> Frozen {
        assert!(run("fsfreeze", &["-f"], &self.path()));
        let (stop, stopped) = channel::<()>();
        let path = self.path();
        let watchdog = thread::spawn(move || {
            let _ = stopped.recv_timeout(patience());
            assert!(run("fsfreeze", &["-u"], &path));
        });
        Frozen { stop: Some(stop), watchdog: Some(watchdog) }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        run("umount", &["-l"], &self.path());
    }
}

pub(crate) struct Frozen {
    stop: Option<Sender<()>>,
    watchdog: Option<thread::JoinHandle<()>>,
}

impl Frozen {
    /// Returns whether the disk is still frozen, so that everything that happened so far did not wait for it.
    pub(crate) fn is_frozen(&self) -> bool {
        self.watchdog.as_ref().is_some_and(|watchdog| !watchdog.is_finished())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.watchdog.take().map(thread::JoinHandle::join);
    }
}

fn run(program: &str, args: &[&str], path: &Path) -> bool {
    Command::new(program).args(args).arg(path).output().is_ok_and(|output| output.status.success())
}
