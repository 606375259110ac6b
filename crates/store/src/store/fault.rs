//! The faults of a store, each with its remedy.

use std::{fmt, io};

use redis::{ErrorKind, RedisError};

use crate::limit::StoreFailure;

/// Why a store did not answer.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// There was no answer within the timeout.
    Timeout,
    /// The connection could not be made, or broke.
    Io(String),
    /// The server's certificate is not trusted, for this reason.
    UnknownIssuer(String),
    /// The server's certificate is for another name.
    WrongName(String),
    /// The server answered with this error code.
    Code {
        /// The code: the first word of the error.
        code: String,
    },
    /// The answer was not in the form of the script's answers.
    Nonsense,
    /// The settings of the store's TLS or password cannot be used.
    Settings(String),
    /// The command that prints a password gave none, for this reason.
    Password(String),
    /// The sentinels did not name the primary, for this reason.
    Sentinels(Box<Self>),
    /// The sentinels know no primary of this name.
    NoPrimary(String),
    /// The nodes of a cluster redirected a command too often.
    Redirected,
}

// === impl Fault ===

impl Fault {
    /// Returns the kind of the failure: whether the store may answer again soon, or only after a
    /// person has changed something.
    pub(super) fn away(&self) -> StoreFailure {
        match self {
            Self::Timeout
            | Self::Io(_)
            | Self::UnknownIssuer(_)
            | Self::WrongName(_)
            | Self::Password(_)
            | Self::Redirected => StoreFailure::Unreachable,
            Self::Sentinels(fault) => fault.away(),
            Self::Code { code } if TRANSIENT.contains(&code.as_str()) => StoreFailure::Unreachable,
            Self::Code { .. } | Self::Nonsense | Self::Settings(_) | Self::NoPrimary(_) => StoreFailure::Wrong,
        }
    }

    /// Describes the fault in words.
    pub(super) fn what(&self) -> String {
        match self {
            Self::Code { code } => format!("the server answers {code}"),
            Self::Timeout => "the store gave no answer within the timeout".to_owned(),
            Self::Io(error) => format!("the store cannot be reached: {error}"),
            Self::UnknownIssuer(error) | Self::WrongName(error) => {
                format!("the store's certificate is not trusted: {error}")
            }
            Self::Nonsense => "the store's answer is not one that its script gives".to_owned(),
            Self::Settings(error) | Self::Password(error) => error.clone(),
            Self::Sentinels(fault) => format!("the store's sentinels: {}", fault.what()),
            Self::NoPrimary(name) => format!("the sentinels know no primary {name:?}"),
            Self::Redirected => "the nodes of the cluster redirect the request without end".to_owned(),
        }
    }

    /// Returns what a person should do about the fault.
    pub(super) fn remedy(&self) -> &'static str {
        match self {
            Self::Code { code } => advice(code),
            Self::Timeout => "check that it is not overloaded, and near enough for stores.NAME.timeout",
            Self::Io(_) => "check that it runs, and that stores.NAME.url and its tls are right",
            Self::UnknownIssuer(_) => {
                "expected one of the CA in stores.NAME.tls.ca, or of the system's roots where that is not set"
            }
            Self::WrongName(_) => {
                "set stores.NAME.tls.server_name to a name that it has, or give it a certificate for the name in the url"
            }
            Self::Nonsense => "check that it is a Redis or Valkey, and that nothing else writes to its keys",
            Self::Settings(_) => "correct stores.NAME.tls",
            Self::Password(_) => "run the command of password_command as the gate's user, and see what it prints",
            Self::Sentinels(fault) => match &**fault {
                Self::Code { code } => sentinel_advice(code),
                fault => fault.remedy(),
            },
            Self::NoPrimary(_) => "end stores.NAME.url with the name that `sentinel monitor` gives it",
            Self::Redirected => "check that all nodes know the same slots (CLUSTER SLOTS)",
        }
    }

    /// Returns the fault's label in the metrics.
    pub(super) fn word(&self) -> &'static str {
        match (self, self.away()) {
            (Self::Timeout, _) => "timeout",
            (_, StoreFailure::Unreachable) => "away",
            (_, StoreFailure::Wrong) => "wrong",
        }
    }

    /// Returns true if the node is not ready. Another node of its cluster may be.
    pub(super) fn is_not_ready(&self) -> bool {
        matches!(self, Self::Code { code } if NOT_READY.contains(&code.as_str()))
    }

    /// Returns true if the server rejected the password. The password's file may have changed.
    pub(super) fn is_of_password(&self) -> bool {
        match self {
            Self::Code { code } => code == "WRONGPASS" || code == "NOAUTH",
            Self::Sentinels(fault) => fault.is_of_password(),
            _ => false,
        }
    }

    /// Returns the server's error code, or for other faults a word of our own, for the status page.
    pub(super) fn code(&self) -> &str {
        match self {
            Self::Code { code } => code,
            Self::Sentinels(fault) => fault.code(),
            Self::Timeout => "timeout",
            Self::Io(_) => "unreachable",
            Self::UnknownIssuer(_) | Self::WrongName(_) => "certificate",
            Self::Nonsense => "nonsense",
            Self::Settings(_) => "settings",
            Self::Password(_) => "password command",
            Self::NoPrimary(_) => "no primary",
            Self::Redirected => "sent on",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what(), self.remedy())
    }
}

impl From<RedisError> for Fault {
    /// Keeps only the code of the server's error: the text may repeat the request.
    fn from(error: RedisError) -> Self {
        if error.is_timeout() {
            return Self::Timeout;
        }
        match (error.kind(), error.code()) {
            (ErrorKind::AuthenticationFailed, code) => Self::Code { code: code.unwrap_or("WRONGPASS").to_owned() },
            (_, Some("ERR")) => Self::Code { code: meant(error.detail().unwrap_or_default()).to_owned() },
            (_, Some(code)) => Self::Code { code: code.chars().take(40).filter(char::is_ascii_uppercase).collect() },
            // A server's reason for closing a new connection may be lost.
            (ErrorKind::Io, None) => Self::Io(BROKE.to_owned()),
            (_, None) => Self::Nonsense,
        }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        if let Some(rustls::Error::InvalidCertificate(why)) = of_tls {
            use rustls::CertificateError::{NotValidForName, NotValidForNameContext};
            return match why {
                NotValidForName | NotValidForNameContext { .. } => Self::WrongName(why.to_string()),
                _ => Self::UnknownIssuer(why.to_string()),
            };
        }
        if error.kind() == io::ErrorKind::TimedOut { Self::Timeout } else { Self::Io(error.to_string()) }
    }
}

/// Returns a more specific code for a server's error `ERR`, by the error's text.
fn meant(detail: &str) -> &'static str {
    let says = |words: &[&str]| words.iter().any(|word| detail.contains(word));
    match () {
        // Of a script, as several versions write it.
        () if says(&["ACL failure", "NOPERM", "permission", "executing the script can't"]) => "NOPERM",
        // A client without a password may not send requests of this length.
        () if says(&["unauthenticated"]) => "NOAUTH",
        () if says(&["max number of clients"]) => "MAXCLIENTS",
        () => "ERR",
    }
}

/// Returns the remedy for a server's error code.
fn advice(code: &str) -> &'static str {
    match code {
        "LOADING" | "BUSY" | "TRYAGAIN" | "CLUSTERDOWN" | "MASTERDOWN" => "it is not ready yet; the gate asks again",
        "READONLY" => "it is a replica; the url must lead to the primary, or to its sentinels",
        "NOREPLICAS" => "it has fewer replicas than min-replicas-to-write; add some, or lower that",
        "OOM" => "its maxmemory is reached; raise it: a shared bucket takes a few KiB",
        "MISCONF" => r#"it cannot save to its disk, and takes nothing until it can; fix that, or set `save ""` there"#,
        "MAXCLIENTS" => "its maxclients is reached; raise it, or end what keeps so many connections",
        "DENIED" => {
            "it is in protected mode, and takes only connections of its own machine; give it a password and set password_file, or set `bind` there"
        }
        "NOAUTH" => "it needs a password; set password_file or password_command, and user if it is not the default one",
        "WRONGPASS" => "user or password is wrong; the file is read again, so a new one is used without a restart",
        "NOPERM" => {
            "the user lacks rights; give it: resetkeys ~PREFIX:* resetchannels -@all +auth +ping +select +eval +evalsha +time +hgetall +hset +hdel +pexpire, and +asking in a cluster"
        }
        "WRONGTYPE" => "another program has a key of this name; choose another prefix",
        "MOVED" | "ASK" => "it is a cluster; begin its url with redis+cluster://, or rediss+cluster://",
        _ => "it cannot be used as a store; expected Redis 6.2 or Valkey 7.2, or newer",
    }
}

/// Returns the remedy for a sentinel's error code.
fn sentinel_advice(code: &str) -> &'static str {
    match code {
        "NOAUTH" => "they need a password; set sentinel.password_file, and sentinel.user if it is not the default one",
        "WRONGPASS" => "sentinel.user or the password in sentinel.password_file is wrong",
        "NOPERM" => "the user lacks rights; give it on each sentinel: -@all +auth +sentinel|get-master-addr-by-name",
        _ => "check that the url names sentinels, and that they watch the primary",
    }
}

/// The error codes of a node not ready to answer; another node of its cluster may be.
const NOT_READY: &[&str] = &["CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY"];
/// A server's temporary error codes.
const TRANSIENT: &[&str] =
    &["LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "NOREPLICAS", "OOM", "MAXCLIENTS"];
/// The description of a broken connection.
const BROKE: &str =
    "the connection broke; if that lasts, the server's maxclients is reached, or it is in protected mode";
