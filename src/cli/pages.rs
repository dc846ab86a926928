//! Lists of the API that are asked for page by page.

use std::fmt::Write as _;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::client::{Client, Kind, typed};
use super::{Exit, Failure, Global, Outcome, output};
use crate::client::http::Method;

/// Items of most lists that are asked for at once.
pub(super) const PAGE: u64 = 1_000;

/// A list, to its end.
pub(super) struct Pages<'a> {
    /// Where it stands.
    pub(super) path: &'a str,
    /// What an answer calls its items.
    pub(super) items: &'a str,
    /// Which items are asked for.
    pub(super) filters: Vec<(&'a str, String)>,
    /// How many at most; `None`: all.
    pub(super) limit: Option<u64>,
    /// How many are asked for at once.
    pub(super) page: u64,
}

impl Pages<'_> {
    /// Hands over the items of each page.
    pub(super) fn each(
        &self,
        client: &Client,
        mut page: impl FnMut(&Value) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (mut left, mut next) = (self.limit.unwrap_or(u64::MAX), None::<String>);
        while left > 0 {
            let mut query = self.filters.clone();
            query.push(("limit", left.min(self.page).to_string()));
            query.extend(next.take().map(|next| ("page", next)));
            let told = client.ask(Kind::AllLanes, &Method::GET, self.path, &query, None)?;
            let items = &told[self.items];
            left = left.saturating_sub(items.as_array().map_or(0, Vec::len) as u64);
            next = told["next"].as_str().map(str::to_owned);
            page(items)?;
            if next.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Prints all items: for programs a line each, for people as tables. `rows` makes the table of a page; only the first one has heads
    /// of columns.
    pub(super) fn show<T: DeserializeOwned>(
        &self,
        client: &Client,
        global: &Global,
        rows: impl Fn(&[T], bool) -> String,
    ) -> Outcome {
        let mut is_first = true;
        self.each(client, |items| {
            let text = match global.json() {
                // As it came: also what a newer instance adds.
                true => lines(items),
                false => rows(&typed::<Vec<T>>(items)?, is_first),
            };
            output::write(text.as_bytes())?;
            is_first &= items.as_array().is_none_or(Vec::is_empty);
            Ok(())
        })?;
        if is_first && !global.json() {
            return output::line(&format!("no {}", self.items));
        }
        Ok(Exit::Ok)
    }
}

/// The items of a list in JSON, a line each.
pub(super) fn lines(items: &Value) -> String {
    items.as_array().into_iter().flatten().fold(String::new(), |mut lines, item| {
        let _ = writeln!(lines, "{item}");
        lines
    })
}
