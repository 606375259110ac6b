//! Refusals and failures, as each SDK takes them.

use crate::fetched::{or_skip, say};
use crate::gate::Gate;
use crate::ports::free_port;
use crate::programs::{Program, Report, calls};
use crate::upstream;

/// A provider's SDK: its program and name, the gate's dialect, its calls, and the error that each
/// gives when it is throttled to the end. The third is a failure's.
struct Sdk {
    program: Program,
    name: &'static str,
    dialect: &'static str,
    calls: &'static [(&'static str, &'static str, &'static str)],
    /// The attempts after which it gives up, where it says so.
    attempts: Option<u32>,
}

/// The codes of botocore's errors; it gives up after three retries in its first mode, after three
/// attempts in the others.
const BOTO3: &[(&str, &str, &str)] = &[
    ("ec2", "RequestLimitExceeded", "ServiceUnavailable"),
    ("sts", "Throttling", "ServiceUnavailable"),
    ("dynamodb", "ThrottlingException", "ServiceUnavailable"),
    ("eks", "ThrottlingException", "ServiceUnavailable"),
    ("route53", "Throttling", "ServiceUnavailable"),
    ("s3", "SlowDown", "ServiceUnavailable"),
    ("s3_put", "SlowDown", "ServiceUnavailable"),
    ("s3_head", "503", "503"),
];

const SDKS: [Sdk; 10] = [
    Sdk { program: Program::Python, name: "boto3_legacy", dialect: "aws", calls: BOTO3, attempts: Some(4) },
    Sdk { program: Program::Python, name: "boto3_standard", dialect: "aws", calls: BOTO3, attempts: Some(4) },
    Sdk { program: Program::Python, name: "boto3_adaptive", dialect: "aws", calls: BOTO3, attempts: Some(4) },
    Sdk {
        program: Program::Go,
        name: "go-v2",
        dialect: "aws",
        calls: &[
            ("ec2", "RequestLimitExceeded", "ServiceUnavailable"),
            ("sts", "Throttling", "ServiceUnavailable"),
            ("dynamodb", "ThrottlingException", "ServiceUnavailable"),
            ("eks", "ThrottlingException", "ServiceUnavailable"),
            ("route53", "Throttling", "ServiceUnavailable"),
            ("s3", "SlowDown", "ServiceUnavailable"),
            ("s3_put", "SlowDown", "ServiceUnavailable"),
            ("s3_head", "ServiceUnavailable", "ServiceUnavailable"),
        ],
        attempts: Some(3),
    },
    Sdk {
        program: Program::Go,
        name: "go-v1",
        dialect: "aws",
        calls: &[
            ("ec2", "RequestLimitExceeded", "ServiceUnavailable"),
            ("sts", "Throttling", "ServiceUnavailable"),
            ("dynamodb", "ThrottlingException", "ServiceUnavailable"),
        ],
        attempts: None,
    },
    Sdk {
        program: Program::JavaScript,
        name: "js-v3",
        dialect: "aws",
        calls: &[
            ("ec2", "RequestLimitExceeded", "ServiceUnavailable"),
            ("sts", "Throttling", "ServiceUnavailable"),
            ("dynamodb", "ThrottlingException", "ServiceUnavailable"),
            ("route53", "Throttling", "ServiceUnavailable"),
            ("s3", "SlowDown", "ServiceUnavailable"),
            ("s3_put", "SlowDown", "ServiceUnavailable"),
            ("s3_head", "Unknown", "Unknown"),
        ],
        attempts: Some(3),
    },
    Sdk {
        program: Program::Python,
        name: "azure-core",
        dialect: "azure",
        calls: &[("azure", "TooManyRequests", "ServiceUnavailable")],
        attempts: None,
    },
    Sdk {
        program: Program::Python,
        name: "google-cloud-storage",
        dialect: "google",
        calls: &[("google", "TooManyRequests", "BadGateway")],
        attempts: None,
    },
    Sdk {
        program: Program::Python,
        name: "PyGithub",
        dialect: "github",
        calls: &[("github", "429", "502")],
        attempts: None,
    },
    Sdk {
        program: Program::JavaScript,
        name: "octokit",
        dialect: "github",
        calls: &[("github", "429", "502")],
        attempts: None,
    },
];

/// A gate that refuses what has no token at once: one call goes, the next ones at two a second.
const REFUSES: &str = "[gates.api.bucket]\nrate = 2\nburst = 1\n[gates.api.queue]\nmax_wait = \"0s\"";
/// The same that refuses all but the first for longer than any SDK tries.
const REFUSES_ON: &str = "[gates.api.bucket]\nrate = 0.01\nburst = 1\n[gates.api.queue]\nmax_wait = \"0s\"";
/// A gate that limits nothing and remembers nothing.
const OPEN: &str = "preset = \"none\"";

fn dialect(sdk: &Sdk) -> String {
    format!("dialect = \"{}\"\n", sdk.dialect)
}

/// The calls of an SDK twice each, so that the second of each finds no token.
fn twice(sdk: &Sdk) -> Vec<&'static str> {
    sdk.calls.iter().flat_map(|(call, ..)| [*call, *call]).collect()
}

fn run(sdk: &Sdk, gate: &Gate, wanted: &[&str]) -> Option<Vec<Report>> {
    let reports = or_skip(sdk.name, calls(sdk.program, sdk.name, &gate.url(), wanted))?;
    let longest = reports.iter().map(|report| report.seconds).fold(0.0, f64::max);
    say(format_args!("{}: {} calls, the longest {longest:.1} s", sdk.name, reports.len()));
    Some(reports)
}

#[test]
fn a_refusal_is_retried_until_it_gets_through() {
    let upstream = upstream::start();
    for sdk in &SDKS {
        let gate = Gate::start(upstream, &format!("{}{REFUSES}", dialect(sdk)));
        let Some(reports) = run(sdk, &gate, &twice(sdk)) else { continue };
        for report in reports {
            assert!(report.ok, "{}: {report:?}\n{}", sdk.name, gate.log());
        }
        assert!(gate.refusals() > 0, "{}: nothing was refused", sdk.name);
    }
}

#[test]
fn a_refusal_that_lasts_is_reported_as_throttling() {
    let upstream = upstream::start();
    for sdk in &SDKS {
        let gate = Gate::start(upstream, &format!("{}{REFUSES_ON}", dialect(sdk)));
        let mut wanted = vec![sdk.calls[0].0];
        wanted.extend(sdk.calls.iter().map(|(call, ..)| *call));
        let Some(reports) = run(sdk, &gate, &wanted) else { continue };
        assert!(reports[0].ok, "{}: the first has a token: {:?}", sdk.name, reports[0]);
        for (report, (call, throttled, _)) in reports[1..].iter().zip(sdk.calls) {
            assert!(!report.ok && report.error.contains(throttled), "{} {call}: {report:?}", sdk.name);
            assert!(sdk.attempts.is_none() || report.attempts == sdk.attempts, "{} {call}: {report:?}", sdk.name);
        }
    }
}

#[test]
fn a_failure_is_reported_as_the_services_own() {
    let nobody = free_port();
    for sdk in &SDKS {
        let gate = Gate::start(nobody, &format!("{}{OPEN}", dialect(sdk)));
        let wanted: Vec<&str> = sdk.calls.iter().map(|(call, ..)| *call).collect();
        let Some(reports) = run(sdk, &gate, &wanted) else { continue };
        for (report, (call, _, failed)) in reports.iter().zip(sdk.calls) {
            assert!(!report.ok && report.error.contains(failed), "{} {call}: {report:?}", sdk.name);
            assert!(sdk.attempts.is_none() || report.attempts == sdk.attempts, "{} {call}: {report:?}", sdk.name);
        }
    }
}
