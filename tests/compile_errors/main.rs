//! Messages of rustc for first guesses: names of other libraries, a forgotten argument, a key that is borrowed. Each
//! file of `cases/` is compiled; its lines `// error: TEXT` and `// warning: TEXT` are in the messages, and without
//! such an error it compiles.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use serde_json::Value;

#[test]
fn messages_name_what_to_write_instead() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (cases, package) = (root.join("tests/compile_errors/cases"), root.join("target/guesses"));
    let bins = package.join("src/bin");
    // A case that was removed must not be compiled again.
    let _ = fs::remove_dir_all(&bins);
    fs::create_dir_all(&bins).expect("the folder can be created");
    let manifest = format!(
        "[package]\nname = 'guesses'\nversion = '0.0.0'\nedition = '2024'\n[workspace]\n[dependencies]\n\
         fleeting = {{ path = '{}' }}\n",
        root.display()
    );
    fs::write(package.join("Cargo.toml"), manifest).expect("the manifest can be written");
    // The same versions, which are downloaded already.
    fs::copy(root.join("Cargo.lock"), package.join("Cargo.lock")).expect("there is a lock file");
    let mut expected = BTreeMap::new();
    for case in fs::read_dir(&cases).expect("the folder has cases") {
        let path = case.expect("it can be listed").path();
        let name = path.file_stem().expect("a name").to_str().expect("ASCII").to_owned();
        let code = fs::read_to_string(&path).expect("the case can be read");
        fs::write(bins.join(format!("{name}.rs")), format!("{code}\nfn main() {{}}\n"))
            .expect("the case can be written");
        expected.insert(name, code);
    }
    let output = Command::new(env!("CARGO"))
        .args(["check", "--bins", "--keep-going", "--offline", "--message-format=json"])
        .current_dir(&package)
        .env("CARGO_TARGET_DIR", package.join("target"))
        // The flags of the tests might deny warnings.
        .env("RUSTFLAGS", "")
        .output()
        .expect("cargo runs");
    let mut messages: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let line: Value = serde_json::from_str(line).expect("cargo prints JSON");
        if line["reason"] == "compiler-message" {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let message = (text(&line["message"]["level"]), text(&line["message"]["rendered"]));
            messages.entry(text(&line["target"]["name"])).or_default().push(message);
        }
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!messages.is_empty(), "nothing was compiled: {stderr}");
    for (name, code) in expected {
        let got = messages.remove(&name).unwrap_or_default();
        let mut is_error_expected = false;
        for line in code.lines() {
            let Some((level, text)) =
                line.strip_prefix("// ").and_then(|line| line.split_once(": "))
            else {
                continue;
            };
            is_error_expected |= level == "error";
            let is_found = got.iter().any(|(of, rendered)| of == level && rendered.contains(text));
            assert!(is_found, "{name}: no {level} with {text:?} in {got:#?}");
        }
        let has_error = got.iter().any(|(level, _)| level == "error");
        assert_eq!(has_error, is_error_expected, "{name}: {got:#?}");
    }
}
