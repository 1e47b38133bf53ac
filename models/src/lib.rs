//! Models of the protocols between processes, explored exhaustively by a model checker ([`stateright`]), and a
//! simulator of a fleet of processes ([`fleet`]).
//!
//! A test of the crate runs a few of the orders in which requests, replies, faults and tasks can interleave. A model
//! runs all of them, for a few keys, calls and faults. Each module is one protocol: its documentation names the files
//! that it models, the invariants, and what it covers and what not. A change of these files belongs in the model, too.
//!
//! | module | protocol | states | seconds | seeded bugs |
//! | --- | --- | --- | --- | --- |
//! | [`claims`] | claims, takes and dead letters of a dictionary on Redis | 540,000 | 3 | 7 |
//! | [`fleet_loads`] | loads of one key by several processes | 900,000 | 7 | 10 |
//! | [`journal`] | the journal of removals and the log of events inside of a process | 1,700,000 | 9 | 7 |
//! | [`near_cache`] | the near cache on one server, and in a cluster | 710,000 | 10 | 8 |
//! | [`queue_locks`] | locks of directory queues, and purges by several machines | 3,500,000 | 8 | 6 |
//! | [`reservations`] | units of a rate limiter on Redis that processes draw ahead | 3,600,000 | 23 | 5 |
//!
//! The numbers are those of the default sizes, on two cores. The tests assert that each model explores at least as many
//! states as the table states, but for the rounding. A file has at most 300 lines, and a model up to 850, because the
//! steps of each actor and each kind of fault are written out next to the file that they model.
//!
//! ```sh
//! ./test.sh models                                   # the default sizes
//! FLEETING_MODEL_SIZE=large ./test.sh models         # the long form: twenty million states in a few minutes
//! cargo test -p fleeting-models -- --nocapture       # also prints states, times, and the paths to seeded bugs
//! ```
//!
//! **Seeded bugs.** A model that cannot fail proves nothing. So each has an enum `Bug` of mutations, such as a reply
//! that is cached without a check of its version. `Protocol { bug: Some(..), .. }` switches one on, and a test asserts
//! that the checker finds a path to a violation. The first guess at a change of the code is to make it a mutation.
//!
//! **Limits.** A model shares no code with the crate, so it is as good as its reading of the code. A violation that it
//! finds becomes a test against real servers in `tests/redis`, or between two system calls in
//! `src/dirq/fault_injection`, and then a fix.

#[cfg(test)]
mod check;
pub mod claims;
pub mod fleet;
pub mod fleet_loads;
pub mod journal;
pub mod near_cache;
pub mod queue_locks;
pub mod reservations;
