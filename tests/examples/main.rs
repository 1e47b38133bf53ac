//! Tests of the examples, run as processes.

#[path = "../common/clock.rs"]
mod clock;
#[path = "../common/dirq.rs"]
mod directory;
#[path = "../common/example.rs"]
mod example;
#[path = "../common/http.rs"]
mod http;
#[path = "../common/patience.rs"]
mod patience;
#[path = "../common/promtool.rs"]
mod promtool;
#[path = "../common/redis.rs"]
mod servers;
#[cfg(unix)]
#[path = "../common/skipped.rs"]
mod skipped;

mod dirq;
mod graceful_shutdown;
mod guide;
mod limit;
mod limit_by_user;
mod loader;
mod login_timeout;
mod migrations;
mod on_redis;
mod opentelemetry;
mod replay;
mod server;
#[cfg(target_os = "linux")]
mod server_stats;
mod service;
#[cfg(unix)]
mod service_attacks;
mod service_on_redis;
mod service_snapshot;
mod service_spool;
mod short_programs;
mod tower_sessions;
mod worker;
