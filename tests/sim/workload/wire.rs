//! What clients do besides headers: the partitioner of Java, and commands about one version.

use waterclock::engine::Record;
use waterclock::engine::UnixMillis;
use waterclock::engine::state::{Kind, State, StateKey, SubmissionOrder, intake_tag};
use waterclock::engine::timers::Version;

use super::{Header, record};

/// The partition that Java's default partitioner gives a key: written from Kafka's `Utils.murmur2`, not from ours.
pub fn java_partition(key: &[u8], partitions: u32) -> i32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ key.len() as u32;
    let mut chunks = key.chunks_exact(4);
    for chunk in &mut chunks {
        let mut word = u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]).wrapping_mul(M);
        word = (word ^ (word >> 24)).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ word;
    }
    let rest = chunks.remainder();
    for (index, byte) in rest.iter().enumerate().rev() {
        hash ^= u32::from(*byte) << (8 * index);
    }
    if !rest.is_empty() {
        hash = hash.wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    hash ^= hash >> 15;
    ((hash & 0x7fff_ffff) % partitions) as i32
}

/// A command about one version of a timer, as waterclock writes it for who asks for that.
pub fn amend(command: &Record, version: Version, due: u64, key: &StateKey) -> Record {
    let headers: Vec<Header> =
        command.headers().map(|(name, value)| (name.to_vec(), value.map(<[u8]>::to_vec))).collect();
    let state = State {
        kind: Kind::Amend,
        due: UnixMillis(due),
        first_appended: version.first_appended,
        order: SubmissionOrder { appended: version.first_appended, offset: version.offset },
        expires: None,
        intake: intake_tag(""),
        name: None,
        target: None,
        hops: 0,
        task: None,
    };
    let with = |headers: &[Header]| record(command.key(), command.value(), headers);
    let plain = with(&headers);
    let Ok(directive) = waterclock::engine::header::read(plain.headers()) else { return plain };
    let sealed = state.seal(key, &directive.bound(command.key()));
    let mut headers = headers;
    headers.push((b"x-delay-state".to_vec(), Some(sealed.as_ref().to_vec())));
    with(&headers)
}
