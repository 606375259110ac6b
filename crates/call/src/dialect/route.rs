//! Tables of REST routes: method and path to the name of the action.

use http::Method;

/// A route: its method, the segments of its path with `*` for any one, and the action's name.
pub(super) type Route = (&'static str, &'static str, &'static str);

/// The action of the first route that fits. Empty segments at the path's ends do not count.
pub(super) fn action(routes: &[Route], method: &Method, path: &str) -> Option<&'static str> {
    let path = path.trim_matches('/');
    let fits = |pattern: &str| {
        let mut pattern = pattern.split('/');
        let mut path = path.split('/');
        loop {
            match (pattern.next(), path.next()) {
                (None, None) => return true,
                (Some("*"), Some(segment)) if !segment.is_empty() => {}
                (Some(word), Some(segment)) if word == segment => {}
                _ => return false,
            }
        }
    };
    let method = if *method == Method::HEAD { "GET" } else { method.as_str() };
    routes.iter().find(|(verb, pattern, _)| *verb == method && fits(pattern)).map(|(.., action)| *action)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_fits_segment_by_segment() {
        let routes: [Route; 3] = [("GET", "a", "List"), ("GET", "a/*", "Get"), ("POST", "a/*/b", "Do")];
        for (method, path, expected) in [
            (Method::GET, "/a", Some("List")),
            (Method::GET, "/a/", Some("List")),
            (Method::HEAD, "/a/x", Some("Get")),
            (Method::POST, "/a/x/b/", Some("Do")),
            (Method::POST, "/a//b", None),
            (Method::GET, "/a/x/y", None),
            (Method::DELETE, "/a", None),
        ] {
            assert_eq!(action(&routes, &method, path), expected, "{method} {path}");
        }
    }
}
