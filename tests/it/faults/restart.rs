//! The gate ends under load: killed and started again, or asked to stop.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::{fs, io};

use rustls::ClientConfig;
use tidegate::tls::{self, Pem, Roots};

use super::api::Api;
use super::clients::{Came, Client};
use super::say;
use crate::command::{Running, config, start, with_config};
use crate::ports::free_port;

const WORKERS: usize = 8;

/// A gate with TLS that lends its own identity, and the files that it is made from.
struct Setup {
    folder: tempfile::TempDir,
    path: PathBuf,
    port: u16,
}

impl Setup {
    fn before(api: &Api) -> Self {
        let (folder, path) = config("");
        let port = free_port();
        let kubeconfig = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{ name: c, context: {{ cluster: c, user: u }} }}]\n\
             clusters: [{{ name: c, cluster: {{ server: 'http://127.0.0.1:{}' }} }}]\nusers: [{{ name: u, user: {{ token: t }} }}]\n",
            api.port
        );
        fs::write(folder.path().join("kubeconfig"), kubeconfig).expect("it can be written");
        let text = format!(
            "[admin]\nlisten = \"off\"\n[gates.kubernetes]\npreset = \"none\"\nupstream = \"kubeconfig\"\ncredentials = \"inject\"\n\
             listen = \"127.0.0.1:{port}\"\n[gates.kubernetes.tls]\nwrite_to = {:?}\n",
            folder.path().join("shared").display().to_string()
        );
        fs::write(&path, text).expect("it can be written");
        Self { folder, path, port }
    }

    fn start(&self) -> Running {
        let mut command = with_config("run", &self.path);
        command.env("KUBECONFIG", self.folder.path().join("kubeconfig"));
        let mut gate = start(command);
        gate.ready();
        gate
    }

    fn shared(&self, name: &str) -> PathBuf {
        self.folder.path().join("shared").join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.shared(name)).expect("the gate wrote it")
    }

    /// The trust of a client that has read the folder once.
    fn trust(&self) -> Arc<ClientConfig> {
        let roots = Roots::Only(Pem::new(self.read("ca.crt").into(), "ca.crt"));
        let mut config = (*tls::client(&roots, None).expect("TLS")).clone();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Arc::new(config)
    }
}

/// The results of a worker.
#[derive(Debug, Default)]
struct Story {
    answered: Vec<String>,
    cut: Vec<String>,
    refused: usize,
    distrusted: Vec<String>,
}

/// Writes one object after the other until it is stopped, on a new connection when one breaks.
fn worker(number: usize, port: u16, trust: Arc<ClientConfig>, stop: Arc<AtomicBool>) -> JoinHandle<Story> {
    thread::spawn(move || {
        let (mut story, mut client) = (Story::default(), None);
        for call in 0.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let Some(open) = client.take().or_else(|| connect(port, &trust, &mut story)) else {
                thread::yield_now();
                continue;
            };
            let mut open: Client = open;
            let target = format!("PUT /api/v1/namespaces/n/configmaps/w{number}-{call}");
            match open.ask(&target, "{}") {
                Came::Whole(200) => {
                    story.answered.push(target);
                    client = Some(open);
                }
                Came::Whole(other) => panic!("{target}: {other}"),
                Came::Cut(_) => story.cut.push(target),
            }
        }
        story
    })
}

fn connect(port: u16, trust: &Arc<ClientConfig>, story: &mut Story) -> Option<Client> {
    match Client::tls(port, trust) {
        Ok(client) => Some(client),
        // A client that trusts another CA fails in the handshake.
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            story.distrusted.push(error.to_string());
            None
        }
        Err(_) => {
            story.refused += 1;
            None
        }
    }
}

/// Waits until this many more calls have reached the API.
fn busy(api: &Api, more: usize) {
    let before = api.asked().len();
    while api.asked().len() < before + more {
        thread::yield_now();
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").permissions().mode() & 0o777
}

#[test]
fn a_gate_killed_under_load_and_started_again_is_trusted_as_before_and_repeats_no_write() {
    let api = Api::start();
    let setup = Setup::before(&api);
    let mut gate = setup.start();
    let (trust, stop) = (setup.trust(), Arc::new(AtomicBool::new(false)));
    let before = (setup.read("ca.key"), setup.read("token"));
    assert_eq!(mode(&setup.shared("ca.key")), 0o600, "for the gate's own user alone");
    let workers: Vec<_> =
        (0..WORKERS).map(|number| worker(number, setup.port, Arc::clone(&trust), Arc::clone(&stop))).collect();
    let kills = 3;
    for _ in 0..kills {
        busy(&api, 100);
        gate.kill();
        gate = setup.start();
    }
    busy(&api, 100);
    stop.store(true, Ordering::Relaxed);
    let stories: Vec<Story> = workers.into_iter().map(|worker| worker.join().expect("no panic")).collect();
    assert_eq!((setup.read("ca.key"), setup.read("token")), before, "the controller goes on with what it has");
    assert_eq!(gate.terminate(), Some(0));

    let asked = api.asked();
    let count = |of: fn(&Story) -> usize| stories.iter().map(of).sum::<usize>();
    let (answered, cut) = (count(|story| story.answered.len()), count(|story| story.cut.len()));
    let carried_out = stories.iter().flat_map(|story| &story.cut).filter(|call| asked.contains_key(*call)).count();
    say(format_args!(
        "killed {kills} times under {WORKERS} writers: {answered} writes answered, {cut} lost their answer ({carried_out} of them had been \
         carried out), 0 applied twice, 0 handshakes distrusted; {} connections refused meanwhile",
        count(|story| story.refused)
    ));
    let distrusted: Vec<&String> = stories.iter().flat_map(|story| &story.distrusted).collect();
    assert!(distrusted.is_empty(), "clients no longer trust the gate: {:?}", distrusted.first());
    assert!(asked.values().all(|times| *times == 1), "a write was sent twice");
    assert!(stories.iter().flat_map(|story| &story.answered).all(|call| asked.contains_key(call)));
    assert!(cut <= kills * WORKERS, "{cut} calls were cut, and each worker has one at a time");
}

#[test]
fn a_key_that_others_could_read_or_have_put_there_is_not_taken_over() {
    let api = Api::start();
    let setup = Setup::before(&api);
    assert_eq!(setup.start().terminate(), Some(0));
    let first = setup.read("ca.key");
    fs::set_permissions(setup.shared("ca.key"), fs::Permissions::from_mode(0o644)).expect("it is ours");
    assert_eq!(setup.start().terminate(), Some(0));
    let second = setup.read("ca.key");
    assert_ne!(second, first, "whoever could read it could be the gate");
    assert_eq!(mode(&setup.shared("ca.key")), 0o600);

    fs::rename(setup.shared("ca.key"), setup.folder.path().join("elsewhere")).expect("it is ours");
    std::os::unix::fs::symlink(setup.folder.path().join("elsewhere"), setup.shared("ca.key")).expect("it is ours");
    assert_eq!(setup.start().terminate(), Some(0));
    assert_ne!(setup.read("ca.key"), second, "a link is not followed");

    fs::write(setup.shared("ca.key"), "no key at all").expect("it is ours");
    assert_eq!(setup.start().terminate(), Some(0));
    assert!(setup.read("ca.key").contains("PRIVATE KEY"), "what is no key is replaced");
}

#[test]
fn a_gate_told_to_stop_under_load_loses_no_call_that_it_has_taken() {
    let api = Api::start();
    for (drain, leaves) in [("25s", true), ("200ms", false)] {
        let port = free_port();
        let (_folder, path) = config(&format!(
            "[admin]\nlisten = \"off\"\n[shutdown]\ndrain = \"{drain}\"\n[gates.kubernetes]\npreset = \"none\"\n\
             upstream = \"http://127.0.0.1:{}\"\nlisten = \"127.0.0.1:{port}\"\n",
            api.port
        ));
        let mut gate = start(with_config("run", &path));
        gate.ready();
        let told = Arc::new(AtomicBool::new(false));
        let workers: Vec<_> = (0..WORKERS)
            .map(|number| {
                let told = Arc::clone(&told);
                thread::spawn(move || {
                    let (mut answered, mut after) = (0, 0);
                    let mut client = Client::plain(port).expect("it listens");
                    for call in 0.. {
                        if leaves && after == 50 {
                            return (answered, None);
                        }
                        let target = format!("PUT /api/v1/namespaces/{drain}/configmaps/w{number}-{call}");
                        match client.ask(&target, "{}") {
                            Came::Whole(200) => answered += 1,
                            Came::Whole(other) => panic!("{target}: {other}"),
                            Came::Cut(bytes) => return (answered, Some((target, bytes))),
                        }
                        after += usize::from(told.load(Ordering::Relaxed));
                    }
                    unreachable!("it asks until it is cut")
                })
            })
            .collect();
        busy(&api, 200);
        gate.signal("-TERM");
        told.store(true, Ordering::Relaxed);
        let stories: Vec<(usize, Option<(String, usize)>)> =
            workers.into_iter().map(|worker| worker.join().expect("no panic")).collect();
        assert_eq!(gate.terminate(), Some(0));
        let asked = api.asked();
        let cut: Vec<&(String, usize)> = stories.iter().filter_map(|(_, cut)| cut.as_ref()).collect();
        let lost = cut.iter().filter(|(call, bytes)| *bytes > 0 || asked.contains_key(call)).count();
        let answered: usize = stories.iter().map(|(answered, _)| answered).sum();
        say(format_args!(
            "SIGTERM, drain {drain}, {WORKERS} writers: {answered} writes answered, {} sent to a connection that was closing and never taken, \
             {lost} lost",
            cut.len()
        ));
        assert_eq!(lost, 0, "{cut:?}");
        assert!(!leaves || cut.is_empty(), "who leaves within the drain is served to the end: {cut:?}");
    }
}
