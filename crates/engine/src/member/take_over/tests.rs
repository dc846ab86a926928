use super::super::positions::LaneRules;
use super::*;
use crate::{Lane, TopicId};

const INTAKE: Source = Source { topic: TopicId(0), lane: Lane(0) };

fn at(next: i64) -> Vec<Option<(Offset, String)>> {
    vec![Some((Offset(next), String::new()))]
}

fn logs(first: i64) -> Vec<LogBounds> {
    vec![LogBounds { first: Offset(first), end: Offset(99) }]
}

/// The questions of a take-over whose answers change on the way.
fn questions(committed: &[Option<i64>], first: i64) -> Vec<String> {
    let positions = Positions::default();
    let mut take_over = TakeOver::new(vec![INTAKE], 1);
    let (mut asked, mut committed) = (Vec::new(), committed.iter().copied().cycle());
    let mut ask = Ok(Ask::Committed);
    loop {
        asked.push(match &ask {
            Ok(Ask::Committed) => "committed".to_owned(),
            Ok(Ask::Logs) => "logs".to_owned(),
            Ok(Ask::Checkpoints) => "checkpoints".to_owned(),
            Ok(Ask::Begin(plan)) => format!("begin at {}", plan.starts[0].next.0),
            Err(TakeOverError::Gone(_)) => "gone".to_owned(),
            Err(TakeOverError::Unsettled) => "unsettled".to_owned(),
        });
        ask = match ask {
            Ok(Ask::Committed) => {
                let next = committed.next().flatten();
                let next = next.map_or_else(|| vec![None], at);
                take_over.committed::<LaneRules>(next, &positions)
            }
            Ok(Ask::Logs) => take_over.logs::<LaneRules>(logs(first), Vec::new(), &positions),
            Ok(Ask::Checkpoints) => take_over.checkpoints::<LaneRules>(BTreeMap::new(), &positions),
            Ok(Ask::Begin(_)) | Err(_) => return asked,
        };
    }
}

#[test]
fn each_thing_is_asked_after_what_it_rests_on_and_doubt_asks_again() {
    type Case<'a> = (&'a str, &'a [Option<i64>], i64, &'a [&'a str]);
    #[rustfmt::skip]
    let table: [Case<'_>; 7] = [
        ("mostly", &[Some(5)], 0, &["committed", "logs", "begin at 5"]),
        ("the first start", &[None], 0, &["committed", "logs", "checkpoints", "begin at 0"]),
        ("records are gone", &[Some(5)], 7, &["committed", "logs", "committed", "begin at 7"]),
        ("they were done meanwhile", &[Some(5), Some(8)], 7, &["committed", "logs", "committed", "logs", "begin at 8"]),
        ("somebody started meanwhile", &[None, Some(8)], 7,
            &["committed", "logs", "checkpoints", "committed", "logs", "begin at 8"]),
        ("nobody knows", &[None], 7, &["committed", "logs", "checkpoints", "committed", "gone"]),
        ("somebody commits again and again", &[Some(1), Some(2)], 7,
            &["committed", "logs", "committed", "logs", "committed", "logs", "committed", "logs", "committed", "unsettled"]),
    ];
    for (why, committed, first, want) in table {
        assert_eq!(questions(committed, first), want, "{why}");
    }
}
