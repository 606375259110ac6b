//! The objects of the embedded API: JSON by path, with generations, resource versions, conflicts,
//! and a stream of changes for each watcher.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::scene::{GROUP, KINDS, OBJECTS};
use crate::moment::Moment;

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
#[derive(Debug, Default)]
pub(super) struct Store {
    version: u64,
    objects: BTreeMap<String, Value>,
    /// The objects whose status is behind, and since when.
    behind: BTreeMap<String, Moment>,
    watchers: HashMap<String, Vec<mpsc::UnboundedSender<Bytes>>>,
}

// === impl Store ===

impl Store {
    /// Creates all objects, each in its wanted state.
    pub(super) fn new() -> Self {
        let mut store = Self::default();
        for (kind, item) in (0..KINDS.len()).flat_map(|kind| (0..OBJECTS).map(move |item| (kind, item))) {
            let name = object_name(kind, item);
            let path = format!("{}/{name}", collection(kind));
            let object = json!({
                "apiVersion": format!("{GROUP}/v1"), "kind": KINDS[kind].name,
                "metadata": { "name": name, "namespace": "demo", "generation": 1 },
                "status": { "observedGeneration": 1 },
            });
            store.write(&path, object);
        }
        store
    }

    /// Changes the wanted state of an object, as a user would.
    pub(super) fn change(&mut self, kind: usize, item: usize, now: Moment) {
        let path = format!("{}/{}", collection(kind), object_name(kind, item));
        let Some(mut object) = self.objects.get(&path).cloned() else { return };
        object["metadata"]["generation"] = (generation(&object) + 1).into();
        self.write(&path, object);
        self.behind.entry(path).or_insert(now);
    }

    pub(super) fn list(&self, collection: &str) -> Value {
        let items: Vec<&Value> = self.of(collection).collect();
        json!({ "kind": "List", "metadata": { "resourceVersion": self.version.to_string() }, "items": items })
    }

    /// Streams the changes after `version`, then those to come.
    pub(super) fn watch(&mut self, collection: &str, after: u64) -> mpsc::UnboundedReceiver<Bytes> {
        let (sender, receiver) = mpsc::unbounded_channel();
        for object in self.of(collection).filter(|object| version(object) > after) {
            // The receiver is in this function: it cannot be gone yet.
            drop(sender.send(event(object)));
        }
        self.watchers.entry(collection.to_owned()).or_default().push(sender);
        receiver
    }

    pub(super) fn get(&self, path: &str) -> Result<Value, Denied> {
        self.objects.get(path).cloned().ok_or(Denied::NotFound)
    }

    /// Merges a patch into an object.
    pub(super) fn patch(&mut self, path: &str, patch: &Value) -> Result<Value, Denied> {
        let mut object = self.get(path)?;
        merge(&mut object, patch);
        Ok(self.write(path, object))
    }

    /// Replaces an object, if it is still of the version that the client has seen.
    pub(super) fn update(&mut self, path: &str, object: Value) -> Result<Value, Denied> {
        if version(&self.get(path)?) != version(&object) {
            return Err(Denied::Conflict);
        }
        Ok(self.write(path, object))
    }

    /// Takes the controller's report. Returns the object and, if it is now in its wanted state, the
    /// time that this took.
    pub(super) fn update_status(
        &mut self,
        path: &str,
        report: &Value,
        now: Moment,
    ) -> Result<(Value, Option<Duration>), Denied> {
        let mut object = self.get(path)?;
        let observed = report["status"]["observedGeneration"].as_u64().ok_or(Denied::Invalid)?;
        object["status"]["observedGeneration"] = observed.into();
        object["metadata"]["resourceVersion"] = report["metadata"]["resourceVersion"].clone();
        let object = self.update(path, object)?;
        let since = if observed >= generation(&object) { self.behind.remove(path) } else { None };
        Ok((object, since.map(|since| now - since)))
    }

    /// Creates an object.
    pub(super) fn create(&mut self, collection: &str, object: Value) -> Result<Value, Denied> {
        let path = format!("{collection}/{}", object["metadata"]["name"].as_str().ok_or(Denied::Invalid)?);
        if self.objects.contains_key(&path) { Err(Denied::Conflict) } else { Ok(self.write(&path, object)) }
    }

    /// Counts the objects that have waited for their controller for longer than `patience`.
    pub(super) fn unreconciled(&self, now: Moment, patience: Duration) -> usize {
        self.behind.values().filter(|since| now - **since > patience).count()
    }

    /// Stores an object as a new version, tells the watchers of its collection, and forgets those
    /// that have left.
    fn write(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let watchers = path.rsplit_once('/').and_then(|(collection, _)| self.watchers.get_mut(collection));
        if let Some(watchers) = watchers {
            let event = event(&object);
            watchers.retain(|watcher| watcher.send(event.clone()).is_ok());
        }
        self.objects.insert(path.to_owned(), object.clone());
        object
    }

    /// Returns the objects of a collection.
    fn of(&self, collection: &str) -> impl Iterator<Item = &Value> {
        let prefix = format!("{collection}/");
        let from = self.objects.range(prefix.clone()..);
        from.take_while(move |(path, _)| path.starts_with(&prefix)).map(|(_, object)| object)
    }
}

/// Applies a JSON merge patch (RFC 7386) that deletes nothing.
fn merge(target: &mut Value, patch: &Value) {
    match patch.as_object() {
        Some(fields) => fields.iter().for_each(|(name, value)| merge(&mut target[name], value)),
        None => *target = patch.clone(),
    }
}

fn event(object: &Value) -> Bytes {
    Bytes::from(format!("{}\n", json!({ "type": "MODIFIED", "object": object })))
}

/// Returns the resource version of an object or a list.
pub(super) fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Returns the generation of an object's wanted state.
pub(super) fn generation(object: &Value) -> u64 {
    object["metadata"]["generation"].as_u64().unwrap_or(0)
}

/// Returns the path of a kind.
pub(super) fn collection(kind: usize) -> String {
    format!("/apis/{GROUP}/v1/namespaces/demo/{}", KINDS[kind].resource)
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
        let path = format!("{}/bucket-3", collection(0));
        let old = store.get(&path).expect("there is one");
        store.change(0, 3, Moment::ZERO);
        let mut report = store.get(&path).expect("there is one");
        report["status"]["observedGeneration"] = 2.into();
        let stale = json!({ "metadata": old["metadata"], "status": report["status"] });
        assert_eq!(store.update_status(&path, &stale, Moment::ZERO).err(), Some(Denied::Conflict));
        assert_eq!(store.unreconciled(Moment::from_millis(7), Duration::ZERO), 1);
        let (_, took) = store.update_status(&path, &report, Moment::from_millis(7)).expect("the version is right");
        assert_eq!(took, Some(Duration::from_millis(7)));
        assert_eq!(store.unreconciled(Moment::MAX, Duration::ZERO), 0);
    }

    #[test]
    fn a_watch_begins_where_the_list_ended() {
        let mut store = Store::new();
        let listed = version(&store.list(&collection(1)));
        store.change(1, 5, Moment::ZERO);
        let mut changes = store.watch(&collection(1), listed);
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
        let wanted = json!({ "metadata": { "name": "l" }, "spec": { "holderIdentity": "a" } });
        let lease = store.create("/leases", wanted.clone()).expect("a new lease");
        assert_eq!(store.create("/leases", wanted.clone()).err(), Some(Denied::Conflict));
        assert_eq!(store.update("/leases/l", wanted).err(), Some(Denied::Conflict));
        assert!(store.update("/leases/l", lease).is_ok());
    }

    #[test]
    fn a_patch_changes_what_it_names_and_nothing_else() {
        let mut store = Store::new();
        let path = format!("{}/queue-1", collection(3));
        let patch = json!({ "metadata": { "annotations": { "applied": "7" } } });
        let object = store.patch(&path, &patch).expect("there is one");
        assert_eq!(object["metadata"]["annotations"]["applied"], "7");
        assert_eq!((generation(&object), object["metadata"]["name"].as_str()), (1, Some("queue-1")));
    }
}
