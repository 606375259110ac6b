//! Three gates as processes that share one bucket under uneven demand, 18, 6 and 2 clients that
//! never pause where a test says nothing else, before one upstream that notes when calls arrive.
//!
//! Each fault lasts a second and a half, or as long as `TIDEGATE_SHARED_SECONDS` says; with ten
//! seconds and more the share of the rate that is used is asserted too. Windows are judged by when
//! calls arrive at the upstream, so a busy machine may move them by [`LATE`].

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tidegate::clock::Clock;

use crate::command::{PATIENCE, Running, config, start, with_config};
use crate::ports::free_port;

/// The gates, their clients and the upstream.
pub(crate) struct Fleet {
    pub(crate) clock: Clock,
    pub(crate) gates: Vec<Option<Running>>,
    pub(crate) configs: Vec<(tempfile::TempDir, std::path::PathBuf)>,
    pub(crate) world: Arc<World>,
    shape: Shape,
    upstream: u16,
    /// The `[stores]` of each gate.
    stores: Vec<String>,
}

/// What the gates share, and who calls them.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) burst: f64,
    pub(crate) weights: [u32; 3],
    /// The clients of each that never pause.
    pub(crate) clients: [usize; 3],
}

impl Default for Shape {
    fn default() -> Self {
        Self { burst: BURST, weights: [1; 3], clients: [18, 6, 2] }
    }
}

/// What the clients and the upstream see.
#[derive(Default)]
pub(crate) struct World {
    ports: Mutex<Vec<u16>>,
    /// The calls that arrived, by moment and gate.
    came: Mutex<Vec<(Duration, usize)>>,
    /// The calls that were answered, by moment and gate, and the time that each took.
    took: Mutex<Vec<(Duration, usize, Duration)>>,
    /// The answers that no client should get.
    pub(crate) wrong: Mutex<Vec<String>>,
    /// True while a gate is not there.
    pub(crate) down: [AtomicBool; 3],
    pub(crate) ends: AtomicBool,
}

/// What happened during a fault.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) calls: usize,
    pub(crate) used: f64,
    /// Jain's index of the gates' calls, each by its weight.
    pub(crate) fair: f64,
    /// The most calls in any window beyond burst and rate.
    pub(crate) over: f64,
    pub(crate) asks: u64,
    /// The time that the calls of the gate with the fewest clients took, all but the slowest in a
    /// hundred.
    pub(crate) light: Duration,
}

// === impl World ===

impl World {
    /// Notes when calls arrive, and of which gate.
    fn serve(self: &Arc<Self>, clock: Clock) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let (port, world) = (listener.local_addr().expect("bound").port(), Arc::clone(self));
        thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let world = Arc::clone(&world);
                thread::spawn(move || {
                    let mut lines = BufReader::new(stream.try_clone().expect("a handle")).lines();
                    // A head may come in pieces, and end before it is whole.
                    while let Some(Ok(line)) = lines.next() {
                        let (came, gate) = (clock.now().since_start(), gate_of(&line));
                        if !lines.by_ref().map_while(Result::ok).any(|line| line.is_empty()) {
                            return;
                        }
                        // A call for nothing but `/` is the question of `doctor` if the upstream answers.
                        world.came.lock().expect("unpoisoned").extend(gate.map(|gate| (came, gate)));
                        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").ok();
                    }
                });
            }
        });
        port
    }

    /// A client of a gate that calls as often as it is answered.
    fn client(self: Arc<Self>, gate: usize, number: usize, clock: Clock) {
        let mut calls = 0;
        while !self.ends.load(Ordering::SeqCst) {
            let was_down = self.down[gate].load(Ordering::SeqCst);
            calls += 1;
            let began = clock.now();
            let answer = self.call(gate, &format!("/{gate}/{number}/{calls}"));
            let (at, took) = (clock.now().since_start(), clock.now() - began);
            let is_down = was_down || self.down[gate].load(Ordering::SeqCst);
            match answer {
                Ok(answer) if answer.starts_with("HTTP/1.1 200 ") => {
                    self.took.lock().expect("unpoisoned").push((at, gate, took));
                }
                _ if is_down || self.ends.load(Ordering::SeqCst) => thread::yield_now(),
                other => self.wrong.lock().expect("unpoisoned").push(format!("{:?} {other:?}", clock.now())),
            }
        }
    }

    pub(crate) fn call(&self, gate: usize, path: &str) -> std::io::Result<String> {
        let port = self.ports.lock().expect("unpoisoned")[gate];
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

// === impl Fleet ===

impl Fleet {
    /// Starts gates with this `[stores]`, and their clients. The password is in a file of theirs.
    pub(crate) fn start(store: &str) -> Self {
        Self::shaped(Shape::default(), |_| store.to_owned())
    }

    /// Starts gates and clients of another shape; each gate has a `[stores]` of its own.
    pub(crate) fn shaped(shape: Shape, store: impl Fn(usize) -> String) -> Self {
        let (clock, world) = (Clock::start(), Arc::new(World::default()));
        let upstream = world.serve(clock);
        let configs = (0..3).map(|_| config("")).collect();
        let stores = (0..3).map(store).collect();
        let mut fleet = Self { clock, gates: Vec::new(), configs, world, shape, upstream, stores };
        for gate in 0..3 {
            fleet.world.ports.lock().expect("unpoisoned").push(free_port());
            fleet.configure(gate, RATE);
            fleet.gates.push(Some(fleet.gate(gate)));
            for number in 0..shape.clients[gate] {
                let world = Arc::clone(&fleet.world);
                thread::spawn(move || world.client(gate, number, clock));
            }
        }
        fleet
    }

    /// Writes the configuration of a gate, with this rate.
    fn configure(&self, gate: usize, rate: f64) {
        let (Shape { burst, weights, .. }, store) = (self.shape, &self.stores[gate]);
        let (upstream, port) = (self.upstream, self.world.ports.lock().expect("unpoisoned")[gate]);
        let text = format!(
            "[admin]\nlisten = \"off\"\nsocket = \"{}\"\n[stores.main]\n{store}\n\
             [gates.api]\nkind = \"http\"\nupstream = \"http://127.0.0.1:{upstream}\"\n\
             listen = \"127.0.0.1:{port}\"\nretry_bucket = \"off\"\nqueue = {{ max_wait = \"1m\" }}\n\
             bucket = {{ rate = {rate}, burst = {burst}, adapt = \"off\", \
             shared = {{ name = \"account\", weight = {} }} }}\n",
            self.socket(gate).display(),
            weights[gate],
        );
        std::fs::write(&self.configs[gate].1, text).expect("ours");
    }

    /// Gives a running gate another rate.
    pub(crate) fn reload(&mut self, gate: usize, rate: f64) {
        self.configure(gate, rate);
        let running = self.gates[gate].as_mut().expect("it runs");
        running.signal("-HUP");
        running.line("the new configuration is in force");
    }

    /// The admin socket of a gate.
    pub(crate) fn socket(&self, gate: usize) -> std::path::PathBuf {
        self.configs[gate].0.path().join("socket")
    }

    /// Starts one of the gates.
    pub(crate) fn gate(&self, gate: usize) -> Running {
        let mut gate = start(with_config("run", &self.configs[gate].1));
        gate.ready();
        gate
    }

    /// Returns when all three gates have asked a store since this call. `run` runs a command there.
    pub(crate) fn until_all_ask(&self, run: impl Fn(&[&str]) -> Vec<String>) {
        let now = || {
            let time: Vec<u64> = run(&["TIME"]).iter().filter_map(|part| part.parse().ok()).collect();
            time[0] * 1_000_000 + time[1]
        };
        let (healed, began) = (now(), self.clock.now());
        loop {
            let seats = run(&["HVALS", "tidegate:1:{account}"]);
            let seen = seats.iter().filter_map(|seat| seat.split(' ').nth(1)?.parse::<u64>().ok());
            if seen.filter(|seen| *seen > healed).count() >= 3 {
                return;
            }
            assert!(self.clock.now() - began < PATIENCE, "they ask again: {seats:?}");
            wait(Duration::from_millis(20));
        }
    }

    /// Lets a fault last, and says what was seen. `asks` counts the questions of the store.
    pub(crate) fn watch(&self, length: Duration, asks: impl Fn() -> u64) -> Seen {
        self.watch_while(asks, || wait(length))
    }

    /// Does something, and says what was seen meanwhile.
    pub(crate) fn watch_while(&self, asks: impl Fn() -> u64, happens: impl FnOnce()) -> Seen {
        let (from, before) = (self.clock.now().since_start(), asks());
        happens();
        let (to, asks) = (self.clock.now().since_start(), asks().saturating_sub(before));
        let came = self.world.came.lock().expect("unpoisoned").clone();
        let mut came: Vec<_> = came.into_iter().filter(|(at, _)| (from..to).contains(at)).collect();
        came.sort_unstable();
        #[expect(clippy::cast_precision_loss, reason = "few calls")]
        let by_gate = [0, 1, 2].map(|gate| came.iter().filter(|(_, of)| *of == gate).count() as f64);
        let sum: f64 = by_gate.iter().sum();
        let shares = [0, 1, 2].map(|gate| by_gate[gate] / f64::from(self.shape.weights[gate]));
        let squares: f64 = shares.iter().map(|share| share * share).sum();
        let took = self.world.took.lock().expect("unpoisoned");
        let light = took.iter().filter(|(at, gate, _)| *gate == 2 && (from..to).contains(at)).map(|(.., took)| *took);
        let mut light: Vec<_> = light.collect();
        light.sort_unstable();
        let (mut least, mut most) = (f64::MAX, 0.0_f64);
        for (number, (at, _)) in (0_u32..).zip(&came) {
            let ahead = f64::from(number) - RATE * at.as_secs_f64();
            least = least.min(ahead);
            most = most.max(ahead + 1.0 - least);
        }
        Seen {
            calls: came.len(),
            used: sum / (RATE * (to - from).as_secs_f64()),
            fair: shares.iter().sum::<f64>().powi(2) / (3.0 * squares.max(1e-9)),
            over: (most - self.shape.burst).max(0.0),
            asks,
            light: light.get(light.len() * 99 / 100).copied().unwrap_or_default(),
        }
    }

    /// Holds what was seen to the bound, with so many calls more (SHARED-QUOTA, "What faults add").
    pub(crate) fn judge(&self, fault: &str, seen: &Seen, more: f64, least: f64) {
        let Seen { calls, used, fair, over, asks, light } = seen;
        println!("| {fault} | {calls} | {:.1}% | {fair:.3} | {over:.1} | {asks} | {light:.0?} |", used * 100.0);
        let wrong = self.world.wrong.lock().expect("unpoisoned");
        assert!(wrong.is_empty(), "{fault}: {} calls failed: {:?}", wrong.len(), wrong.first());
        assert!(*over <= more + RATE * LATE, "{fault}: {over} over in a window");
        assert!(*calls > 0 && (!is_long() || *used >= least), "{fault}: {used} of the rate was used");
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.world.ends.store(true, Ordering::SeqCst);
    }
}

/// Returns the gate whose client made a call, by the call's first line.
fn gate_of(line: &str) -> Option<usize> {
    let (gate, _) = line.strip_prefix("GET /")?.split_once('/')?;
    gate.parse().ok().filter(|gate| *gate < 3)
}

/// Lets the processes go on for a while.
#[expect(clippy::disallowed_methods, reason = "a fault lasts for a time, whatever happens in it")]
pub(crate) fn wait(time: Duration) {
    thread::sleep(time);
}

/// The time that each fault lasts.
pub(crate) fn length() -> Duration {
    let asked = std::env::var("TIDEGATE_SHARED_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    asked.map_or(Duration::from_millis(1_500), Duration::from_secs)
}

pub(crate) fn is_long() -> bool {
    length() >= Duration::from_secs(10)
}

pub(crate) const RATE: f64 = 40.0;
pub(crate) const BURST: f64 = 20.0;
/// The seconds by which a busy machine may bring calls closer together.
pub(crate) const LATE: f64 = 0.5;
pub(crate) const RIGHTS: &str = "-@all +auth +ping +select +eval +evalsha +time +hgetall +hset +hdel +pexpire";
