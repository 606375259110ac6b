//! Three gates as processes that share one bucket under uneven demand, while one fault after the
//! other befalls them and their store. No call fails because of the store, and their sum keeps to
//! the bound.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::{Connection, FromRedisValue};

use crate::shared::fleet::{BURST, Fleet, RATE, RIGHTS, Seen, Shape, is_long, length, wait};
use crate::store_server::{Process, program, spawn};

/// The gates and their store.
pub(crate) struct Stage {
    pub(crate) fleet: Fleet,
    folder: tempfile::TempDir,
    store: Process,
}

// === impl Stage ===

impl Stage {
    /// Starts everything; `None` if no server is installed.
    fn start() -> Option<Self> {
        Self::shaped(Shape::default(), |_, store| store)
    }

    /// The same with other gates. `way` says where a gate meets the store, by its number and by the
    /// store's own socket.
    pub(crate) fn shaped(shape: Shape, way: impl Fn(usize, PathBuf) -> PathBuf) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let store = server(folder.path())?;
        let password = folder.path().join("password");
        std::fs::write(&password, "one").expect("ours");
        let fleet = Fleet::shaped(shape, |gate| {
            let (at, password) = (way(gate, folder.path().join("s")), password.display());
            format!("url = \"unix:{}\"\nuser = \"tidegate\"\npassword_file = \"{password}\"", at.display())
        });
        Some(Self { fleet, folder, store })
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    pub(crate) fn connection(&self) -> Connection {
        let url = format!("redis+unix://{}", self.socket().display());
        redis::Client::open(url).expect("an address").get_connection().expect("it takes connections")
    }

    /// Runs a command as the server's administrator.
    pub(crate) fn run<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        words[1..].iter().for_each(|word| _ = command.arg(word));
        command.query(&mut self.connection()).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    fn stop_store(&mut self) {
        self.store.kill();
        std::fs::remove_file(self.socket()).ok();
    }

    /// Returns when all three gates have asked since this call.
    pub(crate) fn until_all_ask(&self) {
        self.fleet.until_all_ask(|words| self.run(words));
    }

    /// The questions that the store has answered, if it can say.
    pub(crate) fn asks(&self) -> u64 {
        self.of_script("calls=")
    }

    /// The microseconds that the store has spent on the script, if it can say.
    pub(crate) fn micros(&self) -> u64 {
        self.of_script("usec=")
    }

    fn of_script(&self, what: &str) -> u64 {
        let Ok(mut connection) = redis::Client::open(format!("redis+unix://{}", self.socket().display()))
            .and_then(|client| client.get_connection_with_timeout(Duration::from_millis(200)))
        else {
            return 0;
        };
        connection.set_read_timeout(Some(Duration::from_millis(200))).ok();
        let told: String = redis::cmd("INFO").arg("commandstats").query(&mut connection).unwrap_or_default();
        let calls = |line: &str| line.split(what).nth(1)?.split(',').next()?.parse::<u64>().ok();
        told.lines().filter(|line| line.starts_with("cmdstat_eval")).filter_map(calls).sum()
    }

    /// Lets a fault last, and says what was seen.
    pub(crate) fn watch(&self, length: Duration) -> Seen {
        self.fleet.watch(length, || self.asks())
    }
}

/// The shared bucket.
const KEY: &str = "tidegate:1:{account}";

/// Starts a store whose user has a password and no more rights than a gate needs.
fn server(folder: &Path) -> Option<Process> {
    let mut more = vec!["--user", "tidegate", "on", ">one", "~tidegate:*"];
    more.extend(RIGHTS.split(' '));
    more.extend(["--enable-debug-command", "yes"]);
    Some(spawn(&program()?, folder, &more))
}

#[test]
fn p13_p14_p16_p17_p20_no_call_of_three_gates_fails_whatever_befalls_their_store() {
    let Some(mut stage) = Stage::start() else { return };
    let length = length();
    println!("| fault | calls | of the rate | fair (Jain) | over | asks | light, p99 |");
    stage.until_all_ask();
    wait(length / 2);
    let seen = stage.watch(length * 2);
    stage.fleet.judge("none", &seen, 0.0, 0.99);
    assert!(!is_long() || seen.fair >= 0.99, "{seen:?}");
    // A turn of all three: what is promised ahead, and a token for each.
    let turn = Duration::from_secs_f64(0.2 + 3.0 / RATE);
    assert!(!is_long() || seen.light < 2 * turn, "{seen:?}");
    assert!(seen.asks <= 2 * seen.calls as u64 + 40, "{seen:?}");

    // A gate is killed under load; the others take its part.
    stage.fleet.world.down[1].store(true, Ordering::SeqCst);
    stage.fleet.gates[1].take().expect("it runs").kill();
    let seen = stage.watch(length);
    stage.fleet.judge("a gate killed", &seen, 0.0, 0.95);
    stage.fleet.gates[1] = Some(stage.fleet.gate(1));
    stage.fleet.world.down[1].store(false, Ordering::SeqCst);
    stage.until_all_ask();

    // For a minute the others reckon with the gate that was killed: each goes on at a fourth.
    stage.store.signal("-STOP");
    let seen = stage.watch(length);
    stage.store.signal("-CONT");
    stage.fleet.judge("store stopped", &seen, 0.0, 0.7);
    stage.until_all_ask();

    let millis = length.as_millis().to_string();
    stage.run::<()>(&["CLIENT", "PAUSE", &millis, "WRITE"]);
    let seen = stage.watch(length);
    stage.fleet.judge("CLIENT PAUSE", &seen, 0.0, 0.7);
    stage.until_all_ask();

    let seconds = length.as_secs_f64().to_string();
    let seen = stage.fleet.watch_while(|| stage.asks(), || stage.run(&["DEBUG", "SLEEP", &seconds]));
    stage.fleet.judge("DEBUG SLEEP", &seen, 0.0, 0.7);
    stage.until_all_ask();

    let lost = BURST + RATE * 0.2 + 3.0;
    for words in [&["FLUSHALL"][..], &["DEL", KEY]] {
        stage.run::<()>(words);
        let seen = stage.watch(length);
        stage.fleet.judge(words[0], &seen, lost, 0.95);
    }

    // Another program takes the key, until somebody sees to it.
    stage.run::<()>(&["SET", KEY, "theirs"]);
    let seen = stage.watch(length);
    assert_eq!(stage.run::<String>(&["GET", KEY]), "theirs");
    stage.run::<()>(&["DEL", KEY]);
    stage.fleet.judge("SET on the key", &seen, 0.0, 0.7);
    stage.until_all_ask();

    for _ in 0..20 {
        stage.run::<()>(&["SCRIPT", "FLUSH"]);
        wait(length / 60);
    }
    let seen = stage.watch(length / 2);
    stage.fleet.judge("SCRIPT FLUSH", &seen, 0.0, 0.95);

    stage.stop_store();
    let seen = stage.watch(length);
    stage.fleet.judge("store killed", &seen, 0.0, 0.8);
    stage.store = server(stage.folder.path()).expect("it was there");
    let seen = stage.watch(length);
    stage.fleet.judge("started again, empty", &seen, lost, 0.6);
    stage.until_all_ask();

    stage.run::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let seen = stage.watch(length);
    stage.run::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    stage.fleet.judge("out of memory", &seen, 0.0, 0.8);
    stage.until_all_ask();

    // A new password, known beside the old one until all have it, costs nothing.
    stage.run::<()>(&["ACL", "SETUSER", "tidegate", ">two"]);
    std::fs::write(stage.folder.path().join("password"), "two").expect("ours");
    let seen = stage.watch(length);
    stage.fleet.judge("password rotated", &seen, 0.0, 0.95);
    // Whoever has not heard of it by now is cut off, and finds it when it is refused.
    stage.run::<()>(&["ACL", "SETUSER", "tidegate", "<one"]);
    stage.run::<()>(&["CLIENT", "KILL", "USER", "tidegate"]);
    let seen = stage.watch(length);
    stage.fleet.judge("old password taken away", &seen, 0.0, 0.8);
    stage.until_all_ask();

    stage.run::<()>(&["ACL", "SETUSER", "tidegate", "-hset"]);
    let seen = stage.watch(length);
    stage.run::<()>(&["ACL", "SETUSER", "tidegate", "+hset"]);
    stage.fleet.judge("user without rights", &seen, 0.0, 0.8);
    stage.until_all_ask();
    let seen = stage.watch(length);
    stage.fleet.judge("none, again", &seen, 0.0, 0.95);
}
