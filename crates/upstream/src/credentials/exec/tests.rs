//! Real programs are run; time is moved on between the runs.

use std::fs;
use std::path::PathBuf;
use std::task::Poll;

use futures_util::future::join_all;
use tempfile::TempDir;

use super::*;
use crate::credentials::Secret;

/// A plugin that counts its runs, and the folder it counts in.
struct Stage {
    exec: Arc<Exec>,
    clock: Clock,
    folder: TempDir,
}

impl Stage {
    /// `status` is what the plugin's answer says; `$n` in it is the number of the run. Before it
    /// answers it does what `first` says.
    fn new(first: &str, status: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let version = "client.authentication.k8s.io/v1";
        let script = format!(
            "n=$(($(cat \"$COUNT\") + 1)); echo $n > \"$COUNT\"; {first}\n\
             printf %s \"{{\\\"kind\\\":\\\"ExecCredential\\\",\\\"apiVersion\\\":\\\"{version}\\\",\\\"status\\\":{{{}}}}}\"",
            status.replace('"', "\\\"")
        );
        let count = folder.path().join("count");
        fs::write(&count, "0").expect("written");
        let plugin = Plugin {
            output: PluginOutput::ExecCredential {
                api_version: version.to_owned(),
                cluster: Some(serde_json::json!({ "server": "https://api.example" })),
            },
            command: "sh".to_owned(),
            args: vec!["-c".to_owned(), script],
            env: vec![("COUNT".to_owned(), count.display().to_string())],
            install_hint: String::new(),
        };
        Self { exec: Arc::new(Exec::new(plugin)), clock: Clock::start(), folder }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn runs(&self) -> u32 {
        fs::read_to_string(self.file("count")).expect("it is there").trim().parse().expect("a number")
    }

    async fn ready(&self) -> Result<Option<String>, Arc<ExecPluginError>> {
        self.exec.ready(false, self.clock).await?;
        Ok(self.exec.token().0)
    }

    async fn token(&self) -> String {
        self.ready().await.expect("a credential").expect("a token")
    }

    /// Waits for a run that nobody waits for.
    async fn finished(&self) {
        let mut ended = self.exec.ended.subscribe();
        while self.exec.state.lock().expect("no panic").running.is_some() {
            ended.changed().await.expect("it lives");
        }
    }
}

async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// A time of day in one hour.
fn in_an_hour() -> String {
    ends(time::OffsetDateTime::from(tls::wall()) + Duration::from_secs(3600))
}

/// A time of day that was a minute ago.
fn a_minute_ago() -> String {
    ends(time::OffsetDateTime::from(tls::wall()) - Duration::from_secs(60))
}

fn ends(ends: time::OffsetDateTime) -> String {
    let date = ends.date();
    let time = ends.time();
    format!(
        "\"expirationTimestamp\":\"{date}T{:02}:{:02}:{:02}Z\",\"token\":\"token-$n\"",
        time.hour(),
        time.minute(),
        time.second()
    )
}

#[tokio::test]
async fn many_calls_wait_for_one_run() {
    let stage = Stage::new("", "\"token\":\"token-$n\"");
    let tokens = join_all((0..50).map(|_| stage.token())).await;
    assert!(tokens.iter().all(|token| token == "token-1"), "{tokens:?}");
    pass(Duration::from_secs(86_400)).await;
    assert_eq!((stage.token().await.as_str(), stage.runs()), ("token-1", 1), "what names no end has none");
}

#[tokio::test]
async fn it_is_renewed_before_its_end_and_nobody_waits_for_that() {
    let stage = Stage::new("", &in_an_hour());
    assert_eq!(stage.token().await, "token-1");
    pass(Duration::from_secs(3600 - 360)).await;
    assert_eq!((stage.token().await.as_str(), stage.runs()), ("token-1", 1), "it is good for another six minutes");
    pass(Duration::from_secs(90)).await;
    assert_eq!(stage.token().await, "token-1", "the old one is used while the new one comes");
    stage.finished().await;
    assert_eq!((stage.token().await.as_str(), stage.runs()), ("token-2", 2));
}

#[tokio::test]
async fn a_password_is_printed_again_before_its_end_and_the_last_one_outlives_a_failure() {
    let folder = tempfile::tempdir().expect("a folder");
    let count = folder.path().join("count");
    let script = format!("echo >> {0}; n=$(wc -l < {0}); [ $n != 3 ] || exit 1; echo password-$n", count.display());
    let output = PluginOutput::Password { refresh: Duration::from_secs(600) };
    let args = vec!["-c".to_owned(), script];
    let plugin = Plugin { output, command: "sh".to_owned(), args, env: Vec::new(), install_hint: String::new() };
    let exec = Arc::new(Exec::new(plugin));
    let secret = Secret::exec(Arc::clone(&exec));
    let clock = Clock::start();
    let runs = || fs::read_to_string(&count).map_or(0, |text| text.len());
    secret.ready(true, clock).await.expect("a password");
    assert_eq!(secret.text(clock.now()).as_deref(), Some("password-1"));
    pass(Duration::from_secs(590)).await;
    secret.keep_fresh(clock);
    assert_eq!(runs(), 1, "it is not due");
    for (run, password, after) in [(2, "password-2", 10), (3, "password-2", 600), (4, "password-4", 1)] {
        pass(Duration::from_secs(after)).await;
        secret.keep_fresh(clock);
        secret.ready(true, clock).await.expect("the last one is good while the next one comes");
        eventually(|| (runs() == run && lock(&exec.state).running.is_none()).then_some(())).await;
        assert_eq!(secret.text(clock.now()).as_deref(), Some(password));
    }
}

#[tokio::test]
async fn past_its_end_it_is_not_used() {
    let stage = Stage::new("", &in_an_hour());
    assert_eq!(stage.token().await, "token-1");
    pass(Duration::from_secs(3601)).await;
    assert_eq!(stage.token().await, "token-2");
}

#[tokio::test]
async fn a_refused_one_is_renewed_at_once_but_not_at_every_refusal() {
    let stage = Stage::new("", "\"token\":\"token-$n\"");
    let mut number = 0;
    let refuse = async |number: &mut u64| {
        stage.exec.refused(*number, stage.clock);
        let token = stage.token().await;
        *number = stage.exec.token().1;
        token
    };
    assert_eq!(refuse(&mut number).await, "token-1", "nothing was shown yet");
    assert_eq!(refuse(&mut number).await, "token-2");
    let before = number;
    assert_eq!(refuse(&mut number).await, "token-2", "it is too young to have gone bad");
    pass(AFTER_REFUSAL).await;
    let mut older = before - 1;
    assert_eq!(refuse(&mut older).await, "token-2", "a late answer to the one before says nothing about this one");
    assert_eq!(refuse(&mut number).await, "token-3");
    pass(AFTER_REFUSAL).await;
    assert_eq!(refuse(&mut number).await, "token-3");
    pass(AFTER_REFUSAL * 2).await;
    assert_eq!(refuse(&mut number).await, "token-4");
}

#[tokio::test]
async fn a_plugin_that_fails_is_asked_again_after_pauses_that_grow() {
    let stage =
        Stage::new("test -e \"$COUNT.works\" || { echo first >&2; echo 'not logged in' >&2; exit 3; }", &in_an_hour());
    for run in 1..=4 {
        let error = stage.ready().await.expect_err("it fails").to_string();
        assert_eq!(error, "the exec plugin `sh` gave no credential: it failed with exit status: 3: not logged in");
        assert_eq!(stage.ready().await.expect_err("still").to_string(), error);
        assert_eq!(stage.runs(), run, "nobody waits for what has just failed");
        pass(FIRST_PAUSE * 2_u32.pow(run - 1)).await;
    }
    fs::write(stage.file("count.works"), "").expect("written");
    assert_eq!(stage.token().await, "token-5");
    fs::remove_file(stage.file("count.works")).expect("removed");
    stage.exec.refused(1, stage.clock);
    assert_eq!(stage.token().await, "token-5", "what still holds is kept when the plugin has nothing better");
    pass(Duration::from_secs(3600)).await;
    stage.ready().await.expect_err("it has ended, and the plugin fails");
}

#[tokio::test]
async fn a_caller_who_leaves_takes_no_run_along() {
    let stage = Stage::new("", "\"token\":\"token-$n\"");
    drop(futures_util::poll!(Box::pin(stage.token())));
    stage.finished().await;
    assert_eq!((stage.token().await.as_str(), stage.runs()), ("token-1", 1));
}

#[tokio::test]
async fn what_it_is_told_says_that_nobody_is_there() {
    let stage = Stage::new("printf %s \"$KUBERNETES_EXEC_INFO\" > \"$COUNT.info\"", "\"token\":\"t\"");
    stage.token().await;
    let told = fs::read_to_string(stage.file("count.info")).expect("it was told");
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    let expected = serde_json::json!({
        "kind": "ExecCredential",
        "apiVersion": "client.authentication.k8s.io/v1",
        "spec": { "interactive": false, "cluster": { "server": "https://api.example" } },
    });
    assert_eq!(told, expected);
}

#[tokio::test]
async fn a_plugin_that_is_not_there_says_how_to_get_it() {
    let mut stage = Stage::new("", "");
    let exec = Arc::get_mut(&mut stage.exec).expect("nobody else has it");
    exec.plugin.command = "/nowhere/aws-iam-authenticator".to_owned();
    exec.plugin.install_hint = "get it from\nexample.com".to_owned();
    let error = stage.ready().await.expect_err("not there").to_string();
    assert!(error.contains("`/nowhere/aws-iam-authenticator`") && error.contains("is not installed"), "{error}");
    assert!(error.ends_with(": get it from example.com"), "{error}");
}

#[tokio::test]
async fn its_client_certificate_is_shown_from_the_next_connection_on() {
    let made = rcgen::generate_simple_self_signed(vec!["admin".to_owned()]).expect("a certificate");
    let pem = |text: String| text.trim().replace('\n', "\\\\n");
    let cert = pem(made.cert.pem());
    let key = pem(made.signing_key.serialize_pem());
    let stage = Stage::new("", &format!("\"clientCertificateData\":\"{cert}\",\"clientKeyData\":\"{key}\""));
    let client = Arc::new(tls::Client::new(tls::Roots::Unverified, None).expect("TLS"));
    stage.exec.shows_on(&client);
    assert_eq!(stage.ready().await.expect("a credential"), None, "it gives no token");
    assert!(client.config().client_auth_cert_resolver.has_certs());
    assert_eq!(client.changes(), 1);
}

#[tokio::test]
async fn a_call_waits_two_seconds_for_what_replaces_a_refused_one() {
    let stage = Stage::new("[ $n = 1 ] || exec sleep 1000", &in_an_hour());
    assert_eq!(stage.token().await, "token-1");
    stage.exec.refused(1, stage.clock);
    let mut patient = Box::pin(stage.token());
    assert!(futures_util::poll!(&mut patient).is_pending(), "a better one may come");
    let exempt = futures_util::poll!(Box::pin(stage.exec.ready(true, stage.clock)));
    assert!(matches!(exempt, Poll::Ready(Ok(()))), "a lease goes with what is held");
    pass(A_LITTLE).await;
    assert_eq!(patient.await, "token-1");
    let next = futures_util::poll!(Box::pin(stage.token()));
    assert!(next.is_ready(), "only the first calls wait, and not each of them for itself");
    pass(Duration::from_secs(60)).await;
    stage.finished().await;
    pass(FIRST_PAUSE).await;
    let next = futures_util::poll!(Box::pin(stage.token()));
    assert!(next.is_ready() && lock(&stage.exec.state).running.is_some(), "a plugin that fails is not waited for");
}

#[tokio::test]
async fn what_had_ended_when_it_came_is_used_and_renewed() {
    let stage = Stage::new("", &a_minute_ago());
    for _ in 0..100 {
        assert_eq!(stage.token().await, "token-1");
    }
    assert_eq!(stage.runs(), 1, "not one run for each call");
    pass(RENEW_ENDED).await;
    assert_eq!(stage.token().await, "token-1", "nobody waits for the next");
    stage.finished().await;
    assert_eq!((stage.token().await.as_str(), stage.runs()), ("token-2", 2));
    pass(DOUBT_ENDED).await;
    assert_eq!(stage.token().await, "token-3", "no call came for so long that the next one waits");
}

#[tokio::test]
async fn what_had_ended_is_used_while_the_plugin_fails() {
    let stage = Stage::new("[ $n = 1 ] || exit 1", &a_minute_ago());
    assert_eq!(stage.token().await, "token-1");
    for _ in 0..3 {
        pass(DOUBT_ENDED).await;
        assert_eq!(stage.token().await, "token-1");
        stage.finished().await;
    }
}

#[tokio::test]
async fn a_plugin_that_times_out_is_ended_with_its_children() {
    let stage = Stage::new("sleep 1000 & echo $! > \"$COUNT.child\"; wait", "\"token\":\"t\"");
    let mut call = Box::pin(stage.ready());
    assert!(futures_util::poll!(&mut call).is_pending());
    let path = stage.file("count.child");
    let child = eventually(|| fs::read_to_string(&path).ok().filter(|text| text.ends_with('\n'))).await;
    pass(Duration::from_secs(60)).await;
    let error = call.await.expect_err("it does not answer").to_string();
    assert!(error.contains("had not finished within 60s"), "{error}");
    let status = format!("/proc/{}/stat", child.trim());
    eventually(|| match fs::read_to_string(&status) {
        // where nobody collects orphans it stays as a zombie
        Ok(stat) => stat.contains(") Z ").then_some(()),
        Err(_) => Some(()),
    })
    .await;
}

/// Looks again until there is something; the processes of a test run on real time.
async fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..1000 {
        if let Some(found) = look() {
            return found;
        }
        Clock::start().sleep(Duration::from_millis(10)).await;
    }
    panic!("it does not come");
}
