//! The page `docs/scale.md`.

use super::{
    SEED,
    calibration::Calibration,
    costs::Costs,
    picture::data_uri,
    tables::{Input, Section, herd, limits, near, plan, server},
};

/// The page and its pictures.
#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    /// Markdown.
    pub text: String,
    /// File names and SVG.
    pub pictures: Vec<(&'static str, String)>,
}

impl Page {
    /// Returns the pictures as link definitions of Markdown that contain them. rustdoc copies no files, so they precede
    /// the page in the guide, where the first definition of a name applies.
    pub fn definitions(&self) -> String {
        let pictures = self.pictures.iter();
        pictures.map(|(name, svg)| format!("[{name}]: {}\n", data_uri(svg))).collect()
    }
}

/// Simulates all tables. `calibration` is the table that `fleet calibrate` writes. A quick page has the same sections
/// for small fleets.
pub fn make(quick: bool, calibration: &str) -> Page {
    let costs = Costs::measured();
    let input = Input { costs, calibration: Calibration::read(calibration), quick };
    let sections: [fn(&Input) -> Section; 11] = [
        plan::capacity,
        server::costs,
        server::one_server,
        plan::million,
        near::hits,
        near::failures,
        near::day,
        limits::accuracy,
        limits::failover,
        herd::failover,
        herd::loads,
    ];
    let mut page = Page { text: head(), pictures: Vec::new() };
    for section in sections {
        let (text, picture) = section(&input);
        page.text += &text;
        page.pictures.extend(picture);
    }
    page.text += CALIBRATION;
    page.text += calibration;
    page.text += "\n";
    for (name, _) in &page.pictures {
        page.text += &format!("[{name}]: {name}\n");
    }
    page
}

fn head() -> String {
    format!(
        "# Fleets: one to a thousand processes on Redis\n\n\
         A planning guide, made by a simulation with measured costs. `cargo run --release -p fleeting-models --bin fleet -- \
         page` writes this page; its seed is {SEED}, and the same seed returns the same numbers. `... -- measure`, on one \
         processor by `taskset -c 0`, measures \
         the costs on a real `redis-server`, and `... -- calibrate` compares the simulation with real processes. Costs are \
         those of the processor named below: measure on your own before you buy servers.\n\n\
         The simulation models each process, each connection and the event loop of each server. Rate limits, near caches, \
         leases, retries and circuit breakers follow the code; a test compares each decision of the limits with \
         `fleeting::RateLimiter`. Assumptions:\n\n\
         - A round trip of the network takes 0.5 ms, without jitter.\n\
         - Requests arrive independently, and each process makes as many as any other.\n\
         - A server has one thread for commands, and no other load. A busy share of 70 % is its planned maximum.\n\n\
         Not modelled: the processor time of the processes, the bandwidth of the network, `io-threads`, saves and \
         replication on the server, evictions, TLS, values above a kilobyte, keys that share a version in a near cache, full \
         near caches, and moving slots.\n\n"
    )
}

const CALIBRATION: &str = "## Calibration\n\n\
    Real processes on one machine with two processor cores, which they share with the server, compared with the same \
    load in the simulation. \"requests\": each process makes 4,000 per second, four `get`s to one `set_ex`. In the others, \
    each makes 1,000 calls per second. \"near\": 1,000 keys, 200 changes per second. \"limits\": a `Log` with a quota of 50 per second for each of 20 keys. \"loads\": 200 keys with a TTL of 0.5 s, and loads \
    of 20 ms. The cost of a turn after a pause is measured before each run, because it depends on the other load of the \
    machine. The busy shares vary with that load, too: compare runs on a quiet machine. `cargo run --release -p fleeting-models --bin fleet -- calibrate` made this table.\n\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_makes_the_same_page() {
        let calibration = include_str!("../../calibration.md");
        let (page, again) = (make(true, calibration), make(true, calibration));
        assert_eq!(page, again);
        assert!(page.text.lines().filter(|line| line.starts_with("| ")).count() > 80);
        assert_eq!(page.pictures.len(), 2);
        for (name, _) in &page.pictures {
            assert_eq!(page.text.matches(&format!("][{name}]\n")).count(), 1, "{name} is shown");
        }
    }
}
