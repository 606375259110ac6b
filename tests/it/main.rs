//! Everything that is tested from outside, in one binary: linking hyper once instead of once a file saves minutes.

mod architecture;
mod classify;
mod cli;
mod cli_input;
mod cli_run;
mod cli_usage;
mod config;
mod credentials;
mod demo;
mod golden;
mod limit;
mod pool_dial;
mod pool_http1;
mod pool_streams;
mod pool_support;
mod proxy_coalesce;
mod proxy_failures;
mod proxy_hangups;
mod proxy_refusals;
mod proxy_tls;
mod proxy_transparency;
mod proxy_upgrades;
mod simulate;
mod support;
mod tls;
mod tunnel_memory;
