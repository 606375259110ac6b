//! A kind that was just defined: the API server answers 429 to lists of it for a moment, with the
//! headers of priority and fairness, and the gate's rate stays as it is.

use http::Method;

use crate::support::client::{Connection, Protocol};
use crate::support::control_plane::ControlPlane;
use crate::support::gate::{Gate, Way};
use crate::support::{block_on, say, turn};

/// The kinds that are defined at most until one is listed while its storage begins.
const KINDS: usize = 200;

#[test]
fn a_new_kind_under_list_load_slows_nothing() {
    let Some(plane) = ControlPlane::shared("a_new_kind_under_list_load_slows_nothing") else { return };
    let _turn = turn::alone();
    let gate = Gate::start(plane, "preset = \"sidecar\"\n[gates.kubernetes.bucket]\nrate = 2000.0\nburst = 4000");
    let refused = (0..KINDS).find_map(|number| define_and_list(plane, &gate, number));
    let refused = refused.expect("a list came while the storage of its kind began");
    say(format_args!("new kind: {refused}"));
    assert!(refused.contains("storage is (re)initializing"), "{refused}");
    let rate = gate.metric("tidegate_bucket_rate", &["bucket=\"gate\""]);
    assert!((rate - 2000.0).abs() < 1e-6, "the rate is {rate}");
    let fair = gate.metric("tidegate_upstream_rejections_total", &["by=\"priority_and_fairness\""]);
    assert!(fair == 0.0, "{fair} calls were refused by priority and fairness");
}

/// Defines a kind, and lists it until it is there. Returns the server's 429, if it gave one.
fn define_and_list(plane: &ControlPlane, gate: &Gate, number: usize) -> Option<String> {
    let user = plane.tester();
    let plural = format!("fresh{number}s");
    std::thread::scope(|scope| {
        let defining = scope.spawn(|| define(plane, &plural));
        let refused = block_on(async {
            let mut connection = Connection::open(Way::Gate(gate), &user, Protocol::Http2).await;
            // Each list has a key of its own, or the first that fails would hold the others.
            for key in 0..20_000 {
                let path = format!("/apis/new.tidegate.test/v1/namespaces/n{key}/{plural}");
                match connection.call(Method::GET, &path, "").await {
                    (200, _) => return None,
                    (429, body) => return Some(body),
                    (404 | 503, _) => {}
                    (status, body) => panic!("{status} {body}"),
                }
            }
            panic!("{plural} is not served");
        });
        defining.join().expect("it is defined");
        refused
    })
}

fn define(plane: &ControlPlane, plural: &str) {
    plane.apply(&format!(
        "{{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {{name: {plural}.new.tidegate.test}}, \
         spec: {{group: new.tidegate.test, scope: Namespaced, names: {{plural: {plural}, kind: {kind}}}, \
         versions: [{{name: v1, served: true, storage: true, schema: {{openAPIV3Schema: {{type: object}}}}}}]}}}}",
        kind = plural.to_uppercase().chars().take(1).chain(plural.chars().skip(1)).collect::<String>(),
    ));
}
