//! Single promises.
