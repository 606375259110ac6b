//! All tests from outside, in one binary: linking hyper once, instead of once for each file, saves
//! minutes.

mod architecture;
mod browser;
mod classify;
mod cli;
mod clients;
#[path = "../support/command.rs"]
mod command;
mod config;
mod credentials;
mod dashboard;
mod demo;
mod deploy;
mod docs;
mod doctor;
mod egress;
mod external_paths;
mod faults;
mod fetched;
mod floods;
#[path = "../support/pages.rs"]
mod follow;
mod frames;
mod github;
mod github_page;
mod golden;
mod guard;
mod inject;
mod keys;
#[path = "../support/live.rs"]
mod live;
mod log;
mod metrics;
mod operate;
mod page;
mod pool;
#[path = "../support/ports.rs"]
mod ports;
mod presets;
mod proxy;
mod quotas;
mod recorded;
mod references;
mod release;
mod reload;
mod shared;
mod sharing_page;
mod simulate;
#[path = "../support/store_server.rs"]
mod store_server;
#[path = "../support/store_servers.rs"]
mod store_servers;
mod supply;
mod support;
mod tls;
mod top;
mod trouble;
mod tunnel_memory;
mod watch_list;
mod webhook;
#[path = "../support/window.rs"]
mod window;
