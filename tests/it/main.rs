//! Everything that is tested from outside, in one binary: linking hyper once instead of once a file saves minutes.

mod architecture;
mod credentials;
mod pool_dial;
mod pool_http1;
mod pool_streams;
mod pool_support;
mod tls;
