//! What is kept, how it is asked about, and what it takes.

mod origin;

use http::header::{AUTHORIZATION, CACHE_CONTROL, ETAG, IF_MODIFIED_SINCE, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue, Request, Response};

use self::origin::{has_conditions, request};
use super::*;

/// Asks twice, with a change of the second request and of the answers, and returns what was asked
/// with the second time.
fn second(change: impl Fn(&mut request::Parts), answer: &[(&str, &str)]) -> Option<HeaderMap> {
    let (answers, asks) = (Answers::default(), (0, 0, 0, false));
    answers.resize(1 << 20);
    let mut first = request(asks);
    let question = answers.ask(&mut first, [0; 2])?;
    let mut head = Response::builder();
    for (name, value) in answer {
        head = head.header(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    let Reply::New(keeping) = question.answered(&head.body(()).unwrap().into_parts().0) else { return None };
    keeping.finish();
    let mut again = request(asks);
    change(&mut again);
    let before = again.headers.clone();
    answers.ask(&mut again, [0; 2])?;
    (again.headers != before).then_some(again.headers)
}

#[test]
fn an_answer_is_asked_about_by_its_etag() {
    let same = |_: &mut request::Parts| {};
    let by_name = second(same, &[("etag", "W/\"a\""), ("last-modified", "Tue, 01 Jan 2030 00:00:00 GMT")]).unwrap();
    assert_eq!((&by_name[IF_NONE_MATCH], by_name.get(IF_MODIFIED_SINCE)), (&HeaderValue::from_static("W/\"a\""), None));
    let date = [("last-modified", "Tue, 01 Jan 2030 00:00:00 GMT"), ("date", "Tue, 01 Jan 2030 00:00:01 GMT")];
    assert!(second(same, &date).is_none(), "a date does not say which answer it is");
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
        ("connection", "keep-alive, Accept"),
    ] {
        let change = |parts: &mut request::Parts| drop(parts.headers.insert(name, HeaderValue::from_static(value)));
        assert!(second(change, &etag).is_none(), "{name}: {value}");
    }
    assert!(second(|parts| parts.method = Method::POST, &etag).is_none());
    assert!(second(|parts| parts.uri = "/objects/0?page=2".parse().unwrap(), &etag).is_none());
    let neutral = |parts: &mut request::Parts| drop(parts.headers.insert("traceparent", HeaderValue::from_static("1")));
    assert!(second(neutral, &etag).is_some());
    for connection in ["close", "Keep-Alive, TE", "", "x-not-there"] {
        let usual =
            |parts: &mut request::Parts| drop(parts.headers.insert("connection", HeaderValue::from_static(connection)));
        assert!(second(usual, &etag).is_some(), "{connection:?}");
    }
    let varied = |parts: &mut request::Parts| drop(parts.headers.insert("user-agent", HeaderValue::from_static("2")));
    assert!(second(varied, &etag).is_some());
    assert!(second(varied, &[("etag", "\"a\""), ("vary", "User-Agent")]).is_none());
}

#[test]
fn the_gates_own_credential_and_certificate_are_part_of_the_question() {
    let answers = Answers::default();
    answers.resize(1 << 20);
    let ask = |credential, certificate| {
        let mut parts = request((0, 0, 0, false));
        let question = answers.ask(&mut parts, [credential, certificate]).unwrap();
        (question, parts.headers.contains_key(IF_NONE_MATCH))
    };
    let head = Response::builder().header(ETAG, "\"a\"").body(()).unwrap().into_parts().0;
    let Reply::New(keeping) = ask(1, 1).0.answered(&head) else { panic!("it may be kept") };
    keeping.finish();
    assert_eq!([ask(1, 1).1, ask(2, 1).1, ask(1, 2).1], [true, false, false]);
}

#[test]
fn a_304_that_names_another_answer_ends_it_and_one_that_names_none_does_not() {
    for (named, is_right) in [(None, true), (Some("\"a\""), true), (Some("W/\"a\""), true), (Some("\"b\""), false)] {
        let answers = Answers::default();
        answers.resize(1 << 20);
        let asks = (1, 0, 0, false);
        let head = Response::builder().header(ETAG, "\"a\"").body(()).unwrap().into_parts().0;
        let Some(Reply::New(keeping)) = answers.ask(&mut request(asks), [0; 2]).map(|asked| asked.answered(&head))
        else {
            panic!("it may be kept")
        };
        keeping.finish();
        let mut unchanged = Response::builder().status(304).body(()).unwrap().into_parts().0;
        unchanged.headers.extend(named.map(|name| (ETAG, HeaderValue::from_static(name))));
        let meaning = answers.ask(&mut request(asks), [0; 2]).unwrap().answered(&unchanged);
        assert_eq!(matches!(meaning, Reply::Unchanged(..)), is_right, "{named:?}");
        let plain = |meaning| if let Reply::Unproven(plain) = meaning { Some(plain.headers) } else { None };
        assert_eq!(plain(meaning), (!is_right).then(|| request(asks).headers), "{named:?}");
        assert_eq!(answers.ask(&mut request(asks), [0; 2]).is_some(), is_right, "it is asked no more");
        assert_eq!(answers.bytes() > 0, is_right, "nothing is kept");
        answers.resize(1 << 20);
        assert!(
            answers.ask(&mut request(asks), [0; 2]).is_some(),
            "whoever changes the configuration may have mended it"
        );
    }
}

#[test]
fn the_body_of_an_answer_counts_until_its_client_has_read_it() {
    let answers = Answers::default();
    answers.resize(100_000);
    let ask = |object: usize| answers.ask(&mut request((object, 0, 0, false)), [0; 2]).unwrap();
    let head = |status| Response::builder().status(status).header(ETAG, "\"a\"").body(()).unwrap().into_parts().0;
    let keep = |object: usize| {
        let Reply::New(mut keeping) = ask(object).answered(&head(200)) else { panic!("it may be kept") };
        let fits = keeping.keep(&Frame::data(Bytes::from(vec![7; 20_000])));
        keeping.finish();
        fits
    };
    assert!(keep(1));
    let each = answers.bytes();
    assert!(each > 20_000);
    let read = |object: usize| match ask(object).answered(&head(304)) {
        Reply::Unchanged(_, body) => body,
        _ => panic!("it is kept"),
    };
    let mut slow = vec![read(1)];
    answers.resize(0);
    assert_eq!(answers.bytes(), each, "it is not kept any more, and still read");
    answers.resize(100_000);
    for object in 2..5 {
        assert!(keep(object));
        slow.push(read(object));
    }
    assert!(!keep(5), "there is no room beside four that are read");
    let mut last = slow.pop().unwrap();
    drop(slow);
    assert!(answers.bytes() == each, "{} of {each}", answers.bytes());
    let piece = last.split_to(1);
    drop(last);
    assert_eq!((&piece[..], answers.bytes()), (&[7][..], each), "a piece of it is all of it");
    drop(piece);
    assert_eq!(answers.bytes(), 0);
}

#[test]
fn what_is_kept_holds_none_of_the_buffers_that_it_was_read_into() {
    let answers = Answers::default();
    answers.resize(1 << 20);
    let buffer = |text: &'static str| Bytes::from(text.as_bytes().to_vec());
    let value = |bytes: &Bytes| HeaderValue::from_maybe_shared(bytes.clone()).unwrap();
    let buffers = [buffer("Bearer one"), buffer("\"a\""), buffer("other"), buffer("/objects/1?page=2")];
    let mut parts = request((1, 0, 0, false));
    parts.headers.insert(AUTHORIZATION, value(&buffers[0]));
    parts.uri = http::Uri::from_maybe_shared(buffers[3].clone()).unwrap();
    let mut head = Response::new(()).into_parts().0;
    head.headers.insert(ETAG, value(&buffers[1]));
    head.headers.insert("x-other", value(&buffers[2]));
    let Reply::New(keeping) = answers.ask(&mut parts, [0; 2]).unwrap().answered(&head) else {
        panic!("it may be kept")
    };
    keeping.finish();
    let mut again = request((1, 0, 0, false));
    again.headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer one"));
    again.uri = "/objects/1?page=2".parse().unwrap();
    answers.ask(&mut again, [0; 2]);
    assert!(has_conditions(&again), "it is kept");
    drop((parts, head));
    assert_eq!(buffers.map(|buffer| buffer.is_unique()), [true; 4]);
}

#[test]
fn a_304_brings_its_own_policies_and_not_its_own_description_of_the_body() {
    let answers = Answers::default();
    answers.resize(1 << 20);
    let head = |status, language, policy| {
        let head = Response::builder().status(status).header(ETAG, "\"a\"");
        let head = head.header("content-language", language).header("content-security-policy", policy);
        head.body(()).unwrap().into_parts().0
    };
    let ask = || answers.ask(&mut request((1, 0, 0, false)), [0; 2]).unwrap();
    let Reply::New(keeping) = ask().answered(&head(200, "en", "old")) else { panic!("it may be kept") };
    keeping.finish();
    let Reply::Unchanged(head, _) = ask().answered(&head(304, "de", "new")) else { panic!("it is kept") };
    assert_eq!(
        (&head.headers["content-language"], &head.headers["content-security-policy"]),
        (&HeaderValue::from_static("en"), &HeaderValue::from_static("new"))
    );
}

#[test]
fn a_304_that_forbids_to_keep_it_is_the_last() {
    let (answers, asks) = (Answers::default(), (1, 0, 0, false));
    answers.resize(1 << 20);
    let head = Response::builder().header(ETAG, "\"a\"").body(()).unwrap().into_parts().0;
    let Some(Reply::New(keeping)) = answers.ask(&mut request(asks), [0; 2]).map(|asked| asked.answered(&head)) else {
        panic!("it may be kept")
    };
    keeping.finish();
    let unchanged = Response::builder().status(304).header(CACHE_CONTROL, "no-store").body(()).unwrap().into_parts().0;
    assert!(matches!(answers.ask(&mut request(asks), [0; 2]).unwrap().answered(&unchanged), Reply::Unchanged(..)));
    let mut again = request(asks);
    answers.ask(&mut again, [0; 2]);
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
        let question = answers.ask(&mut parts, [0; 2]).unwrap();
        let is_kept = parts.headers.contains_key(IF_NONE_MATCH);
        let head = Response::builder().header(ETAG, "\"a\"").body(()).unwrap().into_parts().0;
        if let Reply::New(mut keeping) = question.answered(&head) {
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
        match answers.ask(&mut parts, [0; 2]).unwrap().answered(&head) {
            Reply::New(keeping) => keeping,
            _ => panic!("it may be kept"),
        }
    };
    let piece = Frame::data(Bytes::from(vec![0; 5_000]));
    let mut making: Vec<Box<AnswerRecorder>> = (0..9).map(begin).collect();
    let fits: Vec<bool> = making.iter_mut().map(|keeping| keeping.keep(&piece)).collect();
    assert_eq!(fits, [[true; 8].as_slice(), &[false]].concat());
    assert_eq!(answers.bytes(), 40_000);
    assert!(!making[0].keep(&piece), "it would be longer than a quarter");
    assert_eq!(answers.bytes(), 35_000);
    drop(making);
    assert_eq!(answers.bytes(), 0);
}
