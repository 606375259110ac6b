//! Each error that a server can answer, provoked on a real one: what it means, and what is said.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use futures_util::future::join_all;

use super::*;
use crate::store::fault::Fault;

/// Returns what a question to this store comes to, in words, and what it means to a member.
async fn comes_of(store: Store) -> (String, StoreFailure) {
    let dialer = Arc::new(dialer(store));
    let servers = Servers::of(&dialer);
    let asked = async {
        // A connection keeps its own time; a second clock here could end first and hide why it failed.
        servers.connect().await?;
        let ask = ask(1, 1);
        let asked = asker(&dialer.store.prefix).ask(&servers, &ask);
        tokio::time::timeout(dialer.store.timeout, asked).await.unwrap_or(Err(Fault::Timeout))
    };
    let fault = asked.await.expect_err("it cannot answer");
    (fault.to_string(), fault.away())
}

fn with_user(server: &Server, user: &str, password: &str) -> Store {
    let password = Some(StorePassword::File(server.file(&format!("password-{user}"), password)));
    Store { login: StoreLogin { user: Some(user.to_owned()), password }, ..server.store() }
}

async fn said(store: Store, away: StoreFailure, words: &str) {
    let (text, meant) = comes_of(store).await;
    assert!(meant == away && text.contains(words), "{meant:?}: {text}; expected {away:?} and {words:?}");
}

#[tokio::test]
async fn a_user_with_the_rights_that_are_asked_for_can_share_and_one_without_is_told_which() {
    let Some(server) = Server::start(&[]) else { return };
    let advice = Fault::Code { code: "NOPERM".to_owned() }.remedy().replace("PREFIX", "tidegate");
    let rights = advice.split("give it: ").nth(1).and_then(|rest| rest.split(", and").next()).expect("the rights");
    let mut words = vec!["ACL", "SETUSER", "gate", "on", ">secret"];
    words.extend(rights.split(' '));
    server.run(&words).await;
    asked(&stores(with_user(&server, "gate", "secret")), &ask(1, 1)).await.expect("it has all rights it needs");
    said(with_user(&server, "gate", "wrong"), StoreFailure::Wrong, "WRONGPASS: user or password is wrong").await;

    for (right, words) in [("-hset", "NOPERM"), ("-evalsha", "NOPERM"), ("resetkeys", "NOPERM")] {
        server.run(&["ACL", "SETUSER", "gate", right]).await;
        let (text, meant) = comes_of(with_user(&server, "gate", "secret")).await;
        assert!(
            meant == StoreFailure::Wrong && text.contains(words) && text.contains("+hset"),
            "{right}: {meant:?} {text}"
        );
        server.run(&["ACL", "SETUSER", "gate", "+hset", "+evalsha", "~tidegate:*"]).await;
    }
    let (text, _) = comes_of(with_user(&server, "gate", "secret-that-nobody-may-see")).await;
    assert!(!text.contains("nobody-may-see"), "{text}");
}

#[tokio::test]
async fn a_server_that_wants_a_password_says_so() {
    let Some(server) = Server::start(&["--requirepass", "secret"]) else { return };
    said(server.store(), StoreFailure::Wrong, "NOAUTH: it needs a password; set password_file or password_command")
        .await;
    let password = Some(StorePassword::File(server.file("password", "secret")));
    let login = StoreLogin { user: None, password };
    asked(&stores(Store { login, ..server.store() }), &ask(1, 1)).await.expect("it answers");
}

#[tokio::test]
async fn servers_that_cannot_write_are_away_and_say_why() {
    let Some(mut server) = Server::start(&["--min-replicas-to-write", "2"]) else { return };
    said(server.store(), StoreFailure::Unreachable, "NOREPLICAS: it has fewer replicas than min-replicas-to-write")
        .await;
    server.restart(&["--replicaof", "127.0.0.1", "1"]);
    said(server.store(), StoreFailure::Unreachable, "READONLY: it is a replica").await;
    server.restart(&["--maxmemory", "1", "--maxmemory-policy", "noeviction"]);
    said(server.store(), StoreFailure::Unreachable, "OOM: its maxmemory is reached").await;
}

#[tokio::test]
async fn a_server_with_too_many_clients_is_away_and_says_why() {
    let Some(server) = Server::start(&["--maxclients", "1"]) else { return };
    // The connection that waited for the server may still be there.
    let _only = loop {
        let mut only = UnixStream::connect(server.socket()).expect("it listens");
        let mut answer = [0; 5];
        if only.write_all(b"PING\r\n").and_then(|()| only.read_exact(&mut answer)).is_ok() && &answer == b"+PONG" {
            break only;
        }
    };
    said(server.store(), StoreFailure::Unreachable, "maxclients is reached").await;
}

#[tokio::test]
async fn what_a_server_lacks_is_said_with_what_to_do() {
    for (answer, away, words) in [
        (
            "-ERR max number of clients reached",
            StoreFailure::Unreachable,
            "MAXCLIENTS: its maxclients is reached; raise it",
        ),
        (
            "-MISCONF Valkey is configured to save RDB snapshots",
            StoreFailure::Wrong,
            "MISCONF: it cannot save to its disk",
        ),
        ("-DENIED Redis is running in protected mode", StoreFailure::Wrong, "DENIED: it is in protected mode"),
    ] {
        let (at, _heard) = places::node_that_says(&format!("{answer}\r\n"));
        said(store_at(StoreAddress::Tcp(at)), away, words).await;
    }
}

#[tokio::test]
async fn a_key_of_another_program_is_left_alone() {
    let Some(server) = Server::start(&[]) else { return };
    server.run(&["SET", "tidegate:1:{account}", "theirs"]).await;
    let (text, meant) = comes_of(server.store()).await;
    assert!(meant == StoreFailure::Wrong && (text.contains("WRONGTYPE") || text.contains("ERR")), "{meant:?} {text}");
    assert_eq!(server.run(&["GET", "tidegate:1:{account}"]).await, Value::BulkString(b"theirs".to_vec()));
}

#[tokio::test]
async fn a_server_that_stops_is_away_and_asked_again_when_it_is_back() {
    let Some(mut server) = Server::start(&[]) else { return };
    let store = Store { timeout: Duration::from_millis(200), ..server.store() };
    let stores = stores(store);
    let before = asked(&stores, &ask(1, 1)).await.expect("it answers");
    server.signal("-STOP");
    assert_eq!(asked(&stores, &ask(1, 1)).await, Err(StoreFailure::Unreachable), "it swallows everything");
    server.signal("-CONT");
    let after = asked(&stores, &Ask { away: true, ..ask(1, 1) }).await.expect("it answers again");
    assert_eq!(after.epoch, before.epoch);
    server.stop();
    assert_eq!(asked(&stores, &ask(1, 1)).await, Err(StoreFailure::Unreachable), "it is gone");
    server.begin();
    let mut answer = asked(&stores, &ask(1, 1)).await;
    if answer.is_err() {
        answer = asked(&stores, &ask(1, 1)).await; // the old connection was found broken
    }
    assert_ne!(answer.expect("a new server answers").epoch, before.epoch, "it knows nothing of the old one");
}

#[tokio::test]
async fn a_server_that_forgets_the_script_is_told_it_again() {
    let Some(server) = Server::start(&[]) else { return };
    let stores = stores(server.store());
    for _ in 0..3 {
        server.run(&["SCRIPT", "FLUSH"]).await;
        asked(&stores, &ask(1, 1)).await.expect("it answers");
    }
    // The second time it is called by its hash: the server knows it, and counts no failure.
    asked(&stores, &ask(1, 1)).await.expect("it answers");
    let Value::BulkString(stats) = server.run(&["INFO", "errorstats"]).await else { panic!("text") };
    let stats = String::from_utf8(stats).expect("text");
    assert!(stats.contains("errorstat_NOSCRIPT:count=3"), "{stats}");
}

#[tokio::test]
async fn a_password_that_rotates_is_sent_on_the_open_connection() {
    let Some(server) = Server::start(&[]) else { return };
    let all = ["~*", "&*", "+@all"];
    server.run(&[&["ACL", "SETUSER", "gate", "on", ">old"][..], &all].concat()).await;
    let store = with_user(&server, "gate", "old");
    let mut connection = dialer(store.clone()).dial().await.expect("it takes the old one");
    server.run(&["ACL", "SETUSER", "gate", ">new"]).await;
    server.file("password-gate", "new");
    let later = dialer(store);
    server.run(&["ACL", "SETUSER", "gate", "<old"]).await;
    later.renew(&mut connection).await.expect("it takes the new one");
    asker("tidegate").ask_at(&mut connection.redis, &ask(1, 1)).await.expect("it answers");
}

/// A login with a command, a shell script that prints a password.
fn by_command(server: &Server, script: String, refresh: Duration) -> Store {
    let words = vec!["sh".to_owned(), "-c".to_owned(), script];
    let login = StoreLogin { user: Some("gate".to_owned()), password: Some(StorePassword::Command { words, refresh }) };
    Store { login, ..server.store() }
}

#[tokio::test]
async fn passwords_of_a_command_rotate_under_load_without_a_lost_question() {
    let Some(server) = Server::start(&[]) else { return };
    server.run(&["ACL", "SETUSER", "gate", "on", ">secret-0", "~*", "&*", "+@all"]).await;
    let file = server.file("now", "secret-0");
    let runs = server.file("runs", "");
    let script = format!("cat {}; echo >> {}", file.display(), runs.display());
    let stores = stores(by_command(&server, script, Duration::ZERO));
    let ran = || std::fs::read_to_string(&runs).expect("it is there").len();
    let mut questions = 0;
    for round in 1..=20 {
        // As a cloud does it: the next one is good before the last one ends, and connections end with theirs.
        server.run(&["ACL", "SETUSER", "gate", &format!(">secret-{round}")]).await;
        std::fs::write(&file, format!("secret-{round}")).expect("written");
        let before = ran();
        while ran() < before + 2 {
            let answers = join_all((1..=8).map(async |member| asked(&stores, &ask(member, 1)).await)).await;
            assert!(answers.iter().all(Result::is_ok), "{round}: {answers:?}: {:?}", stores.health());
            questions += answers.len();
        }
        server.run(&["ACL", "SETUSER", "gate", &format!("<secret-{}", round - 1)]).await;
        if round % 2 == 0 {
            server.run(&["CLIENT", "KILL", "USER", "gate"]).await;
            server.run(&["PING"]).await;
        }
    }
    println!("{questions} questions over 20 passwords");
    assert!(stores.health()[0].1.error.is_none(), "{:?}", stores.health());
}

#[tokio::test]
async fn a_password_command_that_hangs_fails_or_chatters_is_named_and_takes_no_gate_along() {
    let Some(server) = Server::start(&["--requirepass", "secret"]) else { return };
    let of = |script: &str| Store {
        timeout: Duration::from_millis(200),
        ..by_command(&server, script.to_owned(), Duration::from_secs(600))
    };
    let of = |script: &str| Store { login: StoreLogin { user: None, ..of(script).login }, ..of(script) };
    said(of("exec sleep 1000"), StoreFailure::Unreachable, "has not printed a password yet: run the command").await;
    let probe = |script: &str| {
        let prepared = PreparedStore::new(of(script), Clock::start()).expect("it has no files");
        async move { prepared.probe(&[]).await }
    };
    for (script, words) in [
        (
            "echo 'not logged in' >&2; exit 3",
            "the password command `sh` gave no credential: it failed with exit status: 3: not logged in",
        ),
        ("yes", "it failed with"),
        ("yes >&2", "it failed with"),
        ("echo secret; echo secret", "it printed no password, expected one line"),
        (":", "it printed no password"),
    ] {
        let failure = probe(script).await.expect_err(script);
        assert!(failure.what.contains(words) && !failure.what.contains("secret;"), "{script}: {}", failure.what);
    }
    probe("sleep 0.5; echo secret").await.expect("doctor waits for a slow one");

    let slow = stores(of("sleep 0.5; echo secret"));
    assert_eq!(asked(&slow, &ask(1, 1)).await, Err(StoreFailure::Unreachable), "no gate waits for it");
    for _ in 0..200 {
        if asked(&slow, &ask(1, 1)).await.is_ok() {
            return;
        }
    }
    panic!("the password came: {:?}", slow.health());
}

#[tokio::test]
async fn an_address_where_nothing_listens_is_away() {
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = nowhere.local_addr().expect("bound").port();
    drop(nowhere);
    let Some(server) = Server::start(&[]) else { return };
    let address = StoreAddress::Tcp(Endpoint { host: "127.0.0.1".to_owned(), port });
    said(Store { address, ..server.store() }, StoreFailure::Unreachable, "refused").await;
}

#[tokio::test]
async fn a_store_that_comes_after_the_gate_is_up_before_anybody_calls() {
    let Some(mut server) = Server::start(&[]) else { return };
    let stores = stores(server.store());
    server.stop();
    stores.connect(&BTreeSet::from(["main".into()]));
    let is_up = || stores.health()[0].1.is_up;
    while stores.health()[0].1.error.is_none() {
        tokio::task::yield_now().await;
    }
    server.begin();
    for _ in 0..400 {
        Clock::start().sleep(Duration::from_millis(25)).await;
        if is_up() {
            return;
        }
    }
    panic!("it counts as down though nothing is wrong with it");
}

#[tokio::test]
async fn a_connection_that_the_server_has_closed_meanwhile_costs_no_question() {
    let Some(server) = Server::start(&[]) else { return };
    let stores = stores(server.store());
    for _ in 0..3 {
        asked(&stores, &ask(1, 1)).await.expect("it answers");
        server.run(&["CLIENT", "KILL", "TYPE", "normal"]).await; // as it does with idle ones
        server.run(&["PING"]).await;
    }
    let health = stores.health();
    assert!(health[0].1.is_up && health[0].1.error.is_none(), "{health:?}");
}
