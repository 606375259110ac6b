//! The faults of a store, each with its remedy.

use std::io;

use redis::{ErrorKind, RedisError};

use crate::limit::StoreFailure;

/// The reason why a store did not answer a question.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Fault {
    /// There was no answer within the timeout.
    #[error("no answer within the timeout")]
    Timeout,
    /// The connection could not be made, or broke.
    #[error("{0}")]
    Io(String),
    /// The server's certificate is not one to trust.
    #[error("its certificate is not trusted: {error}; {}", advice_on_tls(*.is_named))]
    Certificate {
        /// The reason.
        error: String,
        /// True if it is of a trusted CA, and not for this name.
        is_named: bool,
    },
    /// The server answered with this error code.
    #[error("the server answers {code}: {}", advice(.code))]
    Code {
        /// The first word of the error.
        code: String,
    },
    /// The answer was not one of the script's.
    #[error("the answer is not one of the script's; is something else writing to its keys?")]
    Nonsense,
    /// Its TLS or its password cannot be used.
    #[error("{0}")]
    Settings(String),
    /// Its sentinels did not say where the primary is.
    #[error("{}: {}", self.what(), self.remedy())]
    Sentinels(Box<Self>),
    /// Its sentinels watch no primary of this name.
    #[error("the sentinels know no primary {0:?}; expected the name that they watch it under")]
    NoPrimary(String),
    /// The nodes of a cluster sent the question on from one to the other.
    #[error("the nodes of the cluster send the question on without end")]
    SentOn,
}

/// The rights that the gate's user needs.
pub(super) const RIGHTS: &str =
    "resetkeys ~PREFIX:* resetchannels -@all +auth +ping +select +eval +evalsha +time +hgetall +hset +hdel +pexpire";

// === impl Fault ===

impl Fault {
    /// Returns what it means to a member.
    pub(super) fn away(&self) -> StoreFailure {
        match self {
            Self::Timeout | Self::Io(_) | Self::Certificate { .. } | Self::SentOn => StoreFailure::Unreachable,
            Self::Sentinels(fault) => fault.away(),
            Self::Code { code } if TRANSIENT.contains(&code.as_str()) => StoreFailure::Unreachable,
            Self::Code { .. } | Self::Nonsense | Self::Settings(_) | Self::NoPrimary(_) => StoreFailure::Wrong,
        }
    }

    /// Returns what is wrong.
    pub(super) fn what(&self) -> String {
        match self {
            Self::Code { code } => format!("the server answers {code}"),
            Self::Timeout => "does not answer within the timeout".to_owned(),
            Self::Io(error) => format!("cannot be reached: {error}"),
            Self::Certificate { error, .. } => format!("its certificate is not trusted: {error}"),
            Self::Nonsense => "does not answer as the script does".to_owned(),
            Self::Settings(error) => error.clone(),
            Self::Sentinels(fault) => format!("its sentinels: {}", fault.what()),
            Self::NoPrimary(name) => format!("the sentinels know no primary {name:?}"),
            Self::SentOn => "the nodes of the cluster send the question on without end".to_owned(),
        }
    }

    /// Returns what to do about it.
    pub(super) fn remedy(&self) -> String {
        match self {
            Self::Code { code } => advice(code),
            Self::Timeout => "see that it is not overloaded, and near enough for stores.NAME.timeout".to_owned(),
            Self::Io(_) => "see that it runs, and that stores.NAME.url and its tls lead there".to_owned(),
            Self::Certificate { is_named, .. } => advice_on_tls(*is_named).to_owned(),
            Self::Nonsense => "see that it is a Redis or Valkey, and that nothing else writes to its keys".to_owned(),
            Self::Settings(_) => "correct stores.NAME.tls".to_owned(),
            Self::Sentinels(fault) => match &**fault {
                Self::Code { code } => sentinel_advice(code),
                fault => fault.remedy(),
            },
            Self::NoPrimary(_) => "end stores.NAME.url with the name that `sentinel monitor` gives it".to_owned(),
            Self::SentOn => "see that all nodes know the same slots (CLUSTER SLOTS)".to_owned(),
        }
    }

    /// Returns the word for it in metrics.
    pub(super) fn word(&self) -> &'static str {
        match (self, self.away()) {
            (Self::Timeout, _) => "timeout",
            (_, StoreFailure::Unreachable) => "away",
            (_, StoreFailure::Wrong) => "wrong",
        }
    }

    /// True if a node of a cluster may know another that is ready.
    pub(super) fn is_not_ready(&self) -> bool {
        matches!(self, Self::Code { code } if NOT_READY.contains(&code.as_str()))
    }

    /// True if the password may have changed.
    pub(super) fn is_of_password(&self) -> bool {
        match self {
            Self::Code { code } => code == "WRONGPASS" || code == "NOAUTH",
            Self::Sentinels(fault) => fault.is_of_password(),
            _ => false,
        }
    }

    /// Returns the word for it in the status: the server's error code, if it is one.
    pub(super) fn code(&self) -> &str {
        match self {
            Self::Code { code } => code,
            Self::Sentinels(fault) => fault.code(),
            Self::Timeout => "timeout",
            Self::Io(_) => "unreachable",
            Self::Certificate { .. } => "certificate",
            Self::Nonsense => "nonsense",
            Self::Settings(_) => "settings",
            Self::NoPrimary(_) => "no primary",
            Self::SentOn => "sent on",
        }
    }
}

impl From<RedisError> for Fault {
    /// Keeps the code of the server's error and nothing else of its text, which may repeat what it
    /// was sent.
    fn from(error: RedisError) -> Self {
        if error.is_timeout() {
            return Self::Timeout;
        }
        match (error.kind(), error.code()) {
            (ErrorKind::AuthenticationFailed, code) => Self::Code { code: code.unwrap_or("WRONGPASS").to_owned() },
            (_, Some("ERR")) => Self::Code { code: meant(error.detail().unwrap_or_default()).to_owned() },
            (_, Some(code)) => Self::Code { code: code.chars().take(40).filter(char::is_ascii_uppercase).collect() },
            // What a server says as it closes a new connection may come before the question.
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
            let is_named = matches!(why, NotValidForName | NotValidForNameContext { .. });
            return Self::Certificate { error: why.to_string(), is_named };
        }
        if error.kind() == io::ErrorKind::TimedOut { Self::Timeout } else { Self::Io(error.to_string()) }
    }
}

/// Returns the code that a text without one means.
fn meant(detail: &str) -> &'static str {
    let says = |words: &[&str]| words.iter().any(|word| detail.contains(word));
    match () {
        // In a script, in the words of several versions.
        () if says(&["ACL failure", "NOPERM", "permission", "executing the script can't"]) => "NOPERM",
        // So many words are too many for a client that has not shown a password.
        () if says(&["unauthenticated"]) => "NOAUTH",
        () if says(&["max number of clients"]) => "MAXCLIENTS",
        () => "ERR",
    }
}

/// The remedy for a certificate that is not trusted.
fn advice_on_tls(is_named: bool) -> &'static str {
    if is_named {
        "set stores.NAME.tls.server_name to a name that it has, or give it a certificate for the name in the url"
    } else {
        "expected one of the CA in stores.NAME.tls.ca, or of the system's roots where that is not set"
    }
}

/// The remedy for an error code.
fn advice(code: &str) -> String {
    match code {
        "LOADING" | "BUSY" | "TRYAGAIN" | "CLUSTERDOWN" | "MASTERDOWN" => "it is not ready, and is asked again".into(),
        "READONLY" => "it is a replica; the url must lead to the primary, or to its sentinels".into(),
        "NOREPLICAS" => "min-replicas-to-write is not met; give it its replicas, or lower that".into(),
        "OOM" => "its maxmemory is reached; raise it: a shared bucket takes a few KiB".into(),
        "MISCONF" => {
            r#"it cannot save to its disk, and takes nothing until it can; mend that, or set `save ""` there"#.into()
        }
        "MAXCLIENTS" => "its maxclients is reached; raise it, or end what keeps so many connections".into(),
        "DENIED" => {
            "it is in protected mode, and takes only connections of its own machine; give it a password and set \
                     password_file, or set `bind` there"
                .into()
        }
        "NOAUTH" => "it wants a password; set password_file, and user if it is not the default one".into(),
        "WRONGPASS" => "user or password is wrong; the file is read again, so that a new one is used at once".into(),
        "NOPERM" => format!("the user lacks rights; give it: {RIGHTS}, and +asking in a cluster"),
        "WRONGTYPE" => "another program has a key of this name; choose another prefix".into(),
        "MOVED" | "ASK" => "it is a cluster; begin its url with redis+cluster://, or rediss+cluster://".into(),
        _ => "it cannot be used as a store; expected Redis 6.2 or Valkey 7.2, or newer".into(),
    }
}

/// The remedy for an error code of a sentinel.
fn sentinel_advice(code: &str) -> String {
    match code {
        "NOAUTH" => {
            "they want a password; set sentinel.password_file, and sentinel.user if it is not the default one".into()
        }
        "WRONGPASS" => "sentinel.user or the password in sentinel.password_file is wrong".into(),
        "NOPERM" => {
            "the user lacks rights; give it on each sentinel: -@all +auth +sentinel|get-master-addr-by-name".into()
        }
        _ => "see that the url names sentinels, and that they watch the primary".into(),
    }
}

/// The codes of a node that cannot answer now where another of its cluster may.
const NOT_READY: &[&str] = &["CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY"];
/// The codes of a server that may answer soon.
const TRANSIENT: &[&str] =
    &["LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "NOREPLICAS", "OOM", "MAXCLIENTS"];
/// The words for a connection that the server or the network has ended.
const BROKE: &str =
    "the connection broke; if that lasts, the server's maxclients is reached, or it is in protected mode";
