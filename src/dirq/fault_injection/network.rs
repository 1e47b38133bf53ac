//! What a file system of the network does, and only it.

use super::*;

/// What is removed while somebody has it open is renamed by the client under another name, in the same directory.
const SILLY_RENAME: &str = ".nfs0000000000000001";

#[tokio::test]
async fn what_is_removed_while_it_is_open_is_left_to_the_purge() {
    for config in Config::all().filter(|config| !config.sync && !config.counted) {
        let temp_dir = temp_dir();
        let process = Process::start(&temp_dir.path().join("queue"), config);
        for (body, method) in [("x", "remove"), ("y", "dequeue")] {
            let name = process.add(body).expect("nothing fails");
            let path = process.path().to_owned();
            let mut is_open = true;
            let plan = move |what: &'static str| {
                if what == "unlink" && mem::take(&mut is_open) {
                    let file = tree(&path).into_iter().find(|path| path.is_file());
                    let renamed =
                        file.expect("it is about to be removed").with_file_name(SILLY_RENAME);
                    fs::write(renamed, "of who has it open").expect("it can be written");
                }
                config.default_fault(what)
            };
            let removed = with_plan(plan, || match method {
                "remove" => process.lock(&name).and_then(|_| process.remove(&name)),
                _ => process.dequeue(&name).map(drop),
            });
            removed.expect("it is removed");
            let renamed =
                tree(process.path()).into_iter().filter(|path| path.ends_with(SILLY_RENAME));
            assert_eq!(renamed.count(), 1, "{config:?}");
            assert_eq!(process.names(), [], "{config:?}");
            // It is in nobody's method, and as long as it is open it can't be removed.
            let other = process.add("other").expect("nothing fails");
            make_stale(process.path());
            let open = move |what: &'static str| match what {
                "unlink" => Fault::Fail(Errno::BUSY),
                what => config.default_fault(what),
            };
            let report = with_plan(open, || process.purge()).expect("it can be listed");
            assert_eq!((report.temporary, report.failed), (0, u64::from(config.normal)));
            assert_eq!(process.dequeue(&other).expect("nothing fails").as_deref(), Some("other"));
            make_stale(process.path());
            let report = process.purge().expect("nothing fails");
            assert_eq!((report.temporary, report.failed), (u64::from(config.normal), 0));
            if !config.normal {
                // What is no element's is not the format's business, and goes when it is closed.
                let renamed =
                    tree(process.path()).into_iter().find(|path| path.ends_with(SILLY_RENAME));
                fs::remove_file(renamed.expect("it is still open")).expect("it can be closed");
            }
            let left = tree(process.path()).into_iter().filter(|path| path.is_file());
            assert_eq!(left.count(), 0, "{config:?}");
        }
    }
}
