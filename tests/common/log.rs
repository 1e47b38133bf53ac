//! What a test logs, as text to look into.

use std::{
    io::Write,
    sync::{Arc, LazyLock, Mutex},
};

use tracing::{Dispatch, Level, subscriber::DefaultGuard};
use tracing_subscriber::{fmt, fmt::format::FmtSpan};

/// Kept for ever. Beside one subscriber alone, tracing asks whichever thread meets an event first whether anybody wants
/// it, and believes a thread that has none; where there are two it asks them both.
static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(fmt().finish()));

/// What this thread logs, as text.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Until the guard is dropped.
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

    pub(crate) fn lines(&self, with: &str) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().filter(|line| line.contains(with)).map(str::to_owned).collect()
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
