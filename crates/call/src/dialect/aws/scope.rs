//! The scope of a SigV4 signature: `KEY/DATE/REGION/SERVICE/aws4_request`.

use std::borrow::Cow;

use http::header::AUTHORIZATION;

use crate::dialect::{Head, form, header};

/// What a SigV4 signature says about a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scope {
    pub(crate) key_id: String,
    pub(crate) region: String,
    pub(crate) service: String,
}

/// Returns the scope of a request's signature, from its header or (presigned) its query.
pub(crate) fn scope(head: &Head<'_>) -> Option<Scope> {
    let regions = || header(head.headers, "x-amz-region-set").map(str::to_owned);
    if let Some(authorization) = header(head.headers, AUTHORIZATION) {
        let mut parts = authorization.strip_prefix("AWS4-")?.split([',', ' ']);
        return parse(parts.find_map(|part| part.strip_prefix("Credential="))?, regions());
    }
    let query = head.uri.query().filter(|query| query.contains("X-Amz-Credential"))?;
    let in_query = || form::value(query, "X-Amz-Region-Set").map(Cow::into_owned);
    parse(&form::value(query, "X-Amz-Credential")?, regions().or_else(in_query))
}

/// Reads a scope. A scope of SigV4a has no region; then `regions`, from a header or the query, is
/// taken for it.
fn parse(credential: &str, regions: Option<String>) -> Option<Scope> {
    let mut parts = credential.rsplit('/');
    if parts.next()? != "aws4_request" {
        return None;
    }
    let service = parts.next()?;
    let before = parts.next()?;
    let is_date = |part: &str| part.len() == 8 && part.bytes().all(|byte| byte.is_ascii_digit());
    let region = if is_date(before) {
        regions.unwrap_or_default()
    } else {
        parts.next().filter(|date| is_date(date))?;
        before.to_owned()
    };
    // A key id has no slash, but another credential may have one.
    let key_id = parts.next().filter(|_| parts.next().is_none())?;
    Some(Scope { key_id: key_id.into(), region, service: service.into() })
}

/// Returns true for the name of a region: `eu-central-1`, `us-gov-west-1`.
pub(super) fn is_region(label: &str) -> bool {
    let Some((place, number)) = label.rsplit_once('-') else { return false };
    let is_all = |word: &str, fits: fn(&u8) -> bool| !word.is_empty() && word.as_bytes().iter().all(fits);
    matches!(place.split('-').count(), 2 | 3)
        && place.find('-') == Some(2)
        && place.split('-').all(|word| is_all(word, u8::is_ascii_lowercase))
        && is_all(number, u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::dialect::tests::request;

    fn of(target: &str, headers: &[(&str, &str)]) -> Option<(String, String, String)> {
        let (uri, headers) = request(target, headers);
        let scope = scope(&Head { method: &Method::GET, uri: &uri, headers: &headers })?;
        Some((scope.key_id, scope.region, scope.service))
    }

    fn expect(key_id: &str, region: &str, service: &str) -> Option<(String, String, String)> {
        Some((key_id.into(), region.into(), service.into()))
    }

    #[test]
    fn a_scope_is_read_from_header_and_query() {
        let v4 =
            "AWS4-HMAC-SHA256 Credential=AKID/20261123/eu-west-1/sts/aws4_request, SignedHeaders=host, Signature=x";
        assert_eq!(of("/", &[("authorization", v4)]), expect("AKID", "eu-west-1", "sts"));
        let v4a = "AWS4-ECDSA-P256-SHA256 Credential=AKID/20261123/s3/aws4_request,SignedHeaders=host,Signature=x";
        assert_eq!(of("/", &[("authorization", v4a), ("x-amz-region-set", "*")]), expect("AKID", "*", "s3"));
        let presigned =
            "/b/k?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKID%2F20261123%2Fus-east-1%2Fs3%2Faws4_request";
        assert_eq!(of(presigned, &[]), expect("AKID", "us-east-1", "s3"));
    }

    #[test]
    fn what_is_no_scope_is_none() {
        for authorization in [
            "Bearer x",
            "AWS4-HMAC-SHA256",
            "AWS4-HMAC-SHA256 Credential=a/b/c",
            "AWS4-X Credential=a/b/20261123/r/s/aws4_request",
            "",
        ] {
            assert_eq!(of("/", &[("authorization", authorization)]), None, "{authorization}");
        }
        assert_eq!(of("/?X-Amz-Credential=", &[]), None);
    }

    #[test]
    fn a_region_is_told_from_other_labels() {
        for label in ["eu-central-1", "us-gov-west-1", "ap-southeast-12"] {
            assert!(is_region(label), "{label}");
        }
        for label in ["amazonaws", "us-east", "eu-central-a", "", "-", "eu--1", "bucket-name-1"] {
            assert!(!is_region(label), "{label}");
        }
    }
}
