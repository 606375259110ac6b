//! A wrong manifest is an error of the file and not a failure of the object: the corrected file and
//! a delete pass at once.

use std::fs;

use crate::support::control_plane::ControlPlane;
use crate::support::gate::{Gate, Way};
use crate::support::process::scratch_dir;
use crate::support::turn;

const NAMESPACE: &str = "corrected";

#[test]
fn a_server_side_apply_that_is_wrong_holds_up_neither_the_corrected_one_nor_a_delete() {
    let test = "a_server_side_apply_that_is_wrong_holds_up_neither_the_corrected_one_nor_a_delete";
    let Some(plane) = ControlPlane::shared(test) else { return };
    let _turn = turn::light();
    plane.namespace(NAMESPACE);
    let gate = Gate::start(plane, "");
    let (user, dir) = (plane.master(), scratch_dir());
    let write = |name: &str, field: &str| {
        let text = format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: map}}, {field}: {{a: '1'}}}}");
        let path = dir.path().join(name);
        fs::write(&path, text).expect("the folder is ours");
        path.display().to_string()
    };
    let (wrong, right) = (write("wrong.yaml", "dada"), write("right.yaml", "data"));
    let kubectl = |args: &[&str]| {
        let args = [args, &["-n", NAMESPACE]].concat();
        let mut run = Way::Gate(&gate).command(&plane.binaries().path("kubectl"), &user, &args);
        let out = run.env("HOME", dir.path()).output().expect("kubectl runs");
        (
            out.status.success(),
            format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr)),
        )
    };
    // kubectl does not retry, so each step succeeds at once or not at all.
    for step in [&["apply", "--server-side", "-f", &right][..], &["delete", "configmap", "map"]] {
        for _ in 0..2 {
            let (done, said) = kubectl(&["apply", "--server-side", "-f", &wrong]);
            assert!(!done && said.contains("failed to create typed patch object"), "{said}");
        }
        let (done, said) = kubectl(step);
        assert!(done, "{step:?}: {said}");
    }
    let seen = plane.audit().of(&user.name).only(|event| event.name == "map" && event.verb != "get");
    let codes: Vec<_> = seen.0.iter().map(|event| (event.verb.as_str(), event.code)).collect();
    let wanted = [("patch", 500), ("patch", 500), ("patch", 201), ("patch", 500), ("patch", 500), ("delete", 200)];
    assert_eq!(codes, wanted);
}
