//! Any instance answers for any task, by the owner of its lane.

use std::sync::Arc;

use super::super::tasks::TaskOwners;
use super::*;
use crate::engine::timers::{Base64, Progress, TaskRetry, TaskStatus};

/// A task that is due so many milliseconds from the start.
fn task(lane: u16, id: &str, due: u64) -> TaskRecord {
    let timer = Timer {
        timer_id: TimerId([due as u8; 16]),
        state: TimerState::Delay,
        version: Version { first_appended: UnixMillis(NOW), offset: Offset(1) },
        supersedes: None,
        due: UnixMillis(NOW + due),
        since: UnixMillis(NOW),
        target: "shop/billing".into(),
        label: Some("shop/orders".into()),
        id: id.as_bytes().into(),
        key: None,
        key_cut: false,
        code: None,
        task: Some(Progress { next_at: UnixMillis(NOW + due), ..Progress::default() }),
    };
    let of = LaneTimer { lane: Lane(lane), timer };
    TaskRecord::new(of, Some(r#"{"type":"http"}"#.into()), Vec::new()).unwrap()
}

async fn pair(tasks: &[TaskRecord]) -> (Pair, TaskOwners) {
    let pair = Pair::start().await;
    pair.with(|world| world.tasks = tasks.to_vec());
    let first = Instance { world: Arc::clone(&pair.world), me: 0 };
    (pair, TaskOwners::new(Arc::new(first), Peers::default()))
}

#[tokio::test]
async fn a_task_is_asked_of_the_owner_of_its_lane() {
    let tasks = [task(0, "here", 1), task(1, "there", 2)];
    let (pair, owners) = pair(&tasks).await;
    for task in &tasks {
        let found = owners.find(task.lane.0, &task.id).await;
        assert_eq!(found.unwrap().as_ref(), Some(task));
    }
    let other = TaskId::parse("other").unwrap();
    assert_eq!(owners.find(1, &other).await, Ok(None));
    pair.with(|world| world.owners[1] = None);
    let moving = owners.find(1, &tasks[1].id).await;
    assert!(matches!(moving, Err(TimersError::Moving(_))), "{moving:?}");
}

#[tokio::test]
async fn a_list_has_the_tasks_of_all_lanes_by_due_time_page_by_page() {
    let tasks: Vec<_> =
        (0..10_u16).map(|n| task(n % LANES, &format!("t{n}"), u64::from(n) + 1)).collect();
    let (_pair, owners) = pair(&tasks).await;
    let filter = TaskFilter {
        status: Some(TaskStatus::Ready),
        now: UnixMillis(NOW + 7),
        ..TaskFilter::default()
    };
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let (page, next) = owners.page(&filter, after, 3).await.unwrap();
        assert!(page.len() <= 3);
        found.extend(page);
        after = next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(found, tasks[..7]);
}

#[tokio::test]
async fn a_page_ends_with_the_task_that_fills_it() {
    let spec = format!(r#"{{"type":"http","large":"{}"}}"#, "x".repeat(60 << 10));
    let of = |n: u16| {
        let small = task(n % LANES, &format!("t{n}"), u64::from(n) + 1);
        TaskRecord { spec: Some(spec.as_str().into()), ..small }
    };
    let tasks: Vec<_> = (0..80).map(of).collect();
    let (_pair, owners) = pair(&tasks).await;
    let (mut found, mut after, mut pages) = (Vec::new(), None, Vec::new());
    loop {
        let (page, next) = owners.page(&TaskFilter::default(), after, 1_000).await.unwrap();
        pages.push(page.len());
        found.extend(page);
        after = next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(pages, [34, 34, 12]);
    assert!(found == tasks, "each once, in their order");
}

#[tokio::test]
async fn a_cancel_is_asked_after_until_it_is_decided_or_the_wait_is_over() {
    let (pair, owners) = pair(&[]).await;
    pair.with(|world| {
        let (soon, never) = (TaskCancel::Stopped, TaskCancel::Pending);
        world.cancels.insert("soon".to_owned(), (TaskCancel::Pending, soon));
        world.cancels.insert("never".to_owned(), (never, never));
    });
    let end = owners.cancelled(1, "soon".to_owned(), SOON);
    assert_eq!(end.await, Ok(TaskCancel::Stopped));
    let end = owners.cancelled(1, "never".to_owned(), Duration::from_millis(20));
    assert_eq!(end.await, Ok(TaskCancel::Pending));
    let end = owners.cancelled(1, "bad".to_owned(), SOON);
    assert!(matches!(end.await, Err(TimersError::Refused(..))));
}

#[tokio::test]
async fn whether_a_change_was_in_force_is_asked_of_the_owner_of_the_lane() {
    let (pair, owners) = pair(&[]).await;
    pair.with(|world| world.taken = vec![(0, "here".to_owned()), (1, "there".to_owned())]);
    for (lane, ticket, want) in [(0, "here", true), (1, "there", true), (1, "other", false)] {
        assert_eq!(owners.taken(lane, ticket.to_owned()).await, Ok(want), "{ticket}");
    }
    pair.with(|world| world.owners[1] = None);
    let moving = owners.taken(1, "there".to_owned()).await;
    assert!(matches!(moving, Err(TimersError::Moving(_))), "{moving:?}");
}

#[tokio::test]
async fn a_retry_and_a_payload_are_asked_of_the_owner_of_the_lane() {
    let tasks = [task(0, "here", 1), task(1, "there", 2)];
    let (_pair, owners) = pair(&tasks).await;
    for task in &tasks {
        assert_eq!(owners.retry(task.lane.0, &task.id).await, Ok(TaskRetry::Due));
        let payload = owners.payload(task.lane.0, &task.id).await.unwrap().unwrap();
        assert_eq!(payload.value, Some(Base64(b"body".to_vec())));
        assert_eq!(payload.key, Some(Base64(b"\xff".to_vec())));
    }
    let other = TaskId::parse("other").unwrap();
    assert_eq!(owners.retry(1, &other).await, Ok(TaskRetry::Absent));
    assert_eq!(owners.payload(1, &other).await, Ok(None));
}

#[tokio::test]
async fn the_tasks_of_all_lanes_are_counted_by_project() {
    let tasks: Vec<_> =
        (0..10_u16).map(|n| task(n % LANES, &format!("t{n}"), u64::from(n) + 1)).collect();
    let (pair, owners) = pair(&tasks).await;
    pair.with(|world| world.now = NOW + 4);
    let projects = BTreeSet::from(["shop".to_owned(), "none".to_owned()]);
    let shop = TaskCounts { ready: 4, delay: 6, ..TaskCounts::default() };
    let want = BTreeMap::from([("shop".to_owned(), shop)]);
    assert_eq!(owners.counts(&projects).await, Ok(want));
    pair.with(|world| world.owners[1] = None);
    let moving = owners.counts(&projects).await;
    assert!(matches!(moving, Err(TimersError::Moving(_))), "{moving:?}");
}
