//! `top`, `explain` and `doctor` when all is well and in five kinds of trouble: each describes the
//! state, and says what to look at next.

use crate::cli::input::{certificate, get, tls_server};
use crate::operate::{Connected, Process, answering, api};
use crate::ports::free_port;

const POD: &str = "/api/v1/namespaces/n/pods/good";

/// The output of the three commands.
struct Said {
    top: String,
    explain: String,
    doctor: String,
}

impl Said {
    fn by(process: &Process) -> Self {
        let said = |arguments: &[&str], may_fail: bool| {
            let ended = process.command(arguments);
            assert!(ended.code == Some(0) || (may_fail && ended.code == Some(1)), "{}{}", ended.out, ended.err);
            ended.out
        };
        Self {
            top: said(&["top", "--once"], false),
            explain: said(&["explain", "GET", POD], false),
            doctor: said(&["doctor"], true),
        }
    }

    /// Expects each output to contain all of these.
    fn expect(&self, top: &[&str], explain: &[&str], doctor: &[&str]) {
        for (command, said, wanted) in
            [("top", &self.top, top), ("explain", &self.explain, explain), ("doctor", &self.doctor, doctor)]
        {
            for wanted in wanted {
                assert!(said.contains(wanted), "{command}: {wanted}\n{said}");
            }
        }
    }

    fn is_calm(&self) {
        assert!(!self.doctor.contains("WRONG"), "{}", self.doctor);
        assert!(!self.explain.contains("  but "), "{}", self.explain);
    }
}

fn at(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

#[test]
fn a_healthy_gate_is_called_so_by_all_three() {
    let process = Process::start(&at(api().0), "");
    assert!(get(process.gate, POD).starts_with("HTTP/1.1 200"));
    let said = Said::by(&process);
    said.is_calm();
    said.expect(
        &["Nothing waits and nothing fails.", "admitted", "1 in all"],
        &["read as       get pods, namespace n, name good", "now           it would go at once"],
        &["ok     configuration: has no problems", "is reached"],
    );
}

#[test]
fn a_saturated_gate_is_told_with_whom_it_holds_back_and_for_what() {
    let tight = "bucket = { rate = 0.01, burst = 1 }\nqueue = { max_wait = \"10m\" }\n";
    let process = Process::start(&at(api().0), tight);
    let waiting: Vec<_> = (0..4).map(|_| process.call(POD)).collect();
    process.until(|gate| gate["queues"][0]["oldest_seconds"].as_f64().is_some_and(|oldest| oldest > 1.0));
    Said::by(&process).expect(
        &["3 calls wait, the longest for", "the gate's bucket is empty", "pods", "0 of 1", "0.01/s"],
        &["it would wait for", "(bucket: the gate's bucket is empty)", "0.01/s, burst 1", "tidegate.toml:8:1"],
        &["WRONG  gate k: 3 calls wait", "raise bucket.rate"],
    );
    drop(process);
    drop(waiting);
}

#[test]
fn an_expired_token_is_told_by_all_three_and_never_shown() {
    let (upstream, _) = answering(|request| if request.contains("Bearer hunter2") { 401 } else { 200 });
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{ name: c, context: {{ cluster: c, user: u }} }}]\n\
         clusters: [{{ name: c, cluster: {{ server: 'http://127.0.0.1:{upstream}' }} }}]\nusers: [{{ name: u, user: {{ token: hunter2 }} }}]\n"
    );
    let process = Process::with("kubeconfig", "", &kubeconfig);
    assert!(get(process.gate, POD).starts_with("HTTP/1.1 401"));
    let said = Said::by(&process);
    said.expect(
        &["The upstream does not take the credentials: 1 call got 401", "Turned away by the upstream"],
        &["it would go at once", "but           The upstream does not take the credentials: 1 call got 401"],
        &["WRONG", "401", "renew the token"],
    );
    for said in [said.top, said.explain, said.doctor] {
        assert!(!said.contains("hunter2"), "{said}");
    }
}

#[test]
fn a_wrong_ca_is_told_by_all_three() {
    let folder = tempfile::tempdir().expect("a folder");
    let (ours, theirs) = (certificate(), certificate());
    let ca = folder.path().join("ca.crt");
    std::fs::write(&ca, ours.cert.pem()).expect("it can be written");
    let upstream = format!("https://127.0.0.1:{}", tls_server(&theirs));
    let process = Process::start(&upstream, &format!("upstream_tls = {{ ca = {:?} }}\n", ca.display().to_string()));
    assert!(get(process.gate, POD).starts_with("HTTP/1.1 502"));
    Said::by(&process).expect(
        &["No connection for short calls: ", "certificate"],
        &["it would be answered 502, unless", "but           No connection for short calls: ", "certificate"],
        &["WRONG", "signed by an unknown authority", "upstream_tls.ca"],
    );
}

#[test]
fn a_controller_that_goes_past_the_gate_leaves_it_untouched_and_that_is_told() {
    let (upstream, _) = api();
    let process = Process::start(&at(upstream), "");
    let direct = Connected::to(upstream);
    Said::by(&process).expect(
        &["No call has come yet: is the controller pointed here?"],
        &["it would go at once", "but           No call has come yet", "tidegate doctor finds what goes past the gate"],
        &["WRONG", "1 connection to"],
    );
    drop(direct);
}

#[test]
fn an_unreachable_upstream_is_told_by_all_three() {
    let process = Process::start(&at(free_port()), "");
    assert!(get(process.gate, POD).starts_with("HTTP/1.1 502"));
    Said::by(&process).expect(
        &["No connection for short calls: ", "refused"],
        &["it would be answered 502, unless", "but           No connection for short calls: ", "refused"],
        &["WRONG", "connection refused", "is the upstream running"],
    );
}
