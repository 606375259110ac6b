//! What the egress listener would do with a CONNECT, or with a call to a URL.

use anyhow::{anyhow, bail};
use http::Uri;
use http::uri::Scheme;

use crate::config::Configuration;
use crate::proxy::{Directory, Fate};

/// What the egress listener would do with a request.
pub(super) enum Way {
    /// It sends the request through the gate `name`, with this path and host; `says` describes why.
    Gate { name: String, says: String, path: String, host: String },
    /// It does something else: a tunnel, a call without limits, or a refusal. The text describes
    /// it.
    Past(String),
}

/// Returns what the egress listener would do with a CONNECT, or with a call to a URL; `None` if the
/// target is only a path.
pub(super) fn way(loaded: &Configuration, method: &str, target: &str) -> anyhow::Result<Option<Way>> {
    let is_connect = method.eq_ignore_ascii_case("connect");
    if !is_connect && !target.contains("://") {
        return Ok(None);
    }
    let Some(directory) = Directory::new(&loaded.settings) else {
        bail!("there is no [egress] listener in this configuration, through which tunnels and URLs would go");
    };
    let (uri, is_tunnel) = if is_connect { (None, true) } else { url(target)? };
    let authority = match &uri {
        None => target.to_owned(),
        Some(uri) => {
            let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
            let is_bare = uri.port_u16().is_none();
            if is_tunnel && is_bare { format!("{authority}:443") } else { authority }
        }
    };
    let listed = |gate: &str| {
        let from = loaded.origins.of(&["gates", gate, "hosts"]);
        from.map(|from| format!(" ({from})")).unwrap_or_default()
    };
    Ok(Some(match directory.explain(is_tunnel, &authority) {
        Err(why) => Way::Past(format!("refused: {why}")),
        Ok(Fate::Passed(None)) if is_tunnel => {
            Way::Past("a tunnel, whose bytes are passed on unread: no gate lists this host".to_owned())
        }
        Ok(Fate::Passed(None)) => Way::Past("sent on in clear, without limits: no gate lists this host".to_owned()),
        Ok(Fate::Passed(Some(gate))) => Way::Past(format!(
            "a tunnel, whose bytes are passed on unread: gate {gate} lists this host{}, but limits only calls to http://",
            listed(gate)
        )),
        Ok(Fate::Intercepted(gate, pattern)) if is_connect => Way::Past(format!(
            "a tunnel whose TLS is opened, and whose calls go through gate {gate}: {pattern}{}",
            listed(gate)
        )),
        Ok(Fate::Gate(gate, pattern)) if is_connect => {
            Way::Past(format!("a tunnel of plain HTTP, whose calls go through gate {gate}: {pattern}{}", listed(gate)))
        }
        Ok(Fate::Gate(gate, pattern) | Fate::Intercepted(gate, pattern)) => Way::Gate {
            name: gate.to_string(),
            says: format!(
                "through gate {gate}, {}: {pattern}{}",
                if is_tunnel { "which opens its TLS" } else { "and on over TLS" },
                listed(gate)
            ),
            path: uri.as_ref().and_then(Uri::path_and_query).map_or("/", |path| path.as_str()).to_owned(),
            host: authority,
        },
    }))
}

/// Parses a URL. Also returns true if it needs a tunnel: if its scheme is https.
fn url(text: &str) -> anyhow::Result<(Option<Uri>, bool)> {
    let uri: Uri = text.parse().map_err(|error| anyhow!("{text:?} is not a URL: {error}"))?;
    match uri.scheme() {
        Some(scheme) if *scheme == Scheme::HTTPS => Ok((Some(uri), true)),
        Some(scheme) if *scheme == Scheme::HTTP => Ok((Some(uri), false)),
        _ => bail!("{text:?} is not a URL that begins with http:// or https://"),
    }
}
