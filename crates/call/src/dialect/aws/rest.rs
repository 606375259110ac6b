//! The actions of REST services that limit calls by action: Route 53, EKS and S3.

use std::net::IpAddr;
use std::sync::LazyLock;

use crate::dialect::route::{Route, action_of, routes};
use crate::dialect::{Head, form, is_read};

/// Returns the action of a call, for a service with a table of routes.
pub(super) fn action(service: &str, head: &Head<'_>, host: &str) -> Option<&'static str> {
    match service {
        "route53" => action_of(&ROUTE_53, head.method, below_version(head.uri.path())),
        "eks" => action_of(&EKS, head.method, head.uri.path()),
        "s3" | "s3express" => s3(head, host),
        _ => None,
    }
}

/// Returns a path of Route 53 without the date at its start.
fn below_version(path: &str) -> &str {
    path.trim_start_matches('/').split_once('/').map_or("", |(_, rest)| rest)
}

/// Returns the action of a call to S3, by its method, its bucket or key, and words of its query.
fn s3(head: &Head<'_>, host: &str) -> Option<&'static str> {
    let bucket_in_path =
        host.starts_with("s3.") || host.starts_with("s3-") || !host.contains('.') || host.parse::<IpAddr>().is_ok();
    let path = head.uri.path().trim_start_matches('/');
    let (bucket, key) = if bucket_in_path { path.split_once('/').unwrap_or((path, "")) } else { (host, path) };
    if bucket.is_empty() {
        return is_read(head.method).then_some("ListBuckets");
    }
    let words: Vec<_> = form::pairs(head.uri.query().unwrap_or_default()).map(|(name, _)| name).collect();
    let has = |word: &str| match word {
        "-" => true,
        "copy" => head.headers.contains_key("x-amz-copy-source"),
        word => words.iter().any(|given| given == word),
    };
    let fits = |route: &&Route| route.method == head.method.as_str() && route.pattern.split(' ').all(has);
    let level = if key.is_empty() { &S3_BUCKET } else { &S3_OBJECT };
    level.iter().find(fits).map(|route| route.action)
}

static ROUTE_53: LazyLock<Vec<Route>> = LazyLock::new(|| routes(include_str!("route53.tsv")));
static EKS: LazyLock<Vec<Route>> = LazyLock::new(|| routes(include_str!("eks.tsv")));
static S3_BUCKET: LazyLock<Vec<Route>> = LazyLock::new(|| routes(include_str!("s3_bucket.tsv")));
static S3_OBJECT: LazyLock<Vec<Route>> = LazyLock::new(|| routes(include_str!("s3_object.tsv")));

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::dialect::tests::request;

    fn of(service: &str, method: &Method, host: &str, target: &str) -> &'static str {
        let (uri, headers) = request(target, &[]);
        action(service, &Head { method, uri: &uri, headers: &headers }, host).unwrap_or_default()
    }

    #[test]
    fn route_53_and_eks_are_read_by_their_paths() {
        let route_53 = |method: Method, path| of("route53", &method, "route53.amazonaws.com", path);
        assert_eq!(route_53(Method::POST, "/2013-04-01/hostedzone/Z/rrset/"), "ChangeResourceRecordSets");
        assert_eq!(route_53(Method::GET, "/2013-04-01/hostedzone/Z/rrset?maxitems=300"), "ListResourceRecordSets");
        assert_eq!(route_53(Method::GET, "/2013-04-01/change/C1"), "GetChange");
        assert_eq!(route_53(Method::GET, "/nothing/known"), "");
        assert_eq!(
            of("eks", &Method::GET, "eks.eu-west-1.amazonaws.com", "/clusters/c/node-groups/n"),
            "DescribeNodegroup"
        );
        assert_eq!(of("lambda", &Method::GET, "", "/functions"), "");
    }

    #[test]
    fn s3_is_read_by_bucket_key_and_query() {
        let path_style = "s3.eu-west-1.amazonaws.com";
        let in_host = "b.s3.eu-west-1.amazonaws.com";
        for (method, host, target, expected) in [
            (Method::GET, path_style, "/", "ListBuckets"),
            (Method::GET, path_style, "/b", "ListObjects"),
            (Method::GET, path_style, "/b/?list-type=2&prefix=x", "ListObjectsV2"),
            (Method::GET, in_host, "/?list-type=2", "ListObjectsV2"),
            (Method::GET, path_style, "/b//..%2Fk", "GetObject"),
            (Method::GET, in_host, "/k", "GetObject"),
            (Method::HEAD, in_host, "/k", "HeadObject"),
            (Method::HEAD, path_style, "/b", "HeadBucket"),
            (Method::PUT, in_host, "/k?partNumber=1&uploadId=u", "UploadPart"),
            (Method::PUT, in_host, "/k", "PutObject"),
            (Method::PUT, path_style, "/b", "CreateBucket"),
            (Method::POST, path_style, "/b?delete", "DeleteObjects"),
            (Method::DELETE, path_style, "/b?cors", "DeleteBucketCors"),
            (Method::DELETE, path_style, "/b", "DeleteBucket"),
            (Method::POST, in_host, "/k?uploads", "CreateMultipartUpload"),
            (Method::PATCH, in_host, "/k", ""),
        ] {
            assert_eq!(of("s3", &method, host, target), expected, "{method} {host} {target}");
        }
    }

    #[test]
    fn every_line_of_the_tables_is_read() {
        let lengths = [&ROUTE_53, &EKS, &S3_BUCKET, &S3_OBJECT].map(|table| table.len());
        assert_eq!(lengths, [52, 46, 48, 25]);
    }
}
