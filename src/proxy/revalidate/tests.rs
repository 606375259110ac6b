//! What is kept, against an origin that changes and a client without a gate.

use std::time::{Duration, UNIX_EPOCH};

use http::header::{AUTHORIZATION, CACHE_CONTROL, DATE, ETAG, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED, VARY};
use http::{Request, Response};
use proptest::prelude::*;

use super::*;

/// An object of the origin's: its version, and when that was made.
#[derive(Clone, Copy, Debug, Default)]
struct Object {
    version: u64,
    made: Duration,
}

/// A server that answers by the rules, whose answers depend on the caller. The way an object is
/// served depends on its place.
#[derive(Debug)]
struct Origin {
    objects: [Object; 12],
    now: Duration,
}

/// The objects that look different to each program.
const VARYING: [usize; 3] = [3, 5, 7];

/// A request in short: object, token, program, HEAD.
type Asks = (usize, u8, u8, bool);

impl Origin {
    fn http_date(at: Duration) -> HeaderValue {
        HeaderValue::try_from(httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(1_700_000_000) + at)).unwrap()
    }

    /// The answer without conditions: what an uncached twin of the client gets.
    fn plain(&self, (object, token, program, is_head): Asks) -> Response<String> {
        let Object { version, made } = self.objects[object];
        let program = if VARYING.contains(&object) { program } else { 0 };
        let body = format!("{object} v{version} for {token} with {program}, {}", "x".repeat(object * 40));
        let mut answer = Response::new(if is_head { String::new() } else { body });
        let headers = answer.headers_mut();
        let text = |text: String| HeaderValue::try_from(text).unwrap();
        headers.insert(DATE, Self::http_date(self.now));
        headers.insert("x-version", text(version.to_string()));
        // Some name an answer alike for all callers, so that only the gate keeps them apart.
        let (weak, name) = (if object % 2 == 0 { "W/" } else { "" }, format!("\"{version}\""));
        match object % 4 {
            0 | 1 => drop(headers.insert(ETAG, text(format!("{weak}{name}")))),
            2 => drop(headers.insert(LAST_MODIFIED, Self::http_date(Duration::from_secs(made.as_secs())))),
            _ => {
                headers.insert(ETAG, text(format!("\"{version}-{token}-{program}\"")));
                headers.insert(LAST_MODIFIED, Self::http_date(Duration::from_secs(made.as_secs())));
            }
        }
        // Only these depend on the program, and say so.
        let varies = if VARYING.contains(&object) { "Accept, user-agent" } else { "Accept" };
        headers.insert(VARY, HeaderValue::from_static(varies));
        let directives = ["private, max-age=60, s-maxage=60", "", "No-Store", "no-cache", "public, max-age=999"];
        match directives[object % 5] {
            "" => {}
            directives => drop(headers.insert(CACHE_CONTROL, HeaderValue::from_static(directives))),
        }
        answer
    }

    fn serve(&self, asks: Asks, conditions: &HeaderMap) -> Response<String> {
        let mut answer = self.plain(asks);
        let named = |name: &HeaderValue| name.to_str().unwrap().trim_start_matches("W/").to_owned();
        let headers = answer.headers();
        let is_same = match (conditions.get(IF_NONE_MATCH), conditions.get(IF_MODIFIED_SINCE)) {
            (Some(asked), _) => headers.get(ETAG).is_some_and(|own| named(own) == named(asked)),
            (None, Some(asked)) => headers.get(LAST_MODIFIED) == Some(asked),
            (None, None) => false,
        };
        if is_same {
            (*answer.status_mut(), *answer.body_mut()) = (StatusCode::NOT_MODIFIED, String::new());
            answer.headers_mut().remove("x-version");
        }
        answer
    }
}

fn request((object, token, program, is_head): Asks) -> request::Parts {
    let method = if is_head { Method::HEAD } else { Method::GET };
    let request = Request::builder().method(method).uri(format!("/objects/{object}"));
    let request = request.header("accept", "*/*").header("user-agent", program.to_string());
    let credential = if token.is_multiple_of(2) { "authorization" } else { "x-unheard-of-key" };
    request.header(credential, token.to_string()).body(()).unwrap().into_parts().0
}

/// What a client gets of the answers that are kept, from an origin with a fault or without.
fn get(answers: &Answers, origin: &Origin, asks: Asks, fault: u8) -> (Option<(StatusCode, HeaderMap, String)>, bool) {
    let mut parts = request(asks);
    let question = answers.ask(&mut parts, 0);
    let (head, body) = match fault {
        0 => Response::builder().status(503).body("down".to_owned()).unwrap(),
        1 => Response::builder().status(404).body("gone".to_owned()).unwrap(),
        _ => origin.serve(asks, &parts.headers),
    }
    .into_parts();
    match question.map_or(Meaning::Pass, |question| question.answered(&head)) {
        Meaning::Pass => (Some((head.status, head.headers, body)), false),
        Meaning::Unchanged(head, body) => {
            (Some((head.status, head.headers, String::from_utf8(body.to_vec()).unwrap())), true)
        }
        Meaning::New(mut keeping) => {
            let (one, other) = body.as_bytes().split_at(body.len() / 3);
            let pieces = [one, other].map(|piece| Frame::data(Bytes::copy_from_slice(piece)));
            let is_kept = pieces.iter().all(|piece| keeping.keep(piece));
            // Now and then the client leaves before the end.
            if is_kept && fault != 2 {
                keeping.finish();
            }
            (Some((head.status, head.headers, body)), false)
        }
        Meaning::Wrong => (None, false),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    /// In whatever order objects change, clients ask, leave and fail, and room is short: each
    /// client gets what it would have got without the gate keeping anything, and the bound holds.
    #[test]
    fn what_is_kept_is_never_older_than_its_question_and_never_another_callers(
        steps in proptest::collection::vec((0_usize..12, 0_u8..4, 0_u8..2, any::<bool>(), 0_u8..40, 0_u64..900), 1..60),
        room in prop_oneof![Just(2_000_usize), Just(20_000), Just(1_000_000)],
    ) {
        let answers = Answers::default();
        answers.resize(room);
        let mut origin = Origin { objects: Default::default(), now: Duration::from_secs(10) };
        for (object, token, program, is_head, dice, gap) in steps {
            origin.now += Duration::from_millis(gap);
            if dice > 30 {
                let version = origin.objects[object].version + 1;
                origin.objects[object] = Object { version, made: origin.now };
                continue;
            }
            let asks = (object, token, program, is_head);
            let (got, was_kept) = get(&answers, &origin, asks, dice);
            let Some((status, headers, body)) = got else { panic!("an origin by the rules was distrusted") };
            prop_assert!(answers.bytes() <= room, "{} of {room}", answers.bytes());
            if dice > 1 {
                let mut twin = origin.plain(asks);
                prop_assert_eq!((status, &body), (twin.status(), twin.body()), "kept: {}", was_kept);
                let (mut one, mut other) = (headers, std::mem::take(twin.headers_mut()));
                // A name may be weak or strong: the origin says either of the same answer.
                one.remove(ETAG);
                other.remove(ETAG);
                prop_assert_eq!(one, other, "kept: {}", was_kept);
                prop_assert!(!(was_kept && object % 5 == 2), "it must not be kept");
            } else {
                prop_assert!(!was_kept && matches!(status.as_u16(), 404 | 503));
            }
        }
        answers.resize(0);
        prop_assert_eq!(answers.bytes(), 0, "nothing is left behind");
    }
}

/// Asks twice, with a change of the second request and of the answers, and returns what was asked
/// with the second time.
fn second(change: impl Fn(&mut request::Parts), answer: &[(&str, &str)]) -> Option<HeaderMap> {
    let (answers, asks) = (Answers::default(), (0, 0, 0, false));
    answers.resize(1 << 20);
    let mut first = request(asks);
    let question = answers.ask(&mut first, 0)?;
    let mut head = Response::builder();
    for (name, value) in answer {
        head = head.header(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    let Meaning::New(keeping) = question.answered(&head.body(()).unwrap().into_parts().0) else { return None };
    keeping.finish();
    let mut again = request(asks);
    change(&mut again);
    let before = again.headers.clone();
    answers.ask(&mut again, 0)?;
    (again.headers != before).then_some(again.headers)
}

#[test]
fn an_answer_is_asked_about_by_its_name_or_else_by_its_date() {
    let same = |_: &mut request::Parts| {};
    let by_name = second(same, &[("etag", "W/\"a\""), ("last-modified", "Tue, 01 Jan 2030 00:00:00 GMT")]).unwrap();
    assert_eq!((&by_name[IF_NONE_MATCH], by_name.get(IF_MODIFIED_SINCE)), (&HeaderValue::from_static("W/\"a\""), None));
    let date = [("last-modified", "Tue, 01 Jan 2030 00:00:00 GMT"), ("date", "Tue, 01 Jan 2030 00:00:01 GMT")];
    assert_eq!(second(same, &date).unwrap()[IF_MODIFIED_SINCE], date[0].1);
    let same_second = [("last-modified", "Tue, 01 Jan 2030 00:00:00 GMT"), ("date", "Tue, 01 Jan 2030 00:00:00 GMT")];
    assert!(second(same, &same_second).is_none(), "a later change in that second would not show");
    assert!(second(same, &[]).is_none() && second(same, &[("etag", "")]).is_none());
}

#[test]
fn what_must_not_be_kept_is_not() {
    for header in [
        ("cache-control", "no-store"),
        ("cache-control", "private, NO-STORE"),
        ("cache-control", "\u{ff}"),
        ("vary", "*"),
        ("vary", "accept, *"),
        ("vary", "\u{ff}"),
        ("set-cookie", "session=1"),
        ("trailer", "x-sum"),
        ("content-range", "bytes 0-1/2"),
        ("content-length", "999999999"),
        ("etag", "\"second\""),
    ] {
        assert!(second(|_| {}, &[("etag", "\"a\""), header]).is_none(), "{header:?}");
    }
    assert!(second(|_| {}, &[("etag", "\"a\""), ("cache-control", "private, max-age=0")]).is_some());
}

#[test]
fn a_request_that_could_have_another_answer_is_not_asked_about_it() {
    let etag = [("etag", "\"a\"")];
    for (name, value) in [
        ("authorization", "another"),
        ("x-unheard-of-key", "another"),
        ("accept", "text/plain"),
        ("cookie", "a=b"),
        ("range", "bytes=0-1"),
        ("if-none-match", "\"own\""),
        ("if-modified-since", "Tue, 01 Jan 2030 00:00:00 GMT"),
        ("if-match", "\"own\""),
        ("cache-control", "No-Store"),
        ("content-length", "1"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "websocket"),
    ] {
        let change = |parts: &mut request::Parts| drop(parts.headers.insert(name, HeaderValue::from_static(value)));
        assert!(second(change, &etag).is_none(), "{name}: {value}");
    }
    assert!(second(|parts| parts.method = Method::POST, &etag).is_none());
    assert!(second(|parts| parts.uri = "/objects/0?page=2".parse().unwrap(), &etag).is_none());
    let neutral = |parts: &mut request::Parts| drop(parts.headers.insert("traceparent", HeaderValue::from_static("1")));
    assert!(second(neutral, &etag).is_some());
    let varied = |parts: &mut request::Parts| drop(parts.headers.insert("user-agent", HeaderValue::from_static("2")));
    assert!(second(varied, &etag).is_some());
    assert!(second(varied, &[("etag", "\"a\""), ("vary", "User-Agent")]).is_none());
}

#[test]
fn the_gates_own_credential_is_part_of_the_question() {
    let answers = Answers::default();
    answers.resize(1 << 20);
    let ask = |mark| {
        let mut parts = request((0, 0, 0, false));
        let question = answers.ask(&mut parts, mark).unwrap();
        (question, parts.headers.contains_key(IF_NONE_MATCH))
    };
    let head = Response::builder().header(ETAG, "\"a\"").body(()).unwrap().into_parts().0;
    let Meaning::New(keeping) = ask(1).0.answered(&head) else { panic!("it may be kept") };
    keeping.finish();
    assert_eq!((ask(1).1, ask(2).1), (true, false));
}

#[test]
fn a_304_that_names_another_answer_ends_it_and_one_that_names_none_does_not() {
    for (named, is_right) in [(None, true), (Some("\"a\""), true), (Some("W/\"a\""), true), (Some("\"b\""), false)] {
        let answers = Answers::default();
        answers.resize(1 << 20);
        let asks = (1, 0, 0, false);
        let head = Response::builder().header(ETAG, "\"a\"").body(()).unwrap().into_parts().0;
        let Some(Meaning::New(keeping)) = answers.ask(&mut request(asks), 0).map(|asked| asked.answered(&head)) else {
            panic!("it may be kept")
        };
        keeping.finish();
        let mut unchanged = Response::builder().status(304).body(()).unwrap().into_parts().0;
        unchanged.headers.extend(named.map(|name| (ETAG, HeaderValue::from_static(name))));
        let meaning = answers.ask(&mut request(asks), 0).unwrap().answered(&unchanged);
        assert_eq!(matches!(meaning, Meaning::Unchanged(..)), is_right, "{named:?}");
        assert_eq!(matches!(meaning, Meaning::Wrong), !is_right, "{named:?}");
        assert_eq!(answers.ask(&mut request(asks), 0).is_some(), is_right, "it is asked no more");
    }
}

#[test]
fn a_304_that_forbids_to_keep_it_is_the_last() {
    let (answers, asks) = (Answers::default(), (1, 0, 0, false));
    answers.resize(1 << 20);
    let head = Response::builder().header(ETAG, "\"a\"").body(()).unwrap().into_parts().0;
    let Some(Meaning::New(keeping)) = answers.ask(&mut request(asks), 0).map(|asked| asked.answered(&head)) else {
        panic!("it may be kept")
    };
    keeping.finish();
    let unchanged = Response::builder().status(304).header(CACHE_CONTROL, "no-store").body(()).unwrap().into_parts().0;
    assert!(matches!(answers.ask(&mut request(asks), 0).unwrap().answered(&unchanged), Meaning::Unchanged(..)));
    let mut again = request(asks);
    answers.ask(&mut again, 0);
    assert!(
        !again.headers.contains_key(IF_NONE_MATCH) && answers.bytes() == 0 && again.headers.contains_key(AUTHORIZATION)
    );
}

#[test]
fn the_answer_that_was_asked_for_longest_ago_goes_first() {
    let answers = Answers::default();
    answers.resize(12_000);
    let get = |object: u64| {
        let mut parts = Request::get(format!("/{object}")).body(()).unwrap().into_parts().0;
        let question = answers.ask(&mut parts, 0).unwrap();
        let is_kept = parts.headers.contains_key(IF_NONE_MATCH);
        let head = Response::builder().header(ETAG, "\"a\"").body(()).unwrap().into_parts().0;
        if let Meaning::New(mut keeping) = question.answered(&head) {
            assert!(keeping.keep(&Frame::data(Bytes::from(vec![0; 500]))));
            keeping.finish();
        }
        is_kept
    };
    assert!(!get(0));
    let mut fits = 0;
    while answers.bytes() + answers.bytes() / (fits + 1) <= 12_000 {
        fits += 1;
        assert!(!get(u64::try_from(fits).unwrap()));
    }
    assert!((3..20).contains(&fits), "{fits}");
    assert!(get(0), "asked for again: it is the youngest now");
    assert!(!get(1000));
    assert!(get(0) && !get(1), "the oldest went");
}

#[test]
fn answers_in_the_making_count_and_one_that_finds_no_room_gives_back_only_its_own() {
    let answers = Answers::default();
    answers.resize(40_000);
    let begin = |object: usize| {
        let mut parts = Request::get(format!("/{object}")).body(()).unwrap().into_parts().0;
        let head = Response::builder().header(ETAG, "\"a\"").body(()).unwrap().into_parts().0;
        match answers.ask(&mut parts, 0).unwrap().answered(&head) {
            Meaning::New(keeping) => keeping,
            _ => panic!("it may be kept"),
        }
    };
    let piece = Frame::data(Bytes::from(vec![0; 5_000]));
    let mut making: Vec<Box<Keeping>> = (0..9).map(begin).collect();
    let fits: Vec<bool> = making.iter_mut().map(|keeping| keeping.keep(&piece)).collect();
    assert_eq!(fits, [[true; 8].as_slice(), &[false]].concat());
    assert_eq!(answers.bytes(), 40_000);
    assert!(!making[0].keep(&piece), "it would be longer than a quarter");
    assert_eq!(answers.bytes(), 35_000);
    drop(making);
    assert_eq!(answers.bytes(), 0);
}
