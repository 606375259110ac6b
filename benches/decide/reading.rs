//! What it costs to read a call: from its head to class, flow and key, in each provider's language.

use std::hint::black_box;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use tidegate::classify::{Rules, Salt};
use tidegate::config;
use tidegate::dialect::Head;

/// A gate, and a call to it as a client makes it.
pub(crate) struct Sample {
    /// What stands in the gate's table.
    gate: &'static str,
    method: Method,
    target: &'static str,
    fields: &'static [(&'static str, &'static str)],
    body: &'static str,
}

// === impl Sample ===

impl Sample {
    pub(crate) const KUBERNETES: Self = Self {
        gate: "",
        method: Method::PUT,
        target: "/apis/apps/v1/namespaces/default/deployments/web",
        fields: &[("authorization", "Bearer eyJhbGciOiJSUzI1NiJ9.e30.c2ln")],
        body: "",
    };
    pub(crate) const PLAIN: Self = Self {
        gate: "kind = 'http'",
        method: Method::GET,
        target: "/api/v4/projects/42/pipelines?per_page=100",
        fields: &[("authorization", "Bearer glpat-aaaaaaaaaaaaaaaaaaaa")],
        body: "",
    };
    pub(crate) const AWS_FORM: Self = Self {
        gate: "kind = 'http'\ndialect = 'aws'",
        method: Method::POST,
        target: "/",
        fields: &[AWS_HOST, AWS_SIGNATURE, ("content-type", "application/x-www-form-urlencoded; charset=utf-8")],
        body: "Action=DescribeInstances&Version=2016-11-15&InstanceId.1=i-0123456789abcdef0",
    };
    pub(crate) const AZURE: Self = Self {
        gate: "kind = 'http'\ndialect = 'azure'",
        method: Method::GET,
        target: "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/g/providers/Microsoft.Compute\
                 /virtualMachines/v?api-version=2024-07-01",
        ..Self::PLAIN
    };
    pub(crate) const GOOGLE: Self = Self {
        gate: "kind = 'http'\ndialect = 'google'",
        target: "/compute/v1/projects/p/zones/europe-west3-a/instances?maxResults=100",
        fields: &[("host", "compute.googleapis.com"), ("authorization", "Bearer ya29.a")],
        ..Self::PLAIN
    };
    pub(crate) const GITHUB: Self =
        Self { gate: "kind = 'http'\ndialect = 'github'", target: "/repos/o/r/pulls?per_page=100", ..Self::PLAIN };

    /// Prepares the reading of it.
    pub(crate) fn stage(self) -> Box<dyn FnMut()> {
        self.among("")
    }

    /// The same for a gate that has these tables too.
    pub(crate) fn among(self, tables: &str) -> Box<dyn FnMut()> {
        let (rules, uri, hasher) = (self.rules(tables), Uri::from_static(self.target), Salt::random());
        let fields =
            self.fields.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        let headers: HeaderMap = fields.collect();
        Box::new(move || {
            let head = Head { method: &self.method, uri: &uri, headers: &headers };
            let body = if rules.wants_body(&head) { self.body.as_bytes() } else { &[] };
            drop(black_box(rules.classify_with(&head, body, &hasher)));
        })
    }

    fn rules(&self, tables: &str) -> Arc<Rules> {
        let own = self.gate;
        let text = format!("[gates.a]\nlisten = '127.0.0.1:1'\nupstream = 'http://127.0.0.1:2'\n{own}\n{tables}");
        let loaded = config::load_text("bench".to_owned(), text, &[]).unwrap_or_else(|problems| panic!("{problems:?}"));
        Arc::clone(&loaded.settings.gates["a"].rules)
    }
}

const AWS_HOST: (&str, &str) = ("host", "ec2.eu-central-1.amazonaws.com");
const AWS_SIGNATURE: (&str, &str) = (
    "authorization",
    "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20261123/eu-central-1/ec2/aws4_request, \
     SignedHeaders=content-type;host;x-amz-date, Signature=fe5f80f77d5fa3beca038a248ff027d0445342fe2855ddc963176630326f1024",
);
