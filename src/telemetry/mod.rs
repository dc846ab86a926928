//! Stub, being written.
