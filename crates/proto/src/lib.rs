//! The gRPC contract of `proto/waterclock/v1`: messages, server traits, and the descriptors that reflection shows.
//!
//! The code in `generated` is made by the test `generated` of this crate and committed, so that no build needs `protoc`.

/// `waterclock.v1`.
// Lints are for code that people write.
#[allow(
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    missing_docs,
    unreachable_pub,
    unused_qualifications
)]
pub mod v1 {
    include!("generated/waterclock.v1.rs");
}

/// All files of the contract, as a `FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!("generated/descriptors.bin");
