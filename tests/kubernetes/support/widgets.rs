//! The custom resource of the Go controller: it copies `spec.value` to `status.observed`.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::json;

use super::control_plane::ControlPlane;
use super::programs::{Line, Program};
use super::wait_for;

const CRD: &str = r"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.tidegate.test}
spec:
  group: tidegate.test
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {value: {type: integer, format: int64}}}
          status: {type: object, properties: {observed: {type: integer, format: int64}}}
";

/// Makes the resource known, and waits until it is served.
pub(crate) fn install(plane: &ControlPlane) {
    plane.apply(CRD);
    plane.kubectl(&["wait", "--for=condition=Established", "crd/widgets.tidegate.test", "--timeout=60s"]);
}

/// Creates, or changes to a new value, the widgets of these names, past any gate.
pub(crate) fn set(plane: &ControlPlane, namespace: &str, names: &[String], value: i64) {
    let widget = |name: &String| {
        json!({
            "apiVersion": "tidegate.test/v1", "kind": "Widget",
            "metadata": {"name": name, "namespace": namespace}, "spec": {"value": value},
        })
    };
    for some in names.chunks(250) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": some.iter().map(widget).collect::<Vec<_>>()});
        plane.apply(&list.to_string());
    }
}

/// `PREFIX-0` to `PREFIX-(count-1)`.
pub(crate) fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}-{number}")).collect()
}

/// The first successful write of each widget at this value.
pub(crate) fn written(lines: &[Line], value: u64) -> HashMap<String, Line> {
    let mut found = HashMap::new();
    for line in lines {
        if line.event() == "reconcile" && line.text("error").is_empty() && line.number("value") == value {
            found.entry(line.text("name").to_owned()).or_insert_with(|| line.clone());
        }
    }
    found
}

/// Waits until the controller has written every one of these widgets at this value, and returns the
/// writes.
pub(crate) fn wait_written(manager: &Program, names: &[String], value: u64, within: Duration) -> HashMap<String, Line> {
    wait_for(&format!("{} widgets at {value}", names.len()), within, || {
        manager.process.must_run();
        let found = written(&manager.lines(), value);
        names.iter().all(|name| found.contains_key(name)).then_some(found)
    })
}
