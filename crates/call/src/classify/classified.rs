//! Later additions to a classified call (its client, its protocol), and its readable names.

use std::fmt;
use std::sync::Arc;

use http::HeaderMap;

use super::caller::client_number;
use super::{ApiKind, ClassifiedCall, FairBy, FlowName, Rules, Salt};
use crate::api::{Group, Key};
use crate::limit::{Arrival, Flow};

impl ClassifiedCall {
    /// Returns the hash of the call's flow.
    pub fn flow(&self) -> u64 {
        self.fair.flow
    }

    /// Returns true if the call changes nothing.
    pub fn reads(&self) -> bool {
        super::reads(&self.call, self.words.as_deref())
    }

    /// Returns true if the call is never refused on arrival, because its client falls back instead
    /// of retrying (exec, attach, port-forward, proxy).
    pub fn is_patient(&self) -> bool {
        self.call.is_tunnel()
    }

    /// Sets the client, on a gate authenticating clients. Limits may be split by client, and
    /// failures may be remembered for each client.
    pub fn of_client(&mut self, rules: &Rules, client: &Arc<str>, hasher: &Salt) {
        let number = client_number(client, Some(hasher));
        if let Some(identity) = rules.splits.of_client(self.class, client, hasher) {
            self.credential = identity;
        }
        if self.fair.by == FairBy::Client {
            self.fair.identity = number;
            self.fair.flow = number;
        }
        if rules.splits.are_clients_apart(self.words.as_deref()) {
            self.key = self.key.of_caller(number, hasher);
        }
        self.client = Some(Arc::clone(client));
    }

    /// Moves a call that switches protocols to a connection of its own. Its limits stay, because
    /// the upstream may ignore the header and do the work.
    pub fn upgrade(&mut self) {
        self.group = Group::Upgrades;
    }

    /// Returns the call as the limiter sees it.
    pub fn arrival<'a>(&self, key: Option<Key>, flow_name: &'a dyn fmt::Display) -> Arrival<'a> {
        Arrival {
            class: self.class,
            flow: Flow { id: self.flow(), name: flow_name },
            key,
            key_in_body: self.key.needs_body(),
            credential: self.credential,
            quota: self.quota,
            write: self.goes_alone,
            reads: self.reads(),
            group: self.group,
            long_running: self.call.is_long_running,
            lists_first: self.call.lists_first,
            patient: self.is_patient(),
            timeout: self.call.timeout,
            cost: self.cost,
        }
    }

    /// Returns the readable name of the call's flow, for the status page.
    pub fn flow_name<'a>(&'a self, headers: &'a HeaderMap) -> FlowName<'a> {
        if self.fair.by == FairBy::Client {
            return FlowName::Word(self.client.as_deref().unwrap_or_default());
        }
        let kind = if self.call.is_resource { ApiKind::Kubernetes } else { ApiKind::Http };
        FlowName::new(self.fair.by, kind, &self.call, self.words.as_deref(), headers, self.fair.identity)
    }
}
