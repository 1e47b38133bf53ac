//! Shared helpers for tests of directory queues: file trees, ages, and the Python package.

// Each test binary compiles this module separately, and uses a part of it.
#![allow(dead_code)]

use std::{
    fs::{self, File, FileTimes},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, SystemTime},
};

use fleeting::dirq::{Error, Name, QueueSimple, Walk};
use tempfile::TempDir;

/// Collects all items of `walk`.
pub(crate) async fn all<T>(mut walk: Walk<T>) -> Vec<T> {
    let mut found = Vec::new();
    while let Some(next) = walk.next().await {
        found.push(next.expect("the iteration has no errors"));
    }
    found
}

/// Adds two elements by one event: a directory with both is moved into the queue.
pub(crate) async fn add_two_at_once(queue: &QueueSimple, dir: &Path) -> Vec<Name> {
    let other = QueueSimple::open(dir.join("other")).await.expect("no call fails");
    let names = other.add_many(["a", "b"]).await.expect("no call fails");
    let directory = names[0].to_string()[..8].to_owned();
    fs::rename(other.path().join(&directory), queue.path().join(&directory))
        .expect("no call fails");
    names
}

/// Returns the full name of a test, given its module by `module_path!()`.
pub(crate) fn test_name(module: &str, test: &str) -> String {
    match module.split_once("::") {
        Some((_, module)) => format!("{module}::{test}"),
        None => test.to_owned(),
    }
}

/// Runs an ignored test of this program in a process of its own: `command` executes its arguments.
pub(crate) fn run_alone(mut command: Command, test: &str) {
    let exe = std::env::current_exe().expect("the program has a path");
    let output = command.arg(exe).args(["--exact", test, "--ignored", "--nocapture"]).output();
    let output = output.expect("the command starts");
    let output_text =
        String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output_text.contains("1 passed"), "{output_text}");
    println!("{output_text}");
}

/// Creates a directory in memory if possible, for tests that write a lot.
pub(crate) fn scratch() -> TempDir {
    match Path::new("/dev/shm").is_dir() {
        true => tempfile::tempdir_in("/dev/shm"),
        false => tempfile::tempdir(),
    }
    .expect("a directory can be created")
}

/// Returns the relative paths of all files and directories below `top`, sorted. Directories end in a slash.
pub(crate) fn tree(top: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![top.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).expect("the path is a directory") {
            let entry = entry.expect("the directory can be listed");
            let path = entry.path();
            let name =
                path.strip_prefix(top).expect("the path is below the top").display().to_string();
            if entry.file_type().expect("the file type is known").is_dir() {
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

/// Returns the paths of a simple queue's elements in order, without using the library.
pub(crate) fn elements(queue: &Path) -> Vec<PathBuf> {
    let list = |path: &Path| -> Vec<PathBuf> {
        let entries =
            fs::read_dir(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut paths: Vec<_> =
            entries.map(|entry| entry.expect("the directory can be listed").path()).collect();
        paths.sort();
        paths
    };
    let is_whole = |path: &PathBuf| path.extension().is_none();
    list(queue).iter().flat_map(|directory| list(directory)).filter(is_whole).collect()
}

/// Sets the modification time of `path` to `age` ago.
pub(crate) fn make_old(path: &Path, age: Duration) {
    set_modified(path, SystemTime::now() - age);
}

/// Sets the modification time of `path` to a time in the future.
pub(crate) fn make_young(path: &Path, ahead: Duration) {
    set_modified(path, SystemTime::now() + ahead);
}

fn set_modified(path: &Path, then: SystemTime) {
    let times = FileTimes::new().set_accessed(then).set_modified(then);
    let file = File::open(path).expect("the file exists");
    file.set_times(times).expect("the times can be set");
}

pub(crate) fn age(path: &Path) -> Duration {
    let modified = fs::metadata(path).and_then(|data| data.modified()).expect("the file exists");
    modified.elapsed().unwrap_or_default()
}

pub(crate) fn name(text: &str) -> Name {
    text.parse().expect("the name is valid")
}

/// Returns the kind of an operating system error.
pub(crate) fn kind(error: &Error) -> Option<std::io::ErrorKind> {
    match error {
        Error::Io { source, .. } => Some(source.kind()),
        _ => None,
    }
}

/// Runs a Python program that uses the package `dirq`, and returns its output.
pub(crate) fn python(program: &str, args: &[&str]) -> String {
    let output = python_command(program, args).output().expect("Python cannot be started");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "Python failed:\n{complaint}\nby\n{program}");
    String::from_utf8(output.stdout).expect("the output of Python is UTF-8")
}

/// Returns the command that [`python`] runs.
pub(crate) fn python_command(program: &str, args: &[&str]) -> Command {
    let python = std::env::var_os("FLEETING_DIRQ_PYTHON").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("target/dirq-venv/bin/python"),
        PathBuf::from,
    );
    assert!(
        python.exists(),
        "{} does not exist; run scripts/python.sh (as ./test.sh does), or name a Python that has the package \
         dirq 1.8 in FLEETING_DIRQ_PYTHON",
        python.display()
    );
    let mut command = Command::new(python);
    command.arg("-c").arg(program).args(args).stdin(Stdio::null());
    command
}
