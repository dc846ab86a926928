//! The state header (stub, being written).

/// A state, encoded and authenticated.
#[derive(Clone, Debug)]
pub struct Sealed(Vec<u8>);

impl AsRef<[u8]> for Sealed {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
