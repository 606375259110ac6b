//! The commands of the binary: what is typed, what is printed, the exit code.

pub(crate) mod candidate;
pub(crate) mod inject;
pub(crate) mod input;
pub(crate) mod run;
pub(crate) mod shadow;
pub(crate) mod shell;
pub(crate) mod usage;
pub(crate) mod words;
