//! The gates of the egress listener, one for each host and port. Each is made at the first call
//! from the settings of the gate that lists the host, and dropped when it is not used for a while.
//!
//! Their number is bounded. If none can be dropped, calls to a new host are refused: a host that a
//! gate lists is never let through without its limits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::uri::{Authority, Scheme};

use super::reason::{EgressRefusal, Why};
use super::target::Origin;
use crate::classify::number_of_origin;
use crate::clock::Clock;
use crate::credentials::Proxy;
use crate::proxy::gate::Gate;
use crate::proxy::section::Branch;
use crate::proxy::siblings::Siblings;
use crate::telemetry::table;
use crate::upstream::{Dns, Target};

/// The gates made so far for single hosts and ports.
pub(super) struct Origins {
    /// The gates in the configuration, by name: templates for the gates made.
    sections: BTreeMap<Arc<str>, Arc<Gate>>,
    via: Option<Proxy>,
    /// The gates made so far, by the name of the configured gate and by host and port.
    known: Siblings<(Arc<str>, Origin)>,
}

/// A host and port, and how to reach it.
pub(super) struct Way<'a> {
    pub(super) section: &'a Arc<str>,
    pub(super) origin: Origin,
    pub(super) scheme: Scheme,
    /// Another host and port to connect to in its place, if configured.
    pub(super) connect_to: Option<&'a str>,
}

// === impl Origins ===

impl Origins {
    pub(super) fn new(sections: Vec<Arc<Gate>>, via: Option<Proxy>, clock: Clock) -> Self {
        let sections = sections.into_iter().map(|gate| (Arc::clone(gate.name()), gate)).collect();
        Self { sections, via, known: Siblings::new(clock) }
    }

    /// Returns the gate of a host and port. If there is none yet, it is made, but at most `most`
    /// gates exist.
    pub(super) fn meet(&self, way: &Way<'_>, most: usize) -> Result<Arc<Gate>, EgressRefusal> {
        let at = (Arc::clone(way.section), way.origin.clone());
        let crowded = |origins| {
            tracing::warn!(
                gate = &**way.section,
                host = %way.origin.host,
                origins,
                "refused a call to another host: too many hosts are in use at once; raise egress.max_origins"
            );
            EgressRefusal::new(Why::Crowded, "too many hosts are in use at once; raise egress.max_origins")
        };
        self.known.meet(&at, most, crowded, || {
            let section = self.sections.get(way.section);
            let section = section.ok_or_else(|| EgressRefusal::new(Why::Crowded, "the gate is changing; try again"))?;
            let target = self.target(&way.origin, way.scheme.clone(), way.connect_to)?;
            let host = target.server_name.as_deref().unwrap_or_else(|| target.authority.host());
            let port = target.authority.port_u16().filter(|_| target.server_name.is_none());
            let whole = port.map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
            let gate = section.sibling(Branch {
                name: host.into(),
                calls: self.known.counters(&table::EGRESS_CALLS, way.section, &way.origin.host.to_string()),
                number: number_of_origin(&whole),
                point: &|options| {
                    options.target = target.clone();
                    // The operator's own address is not judged.
                    if way.connect_to.is_some() {
                        options.dns = Dns { judge: None, ..options.dns.clone() };
                    }
                },
            });
            tracing::debug!(gate = &**way.section, host, "first call to a host: it gets limits of its own");
            Ok(gate)
        })
    }

    fn target(&self, origin: &Origin, scheme: Scheme, connect_to: Option<&str>) -> Result<Target, EgressRefusal> {
        let usual = if scheme == Scheme::HTTPS { 443 } else { 80 };
        let own = if origin.port == usual { origin.host.to_string() } else { origin.to_string() };
        let authority: Authority = connect_to
            .unwrap_or(&own)
            .parse()
            .map_err(|_| EgressRefusal::new(Why::Malformed, "the target is not a host and port"))?;
        let server_name = connect_to.map(|_| origin.name());
        let base_path = String::new();
        let proxy = self.via.clone();
        Ok(Target { scheme, authority, base_path, server_name, proxy })
    }

    /// Drops all gates not used for this time.
    pub(super) fn tidy(&self, idle: Duration) {
        self.known.tidy(idle);
    }

    /// Returns the gates made from a configured gate, by host and port.
    pub(super) fn of(&self, section: &str) -> Vec<(Origin, Arc<Gate>)> {
        let of = self.known.all().into_iter().filter(|((name, _), _)| **name == *section);
        of.map(|((_, origin), gate)| (origin, gate)).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    pub(super) fn sections(&self) -> impl Iterator<Item = &Arc<Gate>> {
        self.sections.values()
    }
}
