//! The header contract (stub, being written).

/// `x-delay-state`.
pub const STATE: &str = "x-delay-state";
/// `x-delay-id`.
pub const ID: &str = "x-delay-id";
/// `x-delay-due`.
pub const DUE: &str = "x-delay-due";
/// `x-delay-fired`.
pub const FIRED: &str = "x-delay-fired";
/// `x-delay-attempt`.
pub const ATTEMPT: &str = "x-delay-attempt";
/// `x-delay-error-code`.
pub const ERROR_CODE: &str = "x-delay-error-code";
/// `x-delay-error-detail`.
pub const ERROR_DETAIL: &str = "x-delay-error-detail";
/// `x-delay-error-topic`.
pub const ERROR_TOPIC: &str = "x-delay-error-topic";
/// `x-delay-error-partition`.
pub const ERROR_PARTITION: &str = "x-delay-error-partition";
/// `x-delay-error-offset`.
pub const ERROR_OFFSET: &str = "x-delay-error-offset";
/// `x-delay-error-timestamp`.
pub const ERROR_TIMESTAMP: &str = "x-delay-error-timestamp";

/// Reason codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Stub.
    Expired,
}

impl Code {
    /// As written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        "expired"
    }
}

/// Whether a header is waterclock's and goes at delivery.
#[must_use]
pub fn is_control(name: &[u8]) -> bool {
    name.starts_with(b"x-delay-")
}
