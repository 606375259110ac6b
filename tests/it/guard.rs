//! The guard, row by row: an attack as bytes, the answer, and the bytes that reached the upstream.
//! docs/internals/reliability.md lists the rows.

mod answers;
mod bytes;
mod corpus;
mod difference;
mod http2;
mod paths;
mod targets;
