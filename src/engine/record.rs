//! A Kafka record, held in one allocation.
//!
//! Key, value and headers are kept byte for byte, null apart from empty, header names as bytes (a
//! producer may write a name that is not UTF-8). The layout is our own and never leaves the process.

/// Key, value and headers of one record, in one allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Key, then value, then each header as `name_len u32, value_len u32 (MAX: null), name, value`.
    bytes: Box<[u8]>,
    /// `NULL` for a record without a key.
    key_len: u32,
    /// `NULL` for a tombstone.
    value_len: u32,
}

const NULL: u32 = u32::MAX;

/// What a record that waits takes besides its bytes: its entry in the wheel, the slot, and what the allocator adds to both.
const KEPT_BESIDE: usize = 240;

fn span(len: u32) -> usize {
    if len == NULL { 0 } else { len as usize }
}

fn len_of(bytes: Option<&[u8]>) -> u32 {
    bytes.map_or(NULL, |b| b.len() as u32)
}

impl Record {
    /// Copies the parts of a record. The iterator of headers is run twice: to measure, and to copy.
    pub fn new<'a>(
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)> + Clone,
    ) -> Self {
        let (key_len, value_len) = (len_of(key), len_of(value));
        let of_headers: usize =
            headers.clone().map(|(name, value)| 8 + name.len() + span(len_of(value))).sum();
        let mut bytes = Vec::with_capacity(span(key_len) + span(value_len) + of_headers);
        bytes.extend_from_slice(key.unwrap_or_default());
        bytes.extend_from_slice(value.unwrap_or_default());
        for (name, value) in headers {
            bytes.extend_from_slice(&(name.len() as u32).to_ne_bytes());
            bytes.extend_from_slice(&len_of(value).to_ne_bytes());
            bytes.extend_from_slice(name);
            bytes.extend_from_slice(value.unwrap_or_default());
        }
        Self { bytes: bytes.into_boxed_slice(), key_len, value_len }
    }

    /// A record of nothing: null key, null value, no headers.
    #[must_use]
    pub fn empty() -> Self {
        Self { bytes: Box::default(), key_len: NULL, value_len: NULL }
    }

    /// The key; `None` is null, which is not the same as empty.
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        (self.key_len != NULL).then(|| &self.bytes[..self.key_len as usize])
    }

    /// The value; `None` is null (Kafka's tombstone), which is not the same as empty.
    #[must_use]
    pub fn value(&self) -> Option<&[u8]> {
        let from = span(self.key_len);
        (self.value_len != NULL).then(|| &self.bytes[from..from + self.value_len as usize])
    }

    /// The headers in their order, repeated names included.
    #[must_use]
    pub fn headers(&self) -> Headers<'_> {
        Headers { rest: &self.bytes[span(self.key_len) + span(self.value_len)..] }
    }

    /// Bytes of memory that the record takes, for the budget, with what is kept beside it while it waits.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bytes.len() + size_of::<Self>() + KEPT_BESIDE
    }
}

/// Iterator over the headers of a [`Record`]: name, and value or null.
#[derive(Clone, Debug)]
pub struct Headers<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Headers<'a> {
    type Item = (&'a [u8], Option<&'a [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        let (lens, rest) = self.rest.split_first_chunk::<8>()?;
        let name_len = u32::from_ne_bytes([lens[0], lens[1], lens[2], lens[3]]) as usize;
        let value_len = u32::from_ne_bytes([lens[4], lens[5], lens[6], lens[7]]);
        let (name, rest) = rest.split_at(name_len);
        let (value, rest) = rest.split_at(span(value_len));
        self.rest = rest;
        Some((name, (value_len != NULL).then_some(value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_and_empty_stay_apart_and_headers_keep_order_and_repeats() {
        let headers: Vec<(&[u8], Option<&[u8]>)> =
            vec![(b"a", Some(b"1")), (b"a", None), (b"", Some(b"")), (b"\xff\x00", Some(b"x"))];
        for key in [None, Some(&b""[..]), Some(b"k\0")] {
            for value in [None, Some(&b""[..]), Some(b"v")] {
                let record = Record::new(key, value, headers.iter().copied());
                assert_eq!(record.key(), key);
                assert_eq!(record.value(), value);
                assert_eq!(record.headers().collect::<Vec<_>>(), headers);
            }
        }
    }
}
