//! Reads a request as kube-apiserver does.
//!
//! The rules are those of `RequestInfo` (apiserver `pkg/endpoints/request/requestinfo.go`), quirks
//! included: `/api/v1/namespaces/a` has both namespace and name `a`, `?watch=true` on a named
//! object stays a `get`, a field selector on `metadata.name` names the object. Not reproduced: a
//! malformed *label* selector, which the API server answers with 400 in any case.

use http::{Method, Uri};

use super::call::{Call, CallParts, TextSpan, Verb};
use super::query::{self, Query};
use super::{duration, external, path, selector};

/// Reads a request to a kube-apiserver.
pub fn read(method: &Method, uri: &Uri) -> Call {
    let query = Query::read(uri.query());
    let (text, ambiguous) = path::decode(uri.path());
    let mut call = Call::of_path(text, external::verb(method), ambiguous);
    let timeout = query.timeout.and_then(|raw| duration::read(&query::unescape(raw)));
    call.timeout = timeout.filter(|timeout| !timeout.is_zero());
    read_resource(&mut call, &query);
    // A read ignores the parameter.
    let is_read = matches!(*method, Method::GET | Method::HEAD);
    call.is_dry_run = !is_read && query.dry_run.is_some_and(|value| !value.is_empty());
    call.is_long_running = is_long_running(&call, &query, method);
    call.lists_first = call.verb == Verb::Watch && query::is_set(query.send_initial_events);
    call
}

/// Fills in the parts of the call, if its path names a resource.
fn read_resource(call: &mut Call, query: &Query<'_>) {
    let (segments, count) = segments(call.path());
    let Some([prefix, rest @ ..]) = segments.get(..count).filter(|segments| segments.len() >= 3) else { return };
    let (group, version, mut rest) = match (prefix.of(&call.text), rest) {
        ("api", [version, rest @ ..]) => (TextSpan::default(), *version, rest),
        ("apis", [group, version, rest @ ..]) if !rest.is_empty() => (*group, *version, rest),
        _ => return,
    };
    call.parts = CallParts { group, version, ..call.parts };
    call.is_resource = true;

    let special = match rest.first().map(|first| first.of(&call.text)) {
        Some("proxy") => Some(Verb::Proxy),
        Some("watch") => Some(Verb::Watch),
        _ => None,
    };
    if let Some(verb) = special {
        // Without a resource after it, the API server answers 500.
        let Some((_, after @ [_, ..])) = rest.split_first() else { return };
        call.verb = verb;
        rest = after;
    }
    read_object(call, rest);
    if call.parts.name.is_empty() && call.verb == Verb::Get {
        read_list_options(call, query);
    }
    if call.parts.name.is_empty() && call.verb == Verb::Delete {
        call.verb = Verb::DeleteCollection;
    }
}

/// Fills in namespace, resource, name and subresource.
fn read_object(call: &mut Call, mut rest: &[TextSpan]) {
    if let [first, namespace, after @ ..] = rest
        && first.of(&call.text) == "namespaces"
    {
        call.parts.namespace = *namespace;
        // A namespace's own subresources stay with it.
        if after.first().is_some_and(|next| !matches!(next.of(&call.text), "status" | "finalize")) {
            rest = after;
        }
    }
    let mut parts = rest.iter().copied();
    call.parts.resource = parts.next().unwrap_or_default();
    call.parts.name = parts.next().unwrap_or_default();
    if call.verb != Verb::Proxy {
        call.parts.subresource = parts.next().unwrap_or_default();
    }
}

/// Decides whether a read without a name is a list or a watch; either may be of one object.
fn read_list_options(call: &mut Call, query: &Query<'_>) {
    call.verb = if query::is_set(query.watch) { Verb::Watch } else { Verb::List };
    // One malformed option makes the API server ignore all of them but watch.
    if !query::is_integer(query.limit) || !query::is_integer(query.timeout_seconds) {
        return;
    }
    let Some(raw) = query.field_selector else { return };
    let start = call.text.len();
    call.text.push_str(&query::unescape(raw));
    let Some((range, is_escaped)) = call.text.get(start..).and_then(selector::exact_name) else { return };
    call.parts.name = TextSpan::new(start + range.start, range.len());
    if is_escaped {
        let name: String = selector::unescape(call.parts.name.of(&call.text)).collect();
        call.parts.name = TextSpan::new(call.text.len(), name.len());
        call.text.push_str(&name);
    }
}

/// Returns true if the call goes on until one side ends it.
///
/// The list is kube-apiserver's own (`BasicLongRunningRequestCheck`), with the methods of these
/// calls there: no other method is a way past the limits. A log counts only if it follows;
/// otherwise it is a download, and counts as in flight and takes a token. The prefix `/proxy/` is a
/// 404 in every supported version.
fn is_long_running(call: &Call, query: &Query<'_>, method: &Method) -> bool {
    match call.verb {
        Verb::Watch => *method == Method::GET,
        Verb::Proxy => false,
        _ if !call.is_resource => false,
        _ => match call.subresource() {
            "attach" | "exec" | "portforward" => matches!(*method, Method::GET | Method::POST),
            "proxy" => true,
            "log" => *method == Method::GET && query::is_set(query.follow),
            _ => false,
        },
    }
}

/// Returns the first segments of a path without its outer slashes, and their number. Empty ones
/// inside count.
fn segments(path: &str) -> ([TextSpan; MOST_SEGMENTS], usize) {
    let mut parts = [TextSpan::default(); MOST_SEGMENTS];
    let inner = path.trim_start_matches('/');
    let outer = path.len() - inner.len();
    let inner = inner.trim_end_matches('/');
    if inner.is_empty() {
        return (parts, 0);
    }
    let mut start = 0;
    let mut count = 0;
    // A plain loop: segments are short, and a search for the next slash costs more.
    for (at, byte) in inner.bytes().enumerate() {
        if byte == b'/' {
            let Some(place) = parts.get_mut(count) else { return (parts, count) };
            *place = TextSpan::new(outer + start, at - start);
            (start, count) = (at + 1, count + 1);
        }
    }
    if let Some(place) = parts.get_mut(count) {
        *place = TextSpan::new(outer + start, inner.len() - start);
        count += 1;
    }
    (parts, count)
}

/// The most segments to read: those of
/// `/apis/GROUP/VERSION/watch/namespaces/NAMESPACE/RESOURCE/NAME/SUBRESOURCE`.
const MOST_SEGMENTS: usize = 9;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn call(method: &str, target: &str) -> Call {
        // An absolute form is how `http` takes an empty path.
        let uri = if target.is_empty() { "http://host".to_owned() } else { target.to_owned() };
        read(&method.parse().unwrap(), &uri.parse().unwrap())
    }

    /// apiserver's `TestGetAPIRequestInfo`: method, target, verb, group, version, namespace,
    /// resource, subresource, name.
    const RESOURCES: &str = "
        GET    /api/v1/namespaces                                list   - v1 - namespaces - -
        GET    /api/v1/namespaces/other                          get    - v1 other namespaces - other
        GET    /api/v1/namespaces/other/pods                     list   - v1 other pods - -
        GET    /api/v1/namespaces/other/pods/foo                 get    - v1 other pods - foo
        HEAD   /api/v1/namespaces/other/pods/foo                 get    - v1 other pods - foo
        GET    /api/v1/pods                                      list   - v1 - pods - -
        HEAD   /api/v1/pods                                      list   - v1 - pods - -
        GET    /api/v1/proxy/namespaces/other/pods/foo           proxy  - v1 other pods - foo
        GET    /api/v1/proxy/namespaces/other/pods/foo/subpath/not/a/subresource proxy - v1 other pods - foo
        GET    /api/v1/watch/pods                                watch  - v1 - pods - -
        GET    /api/v1/pods?watch=true                           watch  - v1 - pods - -
        GET    /api/v1/pods?watch=false                          list   - v1 - pods - -
        GET    /api/v1/watch/namespaces/other/pods               watch  - v1 other pods - -
        GET    /api/v1/namespaces/other/pods?watch=1             watch  - v1 other pods - -
        GET    /api/v1/namespaces/other/pods?watch=0             list   - v1 other pods - -
        GET    /api/v1/namespaces/other/pods/foo/status          get    - v1 other pods status foo
        GET    /api/v1/namespaces/other/pods/foo/proxy/subpath   get    - v1 other pods proxy foo
        PUT    /api/v1/namespaces/other/finalize                 update - v1 other namespaces finalize other
        PUT    /api/v1/namespaces/other/status                   update - v1 other namespaces status other
        PATCH  /api/v1/namespaces/other/pods/foo                 patch  - v1 other pods - foo
        DELETE /api/v1/namespaces/other/pods/foo                 delete - v1 other pods - foo
        POST   /api/v1/namespaces/other/pods                     create - v1 other pods - -
        DELETE /api/v1/nodes                                     deletecollection - v1 - nodes - -
        DELETE /api/v1/namespaces                                deletecollection - v1 - namespaces - -
        DELETE /api/v1/namespaces/other/pods                     deletecollection - v1 other pods - -
        DELETE /apis/extensions/v1/namespaces/other/pods         deletecollection extensions v1 other pods - -
        POST   /apis/extensions/v1/namespaces/other/pods         create extensions v1 other pods - -
        POST   /apis/extensions/v1beta3/namespaces/other/pods    create extensions v1beta3 other pods - -
        GET    /api/version/resource                             list   - version - resource - -
        GET    /apis/group/version/resource/name/subresource     get    group version - resource subresource name
        GET    /api/version/resource/name/subresource            get    - version - resource subresource name
        GET    /apis/batch/v1/job                                list   batch v1 - job - -
        GET    /apis/batch/v1/job/foo                            get    batch v1 - job - foo
        GET    /apis/batch/v1/job/foo/scale                      get    batch v1 - job scale foo
        GET    /api/v1/pods?watch                                watch  - v1 - pods - -
        GET    /api/v1/pods?watch=                               watch  - v1 - pods - -
        GET    /api/v1/pods?watch=FALSE                          list   - v1 - pods - -
        GET    /api/v1/pods?limit=abc&watch=1                    watch  - v1 - pods - -
        OPTIONS /api/v1/pods                                     other  - v1 - pods - -
        GET    /api/v1//pods                                     get    - v1 - - - pods
        HEAD   /api/v1/pods?watch=1                              watch  - v1 - pods - -
        GET    /api/v1/namespaces/ns/status                      get    - v1 ns namespaces status ns
        GET    /api/v1/namespaces/ns/pods/foo?watch=true         get    - v1 ns pods - foo
        POST   /api/v1/watch/pods                                watch  - v1 - pods - -
        GET    /api/v1/pods/                                     list   - v1 - pods - -
        GET    /api/v1/watch                                     get    - v1 - - - -
        PUT    /apis/coordination.k8s.io/v1/namespaces/ns/leases/id update coordination.k8s.io v1 ns leases - id
        POST   /api/v1/namespaces/ns/pods/foo/eviction           create - v1 ns pods eviction foo
        GET    /apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode get rbac.authorization.k8s.io v1 - clusterroles - system:node
        GET    /apis/g/v/namespaces/ns/r/n/s/more/and/more       get    g v ns r s n
        GET    /apis/g/v/watch/namespaces/ns/r/n/s/more          watch  g v ns r s n";

    #[test]
    fn resources_are_read_as_the_api_server_reads_them() {
        for row in RESOURCES.lines().map(str::trim).filter(|row| !row.is_empty()) {
            let columns: Vec<&str> =
                row.split_whitespace().map(|column| if column == "-" { "" } else { column }).collect();
            let call = call(columns[0], columns[1]);
            let read = [
                call.verb.word(),
                call.group(),
                call.version(),
                call.namespace(),
                call.resource(),
                call.subresource(),
                call.name(),
            ];
            assert!(call.is_resource, "{row}");
            assert_eq!(read, columns[2..], "{row}");
        }
    }

    #[test]
    fn what_is_no_resource_is_not_read_as_one() {
        // apiserver's error cases of `TestGetAPIRequestInfo`, and `TestGetNonAPIRequestInfo`.
        for target in [
            "/",
            "",
            "/api",
            "/api/version",
            "/api/version/",
            "/apis/group/version/",
            "/badprefix/version/resource",
            "/apis/version/resource",
            "/not-api/version/resource",
            "/apis/extensions/v1beta1",
            "/apis/extensions/v1beta1/",
            "/healthz",
            "/API/v1/pods",
        ] {
            let call = call("GET", target);
            assert!(!call.is_resource, "{target}");
            assert_eq!((call.verb, call.resource(), call.group()), (Verb::Get, "", ""), "{target}");
        }
    }

    #[test]
    fn selectors_name_the_object_of_a_collection_read() {
        // apiserver's `TestSelectorParsing`.
        let base = "/apis/group/version/resource";
        for (method, suffix, name, verb) in [
            ("GET", "", "", "list"),
            ("GET", "?fieldSelector=metadata.name=name1", "name1", "list"),
            ("GET", "?fieldSelector=metadata.name%3Dname1&limit=500", "name1", "list"),
            ("GET", "?watch=true&fieldSelector=metadata.name=name1", "name1", "watch"),
            ("GET", "?fieldSelector=foo=bar&labelSelector=baz=qux", "", "list"),
            ("GET", "?fieldSelector=metadata.name=name1,foo", "", "list"),
            ("GET", "?fieldSelector=metadata.name=name1,foo&watch=true", "", "watch"),
            ("GET", "?fieldSelector=metadata.name=name1,foo&watch=false", "", "list"),
            ("DELETE", "?fieldSelector=foo=bar&labelSelector=baz=qux", "", "deletecollection"),
            ("DELETE", "?fieldSelector=metadata.name=name1", "", "deletecollection"),
            ("GET", "?fieldSelector=metadata.name=foo&fieldSelector=metadata.name=bar", "foo", "list"),
            ("GET", "?fieldSelector=metadata.name=a%5C%2Cb", "a,b", "list"),
            ("GET", "?fieldSelector=metadata.name=%ff", "", "list"),
            ("GET", "?fieldSelector=metadata.name=foo&limit=abc", "", "list"),
            ("GET", "?fieldSelector=metadata.name=foo&timeoutSeconds=", "", "list"),
            ("GET", "?fieldSelector=metadata.name=..", "", "list"),
            ("GET", "/name?fieldSelector=foo=bar&labelSelector=foo=bar", "name", "get"),
        ] {
            let call = call(method, &format!("{base}{suffix}"));
            assert_eq!((call.name(), call.verb.word()), (name, verb), "{method} {suffix}");
            assert_eq!((call.resource(), call.group()), ("resource", "group"), "{suffix}");
        }
        let by_path =
            call("GET", "/apis/group/version/watch/resource?fieldSelector=metadata.name=foo&labelSelector=foo=bar");
        assert_eq!((by_path.name(), by_path.verb), ("", Verb::Watch));
        let named = call("GET", "/apis/group/version/watch/resource/name?fieldSelector=metadata.name=foo");
        assert_eq!((named.name(), named.verb), ("name", Verb::Watch));
    }

    #[test]
    fn long_running_is_what_somebody_must_end() {
        for (method, target, long, tunnel) in [
            ("GET", "/api/v1/pods?watch=1", true, false),
            ("GET", "/api/v1/watch/pods", true, false),
            ("GET", "/api/v1/pods", false, false),
            ("POST", "/api/v1/namespaces/a/pods/p/exec?command=ls", true, true),
            ("GET", "/api/v1/namespaces/a/pods/p/attach", true, true),
            ("POST", "/api/v1/namespaces/a/pods/p/portforward", true, true),
            ("GET", "/api/v1/namespaces/a/services/s/proxy/x", true, true),
            ("GET", "/api/v1/proxy/namespaces/a/pods/p", false, false),
            ("PUT", "/api/v1/namespaces/a/services/s/proxy/x", true, true),
            ("PUT", "/api/v1/namespaces/a/pods/p/exec", false, false),
            ("DELETE", "/api/v1/namespaces/a/pods/p/portforward", false, false),
            ("POST", "/api/v1/namespaces/a/pods/p/log?follow=true", false, false),
            ("POST", "/api/v1/watch/pods", false, false),
            ("HEAD", "/api/v1/pods?watch=1", false, false),
            ("GET", "/api/v1/namespaces/a/pods/p/log", false, false),
            ("GET", "/api/v1/namespaces/a/pods/p/log?follow=false", false, false),
            ("GET", "/api/v1/namespaces/a/pods/p/log?follow=true", true, false),
            ("GET", "/api/v1/namespaces/a/pods/exec", false, false),
            ("POST", "/api/v1/namespaces/a/pods/p/eviction", false, false),
            ("GET", "/debug/pprof/profile", false, false),
        ] {
            let call = call(method, target);
            assert_eq!((call.is_long_running, call.is_tunnel()), (long, tunnel), "{method} {target}");
        }
    }

    #[test]
    fn deadline_and_dry_run_are_read_from_the_query() {
        for (query, timeout) in [
            ("?timeout=5s", Some(5_000)),
            ("?timeout=1m0s", Some(60_000)),
            ("?timeout=32s&timeout=1s", Some(32_000)),
            ("?timeout=0", None),
            ("?timeout=0s", None),
            ("?timeout=5", None),
            ("?timeout=-5s", None),
            ("?timeout=", None),
            ("?timeoutSeconds=5", None),
            ("", None),
        ] {
            let call = call("PUT", &format!("/api/v1/namespaces/a/pods/p{query}"));
            assert_eq!(call.timeout, timeout.map(Duration::from_millis), "{query}");
        }
        assert!(call("PUT", "/api/v1/namespaces/a/pods/p?dryRun=All").is_dry_run);
        assert!(!call("PUT", "/api/v1/namespaces/a/pods/p?dryRun=").is_dry_run);
    }

    #[test]
    fn reading_a_call_allocates_once() {
        let path = "/api/v1/namespaces/a/pods";
        for query in ["", "?limit=500&timeout=5s"] {
            // What was reserved at first is still what there is: the text never grew.
            let call = call("GET", &format!("{path}{query}"));
            assert_eq!(call.text.capacity(), path.len(), "{query}");
        }
    }

    #[test]
    fn discovery_is_what_lies_above_the_resources() {
        for (target, expected) in [
            ("/api", true),
            ("/api/", true),
            ("/api/v1", true),
            ("/apis", true),
            ("/apis/apps", true),
            ("/apis/apps/v1", true),
            ("/openapi/v2", true),
            ("/openapi/v3/apis/apps/v1", true),
            ("/apiary", false),
            ("/version", false),
            ("/api/v1/pods", false),
        ] {
            assert_eq!(call("GET", target).is_discovery(), expected, "{target}");
        }
    }

    proptest! {
        #[test]
        fn no_target_panics(
            method in "(GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS|FOO)",
            path in "(/(api|apis|v1|watch|proxy|namespaces|a|%2F|%c3|%C3%A9|é|\\.\\.|\\.|;|status|log|)){0,12}",
            query in "(\\?((watch|fieldSelector|limit|timeout|follow|dryRun)=?(metadata.name|=|,|%|%5C|a|é|%ff|1|5s|&){0,6}){0,4})?",
        ) {
            if let Ok(uri) = format!("{path}{query}").parse::<Uri>() {
                let call = read(&method.parse().unwrap(), &uri);
                let _ = (call.path(), call.group(), call.namespace(), call.name(), call.subresource());
                prop_assert!(call.is_resource || call.resource().is_empty());
            }
        }
    }
}
