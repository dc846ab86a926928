//! URLs and paths of calls.
//!
//! # Invariants
//! 1. Nothing is guessed: what browsers repair (backslashes, blanks, tabs, missing slashes) is refused.
//! 2. What is kept is percent-encoded, and is read back as it is.
//! 3. User information is refused, and no answer repeats it.
//!
//! Whether a host may be called is decided when its name is resolved, at the call.

use std::cell::Cell;

use serde_json::Value;
use url::{ParseError, Position, SyntaxViolation, Url};

use super::super::fields::{shown, text, wanted, wanted_address};
use super::URL_MAX;

const URL_WANTED: &str = "a URL that begins with http:// or https:// and has a host";
const PATH_WANTED: &str = "a path that begins with one / and has no . or .. segments";
/// How a text has so many bytes.
const ENCODED: &str = " once it is percent-encoded";

/// Reads a URL to be called.
pub(super) fn url(value: &Value) -> Result<Url, String> {
    let text = text(value, URL_WANTED)?;
    is_short(text, "")?;
    let begins = |scheme: &str| {
        let start = text.get(..scheme.len());
        start.filter(|start| start.eq_ignore_ascii_case(scheme)).map(|_| &text[scheme.len()..])
    };
    let Some(rest) = begins("http://").or_else(|| begins("https://")) else {
        return Err(wanted_address(text, URL_WANTED));
    };
    // Before anything else, because no other answer may show it.
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err(
            "has user information; want a URL without it: use a service's secret".to_owned()
        );
    }
    if authority.is_empty() {
        return Err(wanted(value, URL_WANTED));
    }
    let url = strictly(text)
        .map_err(|what| format!("is {} ({what}); want {URL_WANTED}", shown(value)))?;
    if url.fragment().is_some() {
        return Err(format!(
            "is {}; want it without a fragment, which is never sent",
            shown(value)
        ));
    }
    is_short(url.as_str(), ENCODED)?;
    Ok(url)
}

/// Reads what follows a service's address.
pub(super) fn path(value: &Value) -> Result<String, String> {
    let text = text(value, PATH_WANTED)?;
    is_short(text, "")?;
    // Two slashes would be a host to who joins URLs. Dots would lead out of what the service's address is.
    let path = text.split('?').next().unwrap_or_default();
    if !path.starts_with('/') || path.starts_with("//") || path.split('/').any(is_dots) {
        return Err(wanted(value, PATH_WANTED));
    }
    let url = strictly(&format!("http://host{text}"))
        .map_err(|what| format!("is {} ({what}); want {PATH_WANTED}", shown(value)))?;
    if url.fragment().is_some() {
        return Err(format!(
            "is {}; want it without a fragment, which is never sent",
            shown(value)
        ));
    }
    let path = &url[Position::BeforePath..];
    is_short(path, ENCODED)?;
    Ok(path.to_owned())
}

/// Whether a segment means another one; dots may be percent-encoded.
fn is_dots(segment: &str) -> bool {
    let dots = segment.to_ascii_lowercase().replace("%2e", ".");
    matches!(dots.as_str(), "." | "..")
}

fn is_short(text: &str, how: &str) -> Result<(), String> {
    let len = text.len();
    if len > URL_MAX {
        Err(format!("has {len} bytes{how}; want at most {URL_MAX}"))
    } else {
        Ok(())
    }
}

/// Parses a URL. What the parser would repair in silence is a mistake here.
pub(super) fn strictly(text: &str) -> Result<Url, String> {
    let repaired: Cell<Option<SyntaxViolation>> = Cell::new(None);
    let note = |violation| repaired.set(repaired.get().or(Some(violation)));
    let url = Url::options().syntax_violation_callback(Some(&note)).parse(text);
    match (url, repaired.get()) {
        (Ok(url), None) => Ok(url),
        (Ok(_), Some(SyntaxViolation::NonUrlCodePoint)) => {
            Err("a character that is to be percent-encoded".to_owned())
        }
        (Ok(_), Some(violation)) => Err(violation.to_string()),
        (Err(error), _) => Err(ParseError::to_string(&error)),
    }
}
