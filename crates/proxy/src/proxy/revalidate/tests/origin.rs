//! What is kept, against an origin that changes and a client without a gate.

use std::time::{Duration, UNIX_EPOCH};

use http::header::{CACHE_CONTROL, DATE, ETAG, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED, VARY};
use http::{HeaderMap, HeaderValue, Request, Response};
use proptest::prelude::*;

use super::super::*;

/// An object of the origin's: its version, and when that was made.
#[derive(Clone, Copy, Debug, Default)]
struct Object {
    version: u64,
    made: Duration,
}

/// What becomes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// It has a new version of now.
    New,
    /// It has a new version that bears a date of long ago, as a file has that was put back.
    Older,
}

/// A server that answers by the rules, whose answers depend on the caller. The way an object is
/// served depends on its place.
#[derive(Debug)]
struct Origin {
    objects: [Object; 12],
    now: Duration,
    /// The dates of long ago so far.
    older: u64,
}

/// Before all that happens in a story.
const LONG_AGO: Duration = Duration::from_secs(1000);
/// The object whose date its 304 does not repeat.
const SILENT: usize = 6;
/// The objects that look different to each program.
const VARYING: [usize; 3] = [3, 5, 7];

/// A request in short: object, token, program, HEAD.
pub(super) type Asks = (usize, u8, u8, bool);

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
            // Not modified since then: as the rules have it, and as Go's and Python's servers do.
            (None, Some(asked)) => time(headers.get(LAST_MODIFIED).unwrap()) <= time(asked),
            (None, None) => false,
        };
        if is_same {
            (*answer.status_mut(), *answer.body_mut()) = (StatusCode::NOT_MODIFIED, String::new());
            answer.headers_mut().remove("x-version");
            if asks.0 == SILENT {
                answer.headers_mut().remove(LAST_MODIFIED);
            }
        }
        answer
    }

    fn change(&mut self, object: usize, change: Change) {
        let version = self.objects[object].version + 1;
        let made = match change {
            Change::New => self.now,
            Change::Older => {
                self.older += 1;
                LONG_AGO - Duration::from_secs(self.older)
            }
        };
        self.objects[object] = Object { version, made };
    }
}

fn time(date: &HeaderValue) -> std::time::SystemTime {
    httpdate::parse_http_date(date.to_str().unwrap()).unwrap()
}

pub(super) fn request((object, token, program, is_head): Asks) -> request::Parts {
    let method = if is_head { Method::HEAD } else { Method::GET };
    let request = Request::builder().method(method).uri(format!("/objects/{object}"));
    let request = request.header("accept", "*/*").header("user-agent", program.to_string());
    let credential = if token.is_multiple_of(2) { "authorization" } else { "x-unheard-of-key" };
    request.header(credential, token.to_string()).body(()).unwrap().into_parts().0
}

/// What a client gets of the answers that are kept, from an origin with a fault or without.
fn get(answers: &Answers, origin: &Origin, asks: Asks, fault: u8) -> (Option<(StatusCode, HeaderMap, String)>, bool) {
    take(answers, origin, asks, request(asks), fault)
}

fn take(
    answers: &Answers,
    origin: &Origin,
    asks: Asks,
    mut parts: request::Parts,
    fault: u8,
) -> (Option<(StatusCode, HeaderMap, String)>, bool) {
    let question = answers.ask(&mut parts, [0; 2]);
    let (head, body) = match fault {
        0 => Response::builder().status(503).body("down".to_owned()).unwrap(),
        1 => Response::builder().status(404).body("gone".to_owned()).unwrap(),
        _ => origin.serve(asks, &parts.headers),
    }
    .into_parts();
    match question.map_or(Reply::Pass, |question| question.answered(&head)) {
        Reply::Pass => (Some((head.status, head.headers, body)), false),
        Reply::Unchanged(head, body) => {
            (Some((head.status, head.headers, String::from_utf8(body.to_vec()).unwrap())), true)
        }
        Reply::New(mut keeping) => {
            let (one, other) = body.as_bytes().split_at(body.len() / 3);
            let pieces = [one, other].map(|piece| Frame::data(Bytes::copy_from_slice(piece)));
            let is_kept = pieces.iter().all(|piece| keeping.keep(piece));
            // Now and then the client leaves before the end.
            if is_kept && fault != 2 {
                keeping.finish();
            }
            (Some((head.status, head.headers, body)), false)
        }
        Reply::Unproven(_) if !has_conditions(&parts) => (None, false),
        Reply::Unproven(plain) => take(answers, origin, asks, *plain, fault),
    }
}

pub(super) fn has_conditions(parts: &request::Parts) -> bool {
    [IF_NONE_MATCH, IF_MODIFIED_SINCE].iter().any(|name| parts.headers.contains_key(name))
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
        let mut origin = Origin { objects: Default::default(), now: LONG_AGO, older: 0 };
        origin.objects.iter_mut().for_each(|object| object.made = LONG_AGO);
        origin.now += Duration::from_secs(10);
        for (object, token, program, is_head, dice, gap) in steps {
            origin.now += Duration::from_millis(gap);
            if dice > 30 {
                origin.change(object, if dice > 37 { Change::Older } else { Change::New });
                continue;
            }
            let asks = (object, token, program, is_head);
            let (got, was_kept) = get(&answers, &origin, asks, dice);
            let Some((status, headers, body)) = got else { panic!("an origin by the rules has an answer") };
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
