//! What a file system of the network does, and only it.

use super::*;

/// What is removed while somebody has it open is kept by the client under another name, in the same directory.
const SILLY: &str = ".nfs0000000000000001";

#[tokio::test]
async fn what_is_removed_while_it_is_open_is_left_to_the_purge() {
    for setting in Setting::all().filter(|setting| !setting.sync && !setting.counted) {
        let folder = folder();
        let process = Process::start(&folder.path().join("queue"), setting);
        for (body, way) in [("x", "remove"), ("y", "dequeue")] {
            let name = process.add(body).expect("nothing fails");
            let path = process.path().to_owned();
            let mut is_open = true;
            let plan = move |what: &'static str| {
                if what == "unlink" && mem::take(&mut is_open) {
                    let file = tree(&path).into_iter().find(|path| path.is_file());
                    let kept = file.expect("it is about to be removed").with_file_name(SILLY);
                    fs::write(kept, "of who has it open").expect("it can be written");
                }
                setting.fate(what)
            };
            let removed = with(plan, || match way {
                "remove" => process.lock(&name).and_then(|_| process.remove(&name)),
                _ => process.dequeue(&name).map(drop),
            });
            removed.expect("it is removed");
            let kept = tree(process.path()).into_iter().filter(|path| path.ends_with(SILLY));
            assert_eq!(kept.count(), 1, "{setting:?}");
            assert_eq!(process.names(), [], "{setting:?}");
            // It is in nobody's way, and as long as it is open it can't be removed.
            let other = process.add("other").expect("nothing fails");
            age(process.path());
            let open = move |what: &'static str| match what {
                "unlink" => Fate::Refused(Errno::BUSY),
                what => setting.fate(what),
            };
            let report = with(open, || process.purge()).expect("it can be listed");
            assert_eq!((report.temporary, report.failed), (0, u64::from(setting.normal)));
            assert_eq!(process.dequeue(&other).expect("nothing fails").as_deref(), Some("other"));
            age(process.path());
            let report = process.purge().expect("nothing fails");
            assert_eq!((report.temporary, report.failed), (u64::from(setting.normal), 0));
            if !setting.normal {
                // What is no element's is not the format's business, and goes when it is closed.
                let kept = tree(process.path()).into_iter().find(|path| path.ends_with(SILLY));
                fs::remove_file(kept.expect("it is still open")).expect("it can be closed");
            }
            let left = tree(process.path()).into_iter().filter(|path| path.is_file());
            assert_eq!(left.count(), 0, "{setting:?}");
        }
    }
}
