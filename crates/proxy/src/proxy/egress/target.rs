//! The target of a request to a forward proxy: one host and port, whatever the spelling.
//!
//! An ambiguous target is refused: one with a user in it, a name that resolvers read as an address,
//! an address in an unusual form.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// The host.
    pub host: Host,
    /// The port.
    pub port: u16,
}

/// A host, spelled in one way: names are in lower case, without a final dot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// A name, to be looked up.
    Name(Box<str>),
    /// An address. An IPv4 address in an IPv6 one is that IPv4 address.
    Address(IpAddr),
}

/// Why a text is not a valid host and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The text has a user or a password.
    #[error("the request's target has a user or password in it; expected only a host and a port")]
    User,
    /// The port is missing or invalid.
    #[error("the request's target has no valid port")]
    Port,
    /// The name is invalid.
    #[error("the host in the request's target is not a valid name")]
    Name,
    /// The address is in an ambiguous form.
    #[error("the request's target is an address in an unusual form, which programs read differently")]
    Address,
}

// === impl Origin ===

impl Origin {
    /// Reads `host`, `host:port`, `address:port` or `[address]:port`. A text without a port gets
    /// the port `usual`, if that is given.
    ///
    /// # Errors
    /// Says what is wrong with the text.
    pub fn read(text: &str, usual: Option<u16>) -> Result<Self, TargetError> {
        if text.contains('@') {
            return Err(TargetError::User);
        }
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (address, rest) = rest.split_once(']').ok_or(TargetError::Address)?;
                let address: Ipv6Addr = address.parse().map_err(|_| TargetError::Address)?;
                let port = if rest.is_empty() { None } else { Some(rest.strip_prefix(':').ok_or(TargetError::Port)?) };
                (Host::Address(address.to_canonical()), port)
            }
            None => {
                let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
                (Host::read(host)?, port)
            }
        };
        let port = match port {
            Some(port) => number(port).ok_or(TargetError::Port)?,
            None => usual.ok_or(TargetError::Port)?,
        };
        Ok(Self { host, port })
    }

    /// Returns the same host at another port.
    pub(crate) fn at(&self, port: u16) -> Self {
        Self { host: self.host.clone(), port }
    }

    /// Returns the host without brackets.
    pub(crate) fn name(&self) -> String {
        match &self.host {
            Host::Name(name) => name.to_string(),
            Host::Address(address) => address.to_string(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

// === impl Host ===

impl Host {
    fn read(text: &str) -> Result<Self, TargetError> {
        let name = text.strip_suffix('.').unwrap_or(text);
        let last = name.rsplit('.').next().unwrap_or_default();
        if is_number(last) {
            // What ends in a number is an address to every resolver, in one of many forms.
            let address: Ipv4Addr = name.parse().map_err(|_| TargetError::Address)?;
            return Ok(Self::Address(address.into()));
        }
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let is_label = |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(fits);
        if name.len() > LONGEST_NAME || !name.split('.').all(is_label) {
            return Err(TargetError::Name);
        }
        Ok(Self::Name(name.to_ascii_lowercase().into()))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Address(IpAddr::V4(address)) => address.fmt(f),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

/// Returns true for a number as `inet_aton` reads it: decimal, octal or hexadecimal.
fn is_number(label: &str) -> bool {
    let digits = label.strip_prefix("0x").or_else(|| label.strip_prefix("0X"));
    match digits {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

/// Reads a port: one to five digits, and not 0.
fn number(text: &str) -> Option<u16> {
    let is_plain = (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| is_plain && *port != 0)
}

/// The longest name in DNS.
const LONGEST_NAME: usize = 253;

#[cfg(test)]
mod tests {
    use std::net::ToSocketAddrs;

    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<String, TargetError> {
        Origin::read(text, None).map(|origin| origin.to_string())
    }

    #[test]
    fn the_spellings_of_one_origin_are_one_value() {
        for text in ["api.github.com:443", "API.GitHub.com:443", "api.github.com.:443", "api.github.com:00443"] {
            assert_eq!(read(text).as_deref(), Ok("api.github.com:443"), "{text}");
        }
        assert_eq!(
            Origin::read("api.github.com", Some(80)).map(|origin| origin.to_string()),
            Ok("api.github.com:80".to_owned())
        );
        assert_eq!(read("[::ffff:127.0.0.1]:80").as_deref(), Ok("127.0.0.1:80"));
        assert_eq!(read("[2001:DB8::0:1]:80").as_deref(), Ok("[2001:db8::1]:80"));
    }

    #[test]
    fn what_readers_could_take_for_something_else_is_no_origin() {
        for (text, fault) in [
            ("me@api.github.com:443", TargetError::User),
            ("api.github.com", TargetError::Port),
            ("api.github.com:", TargetError::Port),
            ("api.github.com:0", TargetError::Port),
            ("api.github.com:65536", TargetError::Port),
            ("api.github.com:+443", TargetError::Port),
            ("api.github.com:443:443", TargetError::Port),
            ("[::1]443", TargetError::Port),
            (":443", TargetError::Name),
            ("a..b:443", TargetError::Name),
            ("a.b..:443", TargetError::Name),
            ("a/b:443", TargetError::Name),
            ("a%00b:443", TargetError::Name),
            ("\u{e9}.example:443", TargetError::Name),
            ("::1:443", TargetError::Name),
            ("2130706433:80", TargetError::Address),
            ("0x7f000001:80", TargetError::Address),
            ("0x7f.1:80", TargetError::Address),
            ("0x:80", TargetError::Address),
            ("127.1:80", TargetError::Address),
            ("0177.0.0.1:80", TargetError::Address),
            ("127.0.0.1.0x1:80", TargetError::Address),
            ("[127.0.0.1]:80", TargetError::Address),
            ("[fe80::1%eth0]:80", TargetError::Address),
            ("[::1:80", TargetError::Address),
        ] {
            assert_eq!(read(text), Err(fault), "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn a_name_is_nothing_that_a_resolver_reads_as_an_address(text in "[0-9a-fxX.]{1,16}(:[0-9]{1,5})?|[ -~]{0,24}") {
            if let Ok(Origin { host: Host::Name(name), port }) = Origin::read(&text, Some(80)) {
                prop_assert!(name.parse::<IpAddr>().is_err());
                prop_assert!(!is_number(name.rsplit('.').next().unwrap_or_default()), "{name}");
                prop_assert_eq!(Origin::read(&name, Some(port)).map(|again| again.name()), Ok(name.to_string()));
            }
        }

        #[test]
        fn an_address_is_the_one_that_the_machine_would_dial(text in "[0-9]{1,3}(\\.[0-9]{1,3}){3}|[0-9a-f:]{2,20}|::ffff:[0-9]{1,3}(\\.[0-9]{1,3}){3}") {
            let written = if text.contains(':') { format!("[{text}]:80") } else { format!("{text}:80") };
            if let Ok(Origin { host: Host::Address(address), .. }) = Origin::read(&written, None) {
                let machine = written.to_socket_addrs().ok().and_then(|mut found| found.next());
                prop_assert_eq!(machine.map(|found| found.ip().to_canonical()), Some(address));
            }
        }
    }
}
