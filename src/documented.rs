//! Tables of the documents that are made from the code, for tests.

/// Compares what stands in a document between `<!-- mark: begin -->` and `<!-- mark: end -->` with what the code says;
/// with `UPDATE_DOCS` set it writes it there instead.
pub(crate) fn compare(document: &str, mark: &str, table: &str) {
    let path = format!("{}/docs/{document}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).expect(document);
    let (begin, end) = (format!("<!-- {mark}: begin -->\n"), format!("<!-- {mark}: end -->"));
    let from = text.find(&begin).expect("a begin mark") + begin.len();
    let to = text.find(&end).expect("an end mark");
    if std::env::vars_os().any(|(name, _)| name == "UPDATE_DOCS") {
        std::fs::write(&path, format!("{}{table}{}", &text[..from], &text[to..])).expect(document);
        return;
    }
    assert_eq!(&text[from..to], table, "run UPDATE_DOCS=1 cargo test --lib documented");
}
