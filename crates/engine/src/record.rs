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
    headers: u32,
    cut: Option<Box<Cut>>,
}

/// Of a record that is larger than is ever held: what was left out, its value in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// How large it is.
    pub bytes: u64,
    /// Which part of it is too large.
    pub by: CutBy,
    /// It has a key, which was left out.
    pub without_key: bool,
    /// It may have further headers, which were left out.
    pub without_headers: bool,
    /// Further records of its batch, of which nothing was read.
    pub others: u32,
}

/// See [`Cut`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CutBy {
    /// It is too large itself.
    #[default]
    Record,
    /// It was compressed together with others, and with those it is.
    Batch,
    /// It has more headers than librdkafka reads, which are 100,000.
    Headers,
    /// It is not too large: Kafka has it in a batch of which it cannot be read.
    Unreadable,
}

/// Says of a dead letter that something was left out, in its detail.
pub const NOT_KEPT: &str = "not kept";
/// Of a record that is cut: the longest key that is kept, and how much of its headers is.
pub const KEPT_BYTES: usize = 64 << 10;

const NULL: u32 = u32::MAX;

/// What a record that waits takes besides its bytes: its entry in the wheel, the slot, and what the allocator adds to both.
const KEPT_BESIDE: usize = 240;
/// What a header takes besides its bytes when it goes out: librdkafka's copy of it.
pub const HEADER_BESIDE: usize = 64;

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
        let mut count = 0;
        for (name, value) in headers {
            count += 1;
            bytes.extend_from_slice(&(name.len() as u32).to_ne_bytes());
            bytes.extend_from_slice(&len_of(value).to_ne_bytes());
            bytes.extend_from_slice(name);
            bytes.extend_from_slice(value.unwrap_or_default());
        }
        Self { bytes: bytes.into_boxed_slice(), key_len, value_len, headers: count, cut: None }
    }

    /// The rest of a record that is too large: no value, and of key and headers no more than [`KEPT_BYTES`] each.
    pub fn cut<'a>(
        mut cut: Cut,
        key: Option<&[u8]>,
        headers: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)> + Clone,
    ) -> Self {
        let kept_key = key.filter(|key| key.len() <= KEPT_BYTES);
        cut.without_key |= kept_key.is_none() && key.is_some();
        let of_header = |(name, value): &(&[u8], Option<&[u8]>)| {
            HEADER_BESIDE + name.len() + value.map_or(0, <[u8]>::len)
        };
        let mut kept = 0;
        let first = headers.clone().take_while(|header| {
            kept += of_header(header);
            kept <= KEPT_BYTES
        });
        let count = first.count();
        cut.without_headers |= headers.clone().nth(count).is_some();
        Self { cut: Some(Box::new(cut)), ..Self::new(kept_key, None, headers.take(count)) }
    }

    /// What was left out of it; `None`: nothing was.
    #[must_use]
    pub fn is_cut(&self) -> Option<&Cut> {
        self.cut.as_deref()
    }

    /// A record of nothing: null key, null value, no headers.
    #[must_use]
    pub fn empty() -> Self {
        Self { bytes: Box::default(), key_len: NULL, value_len: NULL, headers: 0, cut: None }
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

    /// Bytes of memory that the record takes, for the budget, with what is kept beside it while it waits, and what its
    /// headers take when it goes out.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bytes.len() + size_of::<Self>() + KEPT_BESIDE + self.headers as usize * HEADER_BESIDE
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
