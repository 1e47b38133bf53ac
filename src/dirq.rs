//! Directory queues.
