//! How far the follower is, in its log lines and notes; and what it does about an index that fails.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::TryRecvError;

use super::following::Loading;
use super::holding::Holding;
use super::indexing::give_up;
use super::work::IndexThread;
use crate::engine::{Event, Lane, Offset};
use crate::kafka::end_offsets;
use crate::kafka::member::AssignmentEvent;
use crate::telemetry;
use crate::timers::index;

/// How often to check whether lanes have reached the end of the changelog, which keeps them from getting old.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// How often to log how far it is.
const LOG_EVERY: Duration = Duration::from_secs(2);
/// How often an index is started again in one run. What breaks more often has a cause that beginning again does not mend.
const RENEWALS_MAX: u32 = 3;
/// The same after lanes came or something was written: a restart soon after finds the index up with the changelog.
pub(super) const LOOK_SOON: Duration = Duration::from_secs(1);

impl IndexThread {
    /// Says how far the lanes are that come up.
    pub(super) fn say(&mut self) {
        let left = self.lanes.values().filter_map(|following| {
            let (end, _) = following.handover.as_ref()?;
            Some(end.0.saturating_sub(following.next.0).max(0).unsigned_abs())
        });
        let (lanes, offsets) = left.fold((0_u64, 0_u64), |(n, sum), left| (n + 1, sum + left));
        telemetry::lanes_loading(lanes, offsets);
        let Loading { began, logged_at, lanes: all, indexed, records } = &mut self.loading;
        if lanes == 0 && !all.is_empty() {
            let (lanes, took) = (std::mem::take(all), began.elapsed());
            let lanes: Vec<u16> = lanes.iter().map(|lane| lane.0).collect();
            tracing::info!(?lanes, indexed, records, ?took, "read what is pending");
        } else if lanes > 0 && logged_at.elapsed() >= LOG_EVERY {
            *logged_at = Instant::now();
            let of = all.len();
            tracing::info!(lanes, of, offsets_left = offsets, records, "reading what is pending");
        }
    }

    /// Asks now and then where the changelog ends. Notes which lanes have nothing left to read, and so are up with it.
    /// Fills in unknown marks of how far it is written.
    pub(super) fn look(&mut self) -> Result<(), index::Error> {
        if let Some((answers, gaps, mut lag)) = self.listing.take() {
            loop {
                match answers.try_recv() {
                    Ok(answer) => lag += self.ends(&answer.ends, &gaps)?,
                    Err(TryRecvError::Empty) => {
                        self.listing = Some((answers, gaps, lag));
                        return Ok(());
                    }
                    Err(TryRecvError::Disconnected) => return self.sizes(lag),
                }
            }
        }
        let has_gap = self.lanes.keys().any(|lane| self.written.mark(*lane).is_none());
        if self.index.is_some()
            && !self.lanes.is_empty()
            && (has_gap || self.look <= Instant::now())
        {
            self.look = Instant::now() + LOOK_EVERY;
            let gaps = self.lanes.keys().map(|lane| (*lane, self.written.gap(*lane))).collect();
            let partitions =
                self.lanes.keys().map(|lane| (Arc::clone(&self.topic), i32::from(lane.0)));
            let (reply, answers) = crossbeam_channel::unbounded();
            self.ends.ask(0, partitions.collect(), false, &reply);
            self.listing = Some((answers, gaps, 0));
        }
        Ok(())
    }

    /// Takes ends in; gives how many offsets the index is behind them.
    fn ends(
        &mut self,
        listed: &[end_offsets::EndOffset],
        gaps: &[(Lane, u64)],
    ) -> Result<u64, index::Error> {
        self.pass();
        let Some(index) = &mut self.index else { return Ok(0) };
        let mut lag = 0;
        for listing in listed {
            let lane = u16::try_from(listing.partition).map(Lane).ok();
            let (Some(lane), Some(end)) = (lane, listing.last) else { continue };
            let Some(following) = self.lanes.get(&lane) else { continue };
            if let Some((_, gap)) = gaps.iter().find(|(of, _)| *of == lane) {
                self.written.mend(lane, *gap, end);
            }
            if following.next >= end {
                index.apply(lane, &[], following.next, listing.at)?;
                self.progress.set(lane, Some(following.next));
            } else {
                lag += (end.0 - following.next.0).unsigned_abs();
                self.look = self.look.min(Instant::now() + LOOK_SOON);
            }
        }
        Ok(lag)
    }

    fn sizes(&self, lag: u64) -> Result<(), index::Error> {
        let Some(index) = &self.index else { return Ok(()) };
        let index::IndexCounts { live, ended, cancel_marks, .. } = index.reader().counts()?;
        let entries = live + ended + cancel_marks;
        let disk_bytes = index.disk_bytes()?;
        telemetry::index_size(entries, disk_bytes);
        telemetry::index_lag(lag);
        tracing::debug!(lanes = self.lanes.len(), lag, entries, disk_bytes, "index");
        Ok(())
    }

    /// Begins the index again, or goes on without.
    pub(super) fn failed(&mut self, why: index::Error) {
        let Some(index) = self.index.take() else { return };
        let renewed = match why {
            index::Error::Broken { .. } if self.renewals < RENEWALS_MAX => {
                self.renewals += 1;
                index.renew(&why)
            }
            why => {
                index.abandon();
                Err(why)
            }
        };
        match renewed {
            Ok(index) => self.index = Some(index),
            Err(error) => {
                give_up(&error);
                self.progress.give_up();
                for (lane, following) in &mut self.lanes {
                    if let Some((_, timers)) = following.recall.take() {
                        let unknown = timers.into_iter().map(|timer_id| (timer_id, None));
                        following.tell_ended(*lane, unknown.collect());
                    }
                    if following.expired.take().is_some() {
                        let event =
                            Event::Expired { lane: *lane, timers: Vec::new(), tasks: Vec::new() };
                        let answer = AssignmentEvent { assignment: following.assignment, event };
                        let _ = following.to.send(answer);
                    }
                }
                self.lanes.retain(|_, following| following.handover.is_some());
            }
        }
        for (lane, following) in &mut self.lanes {
            following.next = Offset(0);
            following.changes.clear();
            if let Some((_, holding)) = &mut following.handover {
                *holding = Holding::default();
            }
            self.progress.set(*lane, None);
        }
        self.is_moved = true;
    }
}
