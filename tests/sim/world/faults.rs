//! What goes wrong.

use super::World;
use crate::broker::{Place, Time};
use crate::member::Up;
use crate::network::{Scheduled, Wake};
use crate::plan::{Fault, SECOND, SESSION};

/// librdkafka waits on the wall clock: a step back starves its timers until they are noticed to be.
const STARVES_MAX: Time = 30 * SECOND;

impl World {
    pub(super) fn fault(&mut self, fault: Fault) {
        self.note(|| format!("{fault:?}"));
        match fault {
            Fault::Kill { slot, back_after } => {
                if self.members[slot].up != Up::Dead {
                    self.count("kills");
                    self.kill(slot);
                    self.after(back_after, Scheduled::Start(slot));
                }
            }
            Fault::Stop { slot, back_after } => {
                if self.members[slot].up != Up::Dead {
                    self.count("stops");
                    self.members[slot].back_after = back_after;
                    self.wake(self.members[slot].process(), 0, Wake::Drain);
                }
            }
            Fault::Freeze { slot, lasts } => self.freeze(slot, lasts),
            Fault::Clock { node, by } => {
                self.count(if by < 0 { "clocks stepped back" } else { "clocks stepped forward" });
                self.broker.step_clock(node, by);
                if by < 0 {
                    self.stepped_back.push((node, self.at, by.unsigned_abs()));
                }
            }
            Fault::Wall { slot, by } => {
                self.count("wall clocks stepped");
                self.walls[slot] += by;
                if by < 0 {
                    self.freeze(slot, by.unsigned_abs().min(STARVES_MAX));
                }
            }
            Fault::Leader { place, node } => {
                self.count("leaders changed");
                self.broker.move_leader(place, node);
            }
            Fault::Stall { node, lasts } => {
                self.count("nodes stalled");
                let until = (self.at + lasts).min(self.plan.heal_at.max(self.at));
                let until = until.max(self.stalled.get(&node).copied().unwrap_or_default());
                self.stalled.insert(node, until);
                self.push(until, Scheduled::Stir);
            }
            Fault::Retention { topic, partition, keep } => {
                let place = Place { topic: self.lane_topics[topic], partition: partition as i32 };
                if let Some((from, to)) = self.broker.retain(self.at, place, keep) {
                    self.count("retention deleted");
                    self.note(|| format!("{place:?} loses {from:?} to {to:?}"));
                    self.deleted.push((place, from, to));
                }
            }
            Fault::Away { lasts, whole } => self.go_away(lasts, whole),
            Fault::Compact { lane } => {
                let place = Place { topic: self.timers_topic, partition: lane as i32 };
                if self.broker.compact(self.at, place, self.plan.tombstones) > 0 {
                    self.count("changelogs compacted");
                }
            }
            Fault::Leaderless { lasts } => self.lose_leader(lasts),
            Fault::KillWorker { worker, back_after } => self.kill_worker(worker, back_after),
            Fault::StopWorker { worker, back_after } => self.stop_worker(worker, back_after),
            Fault::FreezeWorker { worker, lasts } => self.freeze_worker(worker, lasts),
            Fault::Silence { topic, partition, lasts } => {
                self.count("silences");
                let place = Place { topic: self.lane_topics[topic], partition: partition as i32 };
                let until = (self.at + lasts).min(self.plan.heal_at.max(self.at));
                self.silent.insert(place, until);
                self.push(until, Scheduled::Stir);
            }
        }
    }

    /// Everyone goes, and nobody comes back before the group's offsets may be gone.
    fn go_away(&mut self, lasts: Time, whole: bool) {
        self.away_until = self.away_until.max(self.at + lasts);
        for slot in 0..self.members.len() {
            if self.members[slot].up == Up::Dead {
                continue;
            }
            if self.members[slot].up == Up::Alive && self.chance.percent(50) {
                self.members[slot].back_after = 0;
                self.wake(self.members[slot].process(), 0, Wake::Drain);
            } else {
                self.kill(slot);
                self.after(0, Scheduled::Start(slot));
            }
        }
        self.push(self.away_until - SECOND, Scheduled::ExpireOffsets { whole });
    }

    pub fn kill(&mut self, slot: usize) {
        self.note(|| format!("slot {slot} dies"));
        self.members[slot].expose(&mut self.exposed);
        let (process, name) = (self.members[slot].process(), self.members[slot].name.clone());
        self.members[slot].up = Up::Dead;
        self.members[slot].engine = None;
        self.tear_index(slot);
        self.after(SESSION, Scheduled::Silent(process, name));
    }

    pub fn freeze(&mut self, slot: usize, lasts: Time) {
        if self.members[slot].up != Up::Alive {
            return;
        }
        self.note(|| format!("slot {slot} stands still for {lasts} ms"));
        self.count(if lasts >= SESSION { "zombies" } else { "freezes" });
        let (process, name) = (self.members[slot].process(), self.members[slot].name.clone());
        self.members[slot].up = Up::Frozen { since: self.at, until: self.at + lasts };
        if lasts >= SESSION {
            self.after(SESSION, Scheduled::Silent(process, name));
            // The first heartbeat after it wakes says that nobody knows it any more.
            let heartbeat = self.chance.between(0, 3 * SECOND);
            self.wake(process, lasts + heartbeat, Wake::Rebalance);
        }
        self.wake(process, lasts, Wake::Poll);
    }
}
