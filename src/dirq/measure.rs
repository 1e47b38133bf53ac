//! Measures the depth of a queue.

use std::time::Duration;

use super::{
    Error,
    depth::{Depth, Measured},
    name_generator::added_at,
    protocol::Protocol,
    record::now_micros,
    records::Records,
};

impl<P: Protocol> Measured for P {
    /// Counts the elements directory by directory, so that only the names of one are in memory.
    fn measure(&self) -> Result<Depth, Error> {
        let (mut depth, mut oldest) = (Depth::default(), None::<u64>);
        let records = Records::snapshot(self.root())?;
        for directory in self.root().directories()? {
            let (names, locked) = self.elements_and_locked(directory)?;
            depth.length += names.len() as u64;
            depth.locked += locked.min(names.len() as u64);
            let now = now_micros();
            for name in names {
                match &records {
                    Some(records) if records.is_dead(&name) => {
                        depth.dead += 1;
                        continue;
                    }
                    Some(records) if !records.is_due(&name, now) => depth.resting += 1,
                    _ => {}
                }
                oldest = Some(oldest.map_or(name.element, |oldest| oldest.min(name.element)));
            }
        }
        let age = |element| now_micros().saturating_sub(added_at(element));
        depth.oldest = oldest.map(age).map(Duration::from_micros).unwrap_or_default();
        Ok(depth)
    }
}
