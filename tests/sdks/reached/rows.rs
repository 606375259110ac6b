//! The clients.

use tidegate::inject::Client as Kind;

use crate::pod;
use crate::programs::Program;

/// A client, and its calls.
#[derive(Debug)]
pub(crate) struct Row {
    /// The name by which its program knows it.
    pub(crate) name: &'static str,
    /// The name for people.
    pub(crate) says: &'static str,
    pub(crate) with: With,
    pub(crate) way: Way,
    pub(crate) dialect: &'static str,
    /// A read, a write, and an upload of 5 MiB.
    pub(crate) calls: [&'static str; 3],
}

/// The program that a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum With {
    Program(Program),
    Curl,
    Git,
}

/// The way by which a client comes to the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Proxy,
    /// It takes no proxy: the pod's hosts file leads the names of its hosts to the gate.
    Name,
}

// === impl Row ===

impl Row {
    /// Its name as a label of a host's.
    pub(crate) fn id(&self) -> String {
        let label: String =
            self.name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect();
        label.split('-').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-")
    }

    /// A host that is its own.
    pub(crate) fn host(&self, kind: &str) -> String {
        format!("{}.{kind}.example.com", self.id())
    }

    /// The kinds of clients that its container is injected for.
    pub(crate) fn kinds(&self) -> Vec<Kind> {
        let mut kinds = vec![Kind::Go, Kind::Python, Kind::Node, Kind::Grpc]; // what `inject` takes if nothing is said
        if matches!(self.with, With::Program(Program::Java | Program::PlainJava)) {
            kinds.push(Kind::Java);
        }
        if self.with == With::Program(Program::DotNet) {
            kinds.push(Kind::DotNet);
        }
        kinds
    }

    /// Fetches it.
    pub(crate) fn fetch(&self) -> Result<(), String> {
        let (program, argument) = match self.with {
            With::Program(program) => return program.command().map(drop),
            With::Curl => ("curl", "--version"),
            With::Git => ("git", "--version"),
        };
        crate::fetched::run(program, std::process::Command::new(program).arg(argument))
    }
}

// === impl Way ===

impl Way {
    pub(crate) const fn says(self) -> &'static str {
        match self {
            Self::Proxy => "the proxy",
            Self::Name => "`egress.names` and `hostAliases`",
        }
    }
}

/// The names of the pod's hosts file, each with its address.
pub(crate) fn names() -> Vec<(&'static str, String)> {
    let of_row = |row: &'static Row| {
        let to = if row.way == Way::Name { "127.0.0.1" } else { pod::API };
        ["api", "limited", "broken"].map(|kind| (to, row.host(kind)))
    };
    let mut names: Vec<_> = ROWS.iter().flat_map(of_row).collect();
    names.extend([(pod::API, UNLISTED.to_owned()), (pod::IN_CLUSTER, SERVICE.to_owned())]);
    names
}

const S3: [&str; 3] = ["s3", "ec2_write", "s3_upload"];
const GITHUB: [&str; 3] = ["github", "github_write", "github_upload"];
const AZURE: [&str; 3] = ["azure", "azure_write", "azure_upload"];
const GOOGLE: [&str; 3] = ["google", "google_write", "google_upload"];
const GRPC: [&str; 3] = ["Get", "Create", "Upload"];
const PLAIN: [&str; 3] = ["read", "write", "upload"];

const fn row(
    name: &'static str,
    says: &'static str,
    program: Program,
    way: Way,
    dialect: &'static str,
    calls: [&'static str; 3],
) -> Row {
    Row { name, says, with: With::Program(program), way, dialect, calls }
}

pub(crate) const ROWS: &[Row] = &[
    row("boto3_standard", "boto3", Program::Python, Way::Proxy, "aws", S3),
    row("aiobotocore", "aiobotocore", Program::Aiobotocore, Way::Proxy, "aws", S3),
    row("go-v2", "AWS SDK for Go v2", Program::Go, Way::Proxy, "aws", S3),
    row("go-v1", "AWS SDK for Go v1", Program::Go, Way::Proxy, "aws", ["s3_buckets", "ec2_write", "s3_upload"]),
    row("java-v2", "AWS SDK for Java v2 (Apache)", Program::Java, Way::Proxy, "aws", S3),
    row("java-v2-netty", "AWS SDK for Java v2 (Netty)", Program::Java, Way::Proxy, "aws", S3),
    row("java-v2-url-connection", "AWS SDK for Java v2 (URL connection)", Program::Java, Way::Proxy, "aws", S3),
    row("js-v3", "AWS SDK for JavaScript v3", Program::JavaScript, Way::Name, "aws", S3),
    row("azure-core", "azure-core (Python)", Program::Python, Way::Proxy, "azure", AZURE),
    row("azcore", "azcore (Go)", Program::Go, Way::Proxy, "azure", AZURE),
    row("google-cloud-storage", "google-cloud-storage (Python)", Program::Python, Way::Proxy, "google", GOOGLE),
    row("grpcio", "grpcio", Program::Python, Way::Proxy, "google", GRPC),
    row("grpc-go", "grpc-go", Program::Go, Way::Proxy, "google", GRPC),
    row("go-github", "go-github", Program::Go, Way::Proxy, "github", GITHUB),
    row("octokit", "octokit, Node.js 24", Program::JavaScript, Way::Proxy, "github", GITHUB),
    row("PyGithub", "PyGithub", Program::Python, Way::Proxy, "github", GITHUB),
    row("net/http", "Go's net/http", Program::Go, Way::Proxy, "plain", PLAIN),
    row("requests", "requests", Program::PlainPython, Way::Proxy, "plain", PLAIN),
    row("urllib", "Python's urllib", Program::PlainPython, Way::Proxy, "plain", PLAIN),
    row("httpx", "httpx", Program::PlainPython, Way::Proxy, "plain", PLAIN),
    row("httpx-h2", "httpx with HTTP/2", Program::PlainPython, Way::Proxy, "plain", PLAIN),
    row("aiohttp", "aiohttp with trust_env", Program::PlainPython, Way::Proxy, "plain", PLAIN),
    row("fetch-24", "fetch of Node.js 24", Program::PlainNode, Way::Proxy, "plain", PLAIN),
    row("fetch-20", "fetch of Node.js 20", Program::Node20, Way::Name, "plain", PLAIN),
    row("OkHttp", "OkHttp", Program::PlainJava, Way::Proxy, "plain", PLAIN),
    row("JDK-HttpClient", "HttpClient of the JDK", Program::PlainJava, Way::Proxy, "plain", PLAIN),
    row("HttpURLConnection", "HttpURLConnection", Program::PlainJava, Way::Proxy, "plain", PLAIN),
    row("reqwest", "reqwest with the system's roots", Program::Rust, Way::Proxy, "plain", PLAIN),
    row("dotnet", "HttpClient of .NET Core 3.1", Program::DotNet, Way::Proxy, "plain", PLAIN),
    Row { name: "curl", says: "curl", with: With::Curl, way: Way::Proxy, dialect: "plain", calls: PLAIN },
    Row { name: "git", says: "git", with: With::Git, way: Way::Proxy, dialect: "plain", calls: PLAIN },
];

/// A host that no gate lists.
pub(crate) const UNLISTED: &str = "unlisted.example.org";
/// A name within the cluster.
pub(crate) const SERVICE: &str = "kubernetes.default.svc";
