//! Signs that the group still has a member: positions that it commits and nobody reads.
//!
//! A transaction's offsets show that its sender was a member when the group took them. They do not extend the session. A plain
//! commit does, as a heartbeat does (ADR 0027). So a worker commits the position of a partition that its group never reads,
//! once a second. No real position is touched: those go with the results, in transactions.
//!
//! # Invariants
//! 1. What counts is the time just before a commit was sent: the group has heard the member after that.
//! 2. The position is the number of the commit. So each answer is about the commit that it answers, however late it comes.
//! 3. An answer counts only in the assignment in which its commit was sent.

use std::collections::VecDeque;

use parking_lot::Mutex;
use rdkafka::client::Client;
use rdkafka::client::ClientContext;
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::{Offset as At, TopicPartitionList};

use crate::client::raw;
use waterclock_engine::Millis;

/// Commits that are not answered, at most. The group may be away for a while, and librdkafka keeps what it cannot send.
const OPEN_MAX: usize = 8;
/// The partition whose position is committed. Every topic has it.
const PARTITION: i32 = 0;

/// One commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sent {
    number: i64,
    assignment: u64,
    since: Millis,
}

#[derive(Debug, Default)]
struct Open {
    number: i64,
    sent: VecDeque<Sent>,
    heard: Option<Sent>,
}

/// What the group's coordinator has heard of a member.
#[derive(Debug, Default)]
pub(crate) struct Signs(Mutex<Open>);

impl Signs {
    /// Asks for a sign in this assignment; `since`: now, by the clock that the answer is told in.
    pub(crate) fn ask<C: ClientContext>(
        &self,
        client: &Client<C>,
        topic: &str,
        (assignment, since): (u64, Millis),
    ) {
        let Some(number) = self.next(assignment, since) else { return };
        let mut list = TopicPartitionList::with_capacity(1);
        let asked = list
            .add_partition_offset(topic, PARTITION, At::Offset(number))
            .and_then(|()| raw::commit(client, &list));
        if let Err(error) = asked {
            self.answered(&Err(error), At::Offset(number));
        }
    }

    fn next(&self, assignment: u64, since: Millis) -> Option<i64> {
        let mut open = self.0.lock();
        open.sent.retain(|sent| sent.assignment == assignment);
        if open.sent.len() >= OPEN_MAX {
            return None;
        }
        open.number += 1;
        let number = open.number;
        open.sent.push_back(Sent { number, assignment, since });
        Some(number)
    }

    /// The group has answered the commit of this position.
    pub(crate) fn answered(&self, answer: &Result<(), KafkaError>, position: At) {
        let mut open = self.0.lock();
        let At::Offset(number) = position else { return };
        let at = open.sent.iter().position(|sent| sent.number == number);
        let Some(sent) = at.and_then(|at| open.sent.remove(at)) else { return };
        match answer {
            Ok(()) if open.heard.is_none_or(|heard| heard.since < sent.since) => {
                open.heard = Some(sent);
            }
            Ok(()) => {}
            Err(error) => tracing::debug!(%error, "the group does not say that it has this member"),
        }
    }

    /// Takes the newest sign since the last call: the group has heard this member after that time, in this assignment.
    pub(crate) fn take(&self, assignment: u64) -> Option<Millis> {
        let heard = self.0.lock().heard.take()?;
        (heard.assignment == assignment).then_some(heard.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(signs: &Signs, assignment: u64, since: u64) -> At {
        At::Offset(signs.next(assignment, Millis(since)).unwrap())
    }

    #[test]
    fn a_sign_counts_from_when_its_own_commit_was_sent() {
        let signs = Signs::default();
        let (first, second) = (ask(&signs, 1, 10), ask(&signs, 1, 20));
        signs.answered(&Err(KafkaError::Canceled), first);
        assert_eq!(signs.take(1), None);
        let third = ask(&signs, 1, 30);
        signs.answered(&Ok(()), third);
        signs.answered(&Ok(()), second);
        assert_eq!(signs.take(1), Some(Millis(30)), "the older one came later");
        assert_eq!(signs.take(1), None, "each is told once");
    }

    #[test]
    fn an_answer_of_an_earlier_assignment_is_no_sign() {
        let signs = Signs::default();
        let first = ask(&signs, 1, 10);
        signs.answered(&Ok(()), first);
        assert_eq!(signs.take(2), None);
        let first = ask(&signs, 1, 11);
        let second = ask(&signs, 2, 20);
        signs.answered(&Ok(()), first);
        assert_eq!(signs.take(2), None);
        signs.answered(&Ok(()), second);
        assert_eq!(signs.take(2), Some(Millis(20)));
    }

    #[test]
    fn a_group_that_does_not_answer_is_not_asked_for_ever() {
        let signs = Signs::default();
        for since in 0..OPEN_MAX as u64 {
            ask(&signs, 1, since);
        }
        assert_eq!(signs.next(1, Millis(99)), None);
        signs.answered(&Ok(()), At::Offset(1));
        assert!(signs.next(1, Millis(99)).is_some());
    }
}
