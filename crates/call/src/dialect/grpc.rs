//! gRPC of any provider: `POST /package.Service/Method`, recognised by its media type.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method};

use super::{Head, Words, header};

/// Returns true for the head of a gRPC message: `application/grpc`, with or without a format.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    let format = header(headers, CONTENT_TYPE).and_then(|kind| kind.strip_prefix("application/grpc"));
    format.is_some_and(|rest| rest.is_empty() || rest.starts_with(['+', ';']))
}

/// Returns true for a POST with gRPC's media type and no query.
pub(super) fn is(head: &Head<'_>) -> bool {
    *head.method == Method::POST && head.uri.query().is_none() && is_grpc(head.headers)
}

pub(super) fn read(head: &Head<'_>) -> Words {
    let (service, action) = head.uri.path().trim_start_matches('/').split_once('/').unwrap_or_default();
    let account = header(head.headers, "x-goog-user-project").unwrap_or_default();
    let reads = ["Get", "List", "Search", "Watch", "Check", "Fetch", "Query", "Read", "BatchGet"];
    Words {
        service: service.into(),
        action: action.into(),
        account: account.into(),
        reads: reads.iter().any(|word| action.starts_with(word)),
        is_retry: header(head.headers, "grpc-previous-rpc-attempts").is_some_and(|attempts| attempts != "0"),
        is_grpc: true,
        ..Words::default()
    }
}
