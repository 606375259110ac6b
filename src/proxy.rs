//! The proxy.
mod driver;
mod guard;
