//! Everything that is tested from outside, in one binary: linking hyper once instead of once a file saves minutes.

mod architecture;
mod golden;
mod limit;
