//! Configuration: one TOML file, environment on top, checked into [`settings::Settings`].

pub mod settings;

pub use settings::Settings;
