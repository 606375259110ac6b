//! P27: refusals and failures, as each SDK takes them. A refusal of every reason is tried again, no
//! earlier than told where the SDK waits as it is told, and ends as its own throttling error.

use std::fmt::Write as _;
use std::thread;
use std::time::Duration;

use crate::fetched::{now, say};
use crate::gate::{Gates, Plan};
use crate::live::or_skip;
use crate::matrix::{SDKS, Sdk};
use crate::programs::{Client, Program};
use crate::relay::{Exchange, Relay};
use crate::stage::{REASONS, Stage};
use crate::upstream::Upstream;

/// Runs a part of the matrix for each SDK, all at once: most of their time is their own waits.
fn for_each_sdk(run: impl Fn(&Sdk, &Stage, &mut Client) -> Result<(), String> + Sync) {
    let mut wrong = String::new();
    thread::scope(|scope| {
        let runs: Vec<_> = SDKS
            .iter()
            .map(|sdk| {
                let run = &run;
                scope.spawn(move || {
                    let Some(mut client) = sdk.start() else { return Ok(()) };
                    let (stage, begun) = (Stage::new(sdk), now());
                    let done = run(sdk, &stage, &mut client);
                    say(format_args!("{} {:?}: {:.0} s", sdk.name, sdk.variables, begun.elapsed().as_secs_f64()));
                    done.map_err(|why| {
                        say(format_args!("{} {:?}: {why}", sdk.name, sdk.variables));
                        format!("{} {:?}: {why}\n{}", sdk.name, sdk.variables, stage.gates.log())
                    })
                })
            })
            .collect();
        for run in runs {
            match run.join() {
                Ok(Ok(())) => {}
                Ok(Err(why)) => writeln!(wrong, "{why}").expect("memory"),
                Err(_) => writeln!(wrong, "a panic: see above").expect("memory"),
            }
        }
    });
    assert!(wrong.is_empty(), "{wrong}");
}

/// Holds the exchanges of one call to the rule that an SDK comes back no earlier than it was told.
/// Some wait for five seconds longer than their own delay at most: no gate here asks for more.
fn is_patient(exchanges: &[Exchange]) -> Result<(), String> {
    for pair in exchanges.windows(2) {
        let Some((told, (at, _))) = pair[0].told().zip(pair[0].answer.as_ref()) else { continue };
        let waited = pair[1].arrived.saturating_duration_since(*at);
        // Timers of another process count in milliseconds, from a moment of their own.
        if waited + Duration::from_millis(20) < told {
            return Err(format!("told to wait {told:?}, came after {waited:?}"));
        }
    }
    Ok(())
}

#[test]
fn a_refusal_of_every_reason_is_retried_until_it_gets_through() {
    for_each_sdk(|sdk, stage, client| {
        // Every form that a refusal has; every reason in one of them.
        let forms = sdk.calls.iter().map(|(call, ..)| ("slot", *call));
        let call = |reason| if reason == "one_at_a_time" { sdk.alone } else { sdk.write };
        let reasons = REASONS.iter().map(|(reason, _)| (*reason, call(*reason)));
        for (reason, call) in forms.chain(reasons) {
            let (report, exchanges) = stage.scene(reason).play(client, call, sdk.outlasts);
            let refused = exchanges.iter().filter_map(Exchange::refusal);
            if !report.ok || !refused.clone().any(|given| given == reason) {
                let given: Vec<_> = exchanges.iter().map(|exchange| (exchange.status(), exchange.refusal())).collect();
                return Err(format!("{reason} {call}: {report:?}, answered {given:?}"));
            }
            if sdk.waits {
                is_patient(&exchanges).map_err(|why| format!("{reason} {call}: {why}"))?;
            }
        }
        Ok(())
    });
}

#[test]
fn a_refusal_that_lasts_is_reported_as_throttling() {
    for_each_sdk(|sdk, stage, client| {
        for (call, throttled, _) in sdk.calls {
            let (report, exchanges) = stage.scene("slot").play(client, call, 0);
            if report.ok || !report.error.contains(throttled) || !sdk.tried(&report, &exchanges) {
                return Err(format!("{call}: {report:?}, {} attempts", exchanges.len()));
            }
        }
        Ok(())
    });
}

#[test]
fn a_failure_of_every_kind_is_retried_and_reported_as_the_services_own() {
    for_each_sdk(|sdk, stage, client| {
        // Each form of a failure, and then each kind in one form, to the end and until it is over.
        let (first, _, failed) = sdk.calls[0];
        let forms = sdk.calls.iter().map(|(call, _, failed)| ("unconnected", *call, *failed));
        for (kind, call, failed) in forms.chain([("lost", first, failed), ("timeout", first, failed)]) {
            let (report, exchanges) = stage.scene(kind).play(client, call, 0);
            let failed = if sdk.dialect == "google" && kind == "timeout" { "GatewayTimeout" } else { failed };
            let failed = if sdk.dialect == "github" && kind == "timeout" { "504" } else { failed };
            if report.ok || !report.error.contains(failed) || !sdk.tried(&report, &exchanges) {
                let given: Vec<_> = exchanges.iter().map(Exchange::status).collect();
                return Err(format!("{kind} {call}: {report:?}, answered {given:?}"));
            }
        }
        // After an outage the gate dials again a moment later, which may be past an SDK's next
        // attempt.
        for (kind, times) in [("opened", 1), ("lost", sdk.outlasts), ("timeout", sdk.outlasts)] {
            let (report, exchanges) = stage.scene(kind).play(client, first, times);
            if !report.ok || exchanges.len() <= times {
                let given: Vec<_> = exchanges.iter().map(Exchange::status).collect();
                return Err(format!("{kind} {first}: {report:?}, answered {given:?}"));
            }
        }
        Ok(())
    });
}

/// go-github does not retry. It knows GitHub's secondary limit, and then refuses its own calls for
/// as long as it was told.
#[test]
fn go_github_takes_a_403_for_the_secondary_limit_and_a_429_for_an_error() {
    let upstream = Upstream::start();
    let common =
        "dialect = \"github\"\npreset = \"none\"\nbucket = { rate = 0.01, burst = 1 }\nqueue.max_wait = \"0s\"";
    let plan = |name: &str, more: &str| Plan {
        name: name.to_owned(),
        upstream: upstream.url(),
        settings: format!("{more}\n{common}\n"),
    };
    let gates = Gates::start(&[plan("plain", ""), plan("secondary", "refusal_status = 403")]);
    for (gate, expected, came) in [("plain", "429", 3), ("secondary", "AbuseRateLimitError", 2)] {
        let Some(mut client) = or_skip("go-github", Client::start(Program::Go, "go-github", &[])) else { return };
        let relay = Relay::start(gates.port(gate));
        assert!(client.call("github", &relay.url()).ok, "{gate}: the first has a token");
        for _ in 0..2 {
            let report = client.call("github", &relay.url());
            assert!(report.error.contains(expected), "{gate}: {report:?}\n{}", gates.log());
        }
        assert_eq!(relay.exchanges().len(), came, "{gate}");
    }
}
