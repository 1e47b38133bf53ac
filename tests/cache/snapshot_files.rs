//! Tests of `snapshot_to` and `restore_from`: files that are replaced as a whole.

use std::{
    fs, io,
    path::Path,
    time::{Duration, Instant},
};

use fleeting::{Cache, SnapshotError};
use serde::{Deserialize, Serialize, Serializer, ser};

use crate::patience::patience;

type Sessions = Cache<String, u64>;

#[tokio::test]
async fn file_is_created_and_replaced_and_restored() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions");
    let sessions = Sessions::new();
    assert_eq!(sessions.restore_from(&path).await.unwrap(), 0);
    assert_eq!(sessions.snapshot_to(&path).await.unwrap(), 0);
    sessions.set("ada".into(), 42).await;
    assert_eq!(sessions.snapshot_to(&path).await.unwrap(), 1);
    assert_eq!(names(folder.path()), ["sessions"]);

    let restored = Sessions::new();
    assert_eq!(restored.restore_from(&path).await.unwrap(), 1);
    assert_eq!(restored.get("ada").await, Some(42));
    // The snapshot is one as written by the other methods.
    let again = Sessions::new();
    assert_eq!(again.restore(&fs::read(&path).unwrap()[..]).await.unwrap(), 1);
}

#[cfg(unix)]
#[tokio::test]
async fn only_its_owner_may_read_the_file_and_links_are_replaced() {
    use std::os::unix::fs::{PermissionsExt, symlink};

    let folder = tempfile::tempdir().unwrap();
    let (path, precious) = (folder.path().join("sessions"), folder.path().join("precious"));
    fs::write(&precious, "precious").unwrap();
    symlink(&precious, &path).unwrap();
    let sessions = Sessions::new();
    sessions.snapshot_to(&path).await.unwrap();
    assert_eq!(fs::read(&precious).unwrap(), b"precious");
    let file = fs::symlink_metadata(&path).unwrap();
    assert!(file.is_file());
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
    // A file that was readable for all is replaced by one that is not.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    sessions.snapshot_to(&path).await.unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn errors_name_the_file_and_leave_it_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let sessions = Sessions::new();
    let missing = folder.path().join("missing").join("sessions");
    let error = sessions.snapshot_to(&missing).await.unwrap_err();
    let SnapshotError::Write(error) = error else { panic!("{error:?}") };
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    assert!(error.to_string().contains("missing"), "{error}");
    // A directory can be opened, and not read.
    let error = sessions.restore_from(folder.path()).await.unwrap_err();
    let SnapshotError::Read(error) = error else { panic!("{error:?}") };
    assert!(error.to_string().contains(folder.path().to_str().unwrap()), "{error}");
    let error = sessions.snapshot_to("/").await.unwrap_err();
    assert!(matches!(error, SnapshotError::Write(_)), "{error:?}");

    let path = folder.path().join("sessions");
    fs::write(&path, "foreign").unwrap();
    let error = sessions.restore_from(&path).await.unwrap_err();
    assert!(matches!(error, SnapshotError::NotASnapshot | SnapshotError::Truncated), "{error:?}");
    let unwritable: Cache<u64, Unwritable> = Cache::new();
    unwritable.set(1, Unwritable).await;
    let error = unwritable.snapshot_to(&path).await.unwrap_err();
    assert!(matches!(error, SnapshotError::Encode(_)), "{error:?}");
    assert_eq!(fs::read(&path).unwrap(), b"foreign");
    only_file_is_left(folder.path()).await;
}

#[derive(Clone, Deserialize)]
struct Unwritable;

impl Serialize for Unwritable {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(ser::Error::custom("this value is unwritable"))
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Waits until the new file is removed, by a thread for blocking work.
async fn only_file_is_left(folder: &Path) {
    let begin = Instant::now();
    while names(folder) != ["sessions"] {
        assert!(begin.elapsed() < patience(), "{:?} are left", names(folder));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
