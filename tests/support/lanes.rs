//! Which lane is whose, and keys for it.

use waterclock::engine::murmur2;
use waterclock::kafka::Roster;

use super::{Fixture, Process, eventually};

impl Fixture {
    /// The only lane that a process runs.
    #[track_caller]
    pub fn lane_of(&self, process: &Process) -> u16 {
        let (meta, address) = (self.names.meta(), process.address().expect("it serves"));
        eventually("it has a lane", || {
            let roster = Roster::read(&self.connection, &meta, self.namespace());
            let roster = roster.map_err(|error| error.to_string())?;
            let member = roster.members().find(|member| member.address == address);
            match member.map(|member| &member.lanes[..]) {
                Some([lane]) => Ok(lane.0),
                other => Err(format!("{other:?}")),
            }
        })
    }

    /// Keys of this lane.
    pub fn keys(&self, lane: u16) -> impl Iterator<Item = String> {
        let lanes = self.lanes();
        let all = (0..).map(|n| format!("key-{n}"));
        all.filter(move |key| murmur2::partition(key.as_bytes(), lanes) == lane)
    }

    /// Keys of the lane that a process runs.
    #[track_caller]
    pub fn keys_of(&self, process: &Process, count: usize) -> Vec<String> {
        self.keys(self.lane_of(process)).take(count).collect()
    }

    /// Keys of this lane which librdkafka's default partitioner writes to another one.
    pub fn astray(&self, lane: u16) -> impl Iterator<Item = String> {
        let lanes = u32::from(self.lanes());
        // It is CRC-32 that librdkafka's `consistent_random` hashes a key with.
        let crc32 = |key: &String| crc32fast::hash(key.as_bytes());
        self.keys(lane).filter(move |key| crc32(key) % lanes != u32::from(lane))
    }
}
