//! What tasks are made of again and again: that of each time of a schedule, that of each shard of a run.
//!
//! # Invariants
//! 1. A template that was read makes a legal task.
//! 2. The task stands in it as somebody wrote it. So what is shown is what was asked for.

use serde_json::{Map, Value};

use super::Wrong;
use super::fields::{Fields, Wrongs, wanted};
use super::request::{self, Due, Request, TIME_MAX};
use crate::UnixMillis;

/// The field that has it.
pub(crate) const TASK: &str = "task";

/// A request for a task, without what its owner says of it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Template(Map<String, Value>);

impl Template {
    /// Reads one. `of`: project and group, where those could be read. `not_of_task`: fields that its owner says, and what is wanted
    /// instead of them.
    pub(crate) fn read(
        fields: &Fields<'_>,
        of: Option<(&str, &str)>,
        not_of_task: &[(&str, &str)],
        wrongs: &mut Wrongs,
    ) -> Option<Self> {
        let task = fields.require(TASK, wrongs, |value| {
            value.as_object().ok_or_else(|| wanted(value, "a JSON object: a task"))
        })?;
        for (field, why) in not_of_task.iter().filter(|(field, _)| task.contains_key(*field)) {
            wrongs.add(format!("{TASK}.{field}"), format!("is there; {why}"));
        }
        // What does not belong there is named once.
        let mut task = task.clone();
        task.retain(|field, _| not_of_task.iter().all(|(of, _)| of != field));
        let template = Self(task);
        let request = template.request(of?, TIME_MAX);
        for Wrong { at, detail } in request.err().into_iter().flatten() {
            // What is wrong with all of it has no name of its own.
            let at = if at == request::DOCUMENT { TASK.to_owned() } else { format!("{TASK}.{at}") };
            wrongs.add(at, detail);
        }
        Some(template)
    }

    /// The task, as it was written.
    pub(crate) const fn as_map(&self) -> &Map<String, Value> {
        &self.0
    }

    /// The type of the task, as it is written.
    pub(crate) fn type_of_task(&self) -> &str {
        self.0.get("type").and_then(Value::as_str).unwrap_or_default()
    }

    /// The task as a request of this project and group, due then.
    ///
    /// # Errors
    /// It was read by another release, and this one does not take it: every field that is wrong.
    pub(crate) fn request(
        &self,
        (project, group): (&str, &str),
        due: UnixMillis,
    ) -> Result<Request, Vec<Wrong>> {
        let mut map = self.0.clone();
        map.insert("project".to_owned(), project.into());
        map.insert("group".to_owned(), group.into());
        map.insert("trigger_at".to_owned(), due.0.into());
        let request = request::read_map(map)?;
        debug_assert_eq!(request.due, Due::At(due));
        Ok(request)
    }
}
