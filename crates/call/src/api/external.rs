//! Reads a request to an external API, by method and path.

use http::{Method, Uri};

use super::call::{Call, Verb};
use super::path;

/// Reads a request by its method and path, without its query.
pub fn read(method: &Method, uri: &Uri) -> Call {
    let path::Segments { text, ambiguous, escaped_slash } = path::decode_segments(uri.path());
    Call { escaped_slash, ..Call::of_path(text, verb(method), ambiguous) }
}

/// Returns the verb of a method, for a path of an object or a collection.
pub(super) fn verb(method: &Method) -> Verb {
    match *method {
        Method::GET | Method::HEAD => Verb::Get,
        Method::POST => Verb::Create,
        Method::PUT => Verb::Update,
        Method::PATCH => Verb::Patch,
        Method::DELETE => Verb::Delete,
        _ => Verb::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn external_calls_are_method_and_path() {
        let call = read(&Method::POST, &Uri::from_static("/repos/a%20b/issues?watch=1&timeout=5s"));
        assert_eq!((call.verb, call.path()), (Verb::Create, "/repos/a b/issues"));
        assert!(!call.is_resource && !call.is_long_running && !call.is_ambiguous);
        assert_eq!((call.timeout, call.name(), call.resource()), (None, "", ""));
        assert!(read(&Method::GET, &Uri::from_static("/a//b")).is_ambiguous);
    }

    #[test]
    fn an_escaped_slash_can_be_read_as_data_or_as_a_separator() {
        let call = read(&Method::GET, &Uri::from_static("/repos/o/r/branches/a%2fb"));
        assert_eq!(
            (call.path(), call.path_split_later()),
            ("/repos/o/r/branches/a%2Fb", Some("/repos/o/r/branches/a/b".to_owned()))
        );
        assert_eq!(read(&Method::GET, &Uri::from_static("/a/b")).path_split_later(), None);
    }
}
