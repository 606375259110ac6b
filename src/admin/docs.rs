//! The pages of the manual that a person on call needs. The process serves them itself, in its own
//! version, even if the network has no other source.

/// Returns the page at a path. Markdown is sent unchanged, because a browser shows it as text.
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
