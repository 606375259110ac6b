//! The SDKs, and what each makes of a refusal and of a failure.

use crate::live::or_skip;
use crate::programs::{Client, Program, Report};
use crate::relay::Exchange;

/// A provider's SDK.
pub(crate) struct Sdk {
    pub(crate) program: Program,
    pub(crate) name: &'static str,
    /// Variables that it is given.
    pub(crate) variables: &'static [(&'static str, &'static str)],
    pub(crate) dialect: &'static str,
    /// Its calls, and the error that each gives when it is throttled to the end, and when it fails.
    pub(crate) calls: &'static [(&'static str, &'static str, &'static str)],
    /// A call that changes something, and has a body.
    pub(crate) write: &'static str,
    /// A call that changes one thing that its head names.
    pub(crate) alone: &'static str,
    /// The attempts after which it gives up, where it counts them.
    pub(crate) attempts: Option<usize>,
    /// The refusals of one call that it outlasts.
    pub(crate) outlasts: usize,
    /// True if it comes back no earlier than it was told.
    pub(crate) waits: bool,
}

// === impl Sdk ===

impl Sdk {
    /// Its program, unless it is missing here, which is said.
    pub(crate) fn start(&self) -> Option<Client> {
        or_skip(self.name, Client::start(self.program, self.name, self.variables))
    }

    /// True if it made as many attempts as it does, and says so where it says anything.
    pub(crate) fn tried(&self, report: &Report, exchanges: &[Exchange]) -> bool {
        let Some(attempts) = self.attempts else { return exchanges.len() > 1 };
        exchanges.len() == attempts && report.attempts.is_none_or(|told| told == attempts)
    }

    pub(crate) fn settings(&self) -> String {
        format!("dialect = \"{}\"\nhost = \"preserve\"\npreset = \"none\"\n", self.dialect)
    }
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

const AWS: Sdk = Sdk {
    program: Program::Python,
    name: "",
    variables: &[],
    dialect: "aws",
    calls: BOTO3,
    write: "ec2_write",
    alone: "route53_change",
    attempts: Some(4),
    outlasts: 2,
    waits: false,
};

const AZURE: Sdk = Sdk {
    program: Program::Python,
    name: "azure-core",
    dialect: "azure",
    calls: &[("azure", "TooManyRequests", "ServiceUnavailable")],
    write: "azure_write",
    alone: "azure_write",
    attempts: None,
    waits: true,
    ..AWS
};

pub(crate) const SDKS: [Sdk; 13] = [
    Sdk { name: "boto3_legacy", ..AWS },
    Sdk { name: "boto3_standard", ..AWS },
    Sdk { name: "boto3_adaptive", ..AWS },
    Sdk { name: "boto3_standard", variables: &[("AWS_NEW_RETRIES_2026", "true")], waits: true, ..AWS },
    Sdk { program: Program::Aiobotocore, name: "aiobotocore", ..AWS },
    Sdk {
        program: Program::Go,
        name: "go-v2",
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
        ..AWS
    },
    Sdk {
        program: Program::Go,
        name: "go-v1",
        calls: &[
            ("ec2", "RequestLimitExceeded", "ServiceUnavailable"),
            ("sts", "Throttling", "ServiceUnavailable"),
            ("dynamodb", "ThrottlingException", "ServiceUnavailable"),
        ],
        attempts: Some(3),
        waits: true,
        ..AWS
    },
    Sdk {
        program: Program::JavaScript,
        name: "js-v3",
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
        waits: true,
        ..AWS
    },
    Sdk {
        program: Program::Java,
        name: "java-v2",
        calls: &[
            ("ec2", "RequestLimitExceeded", "ServiceUnavailable"),
            ("sts", "Throttling", "ServiceUnavailable"),
            ("dynamodb", "ThrottlingException", "ServiceUnavailable"),
            ("eks", "ThrottlingException", "ServiceUnavailable"),
            ("route53", "Throttling", "ServiceUnavailable"),
            ("s3", "SlowDown", "ServiceUnavailable"),
            ("s3_put", "SlowDown", "ServiceUnavailable"),
            ("s3_head", "503", "503"),
        ],
        attempts: Some(3),
        waits: true,
        ..AWS
    },
    AZURE,
    Sdk {
        name: "google-cloud-storage",
        // It would ask for the bucket in the background: one call more than those that are watched.
        variables: &[("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")],
        dialect: "google",
        calls: &[("google", "TooManyRequests", "BadGateway")],
        write: "google_write",
        alone: "google_delete",
        waits: false,
        ..AZURE
    },
    Sdk {
        name: "PyGithub",
        dialect: "github",
        calls: &[("github", "429", "502")],
        write: "github_write",
        alone: "github_put",
        ..AZURE
    },
    Sdk {
        program: Program::JavaScript,
        name: "octokit",
        dialect: "github",
        calls: &[("github", "429", "502")],
        write: "github_write",
        alone: "github_put",
        outlasts: 1,
        waits: false,
        ..AZURE
    },
];
