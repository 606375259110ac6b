//! The names of services: in their SDKs, and in signatures.

/// The names of one service.
#[derive(Clone, Copy, Debug)]
pub struct ServiceName {
    /// Its id in the SDKs.
    pub sdk: &'static str,
    /// Its name in signatures.
    pub signed: &'static str,
}

/// Returns the usual services of controllers.
pub fn service_names() -> impl Iterator<Item = ServiceName> {
    let lines = include_str!("services.tsv").lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once('\t')).map(|(sdk, signed)| ServiceName { sdk, signed })
}
