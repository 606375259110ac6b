//! A gate before many clusters: below `/c/NAME/`, kubectl and a manager of controller-runtime find
//! what they find directly. For kubectl's streams, `exec` shows it.

use crate::support::control_plane::ControlPlane;
use crate::support::gate::Gate;
use crate::support::{turn, widgets};
use crate::{kubectl, manager};

#[test]
fn kubectl_cannot_tell_a_cluster_of_the_hub_from_the_api_server() {
    let test = "kubectl_cannot_tell_a_cluster_of_the_hub_from_the_api_server";
    let Some(plane) = ControlPlane::shared(test) else { return };
    let _turn = turn::light();
    widgets::install(plane);
    kubectl::create_many(plane);
    let gate = Gate::hub(plane, &["one"], "preset = \"none\"");
    kubectl::compare(plane, &gate, &plane.master(), "hub");
    kubectl::compare_odd_paths(plane, &gate);
}

#[test]
fn a_controller_runtime_manager_works_through_the_hub_as_it_does_directly() {
    let test = "a_controller_runtime_manager_works_through_the_hub_as_it_does_directly";
    let Some(plane) = ControlPlane::shared(test) else { return };
    manager::manage(plane, "hub-", true, || Gate::hub(plane, &["one"], ""));
}
