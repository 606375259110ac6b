//! An hour's quota of each provider, spent by its client through a gate with the provider's preset,
//! while another tool takes half of it at the provider, which counts as it documents it.
//!
//! The hour passes in [`HOUR`], with a twentieth of its calls (with a tenth of Cloudflare's, whose
//! reserve would be a single call): provider and preset are made smaller alike. This assumes that a gate spends a quota by the part that is left of it and of its time,
//! whatever these are. Two things stay as they are:
//! - Fields tell whole seconds, so a gate may take a reset to be [`Part::vague`] seconds later than
//!   it is, and keeps the other tool's calls of that time. A stop may be so much longer, and longer by
//!   the time in which that many calls are ours. Cloudflare's five minutes are therefore 16 s, and
//!   four tokens make an hour of them.
//! - What is left of a refill is spent within a minute. So Hetzner's hour takes 16 s, and three are
//!   played.

use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Barrier, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use testing::providers::{Cloudflare, DigitalOcean, Github, Hetzner, Provider, Scale, second_half};
use tidegate::config::PRESETS;

use crate::fetched::{now, say};
use crate::gate::{Gates, Plan};
use crate::live::or_skip;
use crate::programs::{Client, Program};
use crate::upstream::answer;
use crate::wire::Head;

/// The hour.
const HOUR: Duration = Duration::from_secs(48);

/// A client, its provider, and what is left to it.
struct Part {
    program: Program,
    sdk: &'static str,
    call: &'static str,
    preset: &'static str,
    /// What stands in the gate's table beside the preset.
    more: &'static str,
    scale: Scale,
    provider: fn(Scale) -> Box<dyn Provider + Send>,
    /// The calls that reserve and tool leave.
    ours: f64,
    /// Their rate when it is lowest.
    rate: f64,
    /// The other tool's rate.
    tool: f64,
    /// The most seconds by which the gate takes a reset to be later than it is.
    vague: f64,
    resets: f64,
}

/// A provider at a port; its time begins with its first call.
#[derive(Clone)]
struct Fake {
    port: u16,
    provider: Arc<Mutex<Box<dyn Provider + Send>>>,
    start: Arc<OnceLock<Instant>>,
    /// The moments and statuses of its calls.
    log: Arc<Mutex<Vec<(Duration, u16)>>>,
}

// === impl Part ===

impl Part {
    fn github(program: Program, sdk: &'static str, fastest: f64) -> Self {
        let scale = scale(3600.0, HOUR, 20);
        let quota = f64::from(scale.calls(5000));
        Self {
            program,
            sdk,
            call: "github",
            preset: "github",
            more: "",
            scale,
            provider: |scale| Box::new(Github::scaled(scale)),
            ours: quota * 0.4,
            tool: quota / 2.0 / HOUR.as_secs_f64(),
            rate: second_half(quota, HOUR.as_secs_f64(), 0.1, scale.rate(1.25).min(fastest)),
            // The gate adds a second. The date is cut by up to one, the reset by 0.7 here.
            vague: 1.3,
            resets: 1.0,
        }
    }

    fn hetzner() -> Self {
        let scale = scale(3600.0, HOUR / 3, 20);
        Self {
            program: Program::Python,
            sdk: "hcloud",
            call: "servers",
            preset: "hetzner",
            more: "share = 1\n",
            scale,
            provider: |scale| Box::new(Hetzner::scaled(scale)),
            ours: f64::from(scale.calls(3600)) + scale.rate(0.5) * HOUR.as_secs_f64(),
            rate: scale.rate(0.5),
            tool: scale.rate(0.5),
            vague: 2.0,
            resets: 1.0,
        }
    }

    fn cloudflare() -> Self {
        let window = HOUR / 3;
        let scale = scale(300.0, window, 10);
        let quota = f64::from(scale.calls(1200));
        Self {
            program: Program::Python,
            sdk: "cloudflare",
            call: "zones",
            preset: "cloudflare",
            more: "share = 1\n",
            scale,
            provider: |scale| Box::new(Cloudflare::scaled(scale)),
            ours: 3.0 * (quota / 2.0 - (quota * 0.02).floor()),
            tool: quota / 2.0 / window.as_secs_f64(),
            rate: second_half(quota, window.as_secs_f64(), 0.02, scale.rate(3.84)),
            vague: 1.0,
            resets: 3.0,
        }
    }

    fn digitalocean() -> Self {
        let scale = scale(3600.0, HOUR, 20);
        let ours = f64::from(scale.calls(5000)) / 2.0;
        Self {
            program: Program::Go,
            sdk: "godo",
            call: "droplets",
            preset: "digitalocean",
            more: "",
            scale,
            provider: |scale| Box::new(DigitalOcean::scaled(scale)),
            ours,
            rate: ours / HOUR.as_secs_f64(),
            tool: ours / HOUR.as_secs_f64(),
            vague: 2.0,
            resets: 1.0,
        }
    }

    /// Returns what is wrong with what the provider logged.
    fn judge(&self, log: &[(Duration, u16)]) -> Option<String> {
        let Self { sdk, ours, rate, tool, vague, resets, .. } = *self;
        let within: Vec<_> = log.iter().filter(|(at, _)| *at < HOUR).collect();
        let refused = within.iter().filter(|(_, status)| *status != 200).count();
        let used = (within.len() - refused) as f64;
        let moments: Vec<_> = within.iter().map(|(at, _)| *at).chain([HOUR]).collect();
        let stop = moments.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(HOUR).as_secs_f64();
        let least = 0.97 * (ours - rate * vague * resets);
        let most = 2.0 / rate + vague * (1.0 + tool / rate);
        let line = format!("{sdk}: {used} of {ours} (least {least:.1}), longest stop {stop:.2} s (most {most:.2})");
        say(&line);
        let is_right = refused == 0 && used >= least && stop <= most;
        (!is_right).then(|| format!("{line}, {refused} refused: {log:?}"))
    }
}

// === impl Fake ===

impl Fake {
    fn start(part: &Part) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
        let port = listener.local_addr().expect("it listens").port();
        let provider = Arc::new(Mutex::new((part.provider)(part.scale)));
        let fake = Self { port, provider, start: Arc::default(), log: Arc::default() };
        let serving = fake.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let fake = serving.clone();
                thread::spawn(move || fake.serve(&stream));
            }
        });
        fake
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The time since the first call.
    fn time(&self) -> Duration {
        self.start.get_or_init(now).elapsed()
    }

    /// Answers the requests of one connection until it ends.
    fn serve(&self, stream: &TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream);
        loop {
            let request = Head::read(&mut reader)?;
            request.request_body(&mut reader, &mut |_| {})?;
            let mut provider = self.provider.lock().expect("no panic");
            let at = self.time();
            let reply = provider.serve(1, "reads", at);
            provider.end(1);
            self.log.lock().expect("no panic").push((at, reply.status));
            drop(provider);
            let (kind, body) = answer(&request, "");
            let fields =
                reply.headers.iter().map(|(name, value)| format!("{name}: {}\r\n", value.to_str().expect("text")));
            let fields: String = fields.collect();
            let head = format!("HTTP/1.1 {} -\r\n{fields}Content-Type: {kind}\r\nContent-Length: ", reply.status);
            (&mut &*stream).write_all(format!("{head}{}\r\n\r\n{body}", body.len()).as_bytes()).ok()?;
        }
    }
}

/// The scale at which so many seconds pass in a shorter time.
fn scale(seconds: f64, within: Duration, calls: u32) -> Scale {
    Scale { times: seconds / within.as_secs_f64(), calls }
}

/// A preset whose figures are made smaller.
fn scaled(name: &str, scale: Scale) -> String {
    let text = PRESETS.iter().find(|preset| preset.name == name).expect("it is there").text;
    let mut preset: toml::Table = text.parse().expect("it is TOML");
    let mut classes = preset.remove("classes").and_then(|classes| classes.as_array().cloned()).unwrap_or_default();
    let of_classes = classes.iter_mut().filter_map(|class| class.get_mut("bucket"));
    let of_gate = preset.iter_mut().filter(|(key, _)| matches!(key.as_str(), "bucket" | "unchanged"));
    for bucket in of_classes.chain(of_gate.map(|(_, bucket)| bucket)).filter_map(toml::Value::as_table_mut) {
        shrink(bucket, scale);
        if let Some(published) = bucket.get_mut("published").and_then(toml::Value::as_table_mut) {
            shrink(published, scale);
        }
    }
    preset.insert("classes".to_owned(), classes.into());
    preset.to_string()
}

/// Makes the figures of a bucket smaller. A window has a second and a call at least.
#[expect(clippy::cast_possible_truncation, reason = "figures stay below 2^31")]
fn shrink(figures: &mut toml::Table, scale: Scale) {
    let number = |value: &toml::Value| value.clone().try_into::<f64>().ok();
    let of = |key: &str| figures.get(key).and_then(number);
    let window = of("calls").zip(of("seconds"));
    let bucket = of("rate").zip(of("burst"));
    if let Some((calls, seconds)) = window {
        let rate = scale.rate(calls / seconds);
        let length = (seconds / scale.times).round().max((1.0 / rate).ceil()).max(1.0);
        figures["calls"] = ((rate * length + 1e-9) as i64).into();
        figures["seconds"] = (length as i64).into();
    }
    if let Some((rate, burst)) = bucket {
        figures["rate"] = scale.rate(rate).into();
        figures["burst"] = ((burst / f64::from(scale.calls)).max(1.0) as i64).into();
    }
}

#[test]
fn an_hours_quota_lasts_each_client_beside_a_tool_that_takes_half() {
    // PyGithub makes four calls a second at most by itself.
    let mut parts = vec![
        Part::github(Program::Python, "PyGithub", 4.0),
        Part::github(Program::JavaScript, "octokit", f64::MAX),
        Part::github(Program::Go, "go-github", f64::MAX),
        Part::hetzner(),
        Part::digitalocean(),
    ];
    parts.extend((0..4).map(|_| Part::cloudflare()));
    let mut clients = Vec::new();
    for part in &parts {
        let Some(client) = or_skip(part.sdk, Client::start(part.program, part.sdk, &[])) else { return };
        clients.push(client);
    }
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let fakes: Vec<Fake> = parts.iter().map(Fake::start).collect();
    let plan = |((part, fake), number): ((&Part, &Fake), usize)| {
        let file = dir.path().join(format!("{}.toml", part.preset));
        std::fs::write(&file, scaled(part.preset, part.scale)).expect("the folder is ours");
        Plan { name: format!("g{number}"), upstream: fake.url(), settings: format!("preset = {file:?}\n{}", part.more) }
    };
    let plans: Vec<Plan> = parts.iter().zip(&fakes).zip(0..).map(plan).collect();
    let gates = Gates::start(&plans);
    let all_are_up = Barrier::new(parts.len());
    thread::scope(|scope| {
        for (((part, fake), plan), mut client) in parts.iter().zip(&fakes).zip(&plans).zip(clients) {
            let (gates, all_are_up) = (&gates, &all_are_up);
            scope.spawn(move || {
                client.call(part.call, &Fake::start(part).url());
                all_are_up.wait();
                let gate = format!("http://127.0.0.1:{}", gates.port(&plan.name));
                while fake.time() < HOUR {
                    let report = client.call(part.call, &gate);
                    assert!(report.ok, "{}: {report:?}\n{}", part.sdk, gates.log());
                }
            });
        }
    });
    let judged = parts.iter().zip(&fakes).map(|(part, fake)| part.judge(&fake.log.lock().expect("no panic")));
    let wrong: Vec<String> = judged.flatten().collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
