//! Server-side apply: kube-apiserver answers 500 to a patch against its kind's schema.
//!
//! See kubernetes/kubernetes#139253 and #122480; the message is from `structuredmerge.go` of
//! apimachinery. Counted as a failure, this response would also delay the corrected patch and the
//! DELETE.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, StatusCode};

use super::Call;
use super::signals::Response;

/// Returns true if a PATCH with this head is a server-side apply, in YAML (or JSON) or CBOR.
pub fn is_apply(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    kind.and_then(|kind| kind.get(..TYPE.len())).is_some_and(|kind| kind.eq_ignore_ascii_case(TYPE))
}

/// Returns true if the response's body may say that the patch was wrong.
pub(super) fn wants_body(call: &Call, status: StatusCode) -> bool {
    call.is_apply && status == StatusCode::INTERNAL_SERVER_ERROR
}

/// Returns true if the response says that the patch was wrong. The Status may be JSON, protobuf or
/// CBOR, with the same message in each.
pub(super) fn is_wrong(call: &Call, response: &Response<'_>) -> bool {
    wants_body(call, response.status) && says_wrong(response.body)
}

fn says_wrong(body: &[u8]) -> bool {
    let at = body.windows(MESSAGE.len()).position(|words| words == MESSAGE);
    // An error that cites this one, such as a webhook's, is a failure.
    at.and_then(|at| body.get(..at)).is_some_and(|before| !CITED.iter().any(|end| before.ends_with(end)))
}

const TYPE: &[u8] = b"application/apply-patch+";
const MESSAGE: &[u8] = b"failed to create typed patch object";
/// What may stand before the message where another text quotes it: a colon, or a quote inside JSON.
const CITED: [&[u8]; 2] = [b": ", b"\\\""];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_apply_is_known_by_its_content_type() {
        for (kind, applies) in [
            ("application/apply-patch+yaml", true),
            ("application/apply-patch+cbor", true),
            ("Application/Apply-Patch+yaml; charset=utf-8", true),
            ("application/apply-patch", false),
            ("application/merge-patch+json", false),
            ("application/strategic-merge-patch+json", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]);
            assert_eq!(is_apply(&headers), applies, "{kind}");
        }
        assert!(!is_apply(&HeaderMap::new()));
    }

    #[test]
    fn only_the_error_itself_counts_and_not_one_that_cites_it() {
        for (body, wrong) in [
            (
                r#"{"message":"failed to create typed patch object (a/b; v1, Kind=X): .c: field not declared in schema"}"#,
                true,
            ),
            (r#"{ "message": "failed to create typed patch object: x" }"#, true),
            ("\u{1a}\u{50}failed to create typed patch object (a/b; v1, Kind=X)", true),
            ("failed to create typed patch object", true),
            (r#"{"message":"Internal error occurred: failed to create typed patch object"}"#, false),
            (r#"{"message":"webhook said \"failed to create typed patch object\""}"#, false),
            (r#"{"message":"failed to create typed live object"}"#, false),
            (r#"{"message":"failed to create typed patch obj"#, false),
            ("", false),
        ] {
            assert_eq!(says_wrong(body.as_bytes()), wrong, "{body}");
        }
    }
}
