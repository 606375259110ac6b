//! The objects of the embedded API: generations, resource versions, conflicts, and a stream of
//! changes for each watcher.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{
    record::Converged,
    scene::{GROUP, KINDS, OBJECTS},
};
use crate::moment::Moment;

/// An object: the wanted generation counts up, and the controller's status follows.
#[derive(Clone, Debug)]
struct Object {
    generation: u64,
    applied: u64,
    observed: u64,
    version: u64,
    /// The moment since which its status is behind.
    behind_since: Option<Moment>,
}

/// A leader election lease.
#[derive(Clone, Debug)]
struct Lease {
    holder: String,
    version: u64,
}

/// The reason why a write was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Denied {
    /// Another client wrote first.
    Conflict,
    /// The request makes no sense.
    Invalid,
    /// There is no object of that name.
    NotFound,
}

/// All objects and leases of the API.
#[derive(Debug)]
pub(super) struct Store {
    version: u64,
    kinds: Vec<Vec<Object>>,
    watchers: Vec<Vec<mpsc::UnboundedSender<Bytes>>>,
    leases: HashMap<String, Lease>,
}

// === impl Store ===

impl Store {
    /// Creates all objects, each in its wanted state.
    pub(super) fn new() -> Self {
        let settled = Object { generation: 1, applied: 1, observed: 1, version: 1, behind_since: None };
        Self {
            version: 1,
            kinds: vec![vec![settled; OBJECTS]; KINDS.len()],
            watchers: KINDS.iter().map(|_| Vec::new()).collect(),
            leases: HashMap::new(),
        }
    }

    /// Changes the wanted state of an object, as a user would.
    pub(super) fn change(&mut self, kind: usize, item: usize, now: Moment) {
        let version = self.next_version();
        let object = &mut self.kinds[kind][item];
        object.generation += 1;
        object.version = version;
        object.behind_since.get_or_insert(now);
        self.tell(kind, item);
    }

    pub(super) fn list(&self, kind: usize) -> Value {
        let items: Vec<Value> = (0..OBJECTS).map(|item| self.object(kind, item)).collect();
        json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": format!("{}List", KINDS[kind].name),
            "metadata": { "resourceVersion": self.version.to_string() }, "items": items,
        })
    }

    /// Streams the changes after `version`, then those to come.
    pub(super) fn watch(&mut self, kind: usize, version: u64) -> mpsc::UnboundedReceiver<Bytes> {
        let (sender, receiver) = mpsc::unbounded_channel();
        for item in (0..OBJECTS).filter(|item| self.kinds[kind][*item].version > version) {
            // The receiver is in this function: it cannot be gone yet.
            drop(sender.send(self.event(kind, item)));
        }
        self.watchers[kind].push(sender);
        receiver
    }

    pub(super) fn get(&self, kind: usize, item: usize) -> Result<Value, Denied> {
        if item < OBJECTS { Ok(self.object(kind, item)) } else { Err(Denied::NotFound) }
    }

    /// Does what a controller does to an object's world: writes down which generation it has
    /// applied.
    pub(super) fn apply(&mut self, kind: usize, item: usize, patch: &Value) -> Result<Value, Denied> {
        let applied = &patch["metadata"]["annotations"]["demo.example.com/applied"];
        let applied = applied.as_str().and_then(|text| text.parse().ok()).ok_or(Denied::Invalid)?;
        let version = self.next_version();
        let object = self.kinds[kind].get_mut(item).ok_or(Denied::NotFound)?;
        object.applied = applied;
        object.version = version;
        self.tell(kind, item);
        Ok(self.object(kind, item))
    }

    /// Takes the controller's report. Returns the object and, if it is now in its wanted state, its
    /// convergence with the time that took.
    pub(super) fn report(
        &mut self,
        kind: usize,
        item: usize,
        status: &Value,
        now: Moment,
    ) -> Result<(Value, Option<Converged>), Denied> {
        let observed = status["status"]["observedGeneration"].as_u64().ok_or(Denied::Invalid)?;
        let object = self.kinds[kind].get_mut(item).ok_or(Denied::NotFound)?;
        if status["metadata"]["resourceVersion"].as_str() != Some(object.version.to_string().as_str()) {
            return Err(Denied::Conflict);
        }
        self.version += 1;
        object.version = self.version;
        object.observed = observed;
        let since = if object.observed >= object.generation { object.behind_since.take() } else { None };
        let converged = since.map(|since| Converged { at: now, took: now - since, guarded: KINDS[kind].guarded });
        self.tell(kind, item);
        Ok((self.object(kind, item), converged))
    }

    pub(super) fn lease(&self, name: &str) -> Result<Value, Denied> {
        let lease = self.leases.get(name).ok_or(Denied::NotFound)?;
        Ok(json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": name, "namespace": "demo", "resourceVersion": lease.version.to_string() },
            "spec": { "holderIdentity": lease.holder },
        }))
    }

    /// Creates or renews a lease.
    pub(super) fn renew(&mut self, name: &str, wanted: &Value) -> Result<Value, Denied> {
        let holder = wanted["spec"]["holderIdentity"].as_str().ok_or(Denied::Invalid)?.to_owned();
        let version = wanted["metadata"]["resourceVersion"].as_str();
        if let Some(lease) = self.leases.get(name)
            && version != Some(lease.version.to_string().as_str())
        {
            return Err(Denied::Conflict);
        }
        let version = self.next_version();
        self.leases.insert(name.to_owned(), Lease { holder, version });
        self.lease(name)
    }

    /// Counts the objects that have waited for their controller for longer than `patience`, and all
    /// that wait.
    pub(super) fn behind(&self, now: Moment, patience: Duration) -> (usize, usize) {
        let waits = self.kinds.iter().flatten().filter_map(|object| object.behind_since).map(|since| now - since);
        waits.fold((0, 0), |(late, all), wait| (late + usize::from(wait > patience), all + 1))
    }

    fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// Sends an object to the watchers of its kind, and forgets the watchers that have left.
    fn tell(&mut self, kind: usize, item: usize) {
        let event = self.event(kind, item);
        self.watchers[kind].retain(|watcher| watcher.send(event.clone()).is_ok());
    }

    fn event(&self, kind: usize, item: usize) -> Bytes {
        Bytes::from(format!("{}\n", json!({ "type": "MODIFIED", "object": self.object(kind, item) })))
    }

    fn object(&self, kind: usize, item: usize) -> Value {
        let object = &self.kinds[kind][item];
        json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": KINDS[kind].name,
            "metadata": {
                "name": object_name(kind, item), "namespace": "demo", "generation": object.generation,
                "resourceVersion": object.version.to_string(),
                "annotations": { "demo.example.com/applied": object.applied.to_string() },
            },
            "status": { "observedGeneration": object.observed },
        })
    }
}

/// Returns the name of an object.
pub(super) fn object_name(kind: usize, item: usize) -> String {
    format!("{}-{item}", KINDS[kind].name.to_lowercase())
}

/// Returns the object of a name.
pub(super) fn object_number(name: &str) -> Option<usize> {
    name.rsplit_once('-')?.1.parse().ok().filter(|item| *item < OBJECTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_on_an_old_version_is_a_conflict() {
        let mut store = Store::new();
        store.change(0, 3, Moment::ZERO);
        let status = |version: &str| json!({ "metadata": { "resourceVersion": version }, "status": { "observedGeneration": 2 } });
        assert_eq!(store.report(0, 3, &status("1"), Moment::ZERO).err(), Some(Denied::Conflict));
        let (_, converged) = store.report(0, 3, &status("2"), Moment::from_millis(7)).expect("the version is right");
        assert_eq!(converged.map(|it| it.took), Some(Duration::from_millis(7)));
    }

    #[test]
    fn a_watch_begins_where_the_list_ended() {
        let mut store = Store::new();
        store.change(1, 5, Moment::ZERO);
        let mut changes = store.watch(1, 1);
        store.change(1, 6, Moment::ZERO);
        store.change(0, 1, Moment::ZERO);
        let mut names = Vec::new();
        while let Ok(event) = changes.try_recv() {
            let event: Value = serde_json::from_slice(&event).expect("events are JSON");
            names.push(event["object"]["metadata"]["name"].as_str().expect("a name").to_owned());
        }
        assert_eq!(names, ["database-5", "database-6"]);
    }

    #[test]
    fn only_the_holder_of_the_version_renews_a_lease() {
        let mut store = Store::new();
        let wanted = json!({ "spec": { "holderIdentity": "a" } });
        let lease = store.renew("l", &wanted).expect("a new lease");
        assert_eq!(store.renew("l", &wanted).err(), Some(Denied::Conflict));
        assert!(store.renew("l", &lease).is_ok());
    }
}
