//! What the tests of directory queues share: a look at the files, their ages, and the Python package.

// Each test binary compiles this module anew, and uses its share of it.
#![allow(dead_code)]

use std::{
    fs::{self, File, FileTimes},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, SystemTime},
};

use fleeting::dirq::{Error, Name, Walk};
use tempfile::TempDir;

/// All that `walk` yields.
pub(crate) async fn all<T>(mut walk: Walk<T>) -> Vec<T> {
    let mut found = Vec::new();
    while let Some(next) = walk.next().await {
        found.push(next.expect("nothing is in the way"));
    }
    found
}

/// The name by which the test of a module, by its `module_path!()`, is called.
pub(crate) fn test_name(module: &str, test: &str) -> String {
    match module.split_once("::") {
        Some((_, module)) => format!("{module}::{test}"),
        None => test.to_owned(),
    }
}

/// A directory in memory where there is such, for what would wear a disk.
pub(crate) fn scratch() -> TempDir {
    match Path::new("/dev/shm").is_dir() {
        true => tempfile::tempdir_in("/dev/shm"),
        false => tempfile::tempdir(),
    }
    .expect("a directory can be made")
}

/// The paths of all files and directories below `top`, from there, sorted; directories end in a slash.
pub(crate) fn tree(top: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![top.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).expect("it is a directory") {
            let entry = entry.expect("it can be listed");
            let path = entry.path();
            let name = path.strip_prefix(top).expect("it is below").display().to_string();
            if entry.file_type().expect("it has a type").is_dir() {
                found.push(format!("{name}/"));
                left.push(path);
            } else {
                found.push(name);
            }
        }
    }
    found.sort();
    found
}

/// The paths of a simple queue's elements in order, read as any other program would.
pub(crate) fn elements(queue: &Path) -> Vec<PathBuf> {
    let list = |path: &Path| -> Vec<PathBuf> {
        let entries =
            fs::read_dir(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut paths: Vec<_> =
            entries.map(|entry| entry.expect("a list can be read").path()).collect();
        paths.sort();
        paths
    };
    let is_whole = |path: &PathBuf| path.extension().is_none();
    list(queue).iter().flat_map(|directory| list(directory)).filter(is_whole).collect()
}

/// Lets the last change of `path` be so long ago.
pub(crate) fn make_old(path: &Path, age: Duration) {
    let then = SystemTime::now() - age;
    let times = FileTimes::new().set_accessed(then).set_modified(then);
    let file = File::open(path).expect("it is there");
    file.set_times(times).expect("its times can be set");
}

pub(crate) fn age(path: &Path) -> Duration {
    let modified = fs::metadata(path).and_then(|data| data.modified()).expect("it is there");
    modified.elapsed().unwrap_or_default()
}

pub(crate) fn name(text: &str) -> Name {
    text.parse().expect("it is a name")
}

/// The kind of an error of the operating system.
pub(crate) fn kind(error: &Error) -> Option<std::io::ErrorKind> {
    match error {
        Error::Io { source, .. } => Some(source.kind()),
        _ => None,
    }
}

/// Runs a Python program that has the package `dirq`, and returns what it prints.
pub(crate) fn python(program: &str, args: &[&str]) -> String {
    let output = python_command(program, args).output().expect("Python can't be run");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "Python failed:\n{complaint}\nby\n{program}");
    String::from_utf8(output.stdout).expect("Python prints UTF-8")
}

/// The same, to be started as the caller likes.
pub(crate) fn python_command(program: &str, args: &[&str]) -> Command {
    let python = std::env::var_os("FLEETING_DIRQ_PYTHON").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("target/dirq-venv/bin/python"),
        PathBuf::from,
    );
    assert!(
        python.exists(),
        "{} is not there: run scripts/python.sh (as ./test.sh does), or name a Python that has the package \
         dirq 1.8 in FLEETING_DIRQ_PYTHON",
        python.display()
    );
    let mut command = Command::new(python);
    command.arg("-c").arg(program).args(args).stdin(Stdio::null());
    command
}
