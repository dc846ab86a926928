//! What is in force, in the headers of HTTP: `ETag` shows it, and `If-Match` names what a change is to follow.

use std::fmt::Display;
use std::str::FromStr;

use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;

use super::problem::Problem;

/// What an `If-Match` asks for; `None`: there is none. `*` is refused, since nobody needs it. `wanted`: what is to be there, as a person
/// is told.
pub(super) fn if_match<T: FromStr>(
    headers: &HeaderMap,
    wanted: &str,
) -> Result<Option<T>, Problem> {
    let mut all = headers.get_all(header::IF_MATCH).iter();
    let (first, second) = (all.next(), all.next());
    let Some(first) = first else { return Ok(None) };
    let asked = first.to_str().ok().filter(|_| second.is_none()).and_then(|text| {
        let text = text.trim();
        text.strip_prefix('"')?.strip_suffix('"')?.parse().ok()
    });
    asked.map(Some).ok_or_else(|| {
        let detail = format!("want one {wanted}");
        Problem::bad("bad_if_match", "If-Match", detail)
    })
}

/// The same answer with what is in force as `ETag`.
pub(super) fn with_etag(of: impl Display, mut answer: Response) -> Response {
    if let Ok(etag) = HeaderValue::try_from(format!("\"{of}\"")) {
        answer.headers_mut().insert(header::ETAG, etag);
    }
    answer
}
