//! Two workers clean up logins that were not completed in time. One worker is killed during its work, and the other
//! handles the same login again.
//!
//! `start_paused` makes Tokio's clock jump to the next timer instead of waiting. The minute takes no time, and every
//! printed time is exact.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use fleeting::TimeoutDict;

const LOGIN_TIMEOUT: Duration = Duration::from_secs(30);
const WORK: Duration = Duration::from_secs(2);
/// Longer than the work takes. A worker that hangs blocks a login for at most this long.
const LEASE: Duration = Duration::from_secs(10);

type Logins = TimeoutDict<&'static str, u32>;

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    let start = Instant::now();
    let logins = Logins::new();
    for (session, user) in (1..).zip(["ada", "grace", "alan", "edsger", "barbara"]) {
        logins.set(user, session, LOGIN_TIMEOUT).await;
        sleep(Duration::from_secs(1)).await;
    }
    let session = logins.remove("grace").await;
    println!("grace has logged in, session {session:?}");

    let first = tokio::spawn(work("worker 1", logins.clone(), start));
    let second = tokio::spawn(work("worker 2", logins.clone(), start));
    sleep(LOGIN_TIMEOUT).await;
    first.abort();
    println!("{:2} s: worker 1 is killed", start.elapsed().as_secs());
    while !logins.is_empty().await {
        sleep(WORK).await;
    }
    second.abort();
}

async fn work(name: &str, logins: Logins, start: Instant) {
    loop {
        // Waits until a login is due. If this task is aborted, the claim is dropped and the login becomes due again.
        let login = logins.next_claim(LEASE).await;
        let user = login.key();
        println!("{:2} s: {name} starts {user}", start.elapsed().as_secs());
        sleep(WORK).await;
        println!("{:2} s: {name} finishes {user}", start.elapsed().as_secs());
        login.ack().await;
    }
}
