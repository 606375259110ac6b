//! The trace of a call, from its client's `traceparent` and `tracestate` (W3C Trace Context). The
//! gate never changes these headers, so client and upstream are in the same trace as without a
//! gate.

use http::HeaderMap;

/// The trace of a call, and the client's span in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The id of the trace; never zero.
    pub id: u128,
    /// The id of the client's span; zero if the gate began the trace.
    pub parent: u64,
    /// True if the trace is being recorded.
    pub is_sampled: bool,
    /// The value of `tracestate`.
    pub state: Box<str>,
}

// === impl Trace ===

impl Trace {
    /// Reads the trace headers of a request; `None` if they are absent or malformed.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let mut lines = headers.get_all(PARENT).iter();
        let (line, None) = (lines.next()?.to_str().ok()?, lines.next()) else { return None };
        let mut parts = line.trim_matches([' ', '\t']).splitn(5, '-');
        let mut next = |digits| hex(parts.next()?, digits);
        let version = next(2)?;
        let id = next(32)?;
        let parent = next(16)?;
        let flags = next(2)?;
        // A later version may have more after the flags.
        let is_known = version == 0 && parts.next().is_none() || version > 0 && version < 0xff;
        let parent = u64::try_from(parent).ok()?;
        let state =
            || headers.get_all(STATE).iter().filter_map(|line| line.to_str().ok()).collect::<Vec<_>>().join(",");
        (is_known && id > 0 && parent > 0).then(|| Self {
            id,
            parent,
            is_sampled: flags & 1 == 1,
            state: state().into(),
        })
    }
}

/// Reads a number of this many hexadecimal digits in lower case.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let fits = text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    fits.then(|| u128::from_str_radix(text, 16).ok())?
}

const PARENT: &str = "traceparent";
const STATE: &str = "tracestate";

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(lines: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(PARENT, HeaderValue::from_str(line).expect("a value"));
        }
        headers
    }

    #[test]
    fn a_trace_is_read_as_the_standard_says() {
        let right = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let mut fields = headers(&[right]);
        fields.append(STATE, HeaderValue::from_static("a=1"));
        fields.append(STATE, HeaderValue::from_static("b=2"));
        let trace = Trace::of(&fields).expect("it is right");
        assert_eq!((trace.id, trace.parent), (0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c, 0xb7ad_6b71_6920_3331));
        assert!(trace.is_sampled);
        assert_eq!(&*trace.state, "a=1,b=2");
        for (line, is_right) in [
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", true),
            ("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", true),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", false),
            ("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", false),
            ("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", false),
            ("00-00000000000000000000000000000000-b7ad6b7169203331-01", false),
            ("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", false),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333-01", false),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331", false),
            ("", false),
        ] {
            assert_eq!(Trace::of(&headers(&[line])).is_some(), is_right, "{line:?}");
        }
        assert_eq!(Trace::of(&headers(&[right, right])), None, "two of them say nothing");
        assert_eq!(Trace::of(&HeaderMap::new()), None);
    }

    proptest::proptest! {
        /// OpenTelemetry's own reading is the judge, of lines that are nearly right.
        #[test]
        fn a_line_means_what_opentelemetry_says(
            version in proptest::prop_oneof![4 => proptest::strategy::Just("00".to_owned()), 1 => "[0-9a-f]{2}"],
            id in proptest::prop_oneof![4 => "[0-9a-f]{32}", 1 => "[0-9a-fG]{31,33}"],
            parent in proptest::prop_oneof![4 => "[0-9a-f]{16}", 1 => "[0-9a-fA]{15,17}"],
            flags in proptest::prop_oneof![4 => "0[01]", 1 => "[0-9a-f]{1,3}"],
        ) {
            use opentelemetry::propagation::TextMapPropagator as _;
            use opentelemetry::trace::TraceContextExt as _;
            use opentelemetry_http::HeaderExtractor;
            use opentelemetry_sdk::propagation::TraceContextPropagator;

            let fields = headers(&[&format!("{version}-{id}-{parent}-{flags}")]);
            let judged = TraceContextPropagator::new().extract(&HeaderExtractor(&fields));
            let judged = judged.span().span_context().clone();
            match Trace::of(&fields) {
                Some(trace) => {
                    proptest::prop_assert_eq!(judged.trace_id(), trace.id.into());
                    proptest::prop_assert_eq!(judged.span_id(), trace.parent.into());
                    proptest::prop_assert_eq!(judged.is_sampled(), trace.is_sampled);
                }
                // Its own reading also takes numbers of other lengths, which the standard does not.
                None => {
                    let has_lengths = (id.len(), parent.len(), flags.len()) == (32, 16, 2);
                    proptest::prop_assert!(!judged.is_valid() || !has_lengths, "{:?}", fields);
                }
            }
        }
    }
}
