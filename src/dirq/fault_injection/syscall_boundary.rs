//! All system calls go through `fs`: calls that bypass it are not covered by fault injection.

use super::*;

#[test]
fn file_system_calls_go_through_the_fs_module() {
    let source_dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/dirq");
    let is_code = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "rs");
    let mut seen = 0;
    for path in tree(&source_dir).into_iter().filter(is_code) {
        let inside = path.strip_prefix(&source_dir).expect("the file is below the directory");
        if inside.starts_with("fault_injection") || inside.starts_with("fault_injection.rs") {
            continue;
        }
        seen += 1;
        let code = fs::read_to_string(&path).expect("the file is readable");
        // Test modules are at the end of a file.
        let code =
            code.split("#[cfg(test)]\nmod tests").next().expect("split yields at least one part");
        let is_comment = |line: &&str| line.trim().starts_with("//");
        let code: Vec<_> = code.lines().filter(|line| !is_comment(line)).collect();
        let code = code.join("\n");
        let is_fs_module = inside.starts_with("fs") || inside.starts_with("fs.rs");
        let forbidden_paths: &[&str] = match is_fs_module {
            true => &["std::fs", "tokio::fs"],
            false => &["std::fs", "tokio::fs", "rustix::fs", " nix::", "File::", "libc"],
        };
        for forbidden in forbidden_paths {
            assert!(
                !code.contains(forbidden),
                "{} bypasses the fs module: {forbidden}",
                inside.display()
            );
        }
    }
    assert!(seen > 30, "only {seen} files were checked");
}
