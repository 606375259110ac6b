//! Holds the stores to real servers: Valkey, or Redis where that is not installed or
//! `TIDEGATE_STORE_SERVER` names it. That script and ledger agree is held on both.
//!
//! Each test starts a server of its own, on a Unix socket in a folder of its own, and stops it by
//! its process id. They run where `TIDEGATE_LIVE=1` is set.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::sync::oneshot;

use super::*;
use crate::limit::policy::{BucketPolicy, Per, SharedPolicy};
use crate::limit::{Ask, BucketPart, Ledger, SharedLimits, StoreAnswer, StoreFailure, Wish};
use crate::spec::{Endpoint, StoreAddress, StoreLogin, StorePassword, UpstreamTls};

use testing::store_server::{Process, program, programs, spawn};

use self::script::Asker;
use self::servers::Servers;

mod agree;
mod faults;
mod places;
mod tls;

/// A server of a test. It ends with the test.
struct Server {
    process: Process,
    folder: tempfile::TempDir,
    port: Option<u16>,
}

impl Server {
    /// Starts a server; `None` if none is installed.
    fn start(more: &[&str]) -> Option<Self> {
        Some(Self::start_program(&program()?, more))
    }

    fn start_program(program: &Path, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let process = spawn(program, folder.path(), more);
        Self { process, folder, port: None }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    /// Stops it, and starts another in its place that knows nothing.
    fn restart(&mut self, more: &[&str]) {
        self.stop();
        self.begin_with(more);
    }

    /// Starts another in the place of one that was stopped.
    fn begin(&mut self) {
        self.begin_with(&[]);
    }

    fn begin_with(&mut self, more: &[&str]) {
        self.process = spawn(&program().expect("it was there"), self.folder.path(), more);
    }

    fn stop(&mut self) {
        self.process.kill();
        std::fs::remove_file(self.socket()).ok();
    }

    /// Sends it a signal.
    fn signal(&self, signal: &str) {
        self.process.signal(signal);
    }

    /// The settings of a store on its socket.
    fn store(&self) -> Store {
        store_at(StoreAddress::Unix(self.socket()))
    }

    /// A file in its folder with this content.
    fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, content).expect("it can be written");
        path
    }

    /// Runs a command as the server's own administrator.
    async fn run(&self, words: &[&str]) -> Value {
        let mut connection = dialer(self.store()).dial().await.expect("it takes connections");
        let mut command = redis::cmd(words[0]);
        words[1..].iter().for_each(|word| _ = command.arg(word));
        command.query_async(&mut connection.redis).await.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }
}

/// Asks as a pod, for keys with a prefix.
fn asker(prefix: &str) -> Asker<'_> {
    Asker { prefix, label: "pod" }
}

fn dialer(store: Store) -> Dialer {
    Arc::into_inner(PreparedStore::new(store, Clock::start()).expect("its files are there").0).expect("its only use")
}

/// The settings of a store at an address.
fn store_at(address: StoreAddress) -> Store {
    Store {
        name: "main".into(),
        address,
        has_tls: false,
        tls: UpstreamTls::default(),
        login: StoreLogin::default(),
        sentinel: StoreLogin::default(),
        prefix: "tidegate".to_owned(),
        timeout: Duration::from_secs(5),
    }
}

/// An ask of a member for so many tokens.
fn ask(member: u64, need: u32) -> Ask {
    let bucket = BucketPolicy::new(50.0, std::num::NonZeroU32::new(100).expect("a burst"));
    let shared = SharedPolicy { store: "main".into(), ..SharedPolicy::new("account") };
    let limits = SharedLimits::new(&bucket, &shared);
    let wish = Wish { need, within: Duration::from_secs(8), ..Wish::default() };
    Ask { wish, ..Ask::new(member, limits, Arc::new(shared)) }
}

/// The stores of a process that has this one.
fn stores(store: Store) -> Arc<Stores> {
    let clock = Clock::start();
    let stores = Stores::new(clock, "pod-0");
    stores.adopt(vec![PreparedStore::new(store, clock).expect("its files are there")]);
    stores
}

/// Asks, and waits for what comes of it.
async fn asked(stores: &Stores, ask: &Ask) -> Result<StoreAnswer, StoreFailure> {
    let (sender, receiver) = oneshot::channel();
    stores.ask(vec![ask.clone()], Box::new(move |answers| sender.send(answers).expect("it is awaited")));
    receiver.await.expect("each question gets something").pop().expect("one for each ask")
}

#[tokio::test]
async fn parts_are_asked_as_one_question_and_their_keys_do_not_say_whose_they_are() {
    let Some(server) = Server::start(&[]) else { return };
    let part = |who| Some(BucketPart { per: Per::Account, origin: 0, who: Some(who) });
    let asks = |member: u64| (1..=40).map(|who| Ask { part: part(who), ..ask(member, 2) }).collect::<Vec<_>>();
    let all = async |stores: &Stores, asks: Vec<Ask>| {
        let (sender, receiver) = oneshot::channel();
        stores.ask(asks, Box::new(move |answers| sender.send(answers).expect("it is awaited")));
        receiver.await.expect("each question gets something")
    };
    let one = stores(server.store());
    let other = stores(server.store());
    assert!(all(&one, asks(1)).await.iter().all(|answer| answer.as_ref().is_ok_and(|answer| answer.members == 1)));
    server.run(&["SCRIPT", "FLUSH"]).await;
    let answers = all(&other, asks(2)).await;
    assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|answer| answer.members == 2)), "{answers:?}");
    let Value::Array(keys) = server.run(&["KEYS", "*"]).await else { panic!("no list") };
    let keys: Vec<String> = keys.into_iter().map(|key| redis::from_redis_value(key).expect("text")).collect();
    assert_eq!(keys.len(), 40);
    for key in &keys {
        let digest = key.strip_prefix("tidegate:1:{account}:").unwrap_or_else(|| panic!("{key}"));
        assert!(digest.len() == 32 && digest.bytes().all(|digit| digit.is_ascii_hexdigit()), "{key}");
    }
    // Gates of two releases must find the same.
    assert_eq!(script::key("t", "account", part(7).as_ref()), "t:1:{account}:e072545bd6754bb2f95040583059d4dc");

    // What is wrong with one part is not wrong with the others.
    server.run(&["DEL", &keys[0]]).await;
    server.run(&["SET", &keys[0], "something else"]).await;
    let answers = all(&one, asks(1)).await;
    assert_eq!(answers.iter().filter(|answer| **answer == Err(StoreFailure::Wrong)).count(), 1, "{answers:?}");
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 39);
}

#[tokio::test]
async fn a_store_that_a_reload_takes_away_is_not_down() {
    let folder = tempfile::tempdir().expect("a folder");
    let name: Arc<str> = "taken-away".into();
    let store = Store { name: Arc::clone(&name), ..store_at(StoreAddress::Unix(folder.path().join("none"))) };
    let up = || {
        let text = telemetry::metrics().render();
        let line = text.lines().find_map(|line| line.strip_prefix("tidegate_store_up{store=\"taken-away\"} "));
        line.map(str::to_owned)
    };
    let stores = stores(store);
    assert_eq!(up(), None, "nothing was asked");
    let mut wanted = ask(1, 1);
    wanted.shared = Arc::new(SharedPolicy { store: name, ..SharedPolicy::new("account") });
    assert!(asked(&stores, &wanted).await.is_err());
    assert_eq!(up().as_deref(), Some("0"));
    stores.adopt(Vec::new());
    assert_eq!(up(), None);
}

#[tokio::test]
async fn two_processes_share_a_bucket_through_a_server() {
    let Some(server) = Server::start(&[]) else { return };
    let one = stores(server.store());
    let other = stores(server.store());
    let first = asked(&one, &ask(1, 3)).await.expect("it answers");
    assert_eq!((first.granted, first.members, first.rivals), (3, 1, 0));
    let second = asked(&other, &ask(2, 3)).await.expect("it answers");
    assert_eq!((second.members, second.rivals, second.epoch), (2, 1, first.epoch));
    assert!(second.first > first.first, "its tokens come after the other's");
    let Value::Array(fields) = server.run(&["HGETALL", "tidegate:1:{account}"]).await else { panic!("a hash") };
    let text = format!("{fields:?}");
    assert!(text.contains("pod-0") || !fields.is_empty(), "{text}");
}

#[tokio::test]
async fn what_a_server_keeps_is_only_numbers_and_the_name_of_the_pod() {
    let Some(server) = Server::start(&[]) else { return };
    asked(&stores(server.store()), &ask(7, 3)).await.expect("it answers");
    let Value::Array(fields) = server.run(&["HGETALL", "tidegate:1:{account}"]).await else { panic!("a hash") };
    for field in fields {
        let Value::BulkString(bytes) = field else { panic!("text") };
        let text = String::from_utf8(bytes).expect("ASCII");
        let is_number = |word: &str| word.parse::<f64>().is_ok() || word == "pod-0";
        let is_name = ["z", "e", "p", "n", "m:7"].contains(&text.as_str());
        assert!(is_name || text.split(' ').all(is_number), "{text}");
    }
}
