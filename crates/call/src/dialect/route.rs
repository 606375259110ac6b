//! Tables of REST routes: the name of the action for each method and path.

use http::Method;

/// One line of a table.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) method: &'static str,
    /// The segments of the path; `*` matches any one.
    pub(super) pattern: &'static str,
    pub(super) action: &'static str,
}

/// Reads a table of lines with method, pattern and action between tabs; `#` begins a comment.
pub(super) fn routes(table: &'static str) -> Vec<Route> {
    let cells = table.lines().filter(|line| !line.starts_with('#')).map(|line| line.split('\t'));
    let route = |mut cells: std::str::Split<'static, char>| {
        Some(Route { method: cells.next()?, pattern: cells.next()?, action: cells.next()? })
    };
    cells.filter_map(route).collect()
}

/// Returns the action of the first matching route. Slashes at the path's ends do not count.
pub(super) fn action_of(routes: &[Route], method: &Method, path: &str) -> Option<&'static str> {
    let path = path.trim_matches('/');
    let fits = |pattern: &str| {
        let mut segments = path.split('/');
        let fits = |word: &str| segments.next().is_some_and(|found| word == found || word == "*" && !found.is_empty());
        pattern.split('/').all(fits) && segments.next().is_none()
    };
    let method = if *method == Method::HEAD { "GET" } else { method.as_str() };
    routes.iter().find(|route| route.method == method && fits(route.pattern)).map(|route| route.action)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_fits_segment_by_segment() {
        let routes = routes("# a table\nGET\ta\tList\nGET\ta/*\tGet\nPOST\ta/*/b\tDo\n");
        for (method, path, expected) in [
            (Method::GET, "/a", Some("List")),
            (Method::GET, "/a/", Some("List")),
            (Method::HEAD, "/a/x", Some("Get")),
            (Method::POST, "/a/x/b/", Some("Do")),
            (Method::POST, "/a//b", None),
            (Method::GET, "/a/x/y", None),
            (Method::DELETE, "/a", None),
        ] {
            assert_eq!(action_of(&routes, &method, path), expected, "{method} {path}");
        }
    }
}
