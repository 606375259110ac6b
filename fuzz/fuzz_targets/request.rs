//! Requests as they are read and classified, with paths, queries, selectors and key parts:
//! `METHOD TARGET`, header lines, a blank line, a body.
#![no_main]

use std::sync::LazyLock;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use libfuzzer_sys::fuzz_target;
use tidegate::{
    classify::{ClassifiedCall, KeyPart, KeyParts, Rules, Salt},
    config,
};

const GATES: &str = r#"
[gates.auto]
upstream = "in_cluster"
classes = [{ name = "own", match = { verbs = ["create"], names = ["a*"], query = { x = "*" } }, bucket = { rate = 1, burst = 1 } }]
[gates.keyed]
upstream = "in_cluster"
listen = "127.0.0.1:8002"
queue.fair_by = "credential"
key = ["verb", "path", "query:fieldSelector", "header:x-a", "body"]
[gates.http]
kind = "http"
upstream = "http://x"
listen = "127.0.0.1:8003"
queue.fair_by = "user_agent"
"#;

static RULES: LazyLock<Vec<Rules>> = LazyLock::new(|| {
    let loaded = config::load_text("f.toml".to_owned(), GATES.to_owned(), &[]).expect("a good configuration");
    loaded.settings.gates.into_values().map(|gate| (*gate.rules).clone()).collect()
});
static HASHER: LazyLock<Salt> = LazyLock::new(Salt::random);

fn look(call: &ClassifiedCall, headers: &HeaderMap, body: &[u8]) {
    assert!(!(call.exempt && call.call.is_ambiguous), "an ambiguous path is never exempt: {:?}", call.call);
    // kube-apiserver itself reads an empty resource between two slashes.
    assert!(!call.call.is_resource || call.call.is_ambiguous || !call.call.resource().is_empty(), "{:?}", call.call);
    let key = call.key.with_body(body, true, &HASHER);
    assert_eq!(key, call.key.with_body(body, true, &HASHER));
    assert!(!call.exempt || key.is_none());
    assert!(call.key.known().is_none() || call.key.known() == key);
    let names = (call.key_name(Some(body)), call.flow_name(headers).to_string());
    assert!(!names.0.is_empty() && !names.1.is_empty());
}

fuzz_target!(|data: &[u8]| {
    let end = data.windows(2).position(|pair| pair == b"\n\n").unwrap_or(data.len());
    let (head, body) = (&data[..end], data.get(end + 2..).unwrap_or_default());
    let mut lines = head.split(|byte| *byte == b'\n');
    let mut words = lines.next().unwrap_or_default().splitn(2, |byte| *byte == b' ');
    let method = words.next().and_then(|word| Method::from_bytes(word).ok()).unwrap_or(Method::GET);
    let Some(uri) = words.next().and_then(|word| Uri::try_from(word).ok()) else { return };
    let mut headers = HeaderMap::new();
    for line in lines {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) =
            (HeaderName::from_bytes(&line[..colon]), HeaderValue::from_bytes(line[colon + 1..].trim_ascii()));
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    for rules in &*RULES {
        look(&rules.classify(&method, &uri, &headers, &HASHER), &headers, body);
    }
    let parts: Vec<KeyPart> = String::from_utf8_lossy(body).split(',').filter_map(|part| part.parse().ok()).collect();
    for part in &parts {
        assert_eq!(part.to_string().parse().as_ref(), Ok(part));
    }
    if let Ok(parts) = KeyParts::new(parts) {
        for rules in &*RULES {
            let keys = vec![Some(parts.clone()); 16];
            look(&rules.clone().with_keys(keys).classify(&method, &uri, &headers, &HASHER), &headers, body);
        }
    }
});
