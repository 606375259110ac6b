//! The pages of the manual a person on call needs. The gate serves them itself, for its own
//! version, even when nothing else works.

/// Returns a page by its path. Markdown is shown as it is written: a browser needs nothing else.
pub(super) fn page(path: &str) -> Option<&'static str> {
    PAGES.iter().find(|(page, _)| *page == path).map(|(_, text)| *text)
}

const PAGES: [(&str, &str); 5] = [
    ("/docs/alerts.md", include_str!("../../docs/alerts.md")),
    ("/docs/configuration.md", include_str!("../../docs/configuration.md")),
    ("/docs/metrics.md", include_str!("../../docs/metrics.md")),
    ("/docs/operations.md", include_str!("../../docs/operations.md")),
    ("/docs/troubleshooting.md", include_str!("../../docs/troubleshooting.md")),
];
