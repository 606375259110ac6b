//! The gate against a real kube-apiserver, judged by the server's own audit log.
//!
//! The control plane is built from Go modules once into a per-user cache, and clients in other
//! languages are fetched into it. A test whose programs cannot be had says that it was skipped, and
//! passes; `TIDEGATE_LIVE=1` makes that a failure. Each module has one topic.

mod argocd;
mod backoff;
mod clock;
mod corrected;
mod credentials;
mod deploy;
mod exec;
mod faults;
mod get_or_create;
mod getting_started;
mod hangup;
mod helm;
mod helm_upgrade;
mod hub;
mod identity;
mod in_cluster;
mod kube_rs;
mod kubeconfigs;
mod kubectl;
mod leader;
mod loops;
mod manager;
mod new_kind;
mod operators;
mod outage;
mod packaged_chart;
mod pages;
mod pod;
mod policies;
mod rate;
mod recovery;
mod seats;
mod service;
mod smoke;
mod streams;
mod support;
mod throttled;
mod uploads;
mod webhook;

use testing::{admin, fetched, java, live, pages as follow, ports, store_server, store_servers, wait};
