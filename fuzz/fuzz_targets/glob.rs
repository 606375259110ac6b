//! Globs against a simple matcher: the first line is the pattern, the rest is the text to match.
#![no_main]

use std::sync::LazyLock;

use http::{HeaderMap, HeaderValue, Method, Uri, header::USER_AGENT};
use libfuzzer_sys::fuzz_target;
use tidegate::{
    classify::{ApiKind, CostBy, FairBy, Matcher, PatternList, Rule, RuleMatch, Rules, Salt, Traits},
    limit::ClassId,
};

static HASHER: LazyLock<Salt> = LazyLock::new(Salt::random);

/// Returns which ends of the text the beginning of the pattern can reach, piece by piece.
fn obviously(pattern: &str, text: &str) -> bool {
    let mut reached = vec![false; text.len() + 1];
    reached[0] = true;
    for byte in pattern.bytes() {
        if byte == b'*' {
            let first = reached.iter().position(|reached| *reached).unwrap_or(reached.len());
            reached[first..].fill(true);
        } else {
            for at in (0..text.len()).rev() {
                reached[at + 1] = reached[at] && text.as_bytes()[at] == byte;
            }
            reached[0] = false;
        }
    }
    reached[text.len()]
}

fuzz_target!(|input: &str| {
    let (pattern, text) = input.split_once('\n').unwrap_or((input, ""));
    let Ok(value) = HeaderValue::from_str(text) else { return };
    if value.to_str().is_err() || pattern.len() > 1_000 {
        return;
    }
    let traits = Traits { exempt: false, remembers: true, strictness: 0, cost: CostBy::Number(1) };
    let matcher = Matcher::default().with(PatternList::UserAgents, vec![pattern.to_owned()]);
    let rule = Rule { class: ClassId(0), matching: RuleMatch::Patterns(Box::new(matcher)) };
    let rules = Rules::new(ApiKind::Http, FairBy::None, vec![traits, traits], vec![rule]);
    let mut headers = HeaderMap::new();
    headers.insert(USER_AGENT, value);
    let class = rules.classify(&Method::GET, &Uri::from_static("/"), &headers, &HASHER).class;
    assert_eq!(class == ClassId(0), obviously(pattern, text), "{pattern:?} {text:?}");
});
