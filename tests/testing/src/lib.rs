//! What several suites of tests need: the command, clients that are fetched or built once, stores,
//! providers that count, and the control plane of Kubernetes.

pub mod admin;
pub mod audit;
pub mod binaries;
pub mod command;
pub mod control_plane;
pub mod fetched;
pub mod java;
pub mod live;
pub mod pages;
pub mod ports;
pub mod process;
pub mod providers;
pub mod relay;
pub mod store_server;
pub mod store_servers;
pub mod turn;
pub mod wait;
pub mod window;
