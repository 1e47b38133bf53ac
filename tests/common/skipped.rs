//! Checks that a test leaves out, because this machine lacks something that cannot be installed.

use std::{env, fs::OpenOptions, io::Write};

/// Prints `reason`, and adds it to the summary of `test.sh`, which names the file in `FLEETING_SKIPPED`.
pub(crate) fn skipped(reason: &str) {
    println!("skipped: {reason}");
    let Some(path) = env::var_os("FLEETING_SKIPPED") else { return };
    let mut file = OpenOptions::new().create(true).append(true).open(path).expect("the file opens");
    // One write, because other tests append at the same time.
    file.write_all(format!("{reason}\n").as_bytes()).expect("the reason is written");
}
