//! A worker that retries failed mails, keeps mails that always fail as dead letters with their reasons, and gives its
//! mail back at a shutdown.
//!
//! `start_paused` makes Tokio's clock jump to the next timer instead of waiting, so the program takes no time.

use std::{future, time::Duration};

use tokio::{sync::watch, time::sleep};

use fleeting::TimeoutDict;

/// Mails by recipient.
type Mails = TimeoutDict<&'static str, &'static str>;

const SECOND: Duration = Duration::from_secs(1);
/// Longer than a mail takes. If a worker crashes, its mail is delivered again after this time.
const LEASE: Duration = Duration::from_secs(60);

async fn send(to: &str, attempt: u32) -> Result<(), &'static str> {
    match to {
        "bob" if attempt < 3 => Err("421 try again later"),
        "eve" => Err("550 no such user"),
        "slow" => future::pending().await,
        _ => Ok(()),
    }
}

async fn work(mails: Mails, stopping: watch::Receiver<bool>) {
    loop {
        let mail = tokio::select! {
            mail = mails.next_claim(LEASE) => mail, // sleeps until a mail is due
            () = begin_of_shutdown(stopping.clone()) => return,
        };
        let (to, attempt) = (*mail.key(), mail.attempts());
        tokio::select! {
            sent = send(to, attempt) => match sent {
                Ok(()) => {
                    mail.ack().await; // without this, it is delivered again
                    println!("{to}: sent at attempt {attempt}");
                }
                Err(reason) => {
                    mail.fail(reason).await; // delivered again after the backoff, or a dead letter
                    println!("{to}: attempt {attempt} failed, {reason}");
                }
            },
            () = begin_of_shutdown(stopping.clone()) => {
                mail.release().await; // due immediately for another worker, and not a failed attempt
                println!("{to}: given back");
                return;
            }
        }
    }
}

async fn begin_of_shutdown(mut stopping: watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    let mails: Mails = TimeoutDict::builder().backoff(SECOND, 60 * SECOND).max_attempts(3).build();
    for to in ["ada", "bob", "eve"] {
        mails.set(to, "hello", Duration::ZERO).await;
    }
    mails.set("slow", "hello", 600 * SECOND).await;
    let (stop, stopping) = watch::channel(false);
    let worker = tokio::spawn(work(mails.clone(), stopping));
    sleep(601 * SECOND).await;
    stop.send_replace(true);
    worker.await.expect("the worker does not panic");

    for dead in mails.dead_letters(10).await {
        let reason = dead.reason.as_deref().unwrap_or("unknown");
        println!("dead: {} after {} attempts, {reason}", dead.key, dead.attempts);
        mails.revive(dead.key, Duration::ZERO).await; // an operator does this when the cause is repaired
    }
    let due: Vec<_> = mails.take_expired(10).await.into_iter().map(|(to, _)| to).collect();
    println!("due: {due:?}");
}
