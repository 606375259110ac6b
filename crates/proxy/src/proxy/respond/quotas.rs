//! The fields RateLimit-Policy and RateLimit (draft-ietf-httpapi-ratelimit-headers-10): the buckets
//! of a call, and how many tokens they have.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::classify::ApiKind;
use crate::limit::snapshot::{BucketView, CallBucket};
use crate::proxy::driver::Driver;
use crate::proxy::observe::CallContext;

/// Adds the fields to a refusal, and to other answers if the gate's configuration says so. Those of
/// the upstream stay alone.
pub(crate) fn add_quotas(headers: &mut HeaderMap, driver: &Driver, context: &CallContext) {
    let gate = &context.config.options.gate;
    let is_wanted = context.is_refused() || gate.refusals.ratelimit_on_answers;
    if gate.kind != ApiKind::Http || !is_wanted || headers.contains_key(&POLICY) || headers.contains_key(&LEFT) {
        return;
    }
    let call = &context.call;
    let buckets = driver.look(|limiter, now| limiter.buckets_of(call.class, call.flow(), call.credential, now));
    for CallBucket { class, bucket } in buckets {
        let name = class.map_or_else(|| gate.name.to_string(), |class| format!("{}.{class}", gate.name));
        let BucketView { rate, burst, level, shared, .. } = bucket;
        let seconds = |tokens: f64| (tokens / rate).ceil().min(LONGEST);
        append(headers, &POLICY, format!("\"{name}\";q={burst};w={}", seconds(burst.into())));
        // Of a shared bucket only the store knows the level.
        if shared.is_none() {
            let left = level.max(0.0).floor();
            append(headers, &LEFT, format!("\"{name}\";r={left};t={}", seconds(f64::from(burst) - level)));
        }
    }
}

fn append(headers: &mut HeaderMap, name: &HeaderName, value: String) {
    if let Ok(value) = HeaderValue::try_from(value) {
        headers.append(name, value);
    }
}

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LEFT: HeaderName = HeaderName::from_static("ratelimit");
/// The most seconds: a structured field's integers have 15 digits.
const LONGEST: f64 = 1e12;
