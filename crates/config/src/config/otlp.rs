//! Reads the destination of traces, sent by the OpenTelemetry protocol (OTLP).

use super::cursor::{Cursor, TextValue};
use super::files::FileContent;
use super::url;
use crate::spec::Otlp;

/// Reads the table `otlp`, if it exists.
pub(super) fn otlp(root: &Cursor<'_>) -> Option<Otlp> {
    let at = root.optional("otlp")?;
    let endpoint = at.required("endpoint", "the URL of a collector, such as \"http://127.0.0.1:4318\"");
    let endpoint = endpoint.map(|Endpoint(url)| url);
    let is_plain = endpoint.as_ref().is_some_and(|url| url.scheme_str() == Some("http"));
    let ca = at.unused_if(is_plain, "the endpoint is http://", &at.at("endpoint")).file("ca", FileContent::Certificate);
    let sample = at.get("sample", 1.0);
    if !(0.0..=1.0).contains(&sample) {
        at.at("sample").problem(format!("is {sample}, expected a share of the calls, from 0 to 1"));
    }
    Some(Otlp { endpoint: endpoint?, ca, sample })
}

/// The URL of an OpenTelemetry collector.
struct Endpoint(http::Uri);

impl TextValue for Endpoint {
    fn parse(text: &str) -> Result<Self, String> {
        let secret = "which cannot be set; expected a collector on this machine, which adds the password";
        let url = url::read(text, secret)
            .map_err(|fault| format!("{fault}, expected a URL such as \"http://127.0.0.1:4318\""))?;
        if url.port_u16() == Some(GRPC) {
            return Err(format!("is {text:?}, whose port is for gRPC; expected that for HTTP, {HTTP}"));
        }
        if url.path().trim_end_matches('/').ends_with("/v1/traces") {
            return Err(format!("is {text:?}, expected it without /v1/traces, which the gate adds"));
        }
        Ok(Self(url))
    }

    fn text(&self) -> String {
        self.0.to_string()
    }
}

const GRPC: u16 = 4317;
const HTTP: u16 = 4318;
