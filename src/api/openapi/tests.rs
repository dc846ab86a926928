use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::super::tasks;
use super::super::tasks::tests::Api;
use super::*;

fn document() -> Value {
    serde_json::from_str(&TEXT).expect("JSON")
}

/// The operations of the document: method and path.
fn operations(document: &Value) -> BTreeSet<(String, String)> {
    let paths = document["paths"].as_object().expect("paths");
    let of_path = |(path, methods): (&String, &Value)| {
        let methods: Vec<String> = methods.as_object().expect("methods").keys().cloned().collect();
        methods.into_iter().map(|method| (method.to_uppercase(), path.clone())).collect::<Vec<_>>()
    };
    paths.iter().flat_map(of_path).collect()
}

#[tokio::test]
async fn the_document_has_every_route_and_no_other() {
    let api = Api::new();
    let told = api.ask("", "GET", PATH, &Value::Null).await;
    let document = told.json;
    assert_eq!((told.status, document["openapi"].as_str()), (200, Some("3.1.0")));
    let documented = operations(&document);
    // Every path that is served, with every method that it takes, and with every action.
    let routes: Vec<&str> = tasks::routes().iter().map(|(path, _)| *path).collect();
    let routes = routes
        .into_iter()
        .chain(projects::routes().iter().map(|(path, _)| *path).collect::<Vec<_>>())
        .chain(schedules::routes().iter().map(|(path, _)| *path).collect::<Vec<_>>())
        .chain(runs::routes().iter().map(|(path, _)| *path).collect::<Vec<_>>())
        .chain(members::routes().iter().map(|(path, _)| *path).collect::<Vec<_>>());
    let mut served = BTreeSet::new();
    for path in routes {
        let of_one = path.ends_with('}');
        const ACTIONS: [&str; 6] = ["", ":retry", ":pause", ":resume", ":trigger", ":backfill"];
        let actions = if of_one { &ACTIONS[..] } else { &[""] };
        for action in actions {
            let path = format!("{path}{action}");
            let concrete = path
                .replace("{id}", "a1")
                .replace("{project}", "p")
                .replace("{service}", "s")
                .replace("{topic}", "t");
            // A DELETE of `p:pause` is one of a thing with that name, which is refused.
            let methods = if action.is_empty() {
                &["GET", "POST", "PUT", "DELETE", "PATCH"][..]
            } else {
                &["POST"]
            };
            for method in methods {
                let told = api.ask("", method, &concrete, &json!({})).await;
                if told.code() != "no_such_method" {
                    served.insert(((*method).to_owned(), path.clone()));
                }
            }
        }
    }
    assert_eq!(documented, served, "the document is on the left");
}

#[test]
fn every_reference_of_the_document_leads_somewhere() {
    fn references(of: &Value, found: &mut BTreeSet<String>) {
        match of {
            Value::Object(map) => {
                if let Some(Value::String(to)) = map.get("$ref") {
                    found.insert(to.clone());
                }
                map.values().for_each(|value| references(value, found));
            }
            Value::Array(list) => list.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }
    let document = document();
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    assert!(found.len() > 10, "{found:?}");
    for reference in found {
        let pointer = reference.strip_prefix('#').expect("within the document");
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
    let operations: Vec<&Value> = document["paths"].as_object().expect("paths").values().collect();
    let ids: Vec<&str> = operations
        .iter()
        .flat_map(|methods| methods.as_object().into_iter().flat_map(|of| of.values()))
        .filter_map(|operation| operation["operationId"].as_str())
        .collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "{ids:?}");
}

/// The pages of a directory below `docs`, by their names.
fn pages(directory: &str) -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(directory);
    let entries = std::fs::read_dir(directory).expect("readable");
    let mut pages: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    pages.retain(|page| page.extension().is_some_and(|of| of == "md"));
    pages.sort();
    pages
}

/// The examples of each page are requests that are taken, one after the other.
#[tokio::test]
async fn every_example_of_the_documents_is_taken() {
    let mut count = 0;
    let line = regex::Regex::new(r"(?m)^curl (?:-X (PUT|POST) )?'?http://127\.0\.0\.1:8080(/v1/(?:tasks|projects|schedules|runs)[^ ']*)'? .*--json '([^']+)'$").expect("sound");
    for page in [pages(""), pages("clients")].concat() {
        let api = Api::new();
        let text = std::fs::read_to_string(&page).expect("text");
        for found in line.captures_iter(&text.replace("\\\n", " ")) {
            let method = found.get(1).map_or("POST", |method| method.as_str());
            let body: Value = serde_json::from_str(&found[3]).expect("JSON");
            let told = api.ask("", method, &found[2], &body).await;
            let is_taken = [200, 201].contains(&told.status);
            assert!(is_taken, "{}: {}: {told:?}", page.display(), &found[0]);
            if let Some(tasks) = told.json["tasks"].as_array()
                && found[2].ends_with(":batchCreate")
            {
                assert!(tasks.iter().all(|task| task["status"] == 201), "{told:?}");
            }
            count += 1;
        }
    }
    assert!(count >= 20, "{count} examples");
}

/// The answers of an operation, with what each is sent as.
fn sent_as(operation: &Value) -> BTreeSet<(String, String)> {
    let responses = operation["responses"].as_object().expect("responses");
    let of_one = |(status, response): (&String, &Value)| {
        let kinds = response["content"].as_object().into_iter().flat_map(|content| content.keys());
        kinds.map(|kind| (status.clone(), kind.clone())).collect::<Vec<_>>()
    };
    responses.iter().flat_map(of_one).collect()
}

#[test]
fn problems_and_answers_are_described_as_they_are_sent() {
    let document = document();
    let paths = document["paths"].as_object().expect("paths").values();
    let operations = paths.flat_map(|path| path.as_object().expect("methods").values());
    let mut problems = 0;
    for (status, kind) in operations.flat_map(sent_as) {
        let is_problem = status.starts_with(['4', '5']);
        let want = if is_problem { problem::CONTENT_TYPE } else { JSON };
        assert_eq!(kind, want, "{status}");
        problems += usize::from(is_problem);
    }
    assert!(problems > 0);
    // What is not there need not be.
    let each = &document["components"]["schemas"]["CreatedEach"];
    assert_eq!(each["required"], json!(["status"]), "{each}");
}
