//! Requests as they stand on the wire: what no client would make, or has no call for.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use super::{Fixture, patient};

/// As the attributes of a batch name them.
pub const NONE: i16 = 0;
pub const SNAPPY: i16 = 2;
pub const ZSTD: i16 = 4;

/// A number as a zigzag varint.
pub fn number(out: &mut Vec<u8>, number: i64) {
    let mut rest = ((number << 1) ^ (number >> 63)) as u64;
    while rest > 0x7f {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Bytes behind their length.
pub fn text(out: &mut Vec<u8>, text: &[u8]) {
    number(out, text.len() as i64);
    out.extend_from_slice(text);
}

/// A batch of so many records, as they stand there.
pub fn batch(records: &[u8], count: i32, codec: i16) -> Vec<u8> {
    let now = jiff::Timestamp::now().as_millisecond();
    let mut rest = codec.to_be_bytes().to_vec();
    rest.extend((count - 1).to_be_bytes());
    rest.extend([now.to_be_bytes(), now.to_be_bytes(), (-1_i64).to_be_bytes()].concat());
    rest.extend((-1_i16).to_be_bytes());
    rest.extend([(-1_i32).to_be_bytes(), count.to_be_bytes()].concat());
    rest.extend_from_slice(records);
    let mut all = 0_i64.to_be_bytes().to_vec();
    all.extend((rest.len() as i32 + 9).to_be_bytes());
    all.extend((-1_i32).to_be_bytes());
    all.push(2);
    all.extend(crc32c::crc32c(&rest).to_be_bytes());
    all.extend(rest);
    all
}

/// A frame of zstd with the largest window that a reader takes, 128 MiB: these bytes, so many zeros, and those bytes.
pub fn zstd(before: &[u8], zeros: usize, behind: &[u8]) -> Vec<u8> {
    const BLOCK: usize = 128 << 10;
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 17 << 3];
    let mut block = |kind: u32, len: usize, bytes: &[u8], is_last: bool| {
        let head = (len as u32) << 3 | kind << 1 | u32::from(is_last);
        frame.extend_from_slice(&head.to_le_bytes()[..3]);
        frame.extend_from_slice(bytes);
    };
    block(0, before.len(), before, false);
    for at in (0..zeros).step_by(BLOCK) {
        block(1, BLOCK.min(zeros - at), &[0], false);
    }
    block(0, behind.len(), behind, true);
    frame
}

/// Sends a request as it is to the first of these brokers; gives the answer.
#[track_caller]
pub fn ask(brokers: &str, request: &[u8]) -> Vec<u8> {
    let broker = brokers.split(',').next().expect("a broker");
    let mut stream = TcpStream::connect(broker).expect("connected");
    stream.set_read_timeout(Some(patient(Duration::from_secs(20)))).expect("set");
    stream.write_all(&(request.len() as i32).to_be_bytes()).expect("sent");
    stream.write_all(request).expect("sent");
    let mut size = [0; 4];
    stream.read_exact(&mut size).expect("an answer");
    let mut answer = vec![0; u32::from_be_bytes(size) as usize];
    stream.read_exact(&mut answer).expect("the whole answer");
    answer
}

/// Of what a setting is, as Kafka numbers it.
#[derive(Clone, Copy)]
pub enum Of {
    Topic = 2,
    BrokerLoggers = 8,
}

/// Changes one setting, as `kafka-configs.sh --alter` does: the others stay, and no Java is started for it.
#[track_caller]
pub fn set(brokers: &str, of: Of, name: &str, (key, value): (&str, &str)) {
    let text = |text: &str| [&(text.len() as i16).to_be_bytes()[..], text.as_bytes()].concat();
    // IncrementalAlterConfigs, version 0.
    let mut request = [44_i16.to_be_bytes(), 0_i16.to_be_bytes()].concat();
    request.extend(1_i32.to_be_bytes());
    request.extend(text("test"));
    request.extend(1_i32.to_be_bytes());
    request.push(of as u8);
    request.extend(text(name));
    request.extend(1_i32.to_be_bytes());
    request.extend(text(key));
    // It is set; and not only looked whether it could be.
    request.push(0);
    request.extend(text(value));
    request.push(0);
    let answer = ask(brokers, &request);
    // Behind the number of the request, a throttle and a count.
    let code = i16::from_be_bytes([answer[12], answer[13]]);
    assert_eq!(code, 0, "{name}: {key}={value}");
}

/// Sends a batch as it is, by a request of its own; gives the offset that Kafka acknowledges.
pub fn send(fixture: &Fixture, topic: &str, partition: i32, batch: &[u8]) -> i64 {
    let name = |text: &str| [&(text.len() as i16).to_be_bytes()[..], text.as_bytes()].concat();
    // Produce, version 7.
    let mut request = [0_i16.to_be_bytes(), 7_i16.to_be_bytes()].concat();
    request.extend(1_i32.to_be_bytes());
    request.extend(name("test"));
    request.extend([(-1_i16).to_be_bytes(), (-1_i16).to_be_bytes()].concat());
    request.extend([10_000_i32.to_be_bytes(), 1_i32.to_be_bytes()].concat());
    request.extend(name(topic));
    request.extend([1_i32, partition, batch.len() as i32].map(i32::to_be_bytes).concat());
    request.extend_from_slice(batch);
    let answer = ask(&fixture.connection.brokers, &request);
    // Behind the number of the request, one topic with its name, one partition with its number.
    let at = 4 + 4 + 2 + topic.len() + 4 + 4;
    let (code, offset) = (&answer[at..at + 2], &answer[at + 2..at + 10]);
    assert_eq!(code, [0, 0], "the broker takes it");
    i64::from_be_bytes(offset.try_into().expect("eight bytes"))
}
