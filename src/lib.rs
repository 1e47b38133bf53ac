#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod cache;
mod clock;
mod event;
mod shared;
mod store;
mod sweeper;
mod user;

pub use cache::{Builder, Cache, DefaultHasher, Iter, Keys, Stats, Ttl, Values, When};
pub use event::{Cause, Event, Events, Lagged, LosslessEvents};
pub use sweeper::{Sweep, SweepReport};
