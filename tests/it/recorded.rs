//! Mutations of the requests that the providers' SDKs send (`tests/it/recorded`, held to the SDKs
//! by `tests/sdks`): nothing panics, and the action that is read is the one that a server would
//! take. The server's reading here shares no code with the gate's.
//!
//! `TIDEGATE_MUTATIONS` is the number of mutations, 100,000 if it is not set.

use std::fs;
use std::path::Path;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use tidegate::dialect::{Dialect, Head, TokenBody};

/// A request, as bytes that a mutation may change.
#[derive(Clone)]
struct Recorded {
    name: String,
    dialect: Dialect,
    head: Vec<u8>,
    body: Vec<u8>,
}

fn all() -> Vec<Recorded> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/recorded");
    let mut found = Vec::new();
    for file in fs::read_dir(folder).expect("readable").map(|entry| entry.expect("readable").path()) {
        let sdk = file.file_stem().expect("a name").to_string_lossy().into_owned();
        let dialect = match sdk.as_str() {
            "azure-core" => Dialect::Azure,
            "google-cloud-storage" => Dialect::Google,
            "PyGithub" | "octokit" => Dialect::Github,
            _ => Dialect::Aws,
        };
        let text = fs::read_to_string(&file).expect("text");
        for request in text.split("=== ").skip(1) {
            let (call, rest) = request.split_once('\n').expect("a name");
            let (head, body) = rest.split_once("\n\n").expect("a head");
            let (head, body) = (head.as_bytes().to_vec(), body.trim_end().as_bytes().to_vec());
            found.push(Recorded { name: format!("{sdk} {call}"), dialect, head, body });
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    assert!(found.len() > 50, "only {} requests were found", found.len());
    found
}

/// Numbers that are the same in each run (SplitMix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % (sides.max(1) as u64)).expect("less than sides")
    }

    /// Changes a few places: other bytes, bytes that mean something, pieces that go or come twice.
    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.roll(3) {
            let at = self.roll(bytes.len());
            let end = (at + self.roll(12)).min(bytes.len());
            match self.roll(5) {
                0 if at < bytes.len() => bytes[at] = u8::try_from(self.roll(256)).expect("a byte"),
                1 => bytes.insert(at, MEANING[self.roll(MEANING.len())]),
                2 => drop(bytes.drain(at..end)),
                3 => {
                    let piece = bytes[at..end].to_vec();
                    let to = self.roll(bytes.len());
                    bytes.splice(to..to, piece);
                }
                _ => bytes.truncate(bytes.len() - self.roll(4).min(bytes.len())),
            }
        }
    }
}

/// Bytes that separate something in a request.
const MEANING: &[u8] = b"&=%+;:/.,?\"\n \t\0{}<>\xff\x80Aa0";

/// A request as the gate gets it, unless a server would turn it away.
fn parsed(head: &[u8]) -> Option<(Method, Uri, HeaderMap)> {
    let mut lines = head.split(|byte| *byte == b'\n');
    let mut words = lines.next()?.split(|byte| *byte == b' ');
    let method = Method::from_bytes(words.next()?).ok()?;
    let uri = Uri::try_from(words.next()?).ok()?;
    let mut headers = HeaderMap::new();
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        headers.append(name, HeaderValue::from_bytes(line[colon + 1..].trim_ascii()).ok()?);
    }
    Some((method, uri, headers))
}

/// The action that an AWS service takes from a request that names it: of a header, of a form or of
/// a query.
fn action_at_the_server(method: &Method, uri: &Uri, headers: &HeaderMap, body: &[u8]) -> Option<String> {
    let text = |name: &str| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let is_text = |value: &str| value.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t'));
    if let Some(target) = text("x-amz-target").filter(|target| is_text(target)) {
        let action = target.chars().rev().take_while(|c| *c != '.').collect::<Vec<_>>();
        if !action.is_empty() {
            return Some(action.into_iter().rev().collect());
        }
    }
    let kind = text("content-type").filter(|kind| is_text(kind)).unwrap_or_default().to_lowercase();
    let is_form = *method == Method::POST && kind.split(';').next()?.trim() == "application/x-www-form-urlencoded";
    let whole = std::str::from_utf8(body).map_or_else(|error| error.valid_up_to(), str::len);
    let of = |form: &[u8]| {
        form.split(|byte| *byte == b'&').find_map(|pair| {
            let end = pair.iter().position(|byte| *byte == b'=').unwrap_or(pair.len());
            let value = pair.get(end + 1..).unwrap_or_default();
            (decoded(&pair[..end]) == b"Action").then(|| String::from_utf8_lossy(&decoded(value)).into_owned())
        })
    };
    let in_form = if is_form { of(&body[..whole]) } else { None };
    in_form.or_else(|| of(uri.query().unwrap_or_default().as_bytes()))
}

/// What a form's text means, byte by byte.
fn decoded(text: &[u8]) -> Vec<u8> {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let (mut out, mut at) = (Vec::new(), 0);
    while let Some(byte) = text.get(at) {
        match (byte, digit(text.get(at + 1)), digit(text.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                out.push(u8::try_from(high << 4 | low).expect("two digits"));
                at += 2;
            }
            (b'+', ..) => out.push(b' '),
            (other, ..) => out.push(*other),
        }
        at += 1;
    }
    out
}

/// Reads a request in its dialect, with all that the gate asks of it.
fn read(recorded: &Recorded) -> Option<(String, Option<String>)> {
    let (method, uri, headers) = parsed(&recorded.head)?;
    let head = Head { method: &method, uri: &uri, headers: &headers };
    let words = recorded.dialect.read(&head, &recorded.body);
    let asked = (recorded.dialect.form(&head, &words), recorded.dialect.wants_body(&head));
    assert!(recorded.dialect.any_path_is_clear(&words) || asked.0.is_some(), "a dialect has a form for each call");
    drop(TokenBody::of(&headers).map(|kind| kind.without_tokens(&recorded.body).into_owned()));
    let is_grpc = headers.get("content-type").is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    let is_named = recorded.dialect == Dialect::Aws && !is_grpc && !headers.contains_key("smithy-protocol");
    let named = if is_named { action_at_the_server(&method, &uri, &headers, &recorded.body) } else { None };
    Some((words.action, named))
}

#[test]
fn every_recorded_request_has_the_action_that_its_sdk_called() {
    for request in all() {
        let (action, named) = read(&request).unwrap_or_else(|| panic!("{}: not a request", request.name));
        let call = request.name.rsplit(' ').next().expect("a call");
        let expected = match call {
            "ec2" => "DescribeInstances",
            "ec2_write" => "CreateTags",
            "sts" => "GetCallerIdentity",
            "dynamodb" => "ListTables",
            "eks" => "DescribeCluster",
            "route53" => "ListHostedZones",
            "route53_change" => "ChangeResourceRecordSets",
            "s3" => "GetObject",
            "s3_put" => "PutObject",
            "s3_head" => "HeadObject",
            "azure" => "reads/resourcegroups",
            "azure_write" => "writes/resourcegroups",
            "google" => "b.list",
            "google_write" => "b.insert",
            "google_delete" => "b.delete",
            "github" => "reads",
            "github_write" | "github_put" => "writes",
            other => panic!("no action is known for {other:?}"),
        };
        assert_eq!(action, expected, "{}", request.name);
        assert!(named.is_none_or(|named| named == action), "{}", request.name);
    }
}

#[test]
fn no_mutation_panics_and_each_has_the_action_that_a_server_takes() {
    let mutations = std::env::var("TIDEGATE_MUTATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(100_000);
    let (requests, mut dice) = (all(), Dice(1));
    let (mut read_at_all, mut compared) = (0_u64, 0_u64);
    for number in 0..mutations {
        let mut request = requests[number % requests.len()].clone();
        if dice.roll(2) == 0 && !request.body.is_empty() {
            dice.mutate(&mut request.body)
        } else {
            dice.mutate(&mut request.head)
        }
        let Some((action, named)) = read(&request) else { continue };
        read_at_all += 1;
        if let Some(named) = named {
            compared += 1;
            let shown = || (String::from_utf8_lossy(&request.head), String::from_utf8_lossy(&request.body));
            assert_eq!(action, named, "mutation {number} of {}: {:?}", request.name, shown());
        }
    }
    assert!(read_at_all * 4 > mutations as u64 && compared * 10 > mutations as u64, "{read_at_all} {compared}");
}
