//! Random spellings of paths: each call reaches the cluster whose name stands in its path byte for
//! byte, with that cluster's credential alone, or none.

use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{RunningHub, cluster, clusters, echo};
use crate::support::{status, within};

const NAMES: [&str; 4] = ["a", "b", "prod-1", "kind@b"];
const PIECES: &[&str] = &[
    "/",
    "//",
    "/c/",
    "c",
    "/c",
    "a",
    "b",
    "prod-1",
    "kind@b",
    "..",
    ".",
    "/../",
    "/./",
    "%2e%2e",
    "%2E",
    "%2f",
    "%2F",
    "%252f",
    "%5c",
    "..;",
    ";",
    "%61",
    "%62",
    "%00",
    "?",
    "?x=",
    "&",
    "=",
    "/c/a/",
    "/c/b/",
    "C",
    "%63",
    "~",
    ":",
    "*",
    "api/v1/pods",
    "%c0%af",
    "%09",
    "+",
    "%20",
    "..%2f",
    "@",
    "#",
];

/// The gate's own name, and names of others.
const HOSTS: [&str; 5] = ["localhost", "a", "b:80", "localhost:1", "prod-1.localhost"];
const ABSOLUTE: [&str; 5] = ["", "http://localhost", "http://b", "https://localhost", "http://a@localhost"];

/// Numbers from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).expect("31 bits") % most
    }

    fn path(&mut self) -> String {
        let name = NAMES[self.below(NAMES.len())];
        let start =
            [format!("/c/{name}/"), format!("/c/{name}"), "/".to_owned()][self.below(5).saturating_sub(2)].clone();
        let pieces = (0..=self.below(6)).map(|_| PIECES[self.below(PIECES.len())]);
        start + &pieces.collect::<String>()
    }
}

/// The cluster and the target that a path means, by the rule alone.
fn meant(path: &str) -> Option<(&'static str, &str)> {
    NAMES.into_iter().find_map(|name| {
        let below = path.strip_prefix("/c/")?.strip_prefix(name)?;
        below.starts_with('/').then_some((name, below))
    })
}

#[tokio::test]
async fn ten_thousand_spellings_lead_to_the_cluster_they_name_or_to_none() {
    let mut all = Vec::new();
    let mut backends = Vec::new();
    for name in NAMES {
        let backend = echo(name).await;
        all.push((name.to_owned(), cluster(backend.address, 1, Some(format!("canary-of-{name}")))));
        backends.push(backend);
    }
    let hub = RunningHub::start(clusters(all), |_| ()).await;
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut client = hub.proxy.connect().await;
    let mut http2 = hub.proxy.connect_http2().await;
    let mut reached = 0;
    for round in 0..10_000 {
        let path = dice.path();
        // Another host, absolute form and another credential now and then: none changes the cluster.
        let host = HOSTS[dice.below(10).saturating_sub(10 - HOSTS.len())];
        let absolute = ABSOLUTE[dice.below(12).saturating_sub(12 - ABSOLUTE.len())];
        let theirs = if dice.below(3) == 0 { "Authorization: Bearer canary-of-b\r\n" } else { "" };
        let answer = if dice.below(4) == 0 && !path.contains('#') {
            let Ok(asked) = http::Request::get(format!("http://{host}{path}")).body(Default::default()) else {
                continue;
            };
            let answer = within(http2.send_request(asked)).await.expect("answered");
            let code = answer.status();
            let body = answer.into_body().collect().await.expect("whole").to_bytes();
            format!("HTTP/1.1 {}\r\n\r\n{}", code.as_u16(), String::from_utf8_lossy(&body))
        } else {
            let asked = format!("GET {absolute}{path} HTTP/1.1\r\nHost: {host}\r\n{theirs}\r\n");
            client.write_all(asked.as_bytes()).await.expect("writes");
            let mut answer = String::new();
            while !is_whole(&answer) {
                answer.push(char::from(within(client.read_u8()).await.unwrap_or_else(|_| panic!("{asked}{answer}"))));
            }
            if answer.to_ascii_lowercase().contains("connection: close") {
                client = hub.proxy.connect().await;
            }
            answer
        };
        let asked = format!("{round}: {host} {absolute} {path}");
        let body = answer.split_once("\r\n\r\n").expect("a head").1;
        match (status(&answer), meant(&path)) {
            (200, Some((name, below))) => {
                assert_eq!(body, format!("{name} {below} Bearer canary-of-{name}"), "{asked}");
                reached += 1;
            }
            (code, is_meant) => {
                assert!((400..500).contains(&code), "{asked}: {answer}");
                let is_plain = host == HOSTS[0] && absolute.is_empty() && !path.contains('#');
                assert!(is_meant.is_none() || !is_plain, "{asked}: {answer}");
            }
        }
    }
    assert!((1500..9000).contains(&reached), "{reached}");
    let arrived = NAMES
        .iter()
        .zip(&backends)
        .flat_map(|(name, backend)| backend.seen().into_iter().map(move |seen| (name, seen)));
    let mut count = 0;
    for (name, seen) in arrived {
        assert_eq!(seen.headers["authorization"], format!("Bearer canary-of-{name}"));
        count += 1;
    }
    assert_eq!(count, reached, "no call arrived that was not answered");
}

/// True for an answer with the whole of its declared body.
fn is_whole(answer: &str) -> bool {
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { return false };
    let length = head.to_ascii_lowercase().lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    length.is_some_and(|length: usize| body.len() >= length)
}
