//! A gate as a Service: one for many workloads, which it knows by the tokens of their service
//! accounts, as the real API server reviews them. The gate's own service account may ask for such
//! reviews, and nothing else.

use std::time::Duration;

use http::Method;
use serde_json::json;

use crate::kubectl;
use crate::manager;
use crate::support::client::{Connection, Protocol};
use crate::support::control_plane::{ControlPlane, User};
use crate::support::gate::{Gate, Way};
use crate::support::{block_on, say, turn, wait_for};

/// Makes the namespace with a service account for the gate, and returns that account. It may review
/// tokens only if it is `bound`.
fn reviewer(plane: &ControlPlane, namespace: &str, bound: bool) -> User {
    plane.namespace(namespace);
    let role = if bound { "system:auth-delegator" } else { "system:basic-user" };
    let rbac = "rbac.authorization.k8s.io";
    let items = json!([
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "tidegate", "namespace": namespace}},
        {"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": format!("{namespace}-reviews")},
         "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": role},
         "subjects": [{"kind": "ServiceAccount", "name": "tidegate", "namespace": namespace}]},
    ]);
    plane.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string());
    User { name: format!("system:serviceaccount:{namespace}:tidegate"), token: token(plane, namespace, "tidegate") }
}

/// Makes a workload's service account, which may do everything in its namespace.
fn workload(plane: &ControlPlane, namespace: &str, name: &str) -> User {
    let rbac = "rbac.authorization.k8s.io";
    let named = json!({"name": name, "namespace": namespace});
    let items = json!([
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": named},
        {"apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding", "metadata": named,
         "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "cluster-admin"},
         "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}]},
    ]);
    plane.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string());
    User { name: format!("system:serviceaccount:{namespace}:{name}"), token: token(plane, namespace, name) }
}

fn token(plane: &ControlPlane, namespace: &str, name: &str) -> String {
    plane.kubectl(&["create", "token", name, "-n", namespace, "--duration=1h"]).trim().to_owned()
}

#[test]
fn only_clients_that_the_api_server_knows_are_let_in_and_each_is_itself() {
    let Some(plane) = ControlPlane::shared("only_clients_that_the_api_server_knows_are_let_in_and_each_is_itself")
    else {
        return;
    };
    let _turn = turn::light();
    let namespace = "service-known";
    let gate = Gate::service(plane, &reviewer(plane, namespace, true), "");
    let [one, other] = ["one", "other"].map(|name| workload(plane, namespace, name));
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    let call = async |user: &User, protocol| {
        Connection::open(Way::Gate(&gate), user, protocol).await.call(Method::GET, &path, "").await
    };
    block_on(async {
        for protocol in [Protocol::Http1, Protocol::Http2] {
            for user in [&one, &other] {
                assert_eq!(call(user, protocol).await.0, 200);
            }
            for (token, says) in [
                (String::new(), "has no token"),
                ("wrong".to_owned(), "TokenReview rejected"),
                (one.token.get(1..).expect("a token").to_owned(), "TokenReview rejected"),
                (format!("{}x", one.token), "TokenReview rejected"),
            ] {
                let (status, answer) = call(&User { name: String::new(), token }, protocol).await;
                assert_eq!(status, 401, "{answer}");
                assert!(answer.contains("\"reason\":\"Unauthorized\"") && answer.contains(says), "{answer}");
            }
        }
    });
    let seen = plane.audit();
    let about = |user: &str| seen.of(user).only(|event| event.uri.starts_with(&path)).len();
    assert_eq!([about(&one.name), about(&other.name)], [2, 2], "each calls as itself");
    let all = seen.only(|event| event.uri.starts_with(&path));
    assert_eq!(all.len(), 4, "a call of a stranger reached the API server: {all:?}");
    let status = gate.status();
    let callers = status["gates"][0]["callers"].as_array().expect("a list");
    assert!(callers.iter().any(|caller| caller["client"] == one.name.as_str()), "{callers:?}");
}

#[test]
fn a_greedy_workload_leaves_the_turns_of_another_alone() {
    let Some(plane) = ControlPlane::shared("a_greedy_workload_leaves_the_turns_of_another_alone") else { return };
    let _turn = turn::light();
    let namespace = "service-fair";
    let settings = "preset = \"none\"\nqueue.fair_by = \"client\"\nbucket = { rate = 20, burst = 1 }";
    let gate = Gate::service(plane, &reviewer(plane, namespace, true), settings);
    let [greedy, modest] = ["greedy", "modest"].map(|name| workload(plane, namespace, name));
    let path = |name: &str| format!("/api/v1/namespaces/{namespace}/configmaps/{name}");
    let send = async |user: &User, name: String| {
        let mut connection = Connection::open(Way::Gate(&gate), user, Protocol::Http2).await;
        connection.call(Method::GET, &path(&name), "").await.0
    };
    block_on(async {
        let all = futures_util::future::join_all((0..100).map(|call| send(&greedy, format!("greedy-{call}"))));
        let few = async {
            while gate.waiting() < 50.0 {
                tokio::task::yield_now().await;
            }
            // At once, so that one of them is always in the queue, however slow the machine is.
            futures_util::future::join_all((0..10).map(|call| send(&modest, format!("modest-{call}")))).await
        };
        let (all, few) = tokio::join!(all, few);
        assert!(all.iter().chain(&few).all(|status| *status == 404), "{all:?} {few:?}");
    });
    // The order in which they left, as the gate's own log has it: while the modest one has a call
    // in the queue, one of the greedy one's goes before it, or two.
    let order = gate.departures_by_client(110);
    let first = order.iter().position(|client| *client == modest.name).expect("it called");
    let last = order.iter().rposition(|client| *client == modest.name).expect("it called");
    assert_eq!(order.len(), 110);
    let between = order[first..=last].split(|client| *client == modest.name).map(<[String]>::len);
    let most = between.max().expect("some");
    assert!(most <= 2, "{most} of the greedy one's calls between two of the other's");
    assert!(order[last..].len() > 50, "the greedy one was still waiting: {order:?}");
    say(format_args!("service: at most {most} calls of a greedy workload between two of another"));
}

#[test]
fn a_review_that_is_not_permitted_fails_closed_and_says_so() {
    let Some(plane) = ControlPlane::shared("a_review_that_is_not_permitted_fails_closed_and_says_so") else { return };
    let _turn = turn::light();
    let namespace = "service-closed";
    let gate = Gate::service(plane, &reviewer(plane, namespace, false), "");
    let one = workload(plane, namespace, "one");
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    block_on(async {
        let mut connection = Connection::open(Way::Gate(&gate), &one, Protocol::Http2).await;
        let answer = connection.send(Method::GET, &path, "").await.expect("answered");
        let (status, again) = (answer.status().as_u16(), answer.headers()["retry-after"].to_str().expect("text"));
        assert_eq!((status, again), (503, "1"));
        let (_, said) = connection.call(Method::GET, &path, "").await;
        for word in ["TokenReview fails", "403", "tokenreviews.authentication.k8s.io is forbidden"] {
            assert!(said.contains(word), "no {word} in {said}");
        }
    });
    assert_eq!(plane.audit().of(&one.name).len(), 0);
    // Once the right is given, nobody has to be restarted.
    reviewer(plane, &format!("{namespace}-right"), true);
    plane.kubectl(&[
        "create",
        "clusterrolebinding",
        "service-closed-now",
        "--clusterrole=system:auth-delegator",
        &format!("--serviceaccount={namespace}:tidegate"),
    ]);
    wait_for("the client is let in", Duration::from_secs(20), || {
        let status = block_on(async {
            Connection::open(Way::Gate(&gate), &one, Protocol::Http1).await.call(Method::GET, &path, "").await.0
        });
        (status == 200).then_some(())
    });
}

#[test]
fn kubectl_cannot_tell_the_service_from_the_api_server() {
    let Some(plane) = ControlPlane::shared("kubectl_cannot_tell_the_service_from_the_api_server") else { return };
    let _turn = turn::light();
    crate::support::widgets::install(plane);
    kubectl::create_many(plane);
    let gate = Gate::service(plane, &reviewer(plane, "service-kubectl", true), "preset = \"none\"");
    kubectl::compare(plane, &gate, &plane.master(), "service");
}

#[test]
fn a_controller_runtime_manager_works_through_the_service_as_it_does_directly() {
    const TEST: &str = "a_controller_runtime_manager_works_through_the_service_as_it_does_directly";
    let Some(plane) = ControlPlane::shared(TEST) else { return };
    let settings = "queue.fair_by = \"client\"";
    manager::manage(plane, "served-", true, || {
        Gate::service(plane, &reviewer(plane, "service-manager", true), settings)
    });
}
