//! The same names on Redis.
