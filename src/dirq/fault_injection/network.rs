//! Behavior that only network file systems have.

use super::*;

/// An NFS client renames a file that is removed while it is open ("silly rename").
const SILLY_RENAME: &str = ".nfs0000000000000001";

#[tokio::test]
async fn silly_renamed_file_is_ignored_and_removed_by_the_purge() {
    for config in Config::all().filter(|config| !config.sync && !config.counted) {
        let temp_dir = temp_dir();
        let process = Process::start(&temp_dir.path().join("queue"), config);
        for (body, method) in [("x", "remove"), ("y", "dequeue")] {
            let name = process.add(body).expect("no fault is injected");
            let path = process.path().to_owned();
            let mut is_open = true;
            let plan = move |what: &'static str| {
                if what == "unlink" && mem::take(&mut is_open) {
                    let file = tree(&path).into_iter().find(|path| path.is_file());
                    let renamed =
                        file.expect("the file is about to be removed").with_file_name(SILLY_RENAME);
                    fs::write(renamed, "content of the open file")
                        .expect("the file can be written");
                }
                config.default_fault(what)
            };
            let removed = with_plan(plan, || match method {
                "remove" => process.lock(&name).and_then(|_| process.remove(&name)),
                _ => process.dequeue(&name).map(drop),
            });
            removed.expect("the element is removed");
            let renamed =
                tree(process.path()).into_iter().filter(|path| path.ends_with(SILLY_RENAME));
            assert_eq!(renamed.count(), 1, "{config:?}");
            assert_eq!(process.names(), [], "{config:?}");
            // The renamed file blocks nothing, and cannot be removed while it is open.
            let other = process.add("other").expect("no fault is injected");
            make_stale(process.path());
            let open = move |what: &'static str| match what {
                "unlink" => Fault::Fail(Errno::BUSY),
                what => config.default_fault(what),
            };
            let report = with_plan(open, || process.purge()).expect("the queue can be listed");
            assert_eq!((report.temporary, report.failed), (0, u64::from(config.normal)));
            assert_eq!(
                process.dequeue(&other).expect("no fault is injected").as_deref(),
                Some("other")
            );
            make_stale(process.path());
            let report = process.purge().expect("no fault is injected");
            assert_eq!((report.temporary, report.failed), (u64::from(config.normal), 0));
            if !config.normal {
                // In a simple queue, such a file does not belong to the format. It disappears when it is closed.
                let renamed =
                    tree(process.path()).into_iter().find(|path| path.ends_with(SILLY_RENAME));
                fs::remove_file(renamed.expect("the renamed file exists"))
                    .expect("the file can be removed");
            }
            let left = tree(process.path()).into_iter().filter(|path| path.is_file());
            assert_eq!(left.count(), 0, "{config:?}");
        }
    }
}
