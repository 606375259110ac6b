//! Changes to a call's reading by what is known later: the protocol it asks for, its client, and
//! the names by which it is shown.

use std::sync::Arc;

use http::HeaderMap;

use super::caller::client_number;
use super::{Classified, FairBy, FlowName, Kind, Rules, Salt, key};
use crate::api::Group;

impl Classified {
    /// Notes the client that makes the call, where the gate knows its clients: limits may be split
    /// by it, and its failures are its own.
    pub fn of_client(&mut self, rules: &Rules, client: &Arc<str>, hasher: &Salt) {
        let number = client_number(client, hasher);
        if let Some(identity) = rules.identities.of_client(self.class, client, hasher) {
            self.credential = identity;
        }
        if self.fair_by == FairBy::Client {
            (self.fair_to, self.flow) = (number, number);
        }
        if rules.keys.are_clients_own(self.words.as_deref()) {
            self.key = self.key.of_caller(number, hasher);
        }
        self.client = Some(Arc::clone(client));
    }

    /// Notes that the call asks to switch protocols: it leaves on a connection of its own. Its
    /// limits stay those of the call, because the upstream may ignore the header and do the work.
    pub fn upgrade(&mut self) {
        self.group = Group::Upgrades;
    }

    /// Returns the readable name of its flow, for the status page.
    pub fn flow_name<'a>(&'a self, headers: &'a HeaderMap) -> FlowName<'a> {
        if self.fair_by == FairBy::Client {
            return FlowName::Word(self.client.as_deref().unwrap_or_default());
        }
        let kind = if self.call.is_resource { Kind::Kubernetes } else { Kind::Http };
        FlowName::new(self.fair_by, kind, &self.call, self.words.as_deref(), headers, self.fair_to)
    }

    /// Returns the readable name of its key, made when the key starts to fail. `body` is the kept
    /// part of the body, if the key comes from it.
    pub fn key_name(&self, body: Option<&[u8]>) -> String {
        key::name(&self.call, self.words.as_deref(), self.key, self.label.as_deref(), body)
    }
}
