//! The names of services: in their SDKs, and in signatures.

/// The names of one service.
#[derive(Clone, Copy, Debug)]
pub struct ServiceName {
    /// The id of the service in the SDKs.
    pub sdk: &'static str,
    /// The name of the service in SigV4 signatures.
    pub signed: &'static str,
}

/// Returns the services controllers usually call.
pub fn service_names() -> impl Iterator<Item = ServiceName> {
    let lines = include_str!("services.tsv").lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once('\t')).map(|(sdk, signed)| ServiceName { sdk, signed })
}
