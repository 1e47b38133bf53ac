//! Capture of log messages in tests.

use std::{
    io::Write,
    sync::{Arc, LazyLock, Mutex},
};

use tracing::{Dispatch, Level, subscriber::DefaultGuard};
use tracing_subscriber::{fmt, fmt::format::FmtSpan};

/// Second subscriber, which is never dropped. With a single one, tracing caches for all threads whether the first
/// thread that reaches a log statement has an interested subscriber, even if that thread has none. With two it asks
/// both.
static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(fmt().finish()));

/// Log messages of this thread, as text.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Starts capturing, until the guard is dropped.
    pub(crate) fn start(max_level: Level) -> (Log, DefaultGuard) {
        LazyLock::force(&SECOND);
        let log = Log::default();
        let writer = log.clone();
        let subscriber = fmt()
            .with_max_level(max_level)
            .with_span_events(FmtSpan::CLOSE)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    /// Returns the lines that contain `text`.
    pub(crate) fn lines(&self, text: &str) -> Vec<String> {
        let log = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        log.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
