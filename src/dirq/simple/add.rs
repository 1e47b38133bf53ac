//! Adding elements to a simple queue.

use std::{
    ffi::{CStr, CString},
    os::{fd::AsFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use rustix::io::Errno;

use super::layout::Simple;
use crate::dirq::{
    Error, Name,
    add::{Add, Group},
    blocking::run_detached,
    file_name::FileName,
    fs::{CWD, Dir, NewFile, is_file, lstat, rename_to_free_name, sync_file},
    name_generator::seconds,
    retry_budget::RetryBudget,
    root::Unpublished,
};

impl Simple {
    /// Writes the next part of an element that is too long to be copied as a whole. Returns `None` if a purge has
    /// removed the file.
    ///
    /// The file and its directory are open only while it is written: many adds may be between two parts.
    pub(super) fn write_part(
        self: &Arc<Self>,
        parts: Option<PartsFile>,
        part: &[u8],
    ) -> Result<Option<PartsFile>, Error> {
        let mut temp = match parts {
            None => self.write_file(&mut None, part, false)?,
            Some(parts) => {
                let Some(temp) = parts.open()? else { return Ok(None) };
                if temp.change(|dir, name| dir.append(name, part))?.is_none() {
                    return Ok(None);
                }
                temp
            }
        };
        let (queue, directory, name) = (self.clone(), temp.target.directory, temp.name.take());
        Ok(Some(PartsFile { queue, directory, name }))
    }

    /// Adds an element whose parts have been written. Returns `None` if a purge has removed the file.
    pub(super) fn publish_parts(&self, parts: PartsFile) -> Result<Option<Name>, Error> {
        let Some(temp) = parts.open()? else { return Ok(None) };
        if self.root.sync && temp.change(Dir::sync_file)?.is_none() {
            return Ok(None);
        }
        self.publish_file(temp)?.map(|name| self.root.finish_add(name)).transpose()
    }

    /// Moves a file into the queue by renaming it: after an error, the file is where it was.
    pub(super) fn add_path(&self, path: &Path) -> Result<Name, Error> {
        let failed = |operation| move |errno| Error::io(operation, path, errno);
        let stat = lstat(path).map_err(failed("move"))?;
        if !is_file(&stat) {
            return Err(Error::Foreign { path: path.to_owned() });
        }
        self.root.check_size(u64::try_from(stat.st_size).unwrap_or(0), || path.to_owned())?;
        if self.root.sync {
            // Before it has a name in the queue: processes that see it there may rely on its durability.
            sync_file(path).map_err(failed("sync"))?;
        }
        let from = CString::new(path.as_os_str().as_bytes())
            .expect("a path that the kernel accepted has no NUL");
        let mut retries = RetryBudget::of("add to");
        loop {
            let target = self.target()?;
            if let Some(name) = self.move_file(CWD, &from, &target, || path.to_owned())? {
                return self.root.finish_add(name);
            }
            // Either its directory was removed, or the file itself.
            lstat(path).map_err(failed("move"))?;
            retries.spend(|| self.root.path().to_owned())?;
        }
    }

    /// Writes a body to a temporary file in `target`, or in a new target if that no longer exists. The file stays open
    /// if `keep_open`.
    fn write_file(
        &self,
        target: &mut Option<Target>,
        body: &[u8],
        keep_open: bool,
    ) -> Result<TempFile, Error> {
        self.root.check_size(body.len() as u64, || self.root.path().to_owned())?;
        let mut retries = RetryBudget::of("add to");
        loop {
            let to = match target {
                Some(target) => target.clone(),
                None => target.insert(self.target()?).clone(),
            };
            let name = FileName::temporary(self.root.names.next());
            match to.dir.create(name.c_str(), body, self.root.umask, keep_open) {
                Ok(open) => return Ok(TempFile { target: to, name: Some(name), open }),
                // Another process has the name or, over NFS, a repeated request of this call: the next one is tried.
                Err(Errno::EXIST) => {}
                // A purge removed the directory because it was empty.
                Err(Errno::NOENT) => *target = None,
                Err(error) => {
                    return Err(Error::io("write", to.dir.path_of(name.c_str()), error));
                }
            }
            retries.spend(|| self.root.path().to_owned())?;
        }
    }

    /// Turns a temporary file into an element. Returns `None` if a purge has removed the file.
    fn publish_file(&self, mut temp: TempFile) -> Result<Option<Name>, Error> {
        let to = &temp.target;
        let from = temp.name.as_ref().expect("a file is published once").c_str();
        let name = self.move_file(&*to.dir, from, to, || to.dir.path_of(from))?;
        // The file is either an element now or gone, so there is nothing left to remove.
        temp.name = None;
        Ok(name)
    }

    /// Renames the file `from` to a new element. Returns `None` if the file, or the directory of elements, is missing.
    fn move_file(
        &self,
        from_dir: impl AsFd,
        from: &CStr,
        to: &Target,
        path: impl Fn() -> PathBuf,
    ) -> Result<Option<Name>, Error> {
        let mut retries = RetryBudget::of("name");
        loop {
            let element = self.root.names.next();
            match rename_to_free_name(&from_dir, from, &to.dir, FileName::element(element).c_str())
            {
                Ok(()) => return Ok(Some(Name { directory: to.directory, element })),
                // Another process added an element with this name.
                Err(Errno::EXIST) => retries.spend(&path)?,
                Err(Errno::NOENT) => return Ok(None),
                Err(Errno::XDEV) => {
                    let queue = self.root.path().to_owned();
                    return Err(Error::OtherFileSystem { from: path(), queue });
                }
                Err(error) => return Err(Error::io("move", path(), error)),
            }
        }
    }

    /// Returns the directory for elements that are added now. Creates it if needed.
    fn target(&self) -> Result<Target, Error> {
        let mut retries = RetryBudget::of("add to");
        loop {
            // Computed for each attempt: the directory that was just created and removed may be that of the previous
            // period.
            let now = seconds(self.root.names.next());
            let directory = match self.granularity {
                0 => now,
                granularity => now - now % granularity,
            };
            if let Some(dir) = self.root.open(directory)? {
                return Ok(Target { dir, directory });
            }
            self.root.make(directory)?;
            retries.spend(|| self.root.path().to_owned())?;
        }
    }
}

/// A directory for new elements.
#[derive(Clone)]
pub(in crate::dirq) struct Target {
    dir: Arc<Dir>,
    directory: u32,
}

/// A file with a body that is not an element yet. Dropping it removes the file.
pub(in crate::dirq) struct TempFile {
    target: Target,
    /// `None` if it has become an element, or is gone.
    name: Option<FileName>,
    /// The open file, if it is still to be synced.
    open: Option<NewFile>,
}

/// A file whose parts are written by several calls. Dropping it removes the file, on a thread that may block.
pub(super) struct PartsFile {
    queue: Arc<Simple>,
    directory: u32,
    /// `None` if another call has it.
    name: Option<FileName>,
}

impl PartsFile {
    /// Returns the file for a call, which removes it unless it takes its name. Returns `None` if its directory is
    /// missing.
    fn open(mut self) -> Result<Option<TempFile>, Error> {
        let directory = self.directory;
        let dir = self.queue.root.open(directory)?;
        let name = self.name.take();
        Ok(dir.map(|dir| TempFile { target: Target { dir, directory }, name, open: None }))
    }
}

impl Drop for PartsFile {
    fn drop(&mut self) {
        let Some(name) = self.name.take() else { return };
        let (queue, directory) = (self.queue.clone(), self.directory);
        run_detached(&self.queue, move || {
            // On failure the purge removes it later.
            if let Ok(Some(dir)) = queue.root.open(directory) {
                let _ = dir.unlink(name.c_str());
            }
        });
    }
}

impl Add for Simple {
    type Content = Bytes;
    type Written = TempFile;
    type Dirs<'a> = Option<Target>;

    fn group(&self) -> &Group<Bytes> {
        &self.sync_group
    }

    fn encoder(&self) -> Result<impl Fn(Bytes) -> Result<Bytes, Error>, Error> {
        Ok(Ok)
    }

    fn dirs(&self) -> Option<Target> {
        None
    }

    fn write(&self, target: &mut Option<Target>, body: &Bytes) -> Result<TempFile, Error> {
        self.write_file(target, body, self.root.sync)
    }

    fn publish(
        &self,
        target: &mut Option<Target>,
        mut temp: TempFile,
        body: &Bytes,
    ) -> Result<Name, Error> {
        let mut retries = RetryBudget::of("add to");
        loop {
            if let Some(name) = self.publish_file(temp)? {
                return Ok(name);
            }
            // A purge took it for the leftover of a crashed writer.
            retries.spend(|| self.root.path().to_owned())?;
            temp = self.write(target, body)?;
            temp.sync()?;
        }
    }
}

impl TempFile {
    /// Calls `change` with the file's directory and name. Returns `None` if a purge has removed the file.
    fn change(
        &self,
        change: impl FnOnce(&Dir, &CStr) -> Result<(), Errno>,
    ) -> Result<Option<()>, Error> {
        let dir = &self.target.dir;
        let name = self.name.as_ref().expect("it has not been published").c_str();
        match change(dir, name) {
            Ok(()) => Ok(Some(())),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(Error::io("write", dir.path_of(name), error)),
        }
    }
}

impl Unpublished for TempFile {
    fn sync(&mut self) -> Result<(), Error> {
        let (Some(file), Some(name)) = (self.open.take(), &self.name) else { return Ok(()) };
        file.sync().map_err(Error::on("write", || self.target.dir.path_of(name.c_str())))
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // On failure the purge removes it later.
            let _ = self.target.dir.unlink(name.c_str());
        }
    }
}
