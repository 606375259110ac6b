//! Argo CD's SCM generator over an organization, behind a gate with the preset `github`, against a
//! GitHub that counts as it documents it: in virtual time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tidegate::clock::Clock;

use crate::presets::gate;
use crate::support::{AnyBody, Backend, Proxy, Seen};

const HOUR: Duration = Duration::from_secs(3600);
const REPOSITORIES: usize = 600;
const QUOTA: u64 = 5000;

/// A GitHub: a quota an hour, in which a 304 to a caller that it knows is not counted, and 900
/// points a minute, in which it is.
#[derive(Debug, Default)]
struct Hub {
    /// The version of each repository.
    versions: Vec<u64>,
    window_ends: Duration,
    used: u64,
    minute: VecDeque<Duration>,
    /// The calls that were counted, by hour.
    counted: [u64; 2],
    served: [u64; 2],
    refused: u64,
}

impl Hub {
    fn serve(&mut self, seen: &Seen) -> Response<AnyBody> {
        let hour = usize::from(seen.at >= HOUR);
        if seen.at >= self.window_ends {
            (self.window_ends, self.used) = (seen.at + HOUR, 0);
        }
        self.minute.retain(|at| seen.at - *at < HOUR / 60);
        self.minute.push_back(seen.at);
        let (version, body) = self.content(&seen.target);
        let token = seen.headers["authorization"].to_str().expect("text");
        let name = format!("W/\"{version}-{token}\"");
        let is_same = seen.headers.get("if-none-match").is_some_and(|asked| *asked == name);
        let is_served = self.minute.len() <= 900 && (is_same || self.used < QUOTA);
        let counts = u64::from(is_served && !is_same);
        self.used += counts;
        self.counted[hour] += counts;
        self.served[hour] += u64::from(is_served);
        self.refused += u64::from(!is_served);
        let status = match (is_served, is_same) {
            (false, _) => StatusCode::FORBIDDEN,
            (true, true) => StatusCode::NOT_MODIFIED,
            (true, false) => StatusCode::OK,
        };
        let body = if status == StatusCode::OK { body } else { String::new() };
        let mut answer = Response::new(Full::from(body).map_err(|never| match never {}).boxed_unsync());
        *answer.status_mut() = status;
        let date = httpdate::fmt_http_date(std::time::UNIX_EPOCH + EPOCH + seen.at);
        for (header, value) in [
            ("date", date),
            ("etag", name),
            ("cache-control", "private, max-age=60, s-maxage=60".to_owned()),
            (
                "vary",
                "Accept, Authorization, Cookie, X-GitHub-OTP,Accept-Encoding, Accept, X-Requested-With".to_owned(),
            ),
            ("x-ratelimit-limit", QUOTA.to_string()),
            ("x-ratelimit-remaining", (QUOTA - self.used).to_string()),
            ("x-ratelimit-reset", ((EPOCH + self.window_ends).as_secs() + 1).to_string()),
            ("x-ratelimit-resource", "core".to_owned()),
        ] {
            answer.headers_mut().insert(header, HeaderValue::try_from(value).expect("a value"));
        }
        answer
    }

    /// The version and the text of what a path names.
    fn content(&self, target: &str) -> (u64, String) {
        let of = |repository: usize| self.versions[repository];
        match target.strip_prefix("/orgs/o/repos?per_page=100&page=") {
            Some(page) => {
                let first = (page.parse::<usize>().expect("a page") - 1) * 100;
                let all = (first..first + 100).map(of).sum();
                (all, format!("{target} {all} {}", "r".repeat(20_000)))
            }
            None => {
                let repository = target.trim_start_matches("/repos/o/r").split('/').next().expect("a name");
                let version = of(repository.parse().expect("a number"));
                (version, format!("{target} {version} {}", "c".repeat(2_000)))
            }
        }
    }
}

/// The generator of one ApplicationSet: it lists the organization, and asks of each repository for
/// its branch and for a path in it. Half an hour later it does so again.
struct Generator {
    proxy: Arc<Proxy>,
    hub: Arc<Mutex<Hub>>,
    clock: Clock,
    late: usize,
}

impl Generator {
    async fn live(mut self) -> usize {
        while self.clock.now().since_start() < 2 * HOUR {
            let stream = TokioIo::new(self.proxy.connect().await);
            let (mut client, connection) = http1::handshake(stream).await.expect("speaks");
            tokio::spawn(connection);
            let pages = (1..=REPOSITORIES / 100).map(|page| format!("/orgs/o/repos?per_page=100&page={page}"));
            let repository = |number| {
                [format!("/repos/o/r{number}/branches/main"), format!("/repos/o/r{number}/contents/kustomize")]
            };
            for target in pages.chain((0..REPOSITORIES).flat_map(repository)) {
                self.get(&mut client, &target).await;
            }
            self.clock.sleep(HOUR / 2).await;
        }
        self.late
    }

    /// Gets a path, waiting as it is told to. What comes is what the hub has.
    async fn get(&mut self, client: &mut http1::SendRequest<Empty<Bytes>>, target: &str) {
        loop {
            let request = Request::get(target).header("host", "localhost").header("authorization", "Bearer one");
            let request = request.body(Empty::new()).expect("valid");
            client.ready().await.expect("open");
            let answer = client.send_request(request).await.expect("answered");
            let (head, body) = answer.into_parts();
            let body = body.collect().await.expect("whole").to_bytes();
            if head.status == StatusCode::OK {
                let (_, now) = self.hub.lock().unwrap_or_else(PoisonError::into_inner).content(target);
                self.late += usize::from(body != now.as_bytes());
                return;
            }
            let after = retry_after(&head.headers).unwrap_or(60);
            self.clock.sleep(Duration::from_secs(after)).await;
        }
    }
}

fn retry_after(headers: &HeaderMap) -> Option<u64> {
    headers.get("retry-after")?.to_str().ok()?.parse().ok()
}

/// Two hours of two generators. Returns the hub, and the answers that were not what the hub had.
async fn two_hours(more: &str) -> (Hub, usize) {
    let hub = Arc::new(Mutex::new(Hub { versions: vec![1; REPOSITORIES], ..Hub::default() }));
    let (of_backend, clock) = (Arc::clone(&hub), Clock::start());
    let backend = Backend::start(move |seen| {
        let answer = of_backend.lock().unwrap_or_else(PoisonError::into_inner).serve(&seen);
        async move {
            clock.sleep(Duration::from_millis(50)).await;
            answer
        }
    })
    .await;
    let proxy = Proxy::before(backend.address).with(|options| {
        let (name, listen) = (options.gate.name.clone(), options.gate.listen.clone());
        options.gate = tidegate::spec::Gate { name, listen, ..gate("github", more) };
    });
    let proxy = Arc::new(proxy.start().await);
    let mut generators = Vec::new();
    for _ in 0..2 {
        let generator = Generator { proxy: Arc::clone(&proxy), hub: Arc::clone(&hub), clock, late: 0 };
        generators.push(tokio::spawn(generator.live()));
    }
    // Between two rounds, one repository of a hundred changes.
    let changing = Arc::clone(&hub);
    tokio::spawn(async move {
        for round in 0.. {
            clock.sleep(HOUR / 2).await;
            let mut hub = changing.lock().unwrap_or_else(PoisonError::into_inner);
            (0..REPOSITORIES / 100).for_each(|nth| hub.versions[(nth * 97 + round * 7) % REPOSITORIES] += 1);
        }
    });
    let mut late = 0;
    for generator in generators {
        late += generator.await.expect("no panic");
    }
    drop((proxy, backend));
    let hub = std::mem::take(&mut *hub.lock().unwrap_or_else(PoisonError::into_inner));
    (hub, late)
}

/// Any time of day will do.
const EPOCH: Duration = Duration::from_secs(1_700_000_000);

#[tokio::test(start_paused = true)]
async fn six_hundred_repositories_cost_a_tenth_of_the_quota_from_the_second_hour_on() {
    let (hub, late) = two_hours("").await;
    eprintln!("counted {:?}, served {:?}", hub.counted, hub.served);
    assert_eq!((hub.refused, late), (0, 0));
    assert!(hub.counted[0] > 2 * 600, "the first round pays: {:?}", hub.counted);
    assert!(hub.served[1] > 2400, "both went on: {:?}", hub.served);
    assert!(hub.counted[1] <= QUOTA / 10, "{:?} of {QUOTA}", hub.counted);
}
