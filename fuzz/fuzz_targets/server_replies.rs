//! Calls the types on Redis while the server answers with anything: wrong types, wrong lengths, nested and forged
//! replies, bytes that are no reply, and pushes. Calls may fail, but nothing panics, allocates without bound or waits
//! forever.
#![no_main]

#[path = "server_replies/calls.rs"]
mod calls;
#[path = "server_replies/reply.rs"]
mod reply;
#[path = "server_replies/server.rs"]
mod server;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

use self::{calls::Call, reply::Reply, server::Server};

#[derive(Arbitrary, Debug)]
struct Input {
    is_resp3: bool,
    calls: Vec<Call>,
    replies: Vec<Reply>,
}

fuzz_target!(|input: Input| {
    let Input { is_resp3, calls, replies } = input;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Without messages on the way, time passes at once.
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let server = Server::start(replies, is_resp3);
        calls::run(&server.url(), calls.into_iter().take(8)).await;
    });
});
